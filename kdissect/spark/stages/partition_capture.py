"""Connections of one partition as a capture of their own: what the engine reads instead of a file.

The payloads of a partition's packets, one behind the other in capture order, are a byte stream like any capture. Its
logical offsets are ours, and a table leads from them back to the files. The window holds the stream's last megabytes.
Bytes that left it are read from the files again, if they can be read by range; otherwise the engine keeps them. Packets
keep their numbers, so that everything which names packets and files comes out as in a local run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.growing import runs
from kdissect.arrays.typed_values import loaded
from kdissect.capture import CaptureProblem, FileReport
from kdissect.capture.block import Block
from kdissect.capture.window import Window
from kdissect.engine.inputs import Packets, Segments
from kdissect.engine.sights.shared_flows import hashes
from kdissect.net.segment import FILE_SHIFT, SEGMENT
from kdissect.spark.cells.segment_cells import unpack
from kdissect.spark.stages.flow_numbers import Flows
from kdissect.spark.stages.plan import RowKind, Source
from kdissect.spark.stages.ranges import NEAR, read_ranges

Words = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

IndexRow = tuple[int, int, bytes, bytes | None]
"""Number of the capture, kind, packed rows, payload."""
SLOTS = 4
SLOT_BYTES = 16 << 20
"""Larger slots than a file's, fewer of them: what is done once for each block is half of the work on large frames, and
the bytes that are looked back on are as many."""
END_BYTES = 1 << 12
"""A block's payload leaves so much of a slot, but for a packet that is larger by itself: no kernel reads past it."""
SPARE_BYTES = 1 << 17
"""Room for any packet."""
FAR = 1 << 20
"""Ranges of a file elsewhere no farther apart than this are read by one request, which is as long on its way as a
megabyte is."""
BLOCK_ROWS = 1 << 17
"""Rows of one block, at most: 10 MB of them. What is done once for each block is a good part of the work on small
frames."""


@dataclass(slots=True)
class Piece:
    """Rows of one index row: segments with flows numbered for the partition, and payloads that travelled."""

    rows: Words
    payload: bytes | None


class Files:
    """The files of a capture, to read ranges of. A logical offset counts through them, one behind the other."""

    def __init__(self, source: Source) -> None:
        self.capture = source.capture()
        self.sizes: Words = np.array(source.sizes, np.int64)
        """Bytes of each."""
        self.starts: Words = np.cumsum(self.sizes) - self.sizes
        self.capture.bases[:] = self.starts.tolist()
        self._near = NEAR if source.storage is None else FAR

    @property
    def rereadable(self) -> bool:
        """Whether ranges can be read."""
        return self.capture.rereadable

    def read_ranges(self, at: Words, sizes: Words, target: Bytes, places: Words) -> None:
        """Copy `sizes[i]` bytes at logical offset `at[i]` to `target[places[i]:]`, for all i; zeros where a file has
        gone meanwhile. Quickest with offsets that grow; no range may span two files. Raises OSError where a file
        elsewhere cannot be read."""
        file = np.searchsorted(self.starts, at, side="right") - 1
        for first, last in runs(file):
            part = slice(first, last)
            number = int(file[first])
            path = self.capture.members[number].path
            if path is not None and hasattr(os, "pread"):
                with suppress(OSError):
                    read_ranges(path, at[part] - self.starts[number], sizes[part], target, places[part])
                    continue
            self.read_many(at[part], sizes[part], target, places[part])

    def read_many(self, at: Words, length: Words, out: Bytes, place: Words) -> None:
        """As `CaptureSet.read_many`, ranges that lie near one another in one go."""
        self.capture.read_many(at, length, out, place, self._near)

    def close(self) -> None:
        """Close the files."""
        self.capture.close()


class Gathered:
    """The packets of one capture that came to this partition, in capture order. Read once.

    Reports and problems of the files are with the driver, not here.
    """

    def __init__(self, source: Source, pieces: Iterator[Piece], secrets: list[bytes]) -> None:
        self._source = Files(source)
        self.name, self.members, self.files = (
            self._source.capture.name, self._source.capture.members, self._source.capture.files,
        )  # fmt: skip
        self.rereadable = source.ranged
        """Whether its files can be read by range."""
        self.secrets = secrets
        self.reports: list[FileReport] = []
        self.problems: list[CaptureProblem] = []
        self.steps: list[int] = []
        self.size = None
        self._pieces = pieces
        self._virtual: list[Words] = []
        self._places: list[Words] = []
        self._ends: list[int] = []
        self.rows: Words = np.zeros((0, 0), np.int64)
        """Segment rows of the block that was yielded last."""

    def window(self) -> Window:
        """A ring, of no more room than there are bytes: a worker may be allowed few addresses."""
        whole = int(self._source.sizes.sum()) if self.rereadable else SLOT_BYTES
        return Window(min(SLOT_BYTES, whole + SPARE_BYTES & ~0xFFF), SLOTS)

    def blocks(
        self, window: Window, follow: bool = False, stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[Block]:
        """The packets in blocks, whose rows are in `rows`."""
        waiting: list[Piece] = []
        size = count = 0
        most = window.slot_bytes - END_BYTES
        for piece in self._pieces:
            waiting.append(piece)
            size += int(piece.rows[:, SEGMENT.len].sum())
            count += len(piece.rows)
            if size >= most or count >= BLOCK_ROWS:
                yield from self._cut(window, waiting)
                waiting, size, count = [], 0, 0
        if waiting:
            yield from self._cut(window, waiting)

    def _cut(self, window: Window, pieces: list[Piece]) -> Iterator[Block]:
        rows = np.concatenate([piece.rows for piece in pieces])
        payload = np.frombuffer(b"".join(piece.payload or b"" for piece in pieces), np.uint8)
        carried = np.where(rows[:, SEGMENT.at] < 0, rows[:, SEGMENT.len], 0)
        carried_from = np.cumsum(carried) - carried
        ends = np.cumsum(rows[:, SEGMENT.len])
        first = 0
        most = -(-len(rows) // -(-len(rows) // BLOCK_ROWS))  # alike, not full ones and a rest
        while first < len(rows):
            before = int(ends[first - 1]) if first else 0
            stop = int(np.searchsorted(ends, before + window.slot_bytes - END_BYTES, side="right"))
            stop = min(max(stop, first + 1), first + most)
            self.rows = self._fill(window, rows[first:stop], payload, carried_from[first:stop])
            yield Block(0, window, window.current, 0, 0, 0, self.rows)
            first = stop

    def _fill(self, window: Window, rows: Words, payload: Bytes, carried_from: Words) -> Words:
        """Payloads into the window's next slot; the rows with their logical offsets."""
        start = window.end
        window.advance(start, 0, 0)
        base = int(window.slots[window.current, 2])
        sizes, inline = rows[:, SEGMENT.len], rows[:, SEGMENT.at] < 0
        rows = rows.copy()
        loose = inline & self.rereadable
        if loose.any():
            for i in np.flatnonzero(loose).tolist():  # packets put together from fragments: few
                begin = int(carried_from[i])
                rows[i, SEGMENT.at] = window.extra(payload[begin : begin + int(sizes[i])].tobytes())
        streamed = np.where(loose, 0, sizes)
        offsets = np.cumsum(streamed) - streamed
        total = int(streamed.sum())
        target = window.data[base : base + total]
        if self.rereadable:
            here = np.flatnonzero(streamed > 0)
            at = self._source.starts[rows[here, SEGMENT.packet] >> FILE_SHIFT] + rows[here, SEGMENT.at]
            self._source.read_ranges(at, sizes[here], target, offsets[here])
            self._virtual.append(start + offsets[here])
            self._places.append(at)
            self._ends.append(start + total)
        else:
            begin = int(carried_from[0])
            target[:] = payload[begin : begin + total]
        rows[:, SEGMENT.at] = np.where(loose, rows[:, SEGMENT.at], start + offsets)
        window.grow(total)
        return rows

    def physical(self, at: Words) -> Words:
        """Offsets in the capture's files, one behind the other, of logical offsets."""
        block = np.searchsorted(np.array(self._ends, np.int64), at, side="right")
        physical = np.empty(len(at), np.int64)
        for number in np.unique(block).tolist():
            mine = np.flatnonzero(block == number)
            virtual = self._virtual[number]
            row = np.searchsorted(virtual, at[mine], side="right") - 1
            physical[mine] = self._places[number][row] + at[mine] - virtual[row]
        return physical

    def read_many(self, at: Words, length: Words, out: Bytes, place: Words) -> None:
        """Bytes that left the window, out of the files; a range lies within one packet's payload."""
        self._source.read_many(self.physical(at), length, out, place)

    def read_apart(self) -> None:
        """Nothing: what left the window is read from the files as it is."""

    def end_reading(self) -> None:
        """Nothing: the window is not kept."""

    def close(self) -> None:
        """Close the files."""
        self._source.close()


class GatheredSegments:
    """The segment rows of a `Gathered`'s blocks."""

    kinds: Words = np.zeros((0, 0), np.int64)

    def __init__(self, capture: Gathered, flows: Flows) -> None:
        self._gathered = capture
        self._known = flows

    @property
    def flows(self) -> Words:
        """The partition's flows of this capture."""
        return self._known.rows

    def forget(self, flows: Words) -> None:
        """Nothing: a partition's flows are numbered as they come."""

    def scan(self, block: Block) -> Words:
        """The block's rows."""
        return self._gathered.rows

    def alternate(self) -> None:
        """Rows of a block are its own."""

    def end_input(self) -> None:
        """Nothing: they are there as long as the capture."""

    def finish(self) -> None:
        """Nothing: the driver counts packets."""


def rows_of_index(batches: Iterable[pa.RecordBatch], facts: list[bytes] | None = None) -> Iterator[IndexRow]:
    """Index rows one by one; what was found out about files goes into `facts`."""
    for batch in batches:
        for i in range(batch.num_rows):
            capture, kind, packed, payload = (
                batch.column(name)[i].as_py() for name in ("capture", "kind", "packed", "payload")
            )
            if kind != RowKind.FACTS:
                yield capture, kind, packed, payload
            elif facts is not None:
                facts.append(packed)


class Survey(NamedTuple):
    """How index rows are read: only flows that stand in SHARED before them, as one viewpoint has them, or all."""

    view: int | None


def readings(
    sources: Sequence[Source], index: Iterator[IndexRow], survey: Survey | None = None
) -> Iterator[tuple[int, Packets, Segments]]:
    """The captures that index rows in order of (capture, file, chunk) belong to, one after the other."""
    ahead = next(index, None)
    while ahead is not None:
        number = ahead[0]
        flows = Flows()
        secrets: list[bytes] = []

        def pieces(number: int = number, flows: Flows = flows, secrets: list[bytes] = secrets) -> Iterator[Piece]:
            nonlocal ahead
            shared: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
            while ahead is not None and ahead[0] == number:
                _, kind, packed, payload = ahead
                if kind == RowKind.KEYS:
                    secrets += loaded(packed, list[bytes])
                elif kind == RowKind.SHARED:
                    shared = np.append(shared, np.frombuffer(packed, np.uint64))
                elif survey is None:
                    yield piece(*unpack(packed), payload, flows)
                elif len(shared):
                    rows, found = unpack(packed)
                    keep = np.isin(hashes(found), shared)[rows[:, SEGMENT.flow] >> 1]
                    if survey.view is not None:
                        keep &= rows[:, SEGMENT.viewpoint] == survey.view
                    yield piece(*select_rows(rows, found, payload, keep), flows)
                ahead = next(index, None)

        capture = Gathered(sources[number], pieces(), secrets)
        yield number, capture, GatheredSegments(capture, flows)
        capture.close()


def select_rows(
    rows: Words, flows: Words, payload: bytes | None, mine: npt.NDArray[np.bool_]
) -> tuple[Words, Words, bytes | None]:
    """Some unpacked rows, with the flows that they count and their payloads that travelled."""
    if payload is not None:
        sizes = np.where(rows[:, SEGMENT.at] < 0, rows[:, SEGMENT.len], 0)
        payload = np.frombuffer(payload, np.uint8)[np.repeat(mine, sizes)].tobytes() or None
    part = rows[mine]
    wanted = np.bincount(part[:, SEGMENT.flow] >> 1, minlength=len(flows)) > 0
    number = np.cumsum(wanted) - 1
    part[:, SEGMENT.flow] = number[part[:, SEGMENT.flow] >> 1] * 2 + (part[:, SEGMENT.flow] & 1)
    return part, flows[wanted], payload


def piece(rows: Words, own_flows: Words, payload: bytes | None, flows: Flows) -> Piece:
    """An index row's rows, their flows numbered."""
    rows[:, SEGMENT.flow] = flows.number(own_flows)[rows[:, SEGMENT.flow] >> 1] * 2 + (rows[:, SEGMENT.flow] & 1)
    return Piece(rows, payload)
