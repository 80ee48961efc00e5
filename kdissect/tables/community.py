"""Community ids of connections: the hash of addresses and ports by which Zeek, Suricata and others name the same flow.

Source: the Community ID specification, version 1 (https://github.com/corelight/community-id-spec), with seed 0. The id
is `1:` and base64 of SHA-1 over seed, smaller end's address, larger end's address, protocol (6), padding, and both
ports. One kernel hashes the flows of all rows: after a scan of a network each connection has another flow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import Int64s, Scalar
from kdissect.kafka.completed import Connections
from kdissect.kernels.kernel import kernel, part

Words = npt.NDArray[np.uint64]
Ports = npt.NDArray[np.uint16]
Bytes = npt.NDArray[np.uint8]

ID_BYTES = 30
ID_TYPE = np.dtype(f"S{ID_BYTES}")
"""A community id: `1:` and 28 digits of base64."""
BLOCK_BYTES = 64
"""Bytes that SHA-1 takes at once; what is hashed always fits in one block (FIPS 180-4)."""
SCHEDULE = 80
"""Words of SHA-1's message schedule, one a round."""
FIRST_STATE = np.array([0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0], np.int64)
ROUND_CONSTANTS = np.array([0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6], np.int64)
DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
TCP = 6
MAPPED = 0xFFFF
"""The upper half of the lower word of an IPv4 address that is mapped into IPv6."""
WORD = 0xFFFFFFFF
"""The bits of a word of SHA-1."""
SIGN = -(1 << 63)
"""Turned around, the sign bit makes the order of signed numbers that of unsigned ones."""


def community_ids(table: Connections, rows: npt.NDArray[Any]) -> npt.NDArray[np.bytes_]:
    """The community id of each of these connections, as ID_TYPE."""

    def chosen(column: npt.NDArray[Any], kind: type[np.generic]) -> npt.NDArray[Any]:
        return np.require(column[rows], kind, ["C", "A"])

    out = np.empty(len(rows) * ID_BYTES, np.uint8)
    _write_ids(
        chosen(table.client_hi, np.uint64),
        chosen(table.client_lo, np.uint64),
        chosen(table.broker_hi, np.uint64),
        chosen(table.broker_lo, np.uint64),
        chosen(table.client_port, np.uint16),
        chosen(table.broker_port, np.uint16),
        np.zeros(BLOCK_BYTES, np.uint8),
        np.zeros(SCHEDULE, np.int64),
        FIRST_STATE,
        ROUND_CONSTANTS,
        DIGITS,
        out,
    )
    return out.view(ID_TYPE)


@part
def _follows(high: Scalar, low: Scalar, port: Scalar, high2: Scalar, low2: Scalar, port2: Scalar) -> Scalar:
    """1 if the first end is larger than the second: by address, then by port. Halves may have a sign."""
    if high != high2:
        return 1 if high ^ SIGN > high2 ^ SIGN else 0
    if low != low2:
        return 1 if low ^ SIGN > low2 ^ SIGN else 0
    return 1 if port > port2 else 0


@part
def _put_number(block: Any, at: Scalar, value: Scalar, size: Scalar) -> Scalar:
    """The lowest bytes of a number as on the wire; where they end."""
    for i in range(size):
        block[at + i] = value >> (8 * (size - 1 - i)) & 255
    return at + size


@part
def _put_address(block: Any, at: Scalar, high: Scalar, low: Scalar, short: Scalar) -> Scalar:
    """An address of 4 bytes (`short`) or 16; where it ends."""
    if short:
        return _put_number(block, at, low, 4)
    return _put_number(block, _put_number(block, at, high, 8), low, 8)


@part
def _turn(word: Scalar, bits: Scalar) -> Scalar:
    """A word of 32 bits, rotated to the left."""
    return (word << bits | word >> (32 - bits)) & WORD


@part
def _hash_block(block: Any, schedule: Any, first: Any, constants: Any) -> None:
    """SHA-1 of a message of one block (FIPS 180-4, section 6.1.2), into the block's first 20 bytes."""
    for i in range(16):
        word = np.int64(0)
        for k in range(4):
            word = word << 8 | np.int64(block[4 * i + k])
        schedule[i] = word
    for i in range(16, SCHEDULE):
        schedule[i] = _turn(schedule[i - 3] ^ schedule[i - 8] ^ schedule[i - 14] ^ schedule[i - 16], 1)
    a, b, c, d, e = first[0], first[1], first[2], first[3], first[4]
    for i in range(SCHEDULE):
        if i < 20:
            mixed = d ^ (b & (c ^ d))
        elif 40 <= i < 60:
            mixed = (b & c) | (d & (b | c))
        else:
            mixed = b ^ c ^ d
        turned = (_turn(a, 5) + mixed + e + schedule[i] + constants[i // 20]) & WORD
        a, b, c, d, e = turned, a, _turn(b, 30), c, d
    at = _put_number(block, np.int64(0), a + first[0], 4)
    at = _put_number(block, at, b + first[1], 4)
    at = _put_number(block, at, c + first[2], 4)
    at = _put_number(block, at, d + first[3], 4)
    _put_number(block, at, e + first[4], 4)


@kernel(
    "const u8[:] const u8[:] const u8[:] const u8[:] const u2[:] const u2[:] u1[:] i8[:] const i8[:] const i8[:]"
    " const u1[:] u1[:] -> i8"
)
def _write_ids(
    client_high: Words,
    client_low: Words,
    broker_high: Words,
    broker_low: Words,
    client_port: Ports,
    broker_port: Ports,
    block: Bytes,
    schedule: Int64s,
    first: Int64s,
    constants: Int64s,
    digits: Bytes,
    out: Bytes,
) -> Scalar:
    """The id of each row, one after the other. `block` and `schedule` are scratch. Returns how many bytes they have."""
    at = np.int64(0)
    for i in range(client_high.size):
        high, low, port = np.int64(client_high[i]), np.int64(client_low[i]), np.int64(client_port[i])
        high2, low2, port2 = np.int64(broker_high[i]), np.int64(broker_low[i]), np.int64(broker_port[i])
        if _follows(high, low, port, high2, low2, port2):
            high, low, port, high2, low2, port2 = high2, low2, port2, high, low, port
        short = high == 0 and low >> 32 == MAPPED and high2 == 0 and low2 >> 32 == MAPPED
        for k in range(BLOCK_BYTES):
            block[k] = 0
        end = _put_address(block, _put_address(block, np.int64(2), high, low, short), high2, low2, short)
        block[end] = TCP
        end = _put_number(block, _put_number(block, end + 2, port, 2), port2, 2)
        block[end] = 0x80
        _put_number(block, np.int64(BLOCK_BYTES - 2), 8 * end, 2)
        _hash_block(block, schedule, first, constants)
        block[20] = 0
        out[at], out[at + 1] = 49, 58
        for k in range(7):
            group = np.int64(block[3 * k]) << 16 | np.int64(block[3 * k + 1]) << 8 | np.int64(block[3 * k + 2])
            for j in range(4):
                out[at + 2 + 4 * k + j] = digits[group >> (18 - 6 * j) & 63]
        out[at + 29] = 61
        at += ID_BYTES
    return at
