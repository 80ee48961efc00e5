"""The widest gap between two topics."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import kdissect
from kdissect.analysis.questions.topic_gap import TopicGap, find_topic_gap
from tests.conftest import ROOT


def latencies(*rows: tuple[str, str | None, int, float]) -> pa.Table:
    kinds: list[tuple[str, Any]] = [
        ("api", pa.string()), ("topic", pa.string()), ("answered", pa.int64()), ("p50_ms", pa.float64())
    ]  # fmt: skip
    schema = pa.schema(kinds)
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def test_the_slowest_and_the_fastest_topic() -> None:
    table = latencies(
        ("Produce", "a", 30, 2.0), ("Produce", "b", 20, 22.0), ("Produce", "c", 99, 1.0), ("Fetch", "d", 99, 500.0),
        ("Produce", "few", 19, 900.0), ("Produce", None, 99, 0.1),
    )  # fmt: skip
    assert find_topic_gap(table) == TopicGap("b", 22.0, 20, "c", 1.0, 99)


def test_one_topic_has_no_gap() -> None:
    assert find_topic_gap(latencies(("Produce", "a", 30, 2.0))) is None
    assert find_topic_gap(latencies()) is None


def test_a_topic_that_is_flushed_after_each_message() -> None:
    gap = kdissect.open(ROOT / "captures" / "stories" / "fsync.pcap.zst").analysis.topic_gap()
    assert gap is not None
    assert gap.slow == "s19"
    assert gap.slow_ms > 2 * gap.fast_ms
