"""Structured mutation: what hostile or damaged bytes look like, by seed, so that any input can be made again."""

from __future__ import annotations

import random
import struct

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

EDGES = (0, 1, 2, 3, 4, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
"""Numbers that lengths and counts like least."""


def mutate(data: bytes, chance: random.Random) -> bytes:
    """A few changes anywhere: bits, bytes, numbers, lengths; pieces cut out, said twice, exchanged; the end cut off."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        if not out:
            break
        at = chance.randrange(len(out))
        size = min(chance.choice((1, 2, 4, 8, 64, 700)), len(out) - at)
        match chance.randrange(9):
            case 0:
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                out[at : at + size] = chance.randbytes(size)
            case 2:
                out[at : at + 4] = struct.pack(chance.choice("><") + "I", chance.choice(EDGES))[: len(out) - at]
            case 3:
                out[at : at + 2] = struct.pack(chance.choice("><") + "H", chance.choice(EDGES) & 0xFFFF)[
                    : len(out) - at
                ]
            case 4:
                del out[at : at + size]
            case 5:
                out[at:at] = out[at : at + size]
            case 6:
                other = chance.randrange(len(out))
                out[at : at + size], out[other : other + size] = out[other : other + size], out[at : at + size]
            case 7:
                out[at : at + size] = bytes(size)
            case _:
                if chance.random() < 0.3:
                    del out[at:]
    return bytes(out)


def mutate_many(s: Bytes, begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64], seed: int) -> None:
    """One to four changes in each of s[begin[i]:end[i]], in place; some ends are moved forward."""
    chance = np.random.default_rng(seed)
    edges = np.array(EDGES, np.uint32)
    for _ in range(int(chance.integers(1, 5))):
        room = np.maximum(end - begin, 1)
        at = begin + chance.integers(0, room)
        kind = chance.integers(0, 4, len(begin))
        bits = kind == 0
        s[at[bits]] ^= (1 << chance.integers(0, 8, int(bits.sum()))).astype(np.uint8)
        one = kind == 1
        s[at[one]] = chance.integers(0, 256, int(one.sum()), np.uint8)
        wide = (kind == 2) & (at + 4 <= end)
        values = chance.choice(edges, int(wide.sum())).astype(">u4").view(np.uint8).reshape(-1, 4)
        for k in range(4):
            s[at[wide] + k] = values[:, k]
        cut = kind == 3
        cut &= chance.random(len(begin)) < 0.2
        end[cut] = at[cut]
