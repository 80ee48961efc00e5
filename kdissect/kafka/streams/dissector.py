"""Segments in, finished exchanges out: the host of the stream kernels.

A `Dissector` follows all connections of one capture. `feed` takes the segment rows of a block and yields `Harvest`s:
exchanges with the places of their frames, connections that ended, problems. It owns the arrays, makes them larger
when a kernel asks for room, and moves bytes that are still needed out of the window before the window forgets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from kdissect.arrays.arrow import distinct
from kdissect.capture.window import EXTRA, Window
from kdissect.kafka.streams import state as st
from kdissect.kafka.streams.connection_kernel import (
    FINISHING,
    LINGER_NS,
    NODE_MARGIN,
    PACKETS,
    PLAINTEXT,
    group,
    release_nodes,
    run,
)
from kdissect.kafka.streams.encryption.unsealing import Unsealer
from kdissect.kafka.streams.idle.half_open import ALL, LOT, HalfOpen
from kdissect.kafka.streams.idle.prospects import find_meaningless, find_requests
from kdissect.kafka.streams.idle.resting import Parked
from kdissect.kafka.streams.idle.waiting_packets import SILENT, silent_rows
from kdissect.kafka.streams.kept_bytes import GIVE_UP, LEAVE, MOVE, keep
from kdissect.kafka.streams.state import Exchange, Frame, Request, Sealed
from kdissect.kernels.structs import Bytes, Flags, Records, Words, offsets, record, structs, width
from kdissect.net.segment import SEGMENT, SEGMENT_COLUMNS
from kdissect.schema.fit import Programs
from kdissect.tcp.layout import (
    CONNECTION_WIDTH,
    MAX_SLOTS,
    SLOTS,
    Connection,
    Control,
    End,
    Node,
    Phase,
    Problem,
    node_at,
)

C, K, N, R = offsets(Connection), offsets(Control), offsets(Node), offsets(Request)

NO_SEGMENTS: Words = np.zeros((0, SEGMENT_COLUMNS), np.int64)
NONE_SILENT: Records = np.zeros(0, SILENT)

ROOM = 8 << 20
"""Words for structs at first: enough for some thousand connections. Pages that nobody writes to cost nothing."""
TOGETHER = 1 << 10
"""Half-open connections that are driven at a time when they end, or come back with their bytes: 4 MB on the heap."""
KEPT_LIMIT = 256 << 20
"""Bytes moved out of the window at most: half of the memory that a run may use. When there would be more, the bulk of
the frames that are being received is given up, of fetches and produces the record payloads."""


def by_flow(segments: Words, flows: int) -> Words:
    """Places of segment rows, flow by flow, in each as they came; `flows` is how many flows there are by now."""
    n = len(segments)
    if flows > 8 * n:
        found: Words = np.argsort(segments[:, SEGMENT.flow] >> 1, kind="stable")
        return found
    order = np.empty(n, np.int64)
    group(segments, n, np.empty(flows + 1, np.int64), order)
    return order


class Harvest:
    """The result of one call of the kernels. `exchanges` is a view: call `Dissector.used` when done with it."""

    def __init__(self, exchanges: Records, ended: Records, problems: Records, silent: Records) -> None:
        self.exchanges = exchanges
        """`Exchange`, see `kdissect.kafka.streams.state`."""
        self.ended = ended
        """Finished connections: `Connection`, see `kdissect.tcp.layout`."""
        self.problems = problems
        """`Problem`."""
        self.silent = silent
        """Connections of one packet that says nothing, from begin to end: `SILENT`."""


class Dissector:
    """All connections of one capture.

    `programs` are the layouts that bodies are tried against. `window` is where input bytes lie. Without `unsealer` TLS
    is left alone.
    """

    LANE = True
    """Whether packets that are as expected take the fast lane (`fast_lane`): it shows in nothing but time."""

    def __init__(self, window: Window, programs: Programs, unsealer: Unsealer | None = None) -> None:
        self.window = window
        self.programs = programs
        self.unsealer = unsealer
        self._end = st.STRUCTS
        self.M: Words = np.zeros(st.STRUCTS + ROOM, np.int64)
        self.A: Bytes = np.zeros(st.KEPT_BASE + 1, np.uint8)
        self.conn_of: Words = np.full(1024, -1, np.int64)
        self._connections: Words = np.zeros(0, np.int64)
        self._requests: Words = np.zeros(0, np.int64)
        self._fresh = self._fresh_end = 0
        """Where requests lie that may never have been taken, see `Control.request_fresh`; `_requests` are others."""
        self._nodes = 0
        self._ended: list[Words] = []
        self._parked = Parked()
        self._half_open = HalfOpen()
        self.now = 0
        """The latest time among the segments fed last, ns."""
        self._put_off = False
        """What the kernels finish stays where it is until `finish`."""
        self._names: list[str] = []
        M = self.M
        M[st.FLEXIBLE : st.FLEXIBLE + programs.flexible.size] = programs.flexible.ravel()
        M[st.TABLE : st.TABLE + programs.table.size] = programs.table.ravel()
        M[st.NAME_TABLE : st.NAME_TABLE + st.NAME_SLOTS] = -1
        M[K.sealing] = unsealer is not None
        M[K.lane] = self.LANE
        for word in (K.node_free, K.connection_free, K.request_free):
            M[word] = -1
        self._make_room()

    # ---- the heap

    def _room(self, words: int) -> int:
        """The address of so many zeros at the heap's end."""
        begin, need = self._end, self._end + words
        if need > len(self.M):
            grown = np.zeros(need + (need - st.STRUCTS) // 4, np.int64)
            grown[: st.X_BASE] = self.M[: st.X_BASE]
            grown[st.STRUCTS : begin] = self.M[st.STRUCTS : begin]
            self.M = grown
        self._end = need
        return begin

    def _structs(self, count: int, width: int, free: int, free_count: int) -> Words:
        """Addresses of `count` new free structs of `width` words at the heap's end, chained onto the free list."""
        begin = self._room(count * width)
        made = np.arange(begin, self._end, width, dtype=np.int64)
        self._chain(made, free)
        self.M[free_count] += count
        return made

    def _chain(self, structs: Words, free: int) -> None:
        """Put structs onto a free list."""
        if len(structs):
            self.M[structs[:-1]] = structs[1:]
            self.M[structs[-1]] = self.M[free]
            self.M[free] = structs[0]

    def _make_room(self) -> None:
        """Makes more room of each kind that a kernel may have run out of. The output rows must be empty."""
        if self.M[K.connections_left] < 2:
            self._more_connections(max(256, len(self._connections) // 4))
        while self.M[K.nodes_left] < 2 * NODE_MARGIN:
            made = self._structs(max(2 * NODE_MARGIN, self._nodes // 2), width(Node), K.node_free, K.nodes_left)
            self.M[made + N.at] = -3
            self._nodes += len(made)
        while self.M[K.requests_left] < st.MARGIN:
            self._more_requests(2 * st.MARGIN)

    def _more_requests(self, count: int) -> None:
        """Further requests, which are not touched before they are taken; what is left of those before is a list."""
        size = width(Request)
        left = np.arange(self.M[K.request_fresh], self._fresh_end, size, dtype=np.int64)
        self.M[left + R.frame.head] = -1
        self._chain(left, K.request_free)
        self._requests = np.concatenate([self._requests, np.arange(self._fresh, self._fresh_end, size)])
        self._fresh = self._room(count * size)
        self._fresh_end = self._end
        self.M[K.request_fresh] = self._fresh
        self.M[K.requests_left] += count

    @property
    def requests(self) -> Words:
        """Addresses in `M` of the structs of requests that were ever taken, free ones too."""
        taken = np.arange(self._fresh, self.M[K.request_fresh], width(Request))
        return np.concatenate([self._requests, taken])

    def _more_connections(self, count: int) -> None:
        made = self._structs(count, CONNECTION_WIDTH, K.connection_free, K.connections_left)
        self.M[made + C.number] = -1
        self._connections = np.concatenate([self._connections, made])

    @property
    def client_ids(self) -> list[str]:
        """Client ids by code; one list that grows."""
        for code in range(len(self._names), int(self.M[K.client_ids])):
            a, e = int(self.M[st.NAME_ENDS + code]), int(self.M[st.NAME_ENDS + code + 1])
            self._names.append(self.A[st.NAMES + a : st.NAMES + e].tobytes().decode("utf-8", "replace"))
        return self._names

    def news(self) -> Records:
        """`Connection` of connections that are new, or whose client was found, since the last call (copies)."""
        M = self.M
        rows = self._connections if M[K.news] else self._connections[:0]
        M[K.news] = 0
        rows = rows[(M[rows + C.number] >= 0) & (M[rows + C.news] == 1)]
        M[rows + C.news] = 0
        found: Records = M[rows[:, None] + np.arange(CONNECTION_WIDTH)].view(record(Connection))[:, 0]
        return found

    @property
    def connections(self) -> Words:
        """Addresses in `M` of the structs of connections, free ones (whose number is below 0) too."""
        return self._connections

    @property
    def resting(self) -> int:
        """Connections that are packed away, and whose structs are not among `connections`."""
        return self._parked.count

    @property
    def half_open_since(self) -> int:
        """When the first of the payloads came that half-open connections have, ns; `ALL` for none."""
        return self._half_open.earliest()

    # ---- work

    def _aim(self) -> None:
        """Tell the kernels where the window's bytes are."""
        slots = self.window.slots
        if len(slots) > MAX_SLOTS:
            raise ValueError(f"a window has at most {MAX_SLOTS} slots")
        self.M[SLOTS : SLOTS + slots.size] = slots.ravel()
        self.M[K.slot] = SLOTS + 3 * self.window.current

    def feed(self, segments: Words, flows: int, order: Words | None = None, last: bool = False) -> Iterator[Harvest]:
        """Take the segment rows of one block; `flows` is how many flows there are by now. `order`: which of the rows,
        flow by flow (`by_flow`); None: all. `last`: nothing but `finish` comes behind them, which gives what they
        finish together with its own, as far as there is room."""
        self._put_off = last and not self._parked.count  # who comes back may need room, which is made between rows
        if not len(segments):
            return
        if order is None:
            order = by_flow(segments, flows)
        if flows > len(self.conn_of):
            grown = np.full(flows + flows // 4, -1, np.int64)
            grown[: len(self.conn_of)] = self.conn_of
            self.conn_of = grown
        if self._parked.count:
            self._bring_back(self._parked.select_resting(segments[:, SEGMENT.flow] >> 1))
        self.now = now = int(segments[:, SEGMENT.time].max())
        if len(order):
            yield from self._take_block(segments, order)
        while True:
            rows = self._connections
            M = self.M
            yield from self._finish(
                rows[(M[rows + C.number] >= 0) & (M[rows + C.end] != End.OPEN) & (now - M[rows + C.last] > LINGER_NS)]
            )
            due = self._parked.due(now - LINGER_NS)
            if not len(due):
                break
            self._bring_back(due)

    def _take_block(self, segments: Words, order: Words) -> Iterator[Harvest]:
        """Drive these segment rows but for those that wait, behind those that waited for them."""
        self._aim()

        def requests(rows: Words) -> Flags:
            found = np.zeros(len(rows), np.bool_)
            find_requests(self.M, self.window.data, self.A, self.programs.arrays, segments, rows, found)
            return found

        together, order, later = self._half_open.sort_out(segments, order, self.conn_of, requests)
        if len(later):
            self._put_off = False  # bytes move in between
        yield from self._drive_segments(together, order)
        flow = segments[later, SEGMENT.flow] >> 1
        for back in self._half_open.back(distinct(flow), self.conn_of, self.window, TOGETHER):
            first, last = back[[0, -1], SEGMENT.flow] >> 1
            mine = later[np.searchsorted(flow, first) : np.searchsorted(flow, last, "right")]
            back = np.concatenate([back, segments[mine]])
            yield from self._drive_segments(back, np.arange(len(back)))
            self._keep(0, 0, LEAVE)

    def _drive_segments(self, segments: Words, order: Words) -> Iterator[Harvest]:
        """Drive these of the segment rows."""
        self.M[K.resume] = 0
        self.M[K.phase] = Phase.NEW
        self._aim()
        yield from self._drive(segments, order, PACKETS)

    def _bring_back(self, flows: Words) -> None:
        """Connections of these flows rest no longer."""
        lack = len(flows) + 2 - int(self.M[K.connections_left])
        if lack > 0:
            self._more_connections(lack)
        if len(flows):
            self._parked.bring_back(flows, self.M, self._connections, self.conn_of)

    def free_flows(self, ahead: Words = NO_SEGMENTS) -> Words:
        """Flows whose connections were all finished since the last call: their numbers may be given to others.

        `ahead`: segments that were numbered already and are fed next.
        """
        flows = distinct(np.concatenate(self._ended)) if self._ended else np.zeros(0, np.int64)
        self._ended.clear()
        flows = flows[(self.conn_of[flows] == -1) & ~self._parked.holds(flows)]
        if len(flows) and len(ahead):
            used = np.zeros(max(len(self.conn_of), int(ahead[:, SEGMENT.flow].max() >> 1) + 1), np.bool_)
            used[ahead[:, SEGMENT.flow] >> 1] = True
            if used[flows].any():
                self._ended.append(flows[used[flows]])
                flows = flows[~used[flows]]
        free: Words = flows
        return free

    def finish(self) -> Iterator[Harvest]:
        """The capture ended: finish every connection."""
        self._put_off = False
        self._aim()
        while True:
            rows = self._connections[self.M[self._connections + C.number] >= 0]
            yield from self._finish(rows[np.argsort(self.M[rows + C.number], kind="stable")])
            if not self._parked.count:
                break
            self._bring_back(self._parked.some())
        if self.M[[K.out, K.ended, K.problems]].any():  # put off, and no connection was left to finish
            yield self._harvest()
        for harvest in self._finish_half_open(ALL):
            yield harvest
            self._ended.clear()  # no flow comes after it that could take their numbers

    def forget(self, before: int) -> Iterator[Harvest]:
        """Finish connections, half-open ones too, whose last packet came before that time (ns), as if the capture had
        ended. To be called between blocks."""
        self._aim()
        while True:
            rows, M = self._connections, self.M
            rows = rows[(M[rows + C.number] >= 0) & (M[rows + C.last] < before)]
            yield from self._finish(rows[np.argsort(M[rows + C.number], kind="stable")])
            idle = self._parked.due(before, ended=False)
            if not len(idle):
                break
            self._bring_back(idle)
        yield from self._finish_half_open(before)

    def let_go(self, flows: Words) -> Iterator[Harvest]:
        """Finish the connections of these flows (distinct ones), which go on without us: their numbers stay theirs.
        To be called between blocks. Half-open ones are no connections then."""
        flows = flows[flows < len(self.conn_of)]
        self._bring_back(self._parked.select_resting(flows))
        waiting = flows[self.conn_of[flows] <= -2]
        spoke = self._half_open.spoke(waiting, self.conn_of)
        self._half_open.forget(waiting[~spoke], self.conn_of)
        places = self.conn_of[flows]
        places = places[places >= 0]
        if len(places) or spoke.any():
            self._aim()
            ended, self._ended = self._ended, []
            yield from self._finish(places)
            yield from self._finish_waiting(waiting[spoke])
            self._ended = ended

    def _finish_half_open(self, before: int) -> Iterator[Harvest]:
        for flows in self._half_open.lots(self.conn_of, before):
            silent, others = self._half_open.single(flows, self.conn_of)
            yield self._ended_silently(silent)
            yield from self._finish_waiting(others)

    def _finish_waiting(self, flows: Words) -> Iterator[Harvest]:
        """Finish half-open connections of several packets, or with a payload."""
        for segments in self._half_open.back(flows, self.conn_of, self.window, LOT):
            self._aim()
            changes = np.diff(segments[:, SEGMENT.flow] >> 1, prepend=-1, append=-1) != 0
            silent = changes[1:] & changes[:-1]
            alone = np.flatnonzero(silent)
            meaningless = np.zeros(len(alone), np.bool_)
            find_meaningless(self.M, self.window.data, segments.take(alone, 0), meaningless)
            silent[alone] = meaningless
            if silent.any():
                yield self._ended_silently(silent_rows(segments.compress(silent, 0)))
                segments = segments.compress(~silent, 0)
            begins = np.flatnonzero(np.diff(segments[:, SEGMENT.flow] >> 1, prepend=-1))[::TOGETHER]
            for begin, end in pairwise([*begins.tolist(), len(segments)]):
                some = segments[begin:end]
                yield from self._drive_segments(some, np.arange(len(some)))
                places = self.conn_of[distinct(some[:, SEGMENT.flow] >> 1)]
                yield from self._finish(places[places >= 0])

    def _ended_silently(self, rows: Records) -> Harvest:
        """A harvest of connections that were never on the heap."""
        rows["number"] = self.M[K.number] + np.arange(len(rows))
        self.M[K.number] += len(rows)
        self._ended.append(rows["flow"].copy())
        return self._harvest(rows)

    def remaining(self) -> Words:
        """Numbers of the connections that packets may still come for, in their order."""
        return np.sort(self.M[self._remaining() + C.number])

    def _remaining(self) -> Words:
        """Their places."""
        return self._connections[self.M[self._connections + C.number] >= 0]

    def renumber(self) -> Words:
        """Number the remaining connections again, from 0 on in their order; returns their numbers before."""
        rows = self._remaining()
        rows = rows[np.argsort(self.M[rows + C.number], kind="stable")]
        had: Words = self.M[rows + C.number]
        self.M[rows + C.number] = np.arange(len(rows))
        self.M[K.number] = len(rows)
        return had

    def _finish(self, connections: Words) -> Iterator[Harvest]:
        if len(connections):
            self.M[K.resume] = 0
            self.M[K.phase] = Phase.NEW
            yield from self._drive(NO_SEGMENTS, connections, FINISHING)

    def _drive(self, segments: Words, order: Words, task: int) -> Iterator[Harvest]:
        done = False
        while not done:
            done = run(
                self.M, self.window.data, self.A, self.programs.arrays, self.conn_of, segments, order, len(order), task,
            )  # fmt: skip
            sealed, self.M[K.sealed] = int(self.M[K.sealed]), 0
            sealed_rows = structs(Sealed, self.M, st.S_BASE, sealed).copy()
            pieces = [self._bytes(at, size) for at, size in sealed_rows[["at", "length"]].tolist()]
            self._put_off = self._put_off and not sealed  # plaintext comes between
            if not (done and self._put_off):
                yield self._harvest()
            if sealed and self.unsealer is not None:
                yield from self._drive_plaintext(self.unsealer, sealed_rows, pieces)

    def _drive_plaintext(self, unsealer: Unsealer, sealed: Records, pieces: list[bytes]) -> Iterator[Harvest]:
        """Drive the plaintext of sealed rows, in the middle of what is driven now."""
        resume, phase = self.M[[K.resume, K.phase]].tolist()
        for plain in unsealer.open(sealed, pieces, self.M, self.window):
            self.M[[K.resume, K.phase]] = 0, Phase.NEW
            self._aim()
            yield from self._drive(plain, np.arange(len(plain)), PLAINTEXT)
            self._keep(0, 0, LEAVE)
        self.M[[K.resume, K.phase, K.news]] = resume, phase, True

    def frame(self, frame: Frame) -> bytes:
        """The body of an exchange's frame, fewer bytes where some are gone."""
        if frame.at >= 0:
            return self._bytes(int(frame.at), int(frame.length))
        out, piece = b"", frame.head
        while piece >= 0:
            node = node_at(self.M, piece)
            out += self._bytes(int(node.at), int(node.length))
            piece = node.next
        return out

    def _bytes(self, at: int, size: int) -> bytes:
        """Bytes at a logical offset, fewer where they are gone."""
        if at < 0 or size <= 0:
            return b""
        if at >= st.KEPT:
            start = at - st.KEPT + st.KEPT_BASE
            return self.A[start : start + size].tobytes()
        place = self.window.locate(at, size)
        return self.window.data[place : place + size].tobytes() if place >= 0 else b""

    def _harvest(self, silent: Records = NONE_SILENT) -> Harvest:
        M = self.M
        exchanges, ended, problems = int(M[K.out]), int(M[K.ended]), int(M[K.problems])
        M[K.ended] = 0
        M[K.problems] = 0
        finished = structs(Connection, M, st.E_BASE, ended).copy()
        if ended:
            self._ended.append(finished["flow"].copy())
        found = structs(Problem, M, st.P_BASE, problems).copy()
        return Harvest(structs(Exchange, M, st.X_BASE, exchanges), finished, found, silent)

    def load_exchanges(self, exchanges: Words, names: list[str]) -> Harvest:
        """A harvest of these exchanges (words of `Exchange`, int64[n, words]), whose frames lie in the window; `names`:
        client ids by code. For a dissector that follows no connections."""
        self._aim()
        self._names = names
        self.M[st.X_BASE : st.X_BASE + exchanges.size] = exchanges.ravel()
        self.M[K.out] = len(exchanges)
        return self._harvest()

    def used(self, pieces: bool = True) -> None:
        """The exchanges of the last harvest are not needed any more; `pieces`: some of their frames have several."""
        if pieces:
            release_nodes(self.M, int(self.M[K.out]))
        self.M[K.out] = 0
        self._make_room()

    def before_next_block(self, rereadable: bool) -> None:
        """Move what is still needed out of the slot which the window fills next, and pack what rests."""
        self._bring_back(self._parked.scattered())
        self._aim()
        self._parked.park(self.M, self.window.data, self._connections, self.conn_of, self.now)
        window = self.window
        ring = window.ring
        row = window.slots[(window.current + 1) % ring]
        after = window.slots[(window.current + 2) % ring]
        low, high = int(row[0]), int(row[1])
        if low < int(after[0]) < high:
            high = int(after[0])
        extra = bool((window.slots[ring:, 1] > EXTRA).any())
        self._half_open.leave(self.M, window.data, self.A, low, high)
        if low == high and not extra and len(self.A) <= st.KEPT_BASE + 1:
            return
        self._keep(low, high, LEAVE if rereadable else MOVE)

    def settle(self) -> None:
        """Move everything that is still needed out of the window, which may then be used for another input."""
        while self._parked.count:
            self._bring_back(self._parked.some())
        self._aim()
        self._half_open.leave(self.M, self.window.data, self.A, 0, EXTRA)
        self._keep(0, EXTRA, MOVE)

    def carried(self) -> dict[str, Words | Bytes]:
        """Everything that another dissector, in another process, needs to go on; to be called after `settle`."""
        names = st.NAMES + int(self.M[K.client_bytes])
        half_open, half_open_bytes = self._half_open.carried(self.conn_of)
        fresh = int(self.M[K.request_fresh])
        written = fresh if self._fresh_end == self._end else self._end  # what lies behind it is zeros
        return {
            "control": self.M[:SLOTS],
            "known": self.M[st.NAME_TABLE : st.X_BASE],
            "heap": self.M[st.STRUCTS : written],
            "names": self.A[st.NAMES : names],
            "kept": self.A[st.KEPT_BASE :],
            "conn_of": self.conn_of,
            "half_open": half_open,
            "half_open_bytes": half_open_bytes,
            "connections": self._connections,
            "requests": self.requests,
            "fresh": np.array([fresh, self._fresh_end]),
        }

    def go_on(self, carried: Mapping[str, Words | Bytes]) -> None:
        """Go on from what another dissector carried."""
        heap, kept, names = carried["heap"], carried["kept"], carried["names"]
        self._fresh, self._fresh_end = carried["fresh"].tolist()
        written = st.STRUCTS + len(heap)
        self._end = max(written, self._fresh_end)
        grown = np.zeros(max(len(self.M), self._end + len(heap) // 4), np.int64)
        grown[: st.X_BASE] = self.M[: st.X_BASE]
        sealing, lane = self.M[[K.sealing, K.lane]]
        grown[:SLOTS] = carried["control"]
        grown[[K.sealing, K.lane]] = sealing, lane
        grown[st.NAME_TABLE : st.X_BASE] = carried["known"]
        grown[st.STRUCTS : written] = heap
        self.M = grown
        self.A = np.zeros(st.KEPT_BASE + len(kept), np.uint8)
        self.A[st.NAMES : st.NAMES + len(names)] = names
        self.A[st.KEPT_BASE :] = kept
        self.conn_of = carried["conn_of"].astype(np.int64)
        half_open, half_open_bytes = carried["half_open"].astype(np.int64), carried["half_open_bytes"].astype(np.uint8)
        self._half_open.go_on(half_open, half_open_bytes, self.conn_of)
        self._connections = carried["connections"].astype(np.int64)
        self._requests = carried["requests"].astype(np.int64)
        self._nodes = int(self.M[K.nodes_left])

    def _keep(self, low: int, high: int, bulk: int) -> None:
        """Move what is needed of logical offsets low..high, and of bytes that we put together, out of the window."""
        self._aim()
        places = (self._connections, self.requests, low, high)
        size = keep(self.M, self.window.data, self.A, *places, bulk, self.A, False)
        if size > KEPT_LIMIT:
            bulk = GIVE_UP
            size = keep(self.M, self.window.data, self.A, *places, bulk, self.A, False)
        fresh = np.zeros(st.KEPT_BASE + 1 + min(size, KEPT_LIMIT), np.uint8)
        names = st.NAMES + int(self.M[K.client_bytes])
        fresh[st.NAMES : names] = self.A[st.NAMES : names]
        if size:
            keep(self.M, self.window.data, self.A, *places, bulk, fresh, True)
        self.A = fresh
