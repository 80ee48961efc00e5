"""Exchange ids as pairs of integers, so that tables about exchanges can be joined without comparing texts.

`<16 hex digits>:<n>` is (digits, n), `<16 hex digits>:r<n>` (digits, -1 - n). Any other text has the pair of its
hash and NOT_AN_ID: it still equals itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import Int64s, Scalar
from kdissect.arrays.rows import Rows
from kdissect.kernels.kernel import kernel, part
from kdissect.tables.declaration.model import EXCHANGE_KEYS

NOT_AN_ID = -(2**62)
DIGITS = 16
"""Hex digits of a connection id."""


@part
def _hex(byte: Scalar) -> Scalar:
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    return -1


@kernel("const i4[:] const u1[:] i8[:] i8[:]")
def _parse(offsets: npt.NDArray[np.int32], text: npt.NDArray[np.uint8], high: Int64s, n: Int64s) -> None:
    for i in range(len(high)):
        begin, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
        value = np.uint64(0)
        good = end - begin > DIGITS + 1 and text[begin + DIGITS] == 58
        if good:
            for j in range(DIGITS):
                digit = _hex(text[begin + j])
                if digit < 0:
                    good = False
                    break
                value = (value << np.uint64(4)) | np.uint64(digit)
        number: Scalar = np.int64(0)
        orphan = False
        if good:
            at = begin + DIGITS + 1
            if text[at] == 114:
                orphan = True
                at += 1
            good = at < end and end - at < 19
            while at < end and good:
                figure = np.int64(text[at]) - 48
                good = 0 <= figure <= 9
                number = number * 10 + figure
                at += 1
        if good:
            high[i] = np.int64(value)
            n[i] = -np.int64(1) - number if orphan else number
        else:
            value = np.uint64(14695981039346656037)  # FNV-1a
            for place in range(begin, end):
                value = (value ^ np.uint64(text[place])) * np.uint64(1099511628211)
            high[i] = np.int64(value)
            n[i] = NOT_AN_ID


def exchange_keys(column: pa.Array | pa.ChunkedArray) -> tuple[Int64s, Int64s]:
    """(connection id as int64, ordinal) of each exchange id; orphans have ordinals below 0."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        high, n = exchange_keys(column.dictionary)
        at = column.indices.to_numpy(zero_copy_only=False)
        return high[at], n[at]
    if column.type != pa.string():
        column = column.cast(pa.string())
    size = len(column)
    high, n = np.empty(size, np.int64), np.empty(size, np.int64)
    if size:
        _, offsets, data = column.buffers()
        starts = np.frombuffer(offsets, np.int32, size + 1 + column.offset)[column.offset :]
        text = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
        _parse(starts, text, high, n)
    return high, n


def keys_of(table: Rows | pa.Table | pa.RecordBatch) -> tuple[Int64s, Int64s]:
    """`exchange_keys` of a table's rows, from the helper columns that rows fresh from a run have, else from the ids."""
    rows = Rows.of(table)
    if rows.has(EXCHANGE_KEYS[0]):
        high, n = (rows.ints(name) for name in EXCHANGE_KEYS)
        return high, n
    return exchange_keys(rows.array("exchange_id"))


def key_names(table: Rows | pa.Table) -> list[str]:
    """The columns that `keys_of` reads."""
    return list(EXCHANGE_KEYS) if Rows.of(table).has(EXCHANGE_KEYS[0]) else ["exchange_id"]


@part
def _mix(high: Scalar, n: Scalar) -> Scalar:
    value = np.uint64(high) ^ (np.uint64(n) * np.uint64(0x9E3779B97F4A7C15))
    value = (value ^ (value >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64((value ^ (value >> np.uint64(29))) >> np.uint64(1))


@kernel("const i8[:] const i8[:] const i8[:] const i8[:] i8[:] i8[:]")
def _locate(high: Int64s, n: Int64s, among_high: Int64s, among_n: Int64s, table: Int64s, places: Int64s) -> None:
    """Row of each key in the other list, -1 where it is not there. Runs and lists in the same order cost no lookup."""
    mask = len(table) - 1
    built = False
    guess: Scalar = np.int64(0)
    for i in range(len(high)):
        if i > 0 and high[i] == high[i - 1] and n[i] == n[i - 1]:
            places[i] = places[i - 1]
            continue
        places[i] = -1
        for step in range(4):
            at = guess + step
            if at < len(among_high) and among_high[at] == high[i] and among_n[at] == n[i]:
                places[i] = at
                guess = at + 1
                break
        if places[i] >= 0:
            continue
        if not built:
            built = True
            for row in range(len(among_high)):
                place = _mix(among_high[row], among_n[row]) & mask
                while table[place] >= 0:
                    place = (place + 1) & mask
                table[place] = row
        place = _mix(high[i], n[i]) & mask
        while table[place] >= 0:
            row = table[place]
            if among_high[row] == high[i] and among_n[row] == n[i]:
                places[i] = row
                guess = row + 1
                break
            place = (place + 1) & mask


def locate(keys: tuple[Int64s, Int64s], among: tuple[Int64s, Int64s]) -> Int64s:
    """For each key its row among the others, -1 for none."""
    size = 16
    while size < 2 * len(among[0]):
        size *= 2
    found = np.empty(len(keys[0]), np.int64)
    _locate(keys[0], keys[1], among[0], among[1], np.full(size, -1, np.int64), found)
    return found
