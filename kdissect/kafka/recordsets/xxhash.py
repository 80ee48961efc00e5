"""xxHash32 of a few bytes: the header checksum of an LZ4 frame, which magic-0 messages carry computed wrongly."""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393


def _rotate(x: int, bits: int) -> int:
    return ((x << bits) | (x >> (32 - bits))) & _MASK


def _finish(h: int, tail: bytes) -> int:
    at = 0
    while at + 4 <= len(tail):
        h = _rotate((h + int.from_bytes(tail[at : at + 4], "little") * _P3) & _MASK, 17) * _P4 & _MASK
        at += 4
    for byte in tail[at:]:
        h = _rotate((h + byte * _P5) & _MASK, 11) * _P1 & _MASK
    h = (h ^ (h >> 15)) * _P2 & _MASK
    h = (h ^ (h >> 13)) * _P3 & _MASK
    return h ^ (h >> 16)


def xxhash32(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes (an LZ4 frame descriptor has at most 14); ValueError for more.

    Source: the xxHash specification, steps 1 (short input), 5 and 6.
    """
    if len(data) >= 16:
        raise ValueError("only for fewer than 16 bytes")
    return _finish((_P5 + len(data)) & _MASK, data)
