"""First stage: files become packed segment rows, cut into buckets of connections.

Every TCP packet is a row of the engine's own scanner, which both directions of a 4-tuple share a bucket by. Payloads
stay in the file where a later stage can read ranges of it; others (compressed files, packets that were put together
from IP fragments) travel with the rows. Facts about the file as a whole (its report, problems, counts) go along in a
row of their own.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.mixing import mixed
from kdissect.arrays.typed_values import dumped
from kdissect.capture import CaptureSet
from kdissect.capture.block import Block
from kdissect.capture.captureset import Member
from kdissect.capture.condition import CaptureProblem, FileReport
from kdissect.capture.pcap import scatter
from kdissect.capture.window import EXTRA
from kdissect.engine.sights.one_file import Viewpoints, carrying
from kdissect.engine.sights.shared_flows import HEADERS, Looking, hashes
from kdissect.kafka.streams.ledger import connection_id
from kdissect.net import segment as sg
from kdissect.net.scanner import Tally
from kdissect.net.segment import SEGMENT
from kdissect.problems import CaptureError, CaptureNotFound
from kdissect.spark.cells.segment_cells import pack, turned
from kdissect.spark.stages.matching.dealt_arrays import deal_rows, take_rows, targets_of
from kdissect.spark.stages.matching.matching_steps import Looked, Viewed
from kdissect.spark.stages.plan import INDEX, Plan, RowKind, Source
from kdissect.spark.stages.skimming import Skimmed

Words = npt.NDArray[np.int64]

ROWS, MOST_ROWS = 1 << 18, 1 << 20
"""Rows collected before they are cut into buckets, at least and at most: 20 and 80 MB."""
ROWS_A_BUCKET = 1 << 11
"""Rows collected for each bucket: fewer pack worse, as flows and columns of every cell begin anew."""
PAYLOAD = 16 << 20
"""Payload bytes collected, likewise."""
FILE = "_file"
"""Staged rows with a `FileFacts`, for the driver."""
INLINE = -1
"""AT of a row whose payload travels with it."""
SHARED = (
    "Captures have to be where driver and executors see them alike: on a disk that all share, hdfs:, s3a: or the like."
)


@dataclass(slots=True)
class FileFacts:
    """Facts about one file as a whole."""

    capture: int
    file: int
    report: FileReport
    problems: list[CaptureProblem]
    lost_problems: int
    tally: Tally
    error: str | None
    absent: bool = False
    """The driver saw the file, and the executor that was to read it did not."""


def index(files: list[tuple[int, int]], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Index rows of these files, given as (number of the capture, number of the file in it)."""
    for capture, file in files:
        yield from _index_file(plan, capture, file)


def index_bytes(plan: Plan, number: int, file: int, data: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Index rows of a file whose bytes are here."""
    return _index_file(plan, number, file, Member(plan.sources[number].files[file][0], file=pa.BufferReader(data)))


def _index_file(plan: Plan, number: int, file: int, member: Member | None = None) -> Iterator[pa.RecordBatch]:
    source = plan.sources[number]
    name, path = source.files[file]
    if member is None:
        member = source.member(file)
        if source.ranged and member.path is not None:
            member = Skimmed(name, member.path)
    capture = CaptureSet(name, [member])
    scanner = Viewpoints(capture, plan.settings)
    chunks = Chunks(plan, number, file, source)
    window, looking = capture.window(), Looking()
    views: list[Words] = []
    error, absent = None, False
    told = 0
    try:
        for block in capture.blocks(window):
            if len(capture.secrets) > told:
                yield chunks.secrets(capture.secrets[told:])
                told = len(capture.secrets)
            segments = scanner.scan(block)
            if plan.interfaces:
                views.append(carrying(segments))
            elif plan.looks:
                looking.add_rows(segments[:, HEADERS], len(scanner.flows))
            chunks.add_block(block, segments)
            if chunks.full:
                yield from chunks.cut(scanner.flows)
    except CaptureNotFound:
        absent = True
        error = f"{path}: not there on {platform.node()}, where Spark was to read it. {SHARED}"
    except CaptureError as wrong:
        error = str(wrong)
    yield from chunks.cut(scanner.flows)
    if plan.interfaces:
        yield from _views(plan, views, scanner)
    elif plan.looks:
        yield from _looks(plan, number, looking, scanner.flows)
    facts = FileFacts(
        number, file, capture.reports[0], capture.problems, capture.lost_problems, scanner.tally(), error, absent,
    )  # fmt: skip
    capture.close()
    buckets = plan.buckets_of(number)
    bucket = int(buckets[(number + file) % len(buckets)])
    yield _batch([(bucket, number, file, 0, RowKind.FACTS, dumped(facts, FileFacts), None)])


def _looks(plan: Plan, number: int, looking: Looking, flows: Words) -> Iterator[pa.RecordBatch]:
    """Marks that identify a file's flows to other captures, for the tasks that have those of all files."""
    carrying, marks, marked = looking.look(np.arange(len(flows)).astype(np.uint64))
    of, known, nothing = np.concatenate([carrying, marked]), hashes(flows), np.zeros(len(flows), np.int64)
    mark = np.concatenate([known[carrying], mixed(marks.view(np.int64), seed=1)])
    buckets = connection_id(plan.sources[number].name, flows, nothing, nothing)
    _, once = np.unique(mixed(mark.view(np.int64), of.view(np.int64)), return_index=True)
    looked = take_rows(Looked(mark, known[of], buckets[of]), once)
    yield from deal_rows(RowKind.LOOKS, looked, targets_of(looked.mark, plan.labels), number)


def _views(plan: Plan, views: Sequence[Words], scanner: Viewpoints) -> Iterator[pa.RecordBatch]:
    """Directions of the flows that each interface of a file has, for the tasks that have those of all."""
    flows = scanner.flows
    view, direction = np.unique(np.concatenate([np.zeros((0, 2), np.int64), *views]), axis=0).T
    interface = np.array([scanner.interface[one] for one in view.tolist()], np.int64)
    known, of, nothing = hashes(flows), direction >> 1, np.zeros(len(flows), np.int64)
    buckets = connection_id(plan.sources[0].name, flows, nothing, nothing)
    viewed = Viewed(view.copy(), direction & 1, interface, known[of], buckets[of])
    yield from deal_rows(RowKind.LOOKS, viewed, targets_of(viewed.flow, plan.labels), 0)


class Chunks:
    """Rows of one file on their way into buckets."""

    def __init__(self, plan: Plan, number: int, file: int, source: Source) -> None:
        self.plan, self.number, self.file, self.source = plan, number, file, source
        self._rows: list[Words] = []
        self._payloads: list[npt.NDArray[np.uint8]] = []
        self._labels = plan.buckets_of(number).tolist()
        self._buckets: npt.NDArray[np.unsignedinteger[Any]] = np.zeros(0, np.uint8)
        """Bucket of each flow met so far: of a type that sorts in linear time."""
        self._count = self._bytes = 0
        self._most = min(max(ROWS, ROWS_A_BUCKET * len(self._labels)), MOST_ROWS)
        self._chunk = 0
        """Number of the next chunk."""

    def add_block(self, block: Block, segments: Words) -> None:
        """The segment rows of a block."""
        rows = segments.copy()
        inline = rows[:, SEGMENT.at] >= EXTRA if self.source.ranged else rows[:, SEGMENT.len] > 0
        payload = np.zeros(0, np.uint8)
        if inline.any():
            payload = _payload(block, rows[inline])
            rows[inline, SEGMENT.at] = INLINE
        rows[:, SEGMENT.packet] += np.int64(self.file) << sg.FILE_SHIFT
        self._rows.append(rows)
        self._payloads.append(payload)
        self._count += len(rows)
        self._bytes += len(payload)

    def secrets(self, keys: list[bytes]) -> pa.RecordBatch:
        """TLS keys that stand in the file, for each of its buckets; before the packets that follow them."""
        data = dumped(keys, list[bytes])
        self._chunk += 1
        return _batch(
            [(label, self.number, self.file, self._chunk - 1, RowKind.KEYS, data, None) for label in self._labels]
        )

    @property
    def full(self) -> bool:
        """Enough was collected."""
        return self._count >= self._most or self._bytes >= PAYLOAD

    def cut(self, flows: Words) -> Iterator[pa.RecordBatch]:
        """The segments that were collected, a row for each bucket."""
        if not self._count:
            return
        rows, payload = np.concatenate(self._rows), np.concatenate(self._payloads)
        self._rows, self._payloads = [], []
        self._count = self._bytes = 0
        number = rows[:, SEGMENT.flow] >> 1
        bucket_of = self._bucket_of(flows)
        used = np.flatnonzero(np.bincount(number, minlength=len(flows)))
        used = used[np.argsort(bucket_of[used], kind="stable")]
        bucket = bucket_of[number]
        order = np.argsort(bucket, kind="stable")
        counts = np.bincount(bucket, minlength=len(self._labels))
        flow_counts = np.bincount(bucket_of[used], minlength=len(self._labels))
        first_flows = np.cumsum(flow_counts) - flow_counts
        local = np.zeros(len(flows), np.int64)
        local[used] = np.arange(len(used)) - first_flows[bucket_of[used]]
        rows[:, SEGMENT.flow] = local[number] * 2 + (rows[:, SEGMENT.flow] & 1)
        sizes = np.where(rows[:, SEGMENT.at] == INLINE, rows[:, SEGMENT.len], 0)
        places = np.cumsum(sizes) - sizes
        columns = np.empty((sg.SEGMENT_COLUMNS, len(order)), np.int64)
        turned(rows, order, columns)
        made = []
        end = 0
        for i in np.flatnonzero(counts).tolist():
            begin, end = end, end + int(counts[i])
            mine = order[begin:end]
            kept = used[first_flows[i] : first_flows[i] + flow_counts[i]]
            data = None
            carried = mine[sizes[mine] > 0] if len(payload) else mine[:0]
            if len(carried):
                length = sizes[carried]
                out = np.empty(int(length.sum()), np.uint8)
                scatter(payload, places[carried], length, out, np.cumsum(length) - length)
                data = out.tobytes()
            packed = pack(columns[:, begin:end], flows[kept])
            made.append((self._labels[i], self.number, self.file, self._chunk, RowKind.PACKETS, packed, data))
        self._chunk += 1
        yield _batch(made)

    def _bucket_of(self, flows: Words) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Numbers of the buckets that flows belong to."""
        fresh = flows[len(self._buckets) :]
        if len(fresh):
            count, nothing = len(self._labels), np.zeros(len(fresh), np.int64)
            mixed = connection_id(self.source.name, fresh, nothing, nothing) % np.uint64(count)
            self._buckets = np.concatenate([self._buckets, mixed.astype(np.min_scalar_type(count))])
        return self._buckets


def _payload(block: Block, rows: Words) -> npt.NDArray[np.uint8]:
    """Payload bytes of rows of a block, one behind the other."""
    window = block.window
    sizes = np.ascontiguousarray(rows[:, SEGMENT.len])
    starts = rows[:, SEGMENT.at] - block.delta
    for i in np.flatnonzero(rows[:, SEGMENT.at] >= EXTRA).tolist():  # packets put together: few
        starts[i] = window.locate(int(rows[i, SEGMENT.at]), int(sizes[i]))
    out = np.empty(int(sizes.sum()), np.uint8)
    scatter(window.data, starts, sizes, out, np.cumsum(sizes) - sizes)
    return out


def _batch(rows: Sequence[tuple[int, int, int, int, int, bytes, bytes | None]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, INDEX, strict=True)], schema=INDEX
    )
