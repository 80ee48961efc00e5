"""Batches for the tests: built by kafka-python, aiokafka and kio, and a few by hand where no builder makes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from kafka.record.memory_records import MemoryRecordsBuilder

from kdissect.kafka.recordsets.batches import Batches, walk
from kdissect.kafka.recordsets.records import records

Row = tuple[int, int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
START = 1_700_000_000_000


def rows_of(magic: int, count: int = 50, size: int = 20) -> list[Row]:
    """Records of every shape: null and empty keys and values, headers where the format has them."""
    rows: list[Row] = []
    for i in range(count):
        key = None if i % 3 == 0 else b"" if i % 5 == 0 else b"key-%d" % i
        value = None if i % 7 == 0 else (b"value %d " % i) * (size // 8)
        headers = [(f"h{i}", b"v" * i), ("nil", None), ("", b"")] if magic == 2 and i % 4 == 0 else []
        rows.append((i, START + i * 3 if magic else None, key, value, headers))
    return rows


def kafka_python(magic: int, codec: int, rows: Iterable[Row], **more: int) -> bytes:
    builder = MemoryRecordsBuilder(magic, codec, 1 << 30, **more)
    for _, time, key, value, headers in rows:
        assert builder.append(time, key, value, headers)
    builder.close()
    return bytes(builder.buffer())


def opened(*sets: bytes) -> Batches:
    size = np.array([len(s) for s in sets], np.int64)
    return walk(np.frombuffer(b"".join(sets), np.uint8), np.cumsum(size) - size, size)


def read(batches: Batches, **how: object) -> list[Row]:
    rows: list[Row] = []
    for chunk in records(batches, reveal=True, **how):  # type: ignore[arg-type]
        times = chunk.column("timestamp").cast(pa.int64()).to_pylist()
        for row, time in zip(chunk.to_pylist(), times, strict=True):
            headers = [(pair["key"], pair["value"]) for pair in row["headers"] or []]
            rows.append((row["offset"], None if time is None else time // 1000, row["key"], row["value"], headers))
    return rows


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def record(delta: int, key: bytes | None, value: bytes | None, time: int = 0, headers: bytes = b"\0") -> bytes:
    body = b"\0" + varint(time) + varint(delta)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += headers
    return varint(len(body)) + body


def batch(
    payload: bytes,
    count: int,
    *,
    base: int = 0,
    attributes: int = 0,
    last_delta: int | None = None,
    first: int = START,
    largest: int = START + 100,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A magic-2 batch around any payload, with a right checksum."""
    tail = struct.pack(">hiqq", attributes, count - 1 if last_delta is None else last_delta, first, largest)
    tail += struct.pack(">qhii", *producer, count) + payload
    return struct.pack(">qiibI", base, len(tail) + 9, 0, 2, crc32c(tail)) + tail
