"""Segment rows as a few bytes each, for the shuffle.

Columns are stored as differences to what the row before lets expect (the one before in the capture; for sequence
numbers, acknowledgements and flags the one before of the same direction), each in the smallest integer type that
holds them, and compressed together. Lossless for any rows: differences wrap around, and so do their sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.kernels.kernel import kernel
from kdissect.net import segment as sg
from kdissect.net.segment import SEGMENT, segment_at

Words = npt.NDArray[np.int64]

CODEC = "zstd"
TYPES: tuple[type[np.signedinteger[Any]], ...] = (np.int8, np.int16, np.int32, np.int64)
IN_ORDER = (SEGMENT.time, SEGMENT.at, SEGMENT.packet)
"""Columns that differ little from the row before."""
IN_DIRECTION = (SEGMENT.seq, SEGMENT.ack, SEGMENT.flags, SEGMENT.stamp)
"""Columns that differ little from the row before of the same direction."""


@kernel("const i8[:,:] const i8[:] i8[:,:]")
def turned(rows: Words, order: Words, columns: Words) -> None:
    """Rows in this order, `columns` being int64[SEGMENT_COLUMNS, n]."""
    for i in range(len(order)):
        row = order[i]
        for column in range(sg.SEGMENT_COLUMNS):
            columns[column, i] = rows[row, column]


def pack(columns: Words, flows: Words) -> bytes:
    """Columns int64[SEGMENT_COLUMNS, n] of rows in capture order, whose FLOW points into `flows`, int64[k, 5]."""
    directions = columns[SEGMENT.flow]
    parts: list[bytes] = [np.array([len(directions), len(flows)], np.int64).tobytes()]
    _append_column(parts, flows.ravel())
    _append_column(parts, directions)
    order = _by_direction(directions, len(flows))
    same = _same(directions[order])
    _append_column(parts, columns[SEGMENT.len])
    _append_column(parts, columns[SEGMENT.wire] - columns[SEGMENT.len])
    _append_column(parts, columns[SEGMENT.viewpoint])
    for column in IN_ORDER:
        _append_column(parts, np.diff(columns[column], prepend=np.int64(0)))
    wire = columns[SEGMENT.wire][order[:-1]]
    for column in IN_DIRECTION:
        values = columns[column][order]
        before = np.zeros(len(values), np.int64)
        before[1:] = values[:-1] + (wire if column == SEGMENT.seq else 0)
        _append_column(parts, np.where(same, values - before, values))
    whole = b"".join(parts)
    packed: bytes = pa.compress(whole, codec=CODEC, asbytes=True)
    return len(whole).to_bytes(8, "little") + packed


@kernel("const i8[:] const i8[:] const i8[:] const i8[:] i8[:,:] i8[:,:] i8[:,:] i8[:,:]")
def _summed(
    directions: Words, length: Words, more: Words, view: Words, ahead: Words, apart: Words, place: Words, rows: Words
) -> None:
    """Rows from differences, those of the columns IN_ORDER in `ahead`, of IN_DIRECTION in `apart`. `place`: by
    direction, where its next difference stands and its last row, -1 at first."""
    time = np.int64(0)
    at = np.int64(0)
    packet = np.int64(0)
    for i in range(len(directions)):
        direction = directions[i]
        time += ahead[0, i]
        at += ahead[1, i]
        packet += ahead[2, i]
        row = segment_at(rows, i)
        row.flow, row.len, row.wire, row.viewpoint = direction, length[i], length[i] + more[i], view[i]
        row.time, row.at, row.packet = time, at, packet
        j = place[direction, 0]
        place[direction, 0] = j + 1
        before = place[direction, 1]
        seq, ack, flags, stamp = apart[0, j], apart[1, j], apart[2, j], apart[3, j]
        if before >= 0:
            last = segment_at(rows, before)
            seq += last.seq + last.wire
            ack += last.ack
            flags += last.flags
            stamp += last.stamp
        row.seq, row.ack, row.flags, row.stamp = seq, ack, flags, stamp
        place[direction, 1] = i


def unpack(packed: bytes) -> tuple[Words, Words]:
    """Rows and flows as they were packed."""
    size = int.from_bytes(packed[:8], "little")
    data = memoryview(pa.decompress(packed[8:], size, codec=CODEC, asbytes=True))
    n, k = np.frombuffer(data[:16], np.int64).tolist()
    at = 16
    flows, at = _get(data, at, k * sg.FLOW_COLUMNS)
    directions, at = _get(data, at, n)
    length, at = _get(data, at, n)
    more, at = _get(data, at, n)
    view, at = _get(data, at, n)
    differences = np.empty((len(IN_ORDER) + len(IN_DIRECTION), n), np.int64)
    for i in range(len(differences)):
        differences[i], at = _get(data, at, n)
    rows = np.empty((n, sg.SEGMENT_COLUMNS), np.int64)
    place = np.full((max(2 * k, 1), 2), -1, np.int64)
    counts = np.bincount(directions, minlength=len(place))
    place[:, 0] = np.cumsum(counts) - counts
    ahead, apart = differences[: len(IN_ORDER)], differences[len(IN_ORDER) :]
    _summed(directions, length, more, view, ahead, apart, place, rows)
    return rows, flows.reshape(k, sg.FLOW_COLUMNS)


def _by_direction(flow: Words, flows: int) -> npt.NDArray[np.intp]:
    """The rows by direction, those of one in their order; numbers of 16 bits are sorted in linear time."""
    if 0 < flows <= 1 << 15:
        return np.argsort(flow.astype(np.uint16), kind="stable")
    return np.argsort(flow, kind="stable")


def _same(flow: Words) -> npt.NDArray[np.bool_]:
    """Whether each row, sorted by direction, has the direction of the row before."""
    same = np.zeros(len(flow), np.bool_)
    same[1:] = flow[1:] == flow[:-1]
    return same


def find_narrowest(low: int, high: int) -> int:
    """The number of the first of TYPES that holds all integers between these."""
    return next(i for i, kind in enumerate(TYPES) if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)


def _append_column(parts: list[bytes], values: Words) -> None:
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    code = find_narrowest(low, high)
    parts += [bytes([code]), np.ascontiguousarray(values.astype(TYPES[code])).tobytes()]


def _get(data: memoryview, at: int, count: int) -> tuple[Words, int]:
    kind = np.dtype(TYPES[data[at]])
    end = at + 1 + count * kind.itemsize
    return np.frombuffer(data[at + 1 : end], kind).astype(np.int64), end
