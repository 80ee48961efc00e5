"""Compressed batches: where the compressed bytes are, and what compressed wrappers of magic 0 and 1 hold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kafka.recordsets import record_kernels
from kdissect.kafka.recordsets.batch_layout import FIELDS
from kdissect.kafka.recordsets.batches import Batches
from kdissect.kafka.recordsets.codecs import Bomb, CodecError, Reader
from kdissect.kafka.recordsets.record_kernels import Inner
from kdissect.kernels.structs import width

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def openable(rows: Int64s) -> Flags:
    """Rows with records that can be looked at: headers complete, codec known to their format."""
    kind = rows[:, FIELDS.kind]
    complete = (rows[:, FIELDS.length] >= bl.HEADER_V2) | (kind == bl.WRAPPER) | (kind == bl.RUN)
    flawed = rows[:, FIELDS.problems] & (bl.P_SHORT | bl.P_CODEC | bl.P_ZSTD)
    sound: Flags = (kind <= bl.RUN) & complete & (flawed == 0)
    sound &= rows[:, FIELDS.cut] == bl.WHOLE
    return sound


def compressed(rows: Int64s, view: memoryview, row: int) -> tuple[int, memoryview | None]:
    """(codec, the compressed bytes) of a batch or wrapper; None where a wrapper's value does not fit it."""
    at, length = int(rows[row, FIELDS.at]), int(rows[row, FIELDS.length])
    codec = int(rows[row, FIELDS.attributes]) & bl.CODEC_MASK
    if rows[row, FIELDS.kind] == bl.BATCH:
        return codec, view[at + bl.HEADER_V2 : at + length]
    begin = at + (26 if rows[row, FIELDS.magic] == 1 else 18)  # behind the attributes and the timestamp
    key = int.from_bytes(view[begin : begin + 4], "big", signed=True)
    begin += 4 + max(key, 0)
    if begin + 4 > at + length:
        return codec, None
    size = int.from_bytes(view[begin : begin + 4], "big", signed=True)
    begin += 4
    if size < 0 or begin + size > at + length:
        return codec, None
    return codec, view[begin : begin + size]


def failure(batches: Batches, row: int, error: CodecError) -> None:
    """Note that a batch could not be decompressed."""
    batches.flag(
        row, bl.P_BOMB if isinstance(error, Bomb) else bl.P_DECOMPRESS, "" if isinstance(error, Bomb) else str(error)
    )


def inner_span(source: Reader, scratch: Bytes) -> tuple[Inner, int]:
    """The content of a wrapper and its size in bytes. Raises CodecError.

    `scratch` is any buffer of at least 32 bytes; only the beginning of each message is kept in it.
    """
    words = np.zeros(width(Inner), np.int64)
    inner = record_kernels.inner_at(words, 0)
    total = kept = skip = 0
    while done := source.readinto(memoryview(scratch)[kept:]):
        total += done
        end = kept + done
        if inner.broken or skip >= end:
            kept, skip = 0, max(skip - end, 0)
            continue
        begin = int(record_kernels.span(scratch, skip, end, words))
        kept, skip = max(end - begin, 0), max(begin - end, 0)
        if inner.broken:
            kept = 0
        scratch[:kept] = scratch[end - kept : end].copy()
    if kept or skip:
        inner.broken = 1
    return inner, total


def wrapper_base(rows: Int64s, row: int, inner: Inner) -> tuple[int, bool]:
    """(What to add to a wrapper's inner offsets, whether the wrapper's own offset makes sense).

    Magic 0 has absolute inner offsets; magic 1 relative ones, the last being the wrapper's (KIP-31). A wrapper of
    offset 0 was produced by old librdkafka: its inner offsets count from 0
    (AbstractLegacyRecordBatch.DeepRecordsIterator).
    """
    offset, last = int(rows[row, FIELDS.last_offset]), int(inner.last)
    if rows[row, FIELDS.magic] == 0 or offset == 0:
        return 0, True
    return (offset - last, True) if offset >= last else (0, False)


def note_inner(rows: Int64s, row: int, inner: Inner) -> None:
    """Write into a wrapper's row what was found inside."""
    rows[row, FIELDS.records] = inner.count
    if inner.broken:
        rows[row, FIELDS.problems] |= bl.P_RECORD_LENGTH
    if inner.count == 0:
        return
    base, sane = wrapper_base(rows, row, inner)
    if not sane:
        rows[row, FIELDS.problems] |= bl.P_WRAPPER_OFFSET
    rows[row, FIELDS.base_offset] = base + inner.first
    rows[row, FIELDS.last_offset] = base + inner.last
    if rows[row, FIELDS.magic] == 1:
        appended = rows[row, FIELDS.attributes] & bl.LOG_APPEND_BIT
        if not appended:  # some producers leave the wrapper's own timestamp at 0
            rows[row, FIELDS.max_time] = inner.max_time
        rows[row, FIELDS.first_time] = rows[row, FIELDS.max_time] if appended else inner.first_time
