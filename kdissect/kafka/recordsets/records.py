"""Records of batches, in chunks: offset, time, sizes, and where asked keys, values and headers.

Plain batches are read where they lie; compressed ones flow through one buffer (`Buffer`). So memory depends neither on
how many batches there are nor on how large they are. A single record larger than the buffer makes it grow, as far as
its bytes come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from zstandard import ZstdDecompressor

from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kafka.recordsets import record_kernels
from kdissect.kafka.recordsets.batch_layout import FIELDS
from kdissect.kafka.recordsets.batches import Batches
from kdissect.kafka.recordsets.codecs import Bomb, CodecError, Reader, reader
from kdissect.kafka.recordsets.compressed import compressed, failure, inner_span, note_inner, openable, wrapper_base
from kdissect.kafka.recordsets.record_columns import chunk
from kdissect.kafka.recordsets.record_kernels import (
    CLOSED,
    DONE,
    FINISHED,
    LOST,
    OPEN,
    Progress,
    Stretch,
    progress_at,
    stretch_at,
)
from kdissect.kernels.structs import rows_of, width

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Segment = tuple[int, int, int, int, int, int, int]

CHUNK = 60_000
"""Rows of a chunk at most: some MB of columns. No power of two, whose columns would share a few lines of the cache."""
BUFFER = 4 << 20
"""Bytes of the buffer that compressed batches flow through: some hundred ordinary batches, and within a processor's
cache."""
GROWTH = 64 << 20
"""Bytes that the buffer grows to for one record: twice what is shown of one."""
ALL_OFFSETS = (-(2**63), 2**63 - 1)


def records(
    batches: Batches,
    *,
    reveal: bool = False,
    traced: bool = False,
    offsets: tuple[int, int] | None = None,
    picked: Sequence[int] | Int64s | None = None,
) -> Iterator[pa.RecordBatch]:
    """Chunks of records of `batches`, in order of batches and offsets in them; at most CHUNK rows each.

    Columns as in `record_columns.SCHEMA`: `owner` (the record set), `batch` (row of `batches`) and those of the table
    `records`. Without `reveal` keys, values and headers are null, without `traced` the trace ids in headers. `offsets`:
    only those from the first to the last,
    both included. `picked`: only these rows of `batches`. Problems are noted in `batches` as reading goes on. Nothing
    raises. Batches cut by their record set are left out, as clients do; of plain ones cut by the capture the records
    there are.
    """
    return Records(batches, reveal, offsets or ALL_OFFSETS, traced).chunks(picked)


class Records:
    """One pass over the records of batches."""

    def __init__(self, batches: Batches, reveal: bool, offsets: tuple[int, int], traced: bool = False) -> None:
        self.batches = batches
        self.reveal, self.traced = reveal, traced
        self.first, self.last = np.int64(offsets[0]), np.int64(offsets[1])
        self.buffer = np.empty(BUFFER, np.uint8)
        self._fresh()

    def _fresh(self) -> None:
        self.out = record_kernels.empty_columns(CHUNK, revealed=self.reveal or self.traced)
        self.filled = 0

    def chunks(self, picked: Sequence[int] | Int64s | None) -> Iterator[pa.RecordBatch]:
        """All chunks."""
        rows = self.batches.rows
        wanted = self._select_batches()
        if picked is not None:
            mask = np.zeros(len(rows), np.bool_)
            mask[np.asarray(picked, np.int64)] = True
            wanted &= mask
        index = np.flatnonzero(wanted)
        if len(index):
            packed = (rows[index, FIELDS.attributes] & bl.CODEC_MASK) != bl.NONE
            legacy = rows[index, FIELDS.kind] != bl.BATCH
            groups = np.split(index, np.flatnonzero(np.diff(packed * 2 + legacy)) + 1)
            for group in groups:
                row = group[0]
                old = rows[row, FIELDS.kind] != bl.BATCH
                if rows[row, FIELDS.attributes] & bl.CODEC_MASK == bl.NONE:
                    yield from self._plain(group, old)
                else:
                    yield from self._packed(group.tolist(), old)
        yield from self._flush(self.batches.s)

    def _select_batches(self) -> npt.NDArray[np.bool_]:
        rows = self.batches.rows
        wanted = openable(rows)
        whole_header = rows[:, FIELDS.length] >= bl.HEADER_V2
        plain = (rows[:, FIELDS.attributes] & bl.CODEC_MASK) == bl.NONE
        wanted |= (rows[:, FIELDS.cut] == bl.CUT_BY_CAPTURE) & (rows[:, FIELDS.kind] == bl.BATCH) & whole_header & plain
        # Offsets of a magic-2 header bound those inside; of legacy batches they are known only once they are opened.
        known = rows[:, FIELDS.kind] == bl.BATCH
        outside = (rows[:, FIELDS.last_offset] < self.first) | (rows[:, FIELDS.base_offset] > self.last)
        wanted &= ~(known & outside)
        return wanted

    def _plain(self, group: Int64s, old: bool) -> Iterator[pa.RecordBatch]:
        rows = self.batches.rows[group]
        segments = np.zeros((len(group), width(Stretch)), np.int64)
        stretches = rows_of(Stretch, segments)
        stretches["begin"] = rows[:, FIELDS.at] + np.where(rows[:, FIELDS.kind] == bl.BATCH, bl.HEADER_V2, 0)
        stretches["end"] = rows[:, FIELDS.at] + rows[:, FIELDS.length]
        stretches["batch"] = group
        stretches["state"] = np.where(rows[:, FIELDS.cut] == bl.WHOLE, CLOSED, LOST)
        yield from self._run(self.batches.s, segments, old)

    def _run(self, s: Bytes, segments: Int64s, old: bool) -> Iterator[pa.RecordBatch]:
        """Read the segments as far as they go; chunks as they fill."""
        read = record_kernels.read_messages if old else record_kernels.read_records
        state = np.zeros(width(Progress), np.int64)
        progress = progress_at(state, 0)
        status = not DONE
        while status != DONE:
            progress.rows = self.filled
            status = read(s, self.batches.rows, segments, state, self.out, self.first, self.last)
            self.filled = int(progress.rows)
            if status != DONE:
                yield from self._flush(s)
        if self.reveal or self.traced:  # the bytes of keys and values do not stay where they are
            yield from self._flush(s)

    def _flush(self, s: Bytes) -> Iterator[pa.RecordBatch]:
        if self.filled:
            out, count = self.out, self.filled
            self._fresh()
            yield from chunk(s, record_kernels.cut_columns(out, 0, count), self.batches.owner, self.reveal, self.traced)

    def _packed(self, group: list[int], old: bool) -> Iterator[pa.RecordBatch]:
        rows = self.batches.rows
        view = memoryview(self.batches.s)
        segments: list[Segment] = []
        zstd = ZstdDecompressor()
        fill = 0
        for row in group:
            codec, data = compressed(rows, view, row)
            if data is None:
                self.batches.flag(row, bl.P_DECOMPRESS, "its value does not fit the message")
                continue
            magic = int(rows[row, FIELDS.magic])
            base = 0
            if magic == 1:
                found = self._relative_base(codec, data, row)
                if found is None:
                    continue
                base = found
            source = reader(codec, data, magic, zstd=zstd)
            begin, done, fill_state = fill, 0, OPEN
            while fill_state == OPEN:
                if fill == len(self.buffer):
                    segments.append((begin, fill, row, done, OPEN, base, 0))
                    array = np.array(segments, np.int64)
                    segments.clear()
                    yield from self._run(self.buffer, array, old)
                    last = stretch_at(array, len(array) - 1)
                    begin, done = 0, int(last.done)
                    if last.state == FINISHED:
                        fill, fill_state = 0, FINISHED
                        break
                    try:
                        fill = self._carry(last, source)
                    except CodecError as error:
                        failure(self.batches, row, error)
                        fill, fill_state = 0, FINISHED
                        break
                try:
                    got = source.readinto(memoryview(self.buffer)[fill:])
                except CodecError as error:
                    failure(self.batches, row, error)
                    got, fill_state = 0, LOST
                if got == 0 and fill_state == OPEN:
                    fill_state = CLOSED
                fill += got
            if fill_state != FINISHED:
                segments.append((begin, fill, row, done, fill_state, base, 0))
        if segments:
            yield from self._run(self.buffer, np.array(segments, np.int64), old)

    def _carry(self, segment: Stretch, source: Reader) -> int:
        """Move what was not read of an open segment to the buffer's front; returns how many bytes.

        Throws away what follows of a record that was too large to wait for. A record that must be whole makes the
        buffer grow. Raises CodecError.
        """
        begin, end = int(segment.begin), int(segment.end)
        surplus = begin - end
        while surplus > 0:
            done = source.readinto(memoryview(self.buffer)[: min(surplus, len(self.buffer))])
            if done == 0:
                raise CodecError("the data end inside a record")
            surplus -= done
        rest = self.buffer[begin:end]
        if 2 * len(rest) > len(self.buffer):
            room = 2 * len(self.buffer)
            if room > GROWTH:
                raise Bomb("a key that is larger than any broker takes")
            self.buffer = np.concatenate([rest, np.empty(room - len(rest), np.uint8)])
        else:
            self.buffer[: len(rest)] = rest.copy()
        return len(rest)

    def _relative_base(self, codec: int, data: memoryview, row: int) -> int | None:
        """Base of a magic-1 wrapper's inner offsets, which only the last inner message tells; None if it cannot be
        read."""
        source: Reader = reader(codec, data, 1)
        try:
            inner, size = inner_span(source, np.empty(min(BUFFER, max(4096, 32 * len(data))), np.uint8))
        except CodecError as error:
            failure(self.batches, row, error)
            return None
        base, _ = wrapper_base(self.batches.rows, row, inner)
        note_inner(self.batches.rows, row, inner)
        self.batches.uncompressed[row] = size
        return base
