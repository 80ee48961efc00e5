"""Numbers that Spark sends to the partitions that we want.

`repartition(count, column)` sends a row to the partition pmod(hash(column), count), hash being SQL's function of that
name: Murmur3, x86, 32 bits, with seed 42 (org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt).
"""

from __future__ import annotations

MASK = 0xFFFFFFFF
SEED = 42


def labels(count: int) -> list[int]:
    """For each of `count` partitions the smallest number that Spark sends there."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < count:
        found.setdefault(spark_hash(number) % count, number)
        number += 1
    return [found[place] for place in range(count)]


def spark_hash(number: int) -> int:
    """SQL's `hash` of an int column, signed."""
    k = _rotated((number & MASK) * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    h = (_rotated(SEED ^ k, 13) * 5 + 0xE6546B64) & MASK
    h ^= 4  # the number's bytes
    h = (h ^ h >> 16) * 0x85EBCA6B & MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & MASK
    h ^= h >> 16
    return h - (h >> 31 << 32)


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & MASK
