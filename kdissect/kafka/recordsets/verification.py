"""Checksums and uncompressed sizes of batches: what is computed only when asked for."""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from zstandard import ZstdDecompressor

from kdissect.kafka.recordsets import batch_kernels, record_kernels
from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kafka.recordsets.batch_layout import FIELDS
from kdissect.kafka.recordsets.batches import Batches
from kdissect.kafka.recordsets.codecs import CodecError, Reader, reader
from kdissect.kafka.recordsets.compressed import compressed, failure, inner_span, note_inner, openable
from kdissect.kernels.structs import width

PIECE = 1 << 20
"""Bytes decompressed in one go when only their number is asked."""


CRC32, CRC32C = 0xEDB88320, 0x82F63B78
"""Polynomials, reflected: of magic 0 and 1, of magic 2."""


@cache
def crc32_table(polynomial: int) -> npt.NDArray[np.uint32]:
    """uint32[8, 256] for `batch_kernels.crc32`."""
    table = np.empty((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        table[0, byte] = value
    for k in range(1, 8):
        table[k] = table[0][table[k - 1] & 0xFF] ^ (table[k - 1] >> np.uint32(8))
    return table


def verify(batches: Batches) -> None:
    """Checksums of all whole batches into `crc_ok`: CRC-32C for magic 2, CRC-32 for magic 0 and 1 (of a run, every
    message's). A wrong one is a problem. Also notes where a batch cut by its record set holds all of its records: its
    length lies."""
    rows, ok = batches.rows, batches.crc_ok
    view = memoryview(batches.s)
    whole = (rows[:, FIELDS.cut] == bl.WHOLE) & ((rows[:, FIELDS.problems] & bl.P_SHORT) == 0)
    for kind, start, checksum in ((bl.BATCH, bl.CRC_FROM_V2, crc32c), (bl.WRAPPER, bl.CRC_FROM_V1, zlib.crc32)):
        picked = np.flatnonzero(whole & (rows[:, FIELDS.kind] == kind))
        if not len(picked):
            continue
        begin = rows[picked, FIELDS.at]
        places = zip((begin + start).tolist(), (begin + rows[picked, FIELDS.length]).tolist(), strict=True)
        computed = [checksum(view[first:end]) for first, end in places]
        ok[picked] = np.asarray(computed, np.int64) == rows[picked, FIELDS.crc]
    if (rows[:, FIELDS.kind] == bl.RUN).any():
        batch_kernels.runs_ok(batches.s, rows, crc32_table(CRC32), ok)
    rows[ok == 0, FIELDS.problems] |= bl.P_CRC
    _find_long_lengths(batches)


def _find_long_lengths(batches: Batches) -> None:
    """Batches cut by their record set whose records all end inside it."""
    rows = batches.rows
    cut = (rows[:, FIELDS.cut] == bl.CUT_BY_SENDER) & (rows[:, FIELDS.kind] == bl.BATCH)
    cut &= rows[:, FIELDS.length] > bl.HEADER_V2
    for row in np.flatnonzero(cut & (rows[:, FIELDS.records] > 0)).tolist():
        codec = int(rows[row, FIELDS.attributes]) & bl.CODEC_MASK
        begin, end = int(rows[row, FIELDS.at]) + bl.HEADER_V2, int(rows[row, FIELDS.at] + rows[row, FIELDS.length])
        if codec == bl.NONE:
            header = rows[row : row + 1].copy()
            segment = np.array([[begin, end, 0, 0, record_kernels.LOST, 0, 0]], np.int64)
            nothing = record_kernels.empty_columns(1, revealed=False)
            state = np.zeros(width(record_kernels.Progress), np.int64)
            record_kernels.read_records(batches.s, header, segment, state, nothing, np.int64(0), np.int64(-1))
            found, read = bl.batch_at(header, 0), record_kernels.stretch_at(segment, 0)
            complete = read.done == found.records and not found.problems
        elif codec < len(bl.CODECS):
            complete = _size(reader(codec, memoryview(batches.s)[begin:end])) is not None
        else:
            complete = False
        if complete:
            batches.flag(row, bl.P_LONG)


def _size(source: Reader) -> int | None:
    """Decompressed size, None where the data do not end well."""
    scratch = memoryview(bytearray(PIECE))
    total = 0
    try:
        while done := source.readinto(scratch):
            total += done
    except CodecError:
        return None
    return total


def measure(batches: Batches) -> None:
    """`uncompressed` of all whole batches; compressed ones are decompressed, piece by piece.

    Opens compressed wrappers too: `records`, `base_offset` and `first_timestamp` of their rows become known.
    """
    rows = batches.rows
    view = memoryview(batches.s)
    known = openable(rows)
    packed = (rows[:, FIELDS.attributes] & bl.CODEC_MASK) != bl.NONE
    plain = np.flatnonzero(known & ~packed)
    headers = np.where(rows[plain, FIELDS.kind] == bl.BATCH, bl.HEADER_V2, 0)
    batches.uncompressed[plain] = rows[plain, FIELDS.length] - headers
    scratch = np.empty(PIECE, np.uint8)
    zstd = ZstdDecompressor()
    for row in np.flatnonzero(known & packed).tolist():
        codec, data = compressed(rows, view, row)
        if data is None:
            batches.flag(row, bl.P_DECOMPRESS, "its value does not fit the message")
            continue
        source = reader(codec, data, int(rows[row, FIELDS.magic]), zstd=zstd)
        try:
            if rows[row, FIELDS.kind] == bl.WRAPPER:
                inner, total = inner_span(source, scratch)
                note_inner(rows, row, inner)
            else:
                total = 0
                into = memoryview(scratch)
                while done := source.readinto(into):
                    total += done
            batches.uncompressed[row] = total
        except CodecError as error:
            failure(batches, row, error)
