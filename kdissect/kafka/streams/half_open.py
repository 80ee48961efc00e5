"""Half-open connections: those that carried no byte yet.

Scans and floods open connections by the million and say nothing on them. What the stream kernels remember of a
connection takes 1.8 KB; so a connection gets it when its first payload byte comes, or more than MOST packets. Until
then its packets lie here, 45 bytes each, and are taken then, in front of the packet that brought them up, as if they
had just come: rows do not depend on blocks. At the end of the capture those that never spoke are taken too, by lots.

`conn_of`, which says where on the heap the connection of a flow is, says here where its last packet lies: at -2 less
its number. Packets of a flow are chained backwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.kernels.kernel import kernel
from kdissect.kernels.structs import Records, Words
from kdissect.net.segment import (
    ACK,
    ACK_FLAG,
    AT,
    FLAGS,
    FLOW,
    LEN,
    PACKET,
    RST,
    SEGMENT_COLUMNS,
    SEQ,
    SYN,
    TIME,
    VIEW,
    WIRE,
)
from kdissect.tcp.layout import End

MOST = 4
"""Packets without payload: a handshake and its reset, or a SYN and its three first repetitions."""
CHUNK_BITS = 16
CHUNK = 1 << CHUNK_BITS
"""Packets that are kept together: 3 MB, and a quarter of that once there are so many and they are packed."""
CODEC = "zstd"
ALL = 2**63 - 1
LOT = 1 << 14
"""Connections that are finished at a time when the capture ends: some MB for their rows."""

_PACKET = np.dtype(
    [("time", "i8"), ("packet", "i8"), ("flags", "i8"), ("flow", "u4"), ("seq", "u4"), ("ack", "u4"), ("view", "u4"),
     ("before", "i4"), ("count", "u1")]
)  # fmt: skip
"""A packet without payload. `view`: code of its viewpoint; `before`: the packet before it in its flow, -1 none;
`count`: how many the flow has up to it."""
_NAMES = tuple(name for name in _PACKET.names or () if name != "count")


class _Packed(NamedTuple):
    """A full chunk."""

    columns: bytes
    counts: npt.NDArray[np.uint8]
    """`count` of each, which is asked for most."""

    @staticmethod
    def of(chunk: npt.NDArray[Any]) -> _Packed:
        """Column by column: neighbours are alike."""
        columns = [np.ascontiguousarray(chunk[name]) for name in _NAMES]
        steps = [np.diff(column, prepend=column.dtype.type(0)).tobytes() for column in columns]
        return _Packed(pa.compress(b"".join(steps), codec=CODEC, asbytes=True), chunk["count"].copy())

    def chunk(self) -> npt.NDArray[Any]:
        """What it was made of."""
        out = np.empty(CHUNK, _PACKET)
        raw = pa.decompress(self.columns, CHUNK * (_PACKET.itemsize - 1), codec=CODEC, asbytes=True)
        done = 0
        for name in _NAMES:
            kind = _PACKET[name]
            out[name] = np.cumsum(np.frombuffer(raw, kind, CHUNK, done), dtype=kind)
            done += CHUNK * kind.itemsize
        out["count"] = self.counts
        return out


SILENT = np.dtype(
    [("number", "i8"), ("flow", "i8"), ("first", "i8"), ("sequence", "i8"), ("client", "i1"), ("start_seen", "i1"),
     ("end", "i1")]
)  # fmt: skip
"""A connection of one packet without payload: fields of `Connection`."""


@kernel("i8[:,:] i8[:] b1 i8[:] -> b1")
def _all_known(segments: Words, order: Words, whole: bool, conn_of: Words) -> bool:
    """Whether all segment rows that `order` names, `whole`: all there are, belong to connections on the heap."""
    least = np.int64(0)
    for i in range(order.size):
        least = min(least, conn_of[segments[i if whole else order[i], FLOW] >> 1])
    return bool(least >= 0)


class HalfOpen:
    """The half-open connections of one capture."""

    def __init__(self) -> None:
        self._chunks: dict[int, _Packed] = {}
        self._last: npt.NDArray[Any] = np.empty(CHUNK, _PACKET)
        """The chunk that is not full yet."""
        self._unpacked: tuple[int, npt.NDArray[Any]] | None = None
        """The packed chunk that was asked for last, for the next who asks."""
        self._live: dict[int, int] = {}
        """Packets of a chunk that still wait."""
        self._end = 0
        self._views: Words = np.zeros(0, np.int64)
        self._codes: dict[int, int] = {}

    def sort_out(self, segments: Words, order: Words, conn_of: Words) -> tuple[Words, Words]:
        """Segment rows of a block and the order in which the kernels take them, flow by flow, without those that wait
        here from now on, and with those that wait no longer in front."""
        if _all_known(segments, order, len(order) == len(segments), conn_of):
            return segments, order
        flow = segments[order, FLOW] >> 1
        starts = np.flatnonzero(np.diff(flow, prepend=-1))
        flows = flow[starts]
        state = conn_of[flows]
        counts = np.diff(starts, append=len(order))
        silent = np.maximum.reduceat(segments[order, WIRE], starts) <= 0
        had = self._had(state)
        stays = (state < 0) & silent & (counts + had <= MOST)
        comes = (had > 0) & ~stays
        if stays.any():
            waits = np.repeat(stays, counts)
            self._put(segments[order[waits]], counts[stays], state[stays], had[stays], conn_of)
            order = order[~waits]
        if comes.any():
            back = self.take(flows[comes], conn_of)
            order = np.concatenate([len(segments) + np.arange(len(back)), order])
            segments = np.concatenate([segments, back])
        return segments, order

    def take(self, flows: Words, conn_of: Words) -> Words:
        """Segment rows of these flows, which wait no longer: each flow's in the order in which they came."""
        at = -2 - conn_of[flows]
        conn_of[flows] = -1
        found, numbers = self._chained(at)
        self._forget(numbers)
        return found

    def lots(self, conn_of: Words, before: int = ALL) -> Iterator[Words]:
        """The flows that wait, and whose last packet came before that time (ns), at most LOT at a time; each lot is to
        be taken before the next is asked for."""
        for number in sorted(self._live):
            at = np.arange(number << CHUNK_BITS, min((number + 1) << CHUNK_BITS, self._end))
            chunk = self._chunk(number)[: len(at)]
            flow = (chunk["flow"] >> 1).astype(np.int64)
            waiting = flow[(conn_of[flow] == -2 - at) & (chunk["time"] < before)]
            for first in range(0, len(waiting), LOT):
                yield waiting[first : first + LOT]

    def single(self, flows: Words, conn_of: Words) -> tuple[Records, Words]:
        """Connections of one packet among these flows, which wait no longer, as they are when they end; the others."""
        at = -2 - conn_of[flows]
        packets = self._gather(at)
        alone = packets["count"] == 1
        self._forget(at[alone])
        conn_of[flows[alone]] = -1
        packets = packets[alone]
        rows = np.zeros(len(packets), SILENT)
        side = packets["flow"] & 1
        rows["flow"] = packets["flow"] >> 1
        rows["first"] = packets["time"]
        rows["sequence"] = packets["seq"] | side.astype(np.int64) << 32
        reset = packets["flags"] & RST != 0
        syn, answers = (packets["flags"] & SYN != 0) & ~reset, packets["flags"] & ACK_FLAG != 0
        rows["client"] = np.where(syn, (side ^ answers).astype(np.int64), -1)
        rows["start_seen"] = syn & ~answers
        rows["end"] = np.where(reset, End.RST, End.OPEN)
        return rows, flows[~alone]

    def carried(self, conn_of: Words) -> Words:
        """Segment rows of all flows that wait, for `go_on`; they wait on."""
        flows = np.flatnonzero(conn_of <= -2)
        return self._chained(-2 - conn_of[flows])[0]

    def go_on(self, carried: Words, conn_of: Words) -> None:
        """Go on from what another carried; `conn_of` may still have its numbers."""
        conn_of[conn_of <= -2] = -1
        if len(carried):
            flow = carried[:, FLOW] >> 1
            starts = np.flatnonzero(np.diff(flow, prepend=-1))
            none = np.zeros(len(starts), np.int64)
            self._put(carried, np.diff(starts, append=len(flow)), none - 1, none, conn_of)

    def _chained(self, at: Words) -> tuple[Words, Words]:
        """Segment rows of these packets and all before them in their flows, flow by flow; their numbers."""
        found, numbers = [np.zeros(0, _PACKET)], [at]
        while len(at):
            packets = self._gather(at)
            found.append(packets)
            before = packets["before"].astype(np.int64)
            at = before[before >= 0]
            numbers.append(at)
        packets = np.concatenate(found)
        packets = packets[np.lexsort((packets["count"], packets["flow"] >> 1))]
        return self._segments(packets), np.concatenate(numbers)

    def _forget(self, at: Words) -> None:
        """These packets wait no longer: chunks of which none waits go."""
        gone = np.bincount(at >> CHUNK_BITS)
        for number in np.flatnonzero(gone).tolist():
            self._live[number] -= int(gone[number])
            if self._live[number] == 0 and number in self._chunks:
                del self._chunks[number], self._live[number]

    def _had(self, state: Words) -> Words:
        """How many packets wait of flows whose `conn_of` this is."""
        had = np.zeros(len(state), np.int64)
        waiting = np.flatnonzero(state <= -2)
        at = -2 - state[waiting]
        chunk = at >> CHUNK_BITS
        for number in np.unique(chunk).tolist():
            mine = chunk == number
            packed = self._chunks.get(number)
            counts = packed.counts if packed is not None else self._last["count"]
            had[waiting[mine]] = counts[at[mine] & CHUNK - 1]
        return had

    def _chunk(self, number: int) -> npt.NDArray[Any]:
        packed = self._chunks.get(number)
        if packed is None:
            return self._last
        if self._unpacked is None or self._unpacked[0] != number:
            self._unpacked = number, packed.chunk()
        return self._unpacked[1]

    def _gather(self, at: Words) -> npt.NDArray[Any]:
        """Packets by their numbers."""
        chunk = at >> CHUNK_BITS
        if len(at) and (chunk == chunk[0]).all():
            found: npt.NDArray[Any] = self._chunk(int(chunk[0]))[at & CHUNK - 1]
            return found
        out = np.empty(len(at), _PACKET)
        for number in np.unique(chunk).tolist():
            mine = np.flatnonzero(chunk == number)
            out[mine] = self._chunk(number)[at[mine] & CHUNK - 1]
        return out

    def _put(self, rows: Words, counts: Words, state: Words, had: Words, conn_of: Words) -> None:
        """Let segment rows wait, flow by flow: of each flow so many, and what is known of it."""
        n = len(rows)
        at = self._end + np.arange(n)
        firsts = np.cumsum(counts) - counts
        before = at - 1
        before[firsts] = np.where(state <= -2, -2 - state, -1)
        packets = np.empty(n, _PACKET)
        columns = ("time", TIME), ("packet", PACKET), ("flags", FLAGS), ("flow", FLOW), ("seq", SEQ), ("ack", ACK)
        for name, column in columns:
            packets[name] = rows[:, column]
        packets["view"] = self._coded(rows[:, VIEW])
        packets["before"] = before
        packets["count"] = np.arange(n) - np.repeat(firsts - had, counts) + 1
        lasts = firsts + counts - 1
        conn_of[rows[lasts, FLOW] >> 1] = -2 - at[lasts]
        done = 0
        while done < n:
            number, begin = self._end >> CHUNK_BITS, self._end & CHUNK - 1
            count = min(n - done, CHUNK - begin)
            self._last[begin : begin + count] = packets[done : done + count]
            self._live[number] = self._live.get(number, 0) + count
            self._end += count
            done += count
            if begin + count == CHUNK:
                self._chunks[number] = _Packed.of(self._last)

    def _coded(self, views: Words) -> Words:
        """Codes of viewpoints: there are few, a word each is too much."""
        if len(views) and (views == views[0]).all():
            distinct, inverse = views[:1], np.zeros(len(views), np.int64)
        else:
            distinct, inverse = np.unique(views, return_inverse=True)
        fresh = [view for view in distinct.tolist() if view not in self._codes]
        if fresh:
            self._codes.update({view: len(self._codes) + i for i, view in enumerate(fresh)})
            self._views = np.concatenate([self._views, np.array(fresh, np.int64)])
        return np.array([self._codes[view] for view in distinct.tolist()], np.int64)[inverse]

    def _segments(self, packets: npt.NDArray[Any]) -> Words:
        """Segment rows, as they were but for where their empty payload lies."""
        rows = np.zeros((len(packets), SEGMENT_COLUMNS), np.int64)
        columns = (TIME, "time"), (PACKET, "packet"), (FLAGS, "flags"), (FLOW, "flow"), (SEQ, "seq"), (ACK, "ack")
        for column, name in columns:
            rows[:, column] = packets[name]
        rows[:, [AT, LEN, WIRE]] = 0
        rows[:, VIEW] = self._views[packets["view"]]
        return rows
