"""Community ids of connections: the hash of addresses and ports by which Zeek, Suricata and others name the same flow.

Source: the Community ID specification, version 1 (https://github.com/corelight/community-id-spec), with seed 0. The id
is `1:` and base64 of SHA-1 over seed, smaller end's address, larger end's address, protocol (6), padding, and both
ports. The hash is computed for all connections at once, column by column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.kafka.completed import Connections

Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

ID_TYPE = np.dtype("S30")
"""A community id: `1:` and 28 digits of base64."""
BLOCK_BYTES = 64
"""Bytes that SHA-1 takes at once; what is hashed always fits in one block (FIPS 180-4)."""
FIRST_STATE = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)
ROUND_CONSTANTS = (0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6)
DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
TCP = 6
MAPPED = 0xFFFF
"""The upper half of the lower word of an IPv4 address that is mapped into IPv6."""


def community_ids(table: Connections, rows: npt.NDArray[Any]) -> npt.NDArray[np.bytes_]:
    """The community id of each of these connections, as ID_TYPE."""
    client = _end(table.client_hi[rows], table.client_lo[rows], table.client_port[rows])
    broker = _end(table.broker_hi[rows], table.broker_lo[rows], table.broker_port[rows])
    swapped = _follows(client, broker)[:, None]
    first, second = np.where(swapped, broker, client), np.where(swapped, client, broker)
    short = _is_mapped(first) & _is_mapped(second)
    hashed = np.empty((len(rows), 20), np.uint8)
    for which, skipped in ((short, 12), (~short, 0)):
        if which.any():
            a, b = first[which, skipped:], second[which, skipped:]
            hashed[which] = _sha1(_message(a[:, :-2], b[:, :-2], a[:, -2:], b[:, -2:]))
    text = np.empty((len(rows), ID_TYPE.itemsize), np.uint8)
    text[:, :2] = np.frombuffer(b"1:", np.uint8)
    text[:, 2:] = _base64(hashed)
    return text.view(ID_TYPE).reshape(-1)


def _end(high: npt.NDArray[Any], low: npt.NDArray[Any], port: npt.NDArray[Any]) -> Bytes:
    """16 bytes of address and 2 of port, as on the wire."""
    address = np.stack([high, low], axis=1).astype(">u8").view(np.uint8)
    return np.concatenate([address, port.astype(">u2").view(np.uint8).reshape(-1, 2)], axis=1)


def _is_mapped(ends: Bytes) -> npt.NDArray[np.bool_]:
    """True for IPv4 addresses."""
    words = np.ascontiguousarray(ends[:, :16]).view(">u4")
    mapped: npt.NDArray[np.bool_] = (words[:, 0] == 0) & (words[:, 1] == 0) & (words[:, 2] == MAPPED)
    return mapped


def _follows(a: Bytes, b: Bytes) -> npt.NDArray[np.bool_]:
    """True where `a` is larger than `b` as a row of bytes: by address, then by port."""
    rows = np.arange(len(a))
    first = (a != b).argmax(axis=1)
    larger: npt.NDArray[np.bool_] = a[rows, first] > b[rows, first]
    return larger


def _message(from_address: Bytes, to_address: Bytes, from_port: Bytes, to_port: Bytes) -> Bytes:
    """What is hashed, with SHA-1's padding, as blocks of 64 bytes."""
    size = 2 + 2 * from_address.shape[1] + 2 + 4
    blocks = np.zeros((len(from_address), BLOCK_BYTES), np.uint8)
    middle = 2 + from_address.shape[1]
    blocks[:, 2:middle] = from_address
    blocks[:, middle : size - 6] = to_address
    blocks[:, size - 6] = TCP
    blocks[:, size - 4 : size - 2] = from_port
    blocks[:, size - 2 : size] = to_port
    blocks[:, size] = 0x80
    blocks[:, 62:] = np.frombuffer((8 * size).to_bytes(2, "big"), np.uint8)
    return blocks


def _turned(words: Words, bits: int) -> Words:
    return words << np.uint32(bits) | words >> np.uint32(32 - bits)


def _sha1(blocks: Bytes) -> Bytes:
    """SHA-1 of messages of one block each (FIPS 180-4, section 6.1.2), 20 bytes a row."""
    words = list(np.ascontiguousarray(blocks.view(">u4").astype(np.uint32).T))
    for i in range(16, 80):
        words.append(_turned(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1))
    start = [np.full(len(blocks), value, np.uint32) for value in FIRST_STATE]
    a, b, c, d, e = start
    for i, word in enumerate(words):
        if i < 20:
            mixed = d ^ (b & (c ^ d))
        elif 40 <= i < 60:
            mixed = (b & c) | (d & (b | c))
        else:
            mixed = b ^ c ^ d
        a, b, c, d, e = _turned(a, 5) + mixed + e + word + np.uint32(ROUND_CONSTANTS[i // 20]), a, _turned(b, 30), c, d
    state = np.stack([x + y for x, y in zip(start, (a, b, c, d, e), strict=True)], axis=1)
    return state.astype(">u4").view(np.uint8)


def _base64(hashed: Bytes) -> Bytes:
    """28 digits for each row of 20 bytes (RFC 4648, section 4)."""
    padded = np.zeros((len(hashed), 7, 3), np.uint32)
    padded.reshape(len(hashed), 21)[:, :20] = hashed
    groups = padded[:, :, 0] << 16 | padded[:, :, 1] << 8 | padded[:, :, 2]
    digits = DIGITS[np.stack([groups >> shift & 63 for shift in (18, 12, 6, 0)], axis=2).reshape(len(hashed), 28)]
    digits[:, 27] = ord("=")
    return digits
