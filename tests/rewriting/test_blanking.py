"""Blanked record sets, written and read again by kafka-python's encoder and decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdissect.kafka.recordsets.verification import CRC32, CRC32C, crc32_table
from kdissect.rewriting.blanking_kernels import blank_sets

kafka_record = pytest.importorskip("kafka.record")

RECORDS = [
    (b"key-one", b"value one, which nobody may see", [("header", b"also secret"), ("empty", b"")]),
    (None, b"no key here", []),
    (b"only a key", None, []),
    (b"", b"", [("x", None)]),
    (b"k" * 300, b"v" * 70_000, [("h" * 200, b"w" * 300)]),
]


def encoded(magic: int, compression: int) -> bytes:
    builder = kafka_record.MemoryRecordsBuilder(magic, compression, 1 << 20)
    for i, (key, value, headers) in enumerate(RECORDS):
        builder.append(1_700_000_000_000 + i, key, value, headers if magic == 2 else [])
    builder.close()
    return bytes(builder.buffer())


def blanked(data: bytes, size: int | None = None) -> bytes:
    s = np.frombuffer(b"before" + data + b"behind", np.uint8).copy()
    length = len(data) if size is None else size
    at, sizes = np.array([6], np.int64), np.array([length], np.int64)
    blank_sets(s, at, sizes, crc32_table(CRC32), crc32_table(CRC32C))
    out = s.tobytes()
    assert out.startswith(b"before")
    assert out[6 + length :] == data[length:] + b"behind"
    return out[6 : 6 + length]


def batches(data: bytes) -> list[Any]:
    records = kafka_record.MemoryRecords(data)
    found = []
    while records.has_next():
        found.append(records.next_batch())
    return found


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_sizes_stay_and_checksums_are_right(magic: int) -> None:
    data = encoded(magic, 0)
    out = blanked(data + data)
    assert len(out) == 2 * len(data)
    read = []
    for batch in batches(out):
        assert batch.validate_crc()
        read += list(batch)
    assert len(read) == 2 * len(RECORDS)
    for record, (key, value, headers) in zip(read, RECORDS + RECORDS, strict=True):
        assert record.key == (None if key is None else b"x" * len(key))
        assert record.value == (None if value is None else b"x" * len(value))
        if magic == 2:
            assert record.headers == [
                ("x" * len(name), None if content is None else b"x" * len(content)) for name, content in headers
            ]


@pytest.mark.parametrize(("magic", "compression"), [(0, 1), (1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (2, 4)])
def test_of_compressed_batches_only_headers_stay(magic: int, compression: int) -> None:
    data = encoded(magic, compression)
    out = blanked(data)
    (batch,) = batches(out)
    assert batch.validate_crc()
    header = 61 if magic == 2 else 18 + 8 * magic
    crc = slice(17, 21) if magic == 2 else slice(12, 16)
    same = bytearray(data[:header])
    same[crc] = out[crc]
    assert out[:header] == bytes(same)
    rest = out[header:] if magic == 2 else out[header + 8 :]  # of a wrapper: key length and value length stay
    assert not any(rest)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("compression", [0, 1])
def test_nothing_leaks_wherever_it_is_cut(magic: int, compression: int) -> None:
    """The sender may cut the last batch; whatever is left of contents is gone."""
    data = encoded(magic, compression)
    for size in [*range(400), 5_000, len(data) - 1]:
        if size > len(data):
            continue
        out = blanked(data, size)
        for secret in (b"value one", b"key-one", b"also secret", b"no key", b"only", b"vvvv", b"kkkk", b"wwww"):
            assert secret not in out
        if compression and size > 90:
            assert data[80:size] not in out


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_do(seed: int) -> None:
    """Hostile sets: nothing outside is touched, nothing raises."""
    random = np.random.default_rng(seed)
    data = bytearray(encoded(seed % 3, 0)[:2_000])
    for at in random.integers(0, len(data), 1 + seed % 8):
        data[at] = random.integers(0, 256)
    out = blanked(bytes(data))
    assert len(out) == len(data)
    blanked(random.integers(0, 256, 500, np.uint8).tobytes())


def test_control_batches_stay() -> None:
    """They hold markers of transactions, no data."""
    data = bytearray(encoded(2, 0)[:0])
    body = bytes([0, 0, 0]) + bytes([8]) + b"\0\0\0\1" + bytes([12]) + b"\0\0\0\0\0\5" + bytes([0])
    record = bytes([len(body) * 2]) + body
    head = (0x30).to_bytes(2, "big") + bytes(4) + bytes(16) + (7).to_bytes(8, "big") + bytes(2) + b"\xff" * 4
    after_crc = head + (1).to_bytes(4, "big") + record
    data += bytes(8) + (9 + len(after_crc)).to_bytes(4, "big") + bytes(4) + b"\x02" + bytes(4) + after_crc
    out = blanked(bytes(data))
    assert out[61:] == bytes(data[61:])
