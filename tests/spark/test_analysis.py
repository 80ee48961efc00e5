"""Latencies by Spark against those of the local analysis."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import kdissect
import kdissect.spark
from kdissect.analysis.latency import latency
from kdissect.problems import UsageError

TABLES = ("exchanges", "fetches", "fetch_partitions")


def test_what_is_missing_is_said() -> None:
    with pytest.raises(UsageError, match="cannot group latencies by 'apis'"):
        kdissect.spark.latency({}, by=["apis"])
    with pytest.raises(UsageError, match="'fetch_partitions'"):
        kdissect.spark.latency({"exchanges": None}, by=["topic"])  # type: ignore[dict-item]


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_latencies_are_those_of_one_machine(spark: Any, captures: Path) -> None:
    local = kdissect.open(captures / "base.pcap")
    frames = {name: spark.createDataFrame(local.table(name)).cache() for name in TABLES}
    for by, every in ((["api"], None), (["client", "broker"], 0.5), (["topic", "status"], None), ([], None)):
        tables = {name: local.table(name) for name in TABLES}
        expected = {key(row, by): row for row in latency(by=by, every=every, **tables).to_pylist()}
        found = {key(row, by): row for row in kdissect.spark.latency(frames, by, every).toArrow().to_pylist()}
        assert found.keys() == expected.keys()
        for name, row in found.items():
            assert row.keys() == expected[name].keys()
            for column, value in row.items():
                other = expected[name][column]
                same = isinstance(other, float) and value is not None and math.isclose(value, other, rel_tol=1e-9)
                assert same or value == other, (name, column, value, other)
    rough = {row["api"]: row["p50_ms"] for row in kdissect.spark.latency(frames, accuracy=10_000).collect()}
    for row in local.analysis.latency().to_pylist():
        if row["answered"]:
            values = local.table("exchanges", ["latency_ms"], f"api = '{row['api']}'")["latency_ms"].to_pylist()
            assert rough[row["api"]] in values


def key(row: dict[str, Any], by: list[str]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("api", "client_id", "broker", "topic", "status", "at"))
