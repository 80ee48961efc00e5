"""Half-open connections: those of few packets, with one payload at most, and that one no request.

Scans and floods open connections by the million and say little or nothing on them. The stream kernels' state of a
connection takes 4 KB; so a connection gets it when a request comes, its second payload, or more than MOST packets.
Until then its packets lie here, 69 bytes each. They are read then as if they had just come, in front of the packet that
ended the wait: rows do not depend on blocks. At the end of the capture the others are taken too, by lots.

A payload stays where it is for as long as the window holds it, then its bytes are stored (`byte_store`).

`conn_of`, which says where on the heap the connection of a flow is, says here where its last packet lies: at -2 less
its number. Packets of a flow are chained backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import distinct
from kdissect.arrays.growing import runs
from kdissect.capture.window import EXTRA, Window
from kdissect.kafka.streams.idle.byte_store import PIECE, STORED, ByteStore, copy_from_window, distinct_numbers
from kdissect.kafka.streams.idle.waiting_packets import (
    CHUNK,
    CHUNK_BITS,
    PACKET_BYTES,
    PACKET_KIND,
    SHARED,
    SPOKE,
    Packed,
    silent_rows,
)
from kdissect.kernels.kernel import kernel
from kdissect.kernels.structs import Bytes, Flags, Records, Words, rows_of
from kdissect.net.segment import SEGMENT, SEGMENT_COLUMNS, Segment, segment_at
from kdissect.tcp.layout import CUT

MOST = 4
"""Packets of a connection: a handshake and its reset or a payload, or a SYN and its three first repetitions."""
MOST_BYTES = 1 << 16
"""Bytes of a payload: no IP packet has more."""
ALL = 2**63 - 1
LOT = 1 << 14
"""Connections that are finished at a time when the capture ends: some MB for their rows."""
CACHED = 1 << 12
"""Packets whose fields are written one after the other: half a megabyte, which stays in a processor's cache."""


@kernel("i8[:,:] i8[:] b1 i8[:] -> b1")
def _all_known(segments: Words, order: Words, all_rows: bool, conn_of: Words) -> bool:
    """Whether all segment rows that `order` names, `all_rows`: all there are, belong to connections on the heap."""
    least = np.int64(0)
    for i in range(order.size):
        least = min(least, conn_of[segment_at(segments, i if all_rows else order[i]).flow >> 1])
    return bool(least >= 0)


def _numbers_before(packets: npt.NDArray[Any]) -> Words:
    """Numbers of the packets before these in their flows, of those that have one."""
    before = packets["before"].astype(np.int64)
    found: Words = before[before >= 0]
    return found


class HalfOpen:
    """The half-open connections of one capture."""

    def __init__(self) -> None:
        self._chunks: dict[int, Packed | npt.NDArray[Any]] = {}
        """Full chunks, packed once the window has moved on."""
        self._last: npt.NDArray[Any] = np.empty(CHUNK, PACKET_KIND)
        """The chunk that is not full yet."""
        self._unpacked: tuple[int, npt.NDArray[Any]] | None = None
        """The packed chunk that was asked for last, for the next who asks."""
        self._live: dict[int, int] = {}
        """Packets of a chunk that still wait."""
        self._end = 0
        self._views: Words = np.zeros(0, np.int64)
        self._codes: dict[int, int] = {}
        self._store = ByteStore()
        self._near: Words = np.zeros(0, np.int64)
        """Packets whose payload is still in the window."""
        self._earliest: dict[int, int] = {}
        """By chunk, the time before which no payload of it came that waits."""
        self._changed: set[int] = set()
        """Chunks of which payloads went since that was found."""

    def sort_out(
        self, segments: Words, order: Words, conn_of: Words, find_requests: Callable[[Words], Flags]
    ) -> tuple[Words, Words, Words]:
        """Segment rows of a block and the order in which the kernels take them, flow by flow. Packets that wait here
        from now on are left out, and packets that wait no longer are in front. The third array has the rows (of
        `segments` as they were) of flows whose earlier packets `back` has, because their bytes are stored.

        `find_requests` says of rows of `segments` whether their payloads begin with a request.
        """
        none = order[:0]
        if _all_known(segments, order, len(order) == len(segments), conn_of):
            return segments, order, none
        flow = segments[order, SEGMENT.flow] >> 1
        starts = np.flatnonzero(np.diff(flow, prepend=-1))
        flows = flow[starts]
        state = conn_of[flows]
        counts = np.diff(starts, append=len(order))
        speaks = segments[order, SEGMENT.wire] > 0
        payloads = np.add.reduceat(speaks.astype(np.int64), starts)
        had, spoke = self._had(state)
        stays = (state < 0) & (payloads + spoke <= 1) & (counts + had <= MOST)
        stays &= self._may_wait(segments, order, starts, counts, speaks, stays & (payloads > 0), find_requests)
        comes = (had > 0) & ~stays
        waits, apart = np.zeros(len(order), np.bool_), np.zeros(len(order), np.bool_)
        back = None
        if comes.any():
            stored, back = self._take_near(flows[comes], conn_of)
            apart = np.repeat(comes & np.isin(flows, stored), counts)
        if stays.any():
            waits = np.repeat(stays, counts)
            rows = segments.take(order[waits], 0)
            self._park(rows, counts[stays], state[stays], had[stays], spoke[stays], conn_of)
        later = order[apart]
        order = order[~(waits | apart)]
        if back is not None and len(back):
            order = np.concatenate([len(segments) + np.arange(len(back)), order])
            segments = np.concatenate([segments, back])
        return segments, order, later

    def _may_wait(
        self, segments: Words, order: Words, starts: Words, counts: Words, speaks: Flags, candidates: Flags,
        find_requests: Callable[[Words], Flags],
    ) -> Flags:  # fmt: skip
        """By flow, whether the payload of those `candidates` may lie here; True for others."""
        may = np.ones(len(starts), np.bool_)
        if candidates.any():
            rows = order[np.repeat(candidates, counts) & speaks]
            may[candidates] = (segments[rows, SEGMENT.len] <= MOST_BYTES) & ~find_requests(rows)
        return may

    def _take_near(self, flows: Words, conn_of: Words) -> tuple[Words, Words]:
        """Flows whose bytes are stored, of these; segment rows of the others, which wait no longer."""
        packets, numbers = self._chained(-2 - conn_of[flows])
        flow = packets["flow"] >> 1
        stored: Words = distinct(flow[packets["at"] >= STORED]).astype(np.int64)
        here = np.flatnonzero(~np.isin(flow, stored))
        near = packets.take(here)
        self._forget(numbers[here], near)
        conn_of[flow[here]] = -1
        return stored, self._segments(near)

    def back(self, flows: Words, conn_of: Words, window: Window, most: int) -> Iterator[Words]:
        """Segment rows of these flows, which wait no longer, flow by flow, at most so many flows at a time: bytes that
        were stored come in the window's extra slots, which the next ones may take."""
        room = window.extra_bytes // 2
        for first in range(0, len(flows), most):
            packets, numbers = self._chained(-2 - conn_of[flows[first : first + most]])
            flow = packets["flow"] >> 1
            sizes = np.where(packets["at"] >= STORED, packets["len"], 0).astype(np.int64)
            ends = np.cumsum(sizes)
            last = np.flatnonzero(np.diff(flow, append=-1))
            lot = np.repeat(ends[last] // room, np.diff(last, prepend=-1))
            for begin, end in runs(lot):
                some = packets[begin:end]
                rows = self._segments(some)
                stored = np.flatnonzero(sizes[begin:end])
                if len(stored):
                    size = sizes[begin:end][stored]
                    logical = window.extra(self._store.get(rows[stored, SEGMENT.at], size).tobytes())
                    rows[stored, SEGMENT.at] = logical + np.cumsum(size) - size if logical >= 0 else CUT
                self._forget(numbers[begin:end], some)
                conn_of[flow[begin:end]] = -1
                yield rows

    def leave(self, M: Words, b: Bytes, A: Bytes, low: int, high: int) -> None:
        """The window forgets the logical offsets from `low` to `high`, and what was put together: store bytes that
        wait there, and those of full chunks, which are packed."""
        near = self._near[self._counts(self._near) > 0]
        if len(near):
            at = self._gather_field(near, "at")
            full = np.isin(near >> CHUNK_BITS, np.fromiter(self._chunks, np.int64, len(self._chunks)))
            leaves = (low <= at) & (at < high) | (at >= EXTRA) | full
            self._store_bytes(M, b, A, near[leaves])
            near = near[~leaves]
        self._near = near
        for number, chunk in self._chunks.items():
            if not isinstance(chunk, Packed):
                self._chunks[number] = Packed.of(chunk)

    def _store_bytes(self, M: Words, b: Bytes, A: Bytes, numbers: Words) -> None:
        """Copy payloads of these packets out of the window."""
        packets = self._gather(numbers)
        sizes = packets["len"].astype(np.int64)
        for first, last in runs(np.cumsum(sizes) // PIECE):
            size, places = sizes[first:last], np.cumsum(sizes[first:last]) - sizes[first:last]
            piece, found = np.empty(int(size.sum()), np.uint8), np.zeros(last - first, np.bool_)
            copy_from_window(M, b, A, packets["at"][first:last].copy(), size, piece, places, found)
            position = self._store.append(piece) if len(piece) else CUT
            lost = np.flatnonzero(~found)
            if len(lost):
                self._store.drop(position + places[lost], size[lost])
            for number in distinct_numbers(numbers[first:last] >> CHUNK_BITS):
                mine = np.flatnonzero(numbers[first:last] >> CHUNK_BITS == number)
                rows = numbers[first:last][mine] & CHUNK - 1
                chunk = self._chunk(number)
                chunk["at"][rows] = np.where(found[mine], position + places[mine], CUT)
                chunk["len"][rows] = np.where(found[mine], size[mine], 0)

    def forget(self, flows: Words, conn_of: Words) -> None:
        """Forget these flows, whose packets do not matter any more."""
        packets, numbers = self._chained(-2 - conn_of[flows])
        conn_of[flows] = -1
        self._forget(numbers, packets)

    def lots(self, conn_of: Words, before: int = ALL) -> Iterator[Words]:
        """The flows that wait, and whose last packet came before that time (ns), at most LOT at a time. Each lot is to
        be taken before the next is asked for."""
        for number in sorted(self._live):
            at = np.arange(number << CHUNK_BITS, min((number + 1) << CHUNK_BITS, self._end))
            chunk = self._chunk(number)[: len(at)]
            flow = (chunk["flow"] >> 1).astype(np.int64)
            waiting = flow[(conn_of[flow] == -2 - at) & (chunk["time"] < before)]
            for first in range(0, len(waiting), LOT):
                yield waiting[first : first + LOT]

    def single(self, flows: Words, conn_of: Words) -> tuple[Records, Words]:
        """Connections of one packet without payload among these flows, which wait no longer, as they are when they end
        (`SILENT`); the others."""
        at = -2 - conn_of[flows]
        alone = self._counts(at) == 1
        at = at[alone]
        packets = self._gather(at)
        self._forget(at, packets)
        conn_of[flows[alone]] = -1
        return silent_rows(self._segments(packets)), flows[~alone]

    def spoke(self, flows: Words, conn_of: Words) -> Flags:
        """Whether a payload of these flows, which wait, waits too."""
        found: Flags = self._had(conn_of[flows])[1] > 0
        return found

    def earliest(self) -> int:
        """When the first of the payloads came that wait, ns; ALL for none."""
        while self._earliest:
            number = min(self._earliest, key=self._earliest.__getitem__)
            if number not in self._changed:
                return self._earliest[number]
            self._changed.discard(number)
            size = min(self._end - (number << CHUNK_BITS), CHUNK)
            chunk = self._chunk(number)[:size]
            times = chunk["time"][(chunk["wire"] > 0) & (self._counts_of(number)[:size] > 0)]
            if len(times):
                self._earliest[number] = int(times.min())
            else:
                del self._earliest[number]
        return ALL

    def carried(self, conn_of: Words) -> tuple[Words, Bytes]:
        """Segment rows of all flows that wait, for `go_on`, and their bytes, which are all stored; they wait on. Their
        payloads lie one behind the other."""
        packets, _ = self._chained(-2 - conn_of[conn_of <= -2])
        rows = self._segments(packets)
        stored = np.flatnonzero(rows[:, SEGMENT.at] >= STORED)
        return rows, self._store.get(rows[stored, SEGMENT.at], rows[stored, SEGMENT.len])

    def go_on(self, carried: Words, stored: Bytes, conn_of: Words) -> None:
        """Go on from what another carried; `conn_of` may still have its numbers."""
        conn_of[conn_of <= -2] = -1
        if not len(carried):
            return
        rows = carried.copy()
        mine = np.flatnonzero(rows[:, SEGMENT.at] >= STORED)
        ends = np.cumsum(rows[mine, SEGMENT.len])
        for first, last in runs(ends // PIECE):
            begin = int(ends[first] - rows[mine[first], SEGMENT.len])
            position = self._store.append(stored[begin : int(ends[last - 1])].copy())
            lot = mine[first:last]
            rows[lot, SEGMENT.at] = position + ends[first:last] - rows[lot, SEGMENT.len] - begin
        flow = rows[:, SEGMENT.flow] >> 1
        starts = np.flatnonzero(np.diff(flow, prepend=-1))
        none = np.zeros(len(starts), np.int64)
        self._park(rows, np.diff(starts, append=len(flow)), none - 1, none, none, conn_of)

    def _chained(self, at: Words) -> tuple[npt.NDArray[Any], Words]:
        """These packets and all before them in their flows, flow by flow; their numbers."""
        found, numbers = [self._gather(at)], [at]
        while len(at := _numbers_before(found[-1])):
            found.append(self._gather(at))
            numbers.append(at)
        packets, every = found[0], numbers[0]
        if len(found) > 1:
            packets = np.concatenate([part.view(PACKET_BYTES) for part in found]).view(PACKET_KIND)
            every = np.concatenate(numbers)
        flow = packets["flow"] >> 1
        if len(found) == 1 and (flow[1:] > flow[:-1]).all():
            return packets, every
        order = np.lexsort((every, flow))
        return packets.take(order), every[order]

    def _forget(self, at: Words, packets: npt.NDArray[Any]) -> None:
        """These packets wait no longer: chunks without waiting packets go."""
        stored = (packets["at"] >= STORED) & (packets["len"] > 0)
        if stored.any():
            self._store.drop(packets["at"][stored], packets["len"][stored].astype(np.int64))
        gone = np.bincount(at >> CHUNK_BITS)
        for number in np.flatnonzero(gone).tolist():
            self._live[number] -= int(gone[number])
            self._counts_of(number)[at[at >> CHUNK_BITS == number] & CHUNK - 1] = 0
            self._changed.add(number)
            if self._live[number] == 0 and number in self._chunks:
                del self._chunks[number], self._live[number]
                self._earliest.pop(number, None)
                self._changed.discard(number)

    def _had(self, state: Words) -> tuple[Words, Words]:
        """How many packets wait of flows whose `conn_of` this is, and of how many of them the payload."""
        had = np.zeros(len(state), np.int64)
        waiting = np.flatnonzero(state <= -2)
        had[waiting] = self._counts(-2 - state[waiting])
        return had & SPOKE - 1, had // SPOKE

    def _counts(self, at: Words) -> npt.NDArray[np.uint8]:
        """`count` of packets by their numbers; 0 for those that are not here any more."""
        found = np.zeros(len(at), np.uint8)
        chunk = at >> CHUNK_BITS
        for number in distinct_numbers(chunk):
            if number in self._live:
                mine = chunk == number
                found[mine] = self._counts_of(number)[at[mine] & CHUNK - 1]
        return found

    def _counts_of(self, number: int) -> npt.NDArray[np.uint8]:
        """`count` of all packets of a chunk."""
        chunk = self._chunks.get(number, self._last)
        counts: npt.NDArray[np.uint8] = chunk.counts if isinstance(chunk, Packed) else chunk["count"]
        return counts

    def _chunk(self, number: int) -> npt.NDArray[Any]:
        chunk = self._chunks.get(number, self._last)
        if not isinstance(chunk, Packed):
            return chunk
        if self._unpacked is None or self._unpacked[0] != number:
            self._unpacked = number, chunk.chunk()
        return self._unpacked[1]

    def _gather(self, at: Words) -> npt.NDArray[Any]:
        """Packets by their numbers. `take` and raw bytes: indexing copies a struct field by field, twenty times as
        long."""
        chunk = at >> CHUNK_BITS
        if len(at) and (chunk == chunk[0]).all():
            found: npt.NDArray[Any] = self._chunk(int(chunk[0])).take(at & CHUNK - 1)
            return found
        out = np.empty(len(at), PACKET_KIND)
        raw = out.view(PACKET_BYTES)
        for number in distinct_numbers(chunk):
            mine = np.flatnonzero(chunk == number)
            raw[mine] = self._chunk(number).view(PACKET_BYTES).take(at[mine] & CHUNK - 1)
        return out

    def _gather_field(self, at: Words, name: str) -> npt.NDArray[Any]:
        """A field of packets by their numbers: a word of each is a fraction of what `_gather` copies."""
        out = np.empty(len(at), PACKET_KIND[name])
        chunk = at >> CHUNK_BITS
        for number in distinct_numbers(chunk):
            mine = chunk == number
            out[mine] = self._chunk(number)[name][at[mine] & CHUNK - 1]
        return out

    def _park(self, rows: Words, counts: Words, state: Words, had: Words, spoke: Words, conn_of: Words) -> None:
        """Let segment rows wait, flow by flow: of each flow so many, and what is known of it."""
        n = len(rows)
        at = self._end + np.arange(n)
        firsts = np.cumsum(counts) - counts
        before = at - 1
        before[firsts] = np.where(state <= -2, -2 - state, -1)
        speaks = rows[:, SEGMENT.wire] > 0
        said = np.cumsum(speaks)
        said += np.repeat(spoke - (said - speaks)[firsts], counts)
        segments = rows_of(Segment, rows)
        fields = {name: segments[name] for name in SHARED}
        fields["at"] = np.where(speaks, rows[:, SEGMENT.at], 0)
        fields["view"] = self._coded(rows[:, SEGMENT.viewpoint])
        fields["before"] = before
        fields["count"] = np.arange(n) - np.repeat(firsts - had, counts) + 1 | said * SPOKE
        packets = np.empty(n, PACKET_KIND)
        for first in range(0, n, CACHED):
            for name, values in fields.items():
                packets[name][first : first + CACHED] = values[first : first + CACHED]
        lasts = firsts + counts - 1
        conn_of[rows[lasts, SEGMENT.flow] >> 1] = -2 - at[lasts]
        self._note_payloads(at[speaks], rows[speaks])
        done = 0
        while done < n:
            number, begin = self._end >> CHUNK_BITS, self._end & CHUNK - 1
            count = min(n - done, CHUNK - begin)
            self._last.view(PACKET_BYTES)[begin : begin + count] = packets.view(PACKET_BYTES)[done : done + count]
            self._live[number] = self._live.get(number, 0) + count
            self._end += count
            done += count
            if begin + count == CHUNK:
                self._chunks[number] = self._last
                self._last = np.empty(CHUNK, PACKET_KIND)

    def _note_payloads(self, at: Words, rows: Words) -> None:
        """Payloads wait from now on, of packets with these numbers."""
        self._near = np.concatenate([self._near, at[(rows[:, SEGMENT.len] > 0) & (rows[:, SEGMENT.at] < STORED)]])
        for first, last in runs(at >> CHUNK_BITS):
            number, time = int(at[first]) >> CHUNK_BITS, int(rows[first:last, SEGMENT.time].min())
            self._earliest[number] = min(self._earliest.get(number, ALL), time)

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
        """Segment rows, as they were but for where their payloads lie."""
        rows = np.zeros((len(packets), SEGMENT_COLUMNS), np.int64)
        segments = rows_of(Segment, rows)
        for name in SHARED:
            segments[name] = packets[name]
        rows[:, SEGMENT.viewpoint] = self._views[packets["view"]]
        return rows
