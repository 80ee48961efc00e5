"""Segments in, finished exchanges out: the host of the stream kernels.

A `Dissector` follows all connections of one capture. `feed` takes the segment rows of a block and yields `Harvest`s:
exchanges with the places of their frames, connections that ended, problems. It owns the arrays, makes them larger when a
kernel asks for room, and moves bytes that are still needed out of the window before the window forgets them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kdissect.capture.window import EXTRA, Window
from kdissect.kafka.fit import Programs
from kdissect.kafka.keeping import keep
from kdissect.kafka.pairing import HEAD_BYTES
from kdissect.kafka.resync import SCRATCH
from kdissect.kafka.state import KEPT, R_BYTES, R_HEAD, R_NEXT, R_WIDTH, X_WIDTH, State
from kdissect.kafka.streams import E_WIDTH, LINGER_NS, MARGIN, NODE_MARGIN, finish_some, group, release_nodes, run
from kdissect.net.segment import FLOW, TIME
from kdissect.tcp.layout import (
    C_END,
    C_FLOW,
    C_LAST,
    C_NUMBER,
    C_WIDTH,
    D_WIDTH,
    END_OPEN,
    K_CLIENT_BYTES,
    K_CLIENT_IDS,
    K_CONNECTION_FREE,
    K_CONNECTIONS_LEFT,
    K_NODE_FREE,
    K_NODES_LEFT,
    K_OUT,
    K_PHASE,
    K_PROBLEMS,
    K_REQUEST_FREE,
    K_REQUESTS_LEFT,
    K_RESUME,
    K_SINGLE,
    K_SLOT,
    K_WIDTH,
    N_NEXT,
    N_WIDTH,
    P_WIDTH,
    RECENT,
)

if TYPE_CHECKING:
    from kdissect.kafka.gathering import Reader

Matrix = npt.NDArray[np.int64]

KEPT_LIMIT = 256 << 20
"""Bytes moved out of the window at most: half of the memory that a run may use. What is beyond is treated as cut off."""


@dataclass(slots=True)
class Harvest:
    """What one call of the kernels finished. The matrices are views: use them before asking for more."""

    exchanges: Matrix
    """Rows of X, see `kdissect.kafka.state`."""
    ended: Matrix
    """Finished connections: rows of C, then both rows of D."""
    problems: Matrix
    """Rows of P, see `kdissect.tcp.layout`."""


def _chain(first: int, last: int, onto: int) -> Matrix:
    """Links of a free list over the rows first..last-1, ending in `onto`."""
    links = np.arange(first + 1, last + 1, dtype=np.int64)
    links[-1] = onto
    return links


def _larger(array: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    fresh = np.zeros((rows, *array.shape[1:]), array.dtype)
    fresh[: len(array)] = array
    return fresh


class Dissector:
    """All connections of one capture.

    `programs` are the layouts that bodies are tried against. `window` is where input bytes lie.
    """

    def __init__(self, window: Window, programs: Programs, reader: Reader) -> None:
        self.window = window
        self.reader = reader
        zeros = np.zeros
        i64 = np.int64
        self.K: Matrix = zeros(K_WIDTH, i64)
        for word in (K_NODE_FREE, K_CONNECTION_FREE, K_REQUEST_FREE):
            self.K[word] = -1
        self.C: Matrix = zeros((0, C_WIDTH), i64)
        self.D: Matrix = zeros((0, D_WIDTH), i64)
        self.recent: npt.NDArray[np.int64] = zeros((0, RECENT, 3), i64)
        self.N: Matrix = zeros((0, N_WIDTH), i64)
        self.R: Matrix = zeros((0, R_WIDTH), i64)
        self.P: Matrix = zeros((2 * MARGIN, P_WIDTH), i64)
        self.X: Matrix = zeros((3 * MARGIN, X_WIDTH), i64)
        self.E: Matrix = zeros((4096, E_WIDTH), i64)
        self.conn_of = np.full(1024, -1, i64)
        self.kept = zeros(1, np.uint8)
        self.head = zeros(HEAD_BYTES, np.uint8)
        self.scratch = zeros(SCRATCH, np.uint8)
        self.names = zeros(1 << 16, np.uint8)
        self.name_ends = zeros(1 << 10, i64)
        self.name_table = np.full(1 << 12, -1, i64)
        self.programs = programs
        self.out = zeros(8, i64)
        self._decoded_names: list[str] = []
        self._make_room()

    # ---- arrays

    @property
    def state(self) -> State:
        """The arrays as they are now."""
        return State(
            self.C, self.D, self.N, self.R, self.K, self.P, self.X, self.recent, self.conn_of, self.window.data,
            self.window.slots, self.kept, self.head, self.scratch, self.names, self.name_ends, self.name_table,
            self.programs.table, self.programs.flexible, self.programs.arrays, self.out,
        )  # fmt: skip

    def _make_room(self) -> None:
        """Enlarge whatever a kernel may have run out of."""
        K = self.K
        if K[K_CONNECTIONS_LEFT] < 2:
            old = len(self.C)
            new = max(256, old * 2)
            self.C = _larger(self.C, new)
            self.C[old:, C_NUMBER] = -1
            self.C[old:, C_FLOW] = _chain(old, new, int(K[K_CONNECTION_FREE]))
            self.D = _larger(self.D, 2 * new)
            self.recent = _larger(self.recent, 2 * new)
            K[K_CONNECTION_FREE] = old
            K[K_CONNECTIONS_LEFT] += new - old
        if K[K_NODES_LEFT] < 2 * NODE_MARGIN:
            old = len(self.N)
            new = max(4 * NODE_MARGIN, old + old // 2)
            self.N = _larger(self.N, new)
            self.N[old:, N_NEXT] = _chain(old, new, int(K[K_NODE_FREE]))
            self.N[old:, 1] = -3
            K[K_NODE_FREE] = old
            K[K_NODES_LEFT] += new - old
        if K[K_REQUESTS_LEFT] < MARGIN:
            old = len(self.R)
            new = max(2 * MARGIN, old + old // 2)
            self.R = _larger(self.R, new)
            self.R[old:, R_NEXT] = _chain(old, new, int(K[K_REQUEST_FREE]))
            self.R[old:, R_HEAD] = -1
            self.R[old:, R_BYTES] = 0
            K[K_REQUEST_FREE] = old
            K[K_REQUESTS_LEFT] += new - old
        self._room_for_names()

    def _room_for_names(self) -> None:
        codes = int(self.K[K_CLIENT_IDS])
        if codes * 4 > len(self.name_table) and codes < MAX_CLIENT_IDS:
            self.name_ends = _larger(self.name_ends, max(len(self.name_ends), 8 * codes))
            self.name_table = _rehash(self.names, self.name_ends, codes, 4 * len(self.name_table))
        if self.K[K_CLIENT_BYTES] * 2 > len(self.names) and codes < MAX_CLIENT_IDS:
            self.names = _larger(self.names, 2 * len(self.names))

    @property
    def client_ids(self) -> list[str]:
        """Client ids by code; one list that grows."""
        done = len(self._decoded_names)
        for code in range(done, int(self.K[K_CLIENT_IDS])):
            a, e = int(self.name_ends[code]), int(self.name_ends[code + 1])
            self._decoded_names.append(self.names[a:e].tobytes().decode("utf-8", "replace"))
        return self._decoded_names

    # ---- work

    def feed(self, segments: Matrix, flows: int) -> Iterator[Harvest]:
        """Take the segment rows of one block; `flows` is how many flows there are by now."""
        n = len(segments)
        if n == 0:
            return
        if flows > len(self.conn_of):
            grown = np.full(max(flows, 2 * len(self.conn_of)), -1, np.int64)
            grown[: len(self.conn_of)] = self.conn_of
            self.conn_of = grown
        order = np.empty(n, np.int64)
        if flows <= 8 * n:
            group(segments, n, np.empty(flows + 1, np.int64), order)
        else:
            order = np.argsort(segments[:, FLOW] >> 1, kind="stable")
        self.K[K_RESUME] = 0
        self.K[K_PHASE] = 0
        self.K[K_SLOT] = self.window.current
        while True:
            done = run(self.state, segments, order, n, self.E)
            yield self._harvest()
            if done:
                break
        yield from self._retire(int(segments[:, TIME].max()))

    def _harvest(self) -> Harvest:
        """What the kernels wrote since the last time; the caller has used it when this is called again."""
        K = self.K
        harvest = Harvest(self.X[: K[K_OUT]], self.E[: K[K_SINGLE]].copy(), self.P[: K[K_PROBLEMS]].copy())
        K[K_SINGLE] = 0
        K[K_PROBLEMS] = 0
        self._make_room()
        return harvest

    def used(self, harvest: Harvest) -> None:
        """The frames of a harvest are not needed any more: their nodes are free."""
        release_nodes(self.state, len(harvest.exchanges))
        self.K[K_OUT] = 0

    def _retire(self, now: int) -> Iterator[Harvest]:
        """Finish connections that ended so long ago that no late packet can belong to them."""
        C = self.C
        which = np.flatnonzero((C[:, C_NUMBER] >= 0) & (C[:, C_END] != END_OPEN) & (now - C[:, C_LAST] > LINGER_NS))
        yield from self._finish(which)

    def finish(self) -> Iterator[Harvest]:
        """The capture ended: finish every connection."""
        open_rows = np.flatnonzero(self.C[:, C_NUMBER] >= 0)
        yield from self._finish(open_rows[np.argsort(self.C[open_rows, C_NUMBER], kind="stable")])

    def _finish(self, which: npt.NDArray[np.intp]) -> Iterator[Harvest]:
        begin = 0
        while begin < len(which):
            begin = finish_some(self.state, which.astype(np.int64), begin, self.E, END_OPEN)
            yield self._harvest()

    def before_next_block(self, rereadable: bool) -> None:
        """Move what is still needed out of the slot which the window fills next."""
        window = self.window
        ring = window.ring
        row = window.slots[(window.current + 1) % ring]
        after = window.slots[(window.current + 2) % ring]
        low, high = int(row[0]), int(row[1])
        if low < int(after[0]) < high:
            high = int(after[0])
        extra = bool((window.slots[ring:, 1] > EXTRA).any())
        if low == high and not extra and len(self.kept) <= 1:
            return
        state = self.state
        size = keep(state, low, high, not rereadable or extra, self.kept, False)
        fresh = np.zeros(max(1, min(size, KEPT_LIMIT)), np.uint8)
        if size:
            keep(state, low, high, not rereadable or extra, fresh, True)
        self.kept = fresh


MAX_CLIENT_IDS = 1 << 20
"""Distinct client ids that are told apart; later ones are shown as null. Fleets have thousands, not millions."""


def _rehash(names: npt.NDArray[np.uint8], ends: Matrix, codes: int, size: int) -> Matrix:
    """The table of client ids at a new size (the hash is that of `client_code`)."""
    table = np.full(size, -1, np.int64)
    mask = size - 1
    for code in range(codes):
        h = 1469598103
        for x in names[int(ends[code]) : int(ends[code + 1])].tolist():
            h = ((h ^ x) * 16777619) & 0x7FFFFFFF
        h &= mask
        while table[h] >= 0:
            h = (h + 1) & mask
        table[h] = code
    return table


__all__ = ["KEPT", "Dissector", "Harvest"]
