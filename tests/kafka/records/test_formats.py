"""Every format and codec, built by others: headers, checksums, sizes, records equal what went in."""

from __future__ import annotations

import struct
import zlib

import lz4.frame
import numpy as np
import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.legacy_records import _LegacyRecordBatchBuilderPy

from kdissect.kafka.recordsets import batch_layout as layout
from kdissect.kafka.recordsets.verification import measure, verify
from tests.kafka.records.building import START, batch, kafka_python, opened, read, record, rows_of

BUILDS = [
    (magic, codec)
    for magic in (0, 1, 2)
    for codec in range(5)
    if (magic == 2 or codec < 4) and (magic, codec) != (0, 3)
]


@pytest.mark.oracle
@pytest.mark.parametrize(("magic", "codec"), BUILDS)
def test_kafka_python(magic: int, codec: int) -> None:
    rows = rows_of(magic)
    wire = kafka_python(magic, codec, rows)
    batches = opened(wire)
    verify(batches)
    measure(batches)
    (row,) = batches.table().to_pylist()
    stated = int.from_bytes(wire[17:21] if magic == 2 else wire[12:16])
    assert row["crc"] == (stated if magic == 2 or codec else None)
    assert row["magic"] == magic
    assert row["codec"] == layout.CODECS[codec]
    assert (row["base_offset"], row["last_offset"], row["records"]) == (0, 49, 50)
    assert row["crc_ok"] is True
    assert row["truncated"] is False
    assert row["uncompressed_bytes"] == len(kafka_python(magic, 0, rows)) - (61 if magic == 2 else 0)
    assert read(batches) == rows
    assert not len(batches.problems())


@pytest.mark.oracle
@pytest.mark.parametrize("codec", range(5))
def test_aiokafka(codec: int) -> None:
    builder = _DefaultRecordBatchBuilderPy(2, codec, 1, 77, 3, 40, 1 << 20)
    rows = rows_of(2)
    for offset, time, key, value, headers in rows:
        builder.append(offset, time, key, value, headers)
    batches = opened(bytes(builder.build()))
    verify(batches)
    (row,) = batches.table().to_pylist()
    assert (row["producer_id"], row["producer_epoch"], row["base_sequence"]) == (77, 3, 40)
    assert (row["is_transactional"], row["is_control"], row["timestamp_type"]) == (True, False, "create_time")
    assert row["crc_ok"]
    assert read(batches) == rows


@pytest.mark.oracle
@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)])
def test_aiokafka_old(magic: int, codec: int) -> None:
    builder = _LegacyRecordBatchBuilderPy(magic, codec, 1 << 20)
    rows = rows_of(magic)
    for offset, time, key, value, _ in rows:
        builder.append(offset, timestamp=time, key=key, value=value)
    batches = opened(bytes(builder.build()))
    verify(batches)
    assert batches.crc_ok.tolist() == [1]
    assert read(batches) == rows


def message(magic: int, offset: int, value: bytes | None, attributes: int = 0, time: int = START) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", time) if magic else b"") + struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.parametrize(
    ("wrapper", "inner", "expected"),
    [(107, (0, 1, 2), [105, 106, 107]), (0, (0, 1, 2), [0, 1, 2]), (50, (0, 3, 9), [41, 44, 50])],
)
def test_relative_offsets_of_magic_1(wrapper: int, inner: tuple[int, ...], expected: list[int]) -> None:
    """KIP-31; a wrapper of offset 0 is old librdkafka's, whose inner offsets count from 0."""
    value = b"".join(message(1, offset, b"v", time=START + offset) for offset in inner)
    batches = opened(message(1, wrapper, zlib_gzip(value), 1))
    assert [row[0] for row in read(batches)] == expected
    measure(batches)
    (row,) = batches.table(["base_offset", "last_offset", "records"]).to_pylist()
    assert (row["base_offset"], row["last_offset"], row["records"]) == (expected[0], expected[-1], 3)
    assert [row[0] for row in read(batches)] == expected


def zlib_gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def test_absolute_offsets_of_magic_0() -> None:
    value = b"".join(message(0, offset, b"v") for offset in (7, 9, 12))
    assert [row[0] for row in read(opened(message(0, 12, zlib_gzip(value), 1)))] == [7, 9, 12]


@pytest.mark.parametrize(("attributes", "expected"), [(1, [START, START + 5]), (1 | 8, [START + 9, START + 9])])
def test_wrapper_times(attributes: int, expected: list[int]) -> None:
    """KIP-32: with log append time the wrapper's timestamp counts, else the inner ones."""
    value = message(1, 0, b"a", time=START) + message(1, 1, b"b", time=START + 5)
    batches = opened(message(1, 1, zlib_gzip(value), attributes, START + 9))
    assert [row[1] for row in read(batches)] == expected


def test_wrong_lz4_header_checksum_of_magic_0() -> None:
    value = b"".join(message(0, offset, b"v" * 50) for offset in range(20))
    frame = bytearray(lz4.frame.compress(value, block_linked=False, store_size=False))
    frame[6] ^= 0x5A  # as KAFKA-3160's writers: a checksum over the wrong bytes
    batches = opened(message(0, 19, bytes(frame), 3), message(1, 19, bytes(frame), 3))
    assert [row[0] for row in read(batches, picked=[0])] == list(range(20))
    assert not len(batches.problems())
    assert read(batches, picked=[1]) == []
    assert batches.problems().texts[0].startswith("cannot be decompressed: lz4")


def test_log_append_time_of_magic_2() -> None:
    batches = opened(batch(record(0, b"k", b"v") + record(1, None, None, 7), 2, attributes=8))
    assert [row[1] for row in read(batches)] == [START + 100, START + 100]
    assert batches.table().to_pylist()[0]["timestamp_type"] == "log_append_time"


def test_delete_horizon_keeps_deltas() -> None:
    """KIP-534: BaseTimestamp is the horizon then, deltas may be negative."""
    batches = opened(batch(record(0, b"k", b"v", -500), 1, attributes=64))
    assert [row[1] for row in read(batches)] == [START - 500]


@pytest.mark.parametrize(("kind", "name"), list(enumerate(layout.CONTROL_TYPES)))
def test_control_records(kind: int, name: str) -> None:
    from kdissect.kafka.recordsets.records import records

    key = struct.pack(">hh", 0, kind)
    batches = opened(batch(record(0, key, b"\0\0\0\0\0\1"), 1, attributes=32 | 16))
    (chunk,) = records(batches)
    assert chunk.to_pylist()[0]["control_type"] == name
    row = batches.table().to_pylist()[0]
    assert row["is_control"]
    assert row["is_transactional"]


def test_empty_batch_and_gaps_after_compaction() -> None:
    batches = opened(
        batch(b"", 0, last_delta=9) + batch(record(2, b"k", b"v") + record(5, b"k", b"w"), 2, base=10, last_delta=7)
    )
    assert batches.table(["records", "last_offset"]).to_pylist() == [
        {"last_offset": 9, "records": 0},
        {"last_offset": 17, "records": 2},
    ]
    assert [row[0] for row in read(batches)] == [12, 15]
    assert not len(batches.problems())


def test_mixed_magics_in_one_set() -> None:
    parts = [
        kafka_python(magic, codec, rows_of(magic, 4))
        for magic, codec in ((0, 0), (1, 0), (1, 1), (2, 0), (0, 1), (2, 4))
    ]
    batches = opened(b"".join(parts))
    verify(batches)
    assert batches.table(["magic"]).column(0).to_pylist() == [0, 1, 1, 2, 0, 2]
    assert batches.crc_ok.tolist() == [1] * 6
    assert read(batches) == [row for magic in (0, 1, 1, 2, 0, 2) for row in rows_of(magic, 4)]
    assert sum(batches.table(["compressed_bytes"]).column(0).to_pylist()) == sum(map(len, parts))


def test_offsets_asked_for() -> None:
    batches = opened(kafka_python(2, 0, rows_of(2, 20)) + kafka_python(1, 2, rows_of(1, 20)))
    assert [row[0] for row in read(batches, offsets=(5, 8))] == [5, 6, 7, 8] * 2


def test_hidden_without_reveal() -> None:
    from kdissect.kafka.recordsets.records import records

    (chunk,) = records(opened(kafka_python(2, 3, rows_of(2))))
    rows = rows_of(2)
    assert chunk.column("key_bytes").to_pylist() == [None if row[2] is None else len(row[2]) for row in rows]
    assert chunk.column("value_bytes").to_pylist() == [None if row[3] is None else len(row[3]) for row in rows]
    for name in ("key", "value", "headers"):
        assert chunk.column(name).null_count == len(rows)


def test_many_sets_keep_their_owners() -> None:
    from kdissect.kafka.recordsets.records import records

    batches = opened(*(kafka_python(2, i % 5, rows_of(2, i)) for i in range(1, 30)))
    owners = np.concatenate([chunk.column("owner").to_numpy() for chunk in records(batches)])
    assert np.bincount(owners).tolist() == list(range(1, 30))
