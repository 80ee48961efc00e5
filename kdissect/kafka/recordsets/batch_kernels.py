"""Kernels over batch headers: hop from batch to batch (nothing behind a header is touched), CRC-32 of plain messages.

How a record set is walked (ByteBufferLogInputStream): int64 offset, int32 length, magic at byte 16 in every format. A
set that ends inside a batch is legal. A length below 14 or a magic outside 0-2 ends the walk, for nothing says where
the next batch would begin; the rest becomes one DAMAGED row. A batch of offset -1 that reaches past the set and holds
zeros is the filling of a down-converted response (LazyDownConversionRecordsSend), no batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import fetch, int16_at, int32_at, int64_at

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Number = Any
"""An int64 of numba, whatever Python makes of it."""
Flag = Any
"""A truth value of numba."""
AHEAD = 8
"""Record sets whose first bytes are asked for before they are looked at."""


@part
def _known16(s: Bytes, p: Number, end: Number) -> Number:
    return int16_at(s, p) if p + 2 <= end else bl.NULL


@part
def _known32(s: Bytes, p: Number, end: Number) -> Number:
    return int32_at(s, p) if p + 4 <= end else bl.NULL


@part
def _known64(s: Bytes, p: Number, end: Number) -> Number:
    return int64_at(s, p) if p + 8 <= end else bl.NULL


@part
def _odd_time(time: Number) -> Number:
    return time != bl.NULL and (time < bl.FIRST_MS or time > bl.LAST_MS)


@part
def _blank(s: Bytes, p: Number, end: Number) -> Number:
    blank = True
    for k in range(p, end):
        blank = blank and s[k] == 0
    return blank


@part
def _start(
    rows: Int64s, n: Number, owner: Number, at: Number, length: Number, wire: Number, kind: Number, cut: Number
) -> bl.Batch:
    """Row n, for a new batch."""
    for k in range(bl.WIDTH):
        rows[n, k] = bl.NULL
    row = bl.batch_at(rows, n)
    row.owner, row.at, row.length, row.wire = owner, at, length, wire
    row.kind, row.cut, row.problems = kind, cut, 0
    return row


@part
def _batch(s: Bytes, row: bl.Batch, end: Number) -> None:
    """The fields of a magic-2 header; `end` is where the bytes of the batch end."""
    p = row.at
    problems: Number = row.problems
    base = int64_at(s, p)
    row.magic, row.base_offset, row.leader_epoch = 2, base, _known32(s, p + 12, end)
    crc = _known32(s, p + 17, end)
    row.crc = crc & 0xFFFFFFFF if crc != bl.NULL else bl.NULL
    attributes = _known16(s, p + 21, end)
    row.attributes = attributes
    delta = _known32(s, p + 23, end)
    if delta != bl.NULL:
        row.last_offset = base + delta
        if delta < 0:
            problems |= bl.P_LAST_OFFSET
    row.first_time, row.max_time = _known64(s, p + 27, end), _known64(s, p + 35, end)
    row.producer_id, row.producer_epoch = _known64(s, p + 43, end), _known16(s, p + 51, end)
    row.base_sequence = _known32(s, p + 53, end)
    count = _known32(s, p + 57, end)
    row.records = count
    if attributes != bl.NULL:
        if attributes & ~np.int64(0x7F):
            problems |= bl.P_BITS
        if (attributes & bl.CODEC_MASK) > bl.ZSTD:
            problems |= bl.P_CODEC
        plain = (attributes & bl.CODEC_MASK) == bl.NONE
        too_many = plain and row.cut == bl.WHOLE and count * bl.LEAST_RECORD > row.wire - bl.HEADER_V2
        if count != bl.NULL and (count < 0 or too_many):
            problems |= bl.P_COUNT
    if _odd_time(row.first_time) or _odd_time(row.max_time):
        problems |= bl.P_TIME
    row.problems = problems


@part
def _message(s: Bytes, row: bl.Batch, end: Number, magic: Number) -> None:
    """The fields of one message of magic 0 or 1: a wrapper, or the first of a run."""
    p = row.at
    offset = int64_at(s, p)
    crc: Number = _known32(s, p + 12, end)
    row.magic, row.last_offset = magic, offset
    problems: Number = row.problems
    attributes: Number = np.int64(s[p + 17]) if p + 18 <= end else bl.NULL
    row.attributes = attributes
    codec = bl.NONE if attributes == bl.NULL else attributes & bl.CODEC_MASK
    if codec == bl.NONE:
        row.base_offset, row.records = offset, 1
    else:
        row.kind = bl.WRAPPER
        row.crc = crc & 0xFFFFFFFF if crc != bl.NULL else bl.NULL
        if codec > bl.ZSTD:
            problems |= bl.P_CODEC
        elif codec > bl.LZ4:
            problems |= bl.P_ZSTD
    if magic == 1:
        time = _known64(s, p + 18, end)
        row.max_time = time
        if codec == bl.NONE:
            row.first_time = time
        if _odd_time(time):
            problems |= bl.P_TIME
    if attributes != bl.NULL and attributes & ~np.int64(0x0F if magic == 1 else 0x07):
        problems |= bl.P_BITS
    row.problems = problems


@part
def _join(s: Bytes, row: bl.Batch, p: Number, total: Number, magic: Number) -> None:
    """Take a further plain message into the run of this row."""
    row.length += total
    row.wire += total
    row.records += 1
    row.last_offset = int64_at(s, p)
    if np.int64(s[p + 17]) & ~np.int64(0x0F if magic == 1 else 0x07):
        row.problems |= bl.P_BITS
    if magic == 1:
        time = int64_at(s, p + 18)
        row.max_time = max(row.max_time, time)
        if _odd_time(time):
            row.problems |= bl.P_TIME


@kernel("const u1[:] i8[:] i8[:] i8[:] i8[:,:] -> i8")
def walk(s: Bytes, at: Int64s, size: Int64s, captured: Int64s, rows: Int64s) -> Number:
    """Rows of all batches of the record sets s[at[i] : at[i] + size[i]], whose first captured[i] bytes are there.

    Returns how many rows there are; fills `rows` [n, WIDTH] unless it has none (first pass: count).
    """
    fill = rows.shape[0] > 0
    n = 0
    for i in range(at.shape[0]):
        if i + AHEAD < at.shape[0]:
            fetch(s, at[i + AHEAD])
        p = at[i]
        if p < 0 or p > s.shape[0]:
            continue
        stop = p + max(size[i], 0)  # where the set ends
        end = p + min(max(size[i], 0), max(captured[i], 0), s.shape[0] - p)  # where its captured bytes end
        run: Number = -1  # magic of the run that the row before is, if it can go on
        while p < end:
            left = end - p
            cut = bl.CUT_BY_CAPTURE if end < stop else bl.CUT_BY_SENDER
            if left < 8 or (left < bl.PREFIX and int64_at(s, p) != -1):
                if fill:
                    _start(rows, n, i, p, left, stop - p, bl.STUB, cut).base_offset = _known64(s, p, end)
                n += 1
                break
            length = int32_at(s, p + 8) if left >= bl.PREFIX else bl.NULL
            oversized = length == bl.NULL or (length >= bl.LEAST_LENGTH and bl.PREFIX + length > stop - p)
            if oversized and int64_at(s, p) == -1 and _blank(s, p + bl.PREFIX, min(p + bl.HEADER_V2, end)):
                if fill:
                    _start(rows, n, i, p, left, stop - p, bl.PADDING, cut).problems = bl.P_PADDING
                n += 1
                break
            if length == bl.NULL or length < bl.LEAST_LENGTH:
                if fill:
                    row = _start(rows, n, i, p, left, stop - p, bl.DAMAGED, bl.WHOLE)
                    row.base_offset, row.problems = int64_at(s, p), bl.P_LENGTH
                n += 1
                break
            total = bl.PREFIX + length
            if left < 17:
                if fill:
                    _start(rows, n, i, p, left, min(total, stop - p), bl.STUB, cut).base_offset = int64_at(s, p)
                n += 1
                break
            magic = np.int64(s[p + 16])
            if magic > 2:
                if fill:
                    row = _start(rows, n, i, p, left, stop - p, bl.DAMAGED, bl.WHOLE)
                    row.base_offset, row.problems = int64_at(s, p), bl.P_MAGIC
                n += 1
                break
            whole = total <= left
            if whole:
                cut = bl.WHOLE
            elif total > stop - p:
                cut = bl.CUT_BY_SENDER if end == stop else bl.CUT_BY_CAPTURE
            if magic == 2:
                if fill:
                    row = _start(rows, n, i, p, min(total, left), min(total, stop - p), bl.BATCH, cut)
                    if whole and total < bl.HEADER_V2:
                        row.problems = bl.P_SHORT
                    _batch(s, row, p + min(total, left))
                n += 1
                run = -1
            else:
                short = magic == 1 and length < bl.LEAST_LENGTH_V1
                plain = whole and not short and (np.int64(s[p + 17]) & bl.CODEC_MASK) == bl.NONE
                if plain and run == magic:
                    if fill:
                        _join(s, bl.batch_at(rows, n - 1), p, total, magic)
                else:
                    if fill:
                        row = _start(rows, n, i, p, min(total, left), min(total, stop - p), bl.RUN, cut)
                        if short:
                            row.problems = bl.P_SHORT
                        _message(s, row, p + min(total, left), magic)
                    n += 1
                    run = magic if plain else -1
            if not whole:
                break
            p += total
    return n


@part
def sound(s: Bytes, p: Number, end: Number, followed: Flag) -> Flag:
    """Whether the record set s[p:end] is whole batches of magic 2 whose headers are all possible; where it is
    `followed`, none of a producer with an id."""
    good = p >= 0 and p <= end and end <= s.size
    while good and p < end:
        good = end - p >= bl.HEADER_V2 and s[p + bl.MAGIC_AT] == 2
        if good:
            total = bl.PREFIX + int32_at(s, p + 8)
            attributes, count = int16_at(s, p + 21), int32_at(s, p + 57)
            codec = attributes & bl.CODEC_MASK
            good = bl.HEADER_V2 <= total <= end - p and attributes & ~np.int64(0x7F) == 0 and codec <= bl.ZSTD
            good = good and int32_at(s, p + 23) >= 0 and count >= 0
            good = good and (codec != bl.NONE or count * bl.LEAST_RECORD <= total - bl.HEADER_V2)
            good = good and not _odd_time(int64_at(s, p + 27)) and not _odd_time(int64_at(s, p + 35))
            good = good and not (followed and int64_at(s, p + 43) >= 0)
            p += total
    return good


@kernel("const u1[:] const i8[:] const i8[:] b1 b1[:]")
def doubtful(s: Bytes, at: Int64s, size: Int64s, followed: Flag, flags: npt.NDArray[np.bool_]) -> None:
    """Whether the record sets s[at[i] : at[i] + size[i]] are not `sound`: nothing is wrong with the others."""
    for i in range(at.size):
        if i + AHEAD < at.size:
            fetch(s, at[i + AHEAD])
        flags[i] = not sound(s, at[i], at[i] + size[i], followed)


@kernel("const u1[:] i8[:,:] u4[:,:] i1[:]")
def runs_ok(s: Bytes, rows: Int64s, table: npt.NDArray[np.uint32], ok: npt.NDArray[np.int8]) -> None:
    """CRC-32 of every message of every whole run: ok[n] becomes 1, or 0 where any differs. Others stay as they are.

    `table` [8, 256] is the slicing-by-8 table of the polynomial.
    """
    for n in range(rows.shape[0]):
        row = bl.batch_at(rows, n)
        if row.kind != bl.RUN or row.cut != bl.WHOLE or row.problems & bl.P_SHORT:
            continue
        p, end = row.at, row.at + row.length
        if p < 0 or end > s.shape[0]:
            continue
        good = True
        while p + bl.PREFIX + bl.LEAST_LENGTH <= end:
            length = int32_at(s, p + 8)
            if length < bl.LEAST_LENGTH or length > end - p - bl.PREFIX:
                good = False
                break
            crc = crc32(s, p + 16, p + bl.PREFIX + length, table)
            if np.int64(crc) != (int32_at(s, p + 12) & 0xFFFFFFFF):
                good = False
                break
            p += bl.PREFIX + length
        ok[n] = 1 if good else 0


@part
def crc32(s: Bytes, p: Number, end: Number, table: npt.NDArray[np.uint32]) -> Number:
    """A reflected CRC-32 of s[p:end], eight bytes at a time; `table` makes it CRC-32 or CRC-32C."""
    crc = np.uint32(0xFFFFFFFF)
    i = np.uint64(p)
    stop = np.uint64(end)
    while i + np.uint64(8) <= stop:
        a = crc ^ (
            np.uint32(s[i])
            | (np.uint32(s[i + np.uint64(1)]) << np.uint32(8))
            | (np.uint32(s[i + np.uint64(2)]) << np.uint32(16))
            | (np.uint32(s[i + np.uint64(3)]) << np.uint32(24))
        )
        crc = (
            table[7, a & np.uint32(0xFF)]
            ^ table[6, (a >> np.uint32(8)) & np.uint32(0xFF)]
            ^ table[5, (a >> np.uint32(16)) & np.uint32(0xFF)]
            ^ table[4, a >> np.uint32(24)]
            ^ table[3, s[i + np.uint64(4)]]
            ^ table[2, s[i + np.uint64(5)]]
            ^ table[1, s[i + np.uint64(6)]]
            ^ table[0, s[i + np.uint64(7)]]
        )
        i += np.uint64(8)
    while i < stop:
        crc = table[0, (crc ^ np.uint32(s[i])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        i += np.uint64(1)
    return np.uint32(crc ^ np.uint32(0xFFFFFFFF))
