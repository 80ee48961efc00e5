"""Kernels that replace what records hold, in place: keys, values, headers; and fix the checksums of their batches.

Formats as in `kafka.recordsets.batch_kernels`. These parts stay: batch headers, lengths, deltas, attributes, and in
control batches the keys and the markers of transactions, where they have the form of such. Compressed content becomes
zeros: same-length content that compresses to the same length cannot be had. Bytes that do not fit the format become
zeros too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdissect.capture.pcap import Bytes, Int, Ints
from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kafka.recordsets.batch_kernels import crc32
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import int16_at, int32_at
from kdissect.rewriting.field_kernels import FILLER
from kdissect.rewriting.hiding_kernels import put_be

Tables = NDArray[np.uint32]


@part
def fill(s: Bytes, p: Int, end: Int, value: Int) -> None:
    """s[p:end] = value; the caller has checked the bounds."""
    for k in range(p, end):
        s[k] = value


@part
def varint(s: Bytes, p: Int, end: Int) -> tuple[Int, Int]:
    """A zigzag varint (up to 64 bits) and the next position, -1 when it does not end before `end`."""
    value = np.uint64(0)
    shift = 0
    while p < end and shift < 70:
        byte = np.uint64(s[p])
        p += 1
        value |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < np.uint64(128):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), p
        shift += 7
    return np.int64(0), np.int64(-1)


@part
def fill_sized(s: Bytes, p: Int, end: Int) -> Int:
    """Replace bytes behind their varint length; the next position, -1 when they do not fit."""
    size, p = varint(s, p, end)
    if p < 0 or size > end - p:
        return np.int64(-1)
    if size > 0:
        fill(s, p, p + size, FILLER)
        p += size
    return p


@part
def marker(s: Bytes, p: Int, end: Int) -> Any:
    """Whether key and value (behind their lengths, from `p` on) are those of a control record. 0: no; 1: its key
    (version and type, two bytes each) is; 2: it is a transaction's marker, whose value is a version and an epoch
    (KIP-98)."""
    size, o = varint(s, p, end)
    if o < 0 or size != 4 or size > end - o or s[o] != 0 or s[o + 2] != 0 or s[o + 1] > 8 or s[o + 3] > 15:
        return 0
    type_ = s[o + 3]
    size, o = varint(s, o + 4, end)
    if o < 0 or size != 6 or size > end - o or type_ > 1:
        return 1
    return 2


@part
def blank_record(s: Bytes, p: Int, end: Int, control: Any) -> Any:
    """Replace key, value and headers of the record in s[p:end]; whether it has its form. `control`: the batch says that
    its records are control records."""
    p += 1
    for _ in range(2):
        if p < 0:
            return False
        _, p = varint(s, p, end)
    kept = marker(s, p, end) if control and p >= 0 else 0
    for field in range(2):
        if p < 0:
            return False
        if kept > field:
            size, p = varint(s, p, end)
            p += size
        else:
            p = fill_sized(s, p, end)
    if p < 0:
        return False
    headers, p = varint(s, p, end)
    while headers > 0 and p >= 0:
        p = fill_sized(s, p, end)
        if p >= 0:
            p = fill_sized(s, p, end)
        headers -= 1
    return p == end


@part
def blank_records(s: Bytes, p: Int, end: Int, control: Any) -> None:
    """Replace what the records of an uncompressed magic-2 batch hold; zeros from the first that has not its form."""
    while p < end:
        size, q = varint(s, p, end)
        if q < 0 or size <= 0 or size > end - q or not blank_record(s, q, q + size, control):
            fill(s, p, end, 0)
            return
        p = q + size


@part
def blank_message(s: Bytes, p: Int, end: Int, magic: Int) -> None:
    """Replace key and value of the message of magic 0 or 1 in s[p:end]; of a wrapper, zeros."""
    packed = s[p + 17] & bl.CODEC_MASK != bl.NONE
    q = p + 18 + 8 * magic
    for field in range(2):
        if q + 4 > end:
            fill(s, min(q, end), end, 0)
            return
        size = int32_at(s, q)
        q += 4
        if size > end - q:
            fill(s, q, end, 0)
            return
        if size > 0:
            fill(s, q, q + size, 0 if packed and field == 1 else FILLER)
            q += size
    fill(s, q, end, 0)


@part
def blank_set(s: Bytes, p: Int, end: Int, crc: Tables, crc32c: Tables) -> None:
    """Replace what the batches of the record set in s[p:end] hold."""
    while end - p > bl.MAGIC_AT:
        length = int32_at(s, p + 8)
        magic = np.int64(s[p + bl.MAGIC_AT])
        if length < bl.LEAST_LENGTH or magic > 2:
            break
        whole = length <= end - p - bl.PREFIX
        stop = p + bl.PREFIX + length if whole else end
        if magic == 2:
            if stop - p < bl.HEADER_V2:
                fill(s, p, stop, 0)
            else:
                attributes = int16_at(s, p + bl.CRC_FROM_V2)
                if attributes & bl.CODEC_MASK != bl.NONE:
                    fill(s, p + bl.HEADER_V2, stop, 0)
                else:
                    blank_records(s, p + bl.HEADER_V2, stop, attributes & bl.CONTROL_BIT != 0)
                if whole:
                    put_be(s, p + 17, np.int64(crc32(s, p + bl.CRC_FROM_V2, stop, crc32c)), 4)
        elif stop - p < 18:
            fill(s, p, stop, 0)
        else:
            blank_message(s, p, stop, magic)
            if whole:
                put_be(s, p + 12, np.int64(crc32(s, p + bl.CRC_FROM_V1, stop, crc)), 4)
        p = stop
    fill(s, p, end, 0)


@kernel("u1[:] i8[:] i8[:] u4[:,:] u4[:,:]")
def blank_sets(s: Bytes, at: Ints, size: Ints, crc: Tables, crc32c: Tables) -> None:
    """Replace what record sets hold: `size[i]` bytes at s[at[i]:]."""
    for i in range(at.size):
        if at[i] >= 0 and size[i] > 0 and size[i] <= s.size - at[i]:
            blank_set(s, at[i], at[i] + size[i], crc, crc32c)
