"""Batches of recorded brokers and clients, found by checksum: against kafka-python's reader and what was produced."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from kafka.record.memory_records import MemoryRecords

from kdissect.kafka.recordsets.verification import measure, verify
from tests.kafka.records.building import Row, opened, read
from tests.kafka.records.wire import record_sets

CAPTURES = [
    "era_0_8_2", "era_0_11_0", "era_2_4_1", "downconv_282", "k4_java_classic", "k4_transactions", "zoo_sarama_010",
    "zoo_franz_go", "zoo_kafkajs", "zoo_librdkafka", "zoo_kafka_python",
]  # fmt: skip


def theirs(data: bytes) -> list[Row] | None:
    """kafka-python's reading; None for lz4 in magic 0, which it cannot read without a further library."""
    reader = MemoryRecords(data)
    rows: list[Row] = []
    try:
        while (found := reader.next_batch()) is not None:
            for r in found:
                rows.append((r.offset, None if r.timestamp == -1 else r.timestamp, r.key, r.value, list(r.headers)))
    except RuntimeError:
        return None
    return rows


@pytest.mark.oracle
@pytest.mark.parametrize("name", CAPTURES)
def test_as_kafka_python_reads_them(captures: Path, name: str) -> None:
    sets = record_sets(captures / f"{name}.pcap")
    assert sets
    batches = opened(*sets)
    verify(batches)
    measure(batches)
    assert set(batches.crc_ok.tolist()) == {1}
    for i, data in enumerate(sets):
        expected = theirs(data)
        if expected is not None:
            assert read(opened(data)) == expected, i
    assert not len(batches.problems())


def values(captures: Path, name: str) -> Counter[bytes | None]:
    return Counter(row[3] for row in read(opened(*record_sets(captures / f"{name}.pcap"))))


@pytest.mark.oracle
def test_values_that_were_produced(captures: Path) -> None:
    """Every value of jc-data's four codecs was produced and fetched, and every value of downconv_282's clients."""
    found = values(captures, "k4_java_classic")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        for i in range(10):
            if i % 7 != 6:
                assert found[f"{codec} value {i} ".encode() + b"abcdef " * 10] >= 2
    found = values(captures, "downconv_282")
    text = " the quick brown fox jumps over the lazy dog, again and again é中"
    seen = {value.decode().partition(" record ")[0] for value in found if value and b" record " in value}
    assert len(seen) > 10
    for value in found:
        if value and b" record " in value:
            assert value.decode().endswith(text)
