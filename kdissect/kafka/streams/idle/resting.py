"""Connections that rest: packed, until a packet of theirs comes.

The struct of a connection takes 1.8 KB, most of it for what moves only while packets come. With very many connections
most of them rest: they are idle, or they ended and stay for late packets. A connection without a waiting request, a
piece of a frame or a segment ahead of a hole is taken off the heap and packed, to a tenth of that. This starts once the
heap holds more than LIVE of them. They come back word for word when the next block has a packet of theirs, and to be
finished. Only the rings of recent packets stay behind, which no kernel reads after 0.1 s, and the bytes of segments
that may come once more, whose fingerprints are kept. So it shows in nothing but memory.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import distinct
from kdissect.arrays.growing import grown, read
from kdissect.kafka.streams.repeats import remember_all
from kdissect.kernels.structs import Bytes, Words, offsets
from kdissect.tcp.layout import CONNECTION_WIDTH, CONTROL, RECENT, Connection, End, Mode, control_at

C = offsets(Connection)

LIVE = 8192
"""Connections that stay on the heap in any case: 15 MB, and more than most captures have."""
REST_NS = 1_000_000_000
"""Idle for so long they may be packed. Copies of a packet are looked for within 0.1 s."""
LOT = 2048
"""Connections packed together, and brought back at a time to be finished."""
CODEC = "zstd"

_RINGS: Words = np.concatenate([side.ring + np.arange(RECENT) for side in C.directions])
_WORDS: Words = np.delete(np.arange(CONNECTION_WIDTH), _RINGS)


class _Lot(NamedTuple):
    """Some packed connections, their words column by column, and what is asked of them while they rest."""

    packed: bytes
    flow: Words
    last: Words
    ended: npt.NDArray[np.bool_]
    here: npt.NDArray[np.bool_]
    """Those that were not brought back yet."""

    def words(self) -> Words:
        """int64[connections, words]."""
        raw = pa.decompress(self.packed, len(self.flow) * len(_WORDS) * 8, codec=CODEC, asbytes=True)
        return np.frombuffer(raw, np.int64).reshape(len(_WORDS), -1).T


class Parked:
    """The connections of a capture that rest."""

    def __init__(self) -> None:
        self.count = 0
        self._lots: dict[int, _Lot] = {}
        self._made = 0
        self._lot_of: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        """By flow, 1 + the lot that its connection is in; 0 none."""

    def park(self, M: Words, window: Bytes, connections: Words, conn_of: Words, now: int) -> None:
        """Pack what rests, when there is much of it. `connections`: addresses of all structs, free ones too; `now`: the
        time of the last packet."""
        live = connections[M[connections + C.number] >= 0]
        if len(live) <= LIVE:
            return
        resting = live[now - M[live + C.last] > REST_NS]
        for word, value in ((C.request_head, -1), (C.held_head, -1), (C.sealed, 0), (C.news, 0)):
            resting = resting[M[resting + word] == value]
        for side in C.directions:
            for word in (side.head, side.ahead_head, side.at):
                resting = resting[M[resting + word] == -1]
            between = (M[resting + side.need] < 0) & (M[resting + side.prefix_bytes] == 0)
            resting = resting[between | (M[resting + side.mode] == Mode.IGNORED)]
        if len(resting) < LIVE // 4:
            return
        remember_all(M, window, resting)
        resting = resting[np.argsort(M[resting + C.number], kind="stable")]
        for first in range(0, len(resting), LOT):
            self._pack(M, resting[first : first + LOT], conn_of)

    def _pack(self, M: Words, rows: Words, conn_of: Words) -> None:
        words = np.ascontiguousarray(M[rows + _WORDS[:, None]])
        flow = M[rows + C.flow]
        self._made += 1
        self._lots[self._made] = _Lot(
            pa.compress(words, codec=CODEC, asbytes=True), flow, M[rows + C.last], M[rows + C.end] != End.OPEN,
            np.ones(len(rows), np.bool_),
        )  # fmt: skip
        self._lot_of = grown(self._lot_of, len(conn_of))
        self._lot_of[flow] = self._made
        conn_of[flow] = -1
        self.count += len(rows)
        M[rows + C.number] = -1
        M[rows[:-1] + C.flow] = rows[1:]
        control = control_at(M, CONTROL)
        M[rows[-1] + C.flow] = control.connection_free
        control.connection_free = rows[0]
        control.connections_left += len(rows)

    def holds(self, flows: Words) -> npt.NDArray[np.bool_]:
        """Whether the connections of these flows rest."""
        found: npt.NDArray[np.bool_] = read(self._lot_of, flows) > 0
        return found

    def select_resting(self, flows: Words) -> Words:
        """The given flows whose connections rest, each once."""
        found: Words = distinct(flows[self.holds(flows)])
        return found

    def due(self, before: int, ended: bool = True) -> Words:
        """Flows of connections whose last packet came before that time (ns), and that ended or, where `ended` is not
        asked for, did not: at most LOT."""
        lots = [lot for lot in self._lots.values() if not ended or lot.ended.any()]
        found = [lot.flow[lot.here & (lot.ended | (not ended)) & (lot.last < before)] for lot in lots]
        return np.concatenate(found)[:LOT] if found else np.zeros(0, np.int64)

    def some(self) -> Words:
        """Flows of at most LOT connections that rest, the oldest first."""
        for lot in self._lots.values():
            return lot.flow[lot.here]
        return np.zeros(0, np.int64)

    def scattered(self) -> Words:
        """Flows of lots that were mostly brought back, to be packed again with others: at most LOT."""
        found = [lot.flow[lot.here] for lot in self._lots.values() if 2 * lot.here.sum() < len(lot.here)]
        return np.concatenate(found)[:LOT] if found else np.zeros(0, np.int64)

    def bring_back(self, flows: Words, M: Words, connections: Words, conn_of: Words) -> None:
        """Put connections that rest back on the heap, where at least as many structs are free."""
        free = connections[M[connections + C.number] < 0]
        places, free = free[: len(flows)], free[len(flows) :]
        M[free[:-1] + C.flow] = free[1:]
        if len(free):
            M[free[-1] + C.flow] = -1
        control = control_at(M, CONTROL)
        control.connection_free = free[0] if len(free) else -1
        control.connections_left = len(free)
        lots = self._lot_of[flows]
        for number in distinct(lots).tolist():
            lot = self._lots[number]
            mine = flows[lots == number]
            order = np.argsort(lot.flow, kind="stable")
            rows = order[np.searchsorted(lot.flow, mine, sorter=order)]
            at = places[lots == number]
            M[at[:, None] + _WORDS] = lot.words()[rows]
            M[at[:, None] + _RINGS] = 0
            M[at + C.place] = at
            conn_of[mine] = at
            lot.here[rows] = False
            if not lot.here.any():
                del self._lots[number]
        self._lot_of[flows] = 0
        self.count -= len(flows)
