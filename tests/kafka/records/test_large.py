"""Batches of 8 and of 64 MiB in every codec: right, and in flat memory."""

from __future__ import annotations

import random
import zlib

import cramjam
import lz4.frame
import numpy as np
import pytest
import zstandard

from kdissect.kafka.recordsets.records import records
from kdissect.kafka.recordsets.verification import measure, verify
from tests.kafka.records.building import batch, opened, record, varint


def _xerial(data: bytes) -> bytes:
    out = bytearray(b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1")
    for at in range(0, len(data), 32 << 10):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + (32 << 10)]))
        out += len(block).to_bytes(4, "big") + block
    return bytes(out)


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(data) + packer.flush()


PACK = {
    "none": (0, lambda data: data),
    "gzip": (1, _gzip),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "xerial": (2, _xerial),
    "lz4": (3, lambda data: lz4.frame.compress(data)),
    "zstd": (4, lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data)),
}


def _check(megabytes: int, codec: str) -> None:
    number, pack = PACK[codec]
    chance = random.Random(5)
    parts, sizes, total = [], [], 0
    blob = chance.randbytes(1 << 16) * 40
    while total < megabytes << 20:
        size = chance.choice((0, 10, 1000, 60_000, 2_500_000 if len(parts) % 10 == 0 else 5))
        part = record(len(parts), b"key", blob[:size])
        parts.append(part)
        sizes.append(size)
        total += len(part)
    batches = opened(batch(pack(b"".join(parts)), len(parts), attributes=number))
    verify(batches)
    measure(batches)
    assert batches.crc_ok.tolist() == [1]
    assert batches.uncompressed.tolist() == [total]
    for reveal in (False, True):
        found = [chunk.column("value_bytes").to_numpy() for chunk in records(batches, reveal=reveal)]
        assert np.concatenate(found).tolist() == sizes
    for chunk in records(batches, reveal=True):
        assert all(value.as_py() == blob[: len(value.as_py())] for value in chunk.column("value")[:20])
    assert not len(batches.problems())


@pytest.mark.parametrize("codec", PACK)
def test_8_mib(codec: str) -> None:
    _check(8, codec)


@pytest.mark.exhaustive
@pytest.mark.parametrize("codec", PACK)
def test_64_mib(codec: str) -> None:
    _check(64, codec)


def test_one_record_larger_than_the_buffer() -> None:
    """Hidden, it is skipped over; revealed, it is held."""
    value = random.Random(1).randbytes(1 << 20) * 20
    headers = varint(1) + varint(1) + b"h" + varint(1) + b"v"
    payload = record(0, b"a", b"x") + record(1, b"k" * 300, value, headers=headers) + record(2, b"b", b"y")
    batches = opened(batch(lz4.frame.compress(payload), 3, attributes=3))
    hidden = [row for chunk in records(batches) for row in chunk.to_pylist()]
    assert [(row["offset"], row["key_bytes"], row["value_bytes"]) for row in hidden] == [
        (0, 1, 1),
        (1, 300, 20 << 20),
        (2, 1, 1),
    ]
    shown = [row for chunk in records(batches, reveal=True) for row in chunk.to_pylist()]
    assert shown[1]["value"] == value
    assert shown[1]["headers"] == [{"key": "h", "value": b"v"}]
    assert not len(batches.problems())
