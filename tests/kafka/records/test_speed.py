"""How fast batches and records are read, against the bare libraries (run with -m bench -s)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import lz4.frame
import numpy as np
import pytest
import zstandard

from kdissect.kafka.recordsets.batches import walk
from kdissect.kafka.recordsets.records import records
from kdissect.kafka.recordsets.verification import measure, verify
from tests.kafka.records.building import batch, record

VOLUME = 64 << 20
"""Bytes of records, uncompressed."""


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


CODECS: dict[str, tuple[int, Callable[[bytes], bytes], Callable[[bytes], object]]] = {
    "none": (0, bytes, len),
    "lz4": (3, lambda data: lz4.frame.compress(data, block_linked=False), lz4.frame.decompress),
    "zstd": (4, _zstd, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
}


@pytest.mark.bench
@pytest.mark.parametrize("each", [150, 10_000])
@pytest.mark.parametrize("codec", CODECS)
def test_speed(codec: str, each: int) -> None:
    number, pack, unpack = CODECS[codec]
    chance = random.Random(2)
    words = [chance.randbytes(5).hex().encode() for _ in range(500)]
    payload = b"".join(record(i, None, b"".join(chance.choices(words, k=10)), i) for i in range(each))
    packed = pack(payload)
    one = batch(packed, each, attributes=number)
    times = VOLUME // len(payload)
    s = np.frombuffer(one * times, np.uint8)
    at, size = np.zeros(1, np.int64), np.array([len(s)])
    batches = walk(s, at, size)
    verify(batches)
    count = sum(chunk.num_rows for chunk in records(batches))
    assert count == each * times
    headers, crc, sizes = (
        _best(lambda: walk(s, at, size)),
        _best(lambda: verify(batches)),
        _best(lambda: measure(batches)),
    )
    hidden = _best(lambda: sum(chunk.num_rows for chunk in records(batches)))
    shown = _best(lambda: sum(chunk.num_rows for chunk in records(batches, reveal=True)))
    bare = _best(lambda: [unpack(packed) for _ in range(times)])
    print(
        f"\n{codec}, {each} records a batch, {len(s) / 1e6:.0f} MB: headers {len(s) / headers / 1e9:.1f} GB/s,", end=" "
    )
    print(f"CRC {len(s) / crc / 1e9:.1f} GB/s, records {count / hidden / 1e6:.1f} M/s,", end=" ")
    print(f"revealed {count / shown / 1e6:.1f} M/s")
    if number:
        print(f"bare decompression {bare:.3f} s, sizes x{sizes / bare:.2f}, records x{hidden / bare:.2f}")
