"""Latencies by Spark against those of the local analysis."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
import kdissect.spark
from kdissect.analysis.topic_traffic import topics_of
from kdissect.problems import UsageError
from kdissect.spark.analytics import TOPIC_TABLES, find_topics

RECORDINGS = ("base", "k4_fetch_sessions_raw", "k4_session_eviction")
"""Topics by name and by id, and sessions whose fetches name none."""


def test_what_is_missing_is_said() -> None:
    with pytest.raises(UsageError, match="cannot group latencies by 'apis'"):
        kdissect.spark.latency({}, by=["apis"])
    with pytest.raises(UsageError, match="cannot group latencies by 'apis'"):
        kdissect.spark.latency({}, by="apis")
    with pytest.raises(UsageError, match="'fetches'"):
        kdissect.spark.latency({"exchanges": None}, by=["topic"])  # type: ignore[dict-item]


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_latencies_are_those_of_one_machine(spark: Any, captures: Path) -> None:
    local = kdissect.open([captures / f"{name}.pcap" for name in RECORDINGS])
    frames = {name: spark.createDataFrame(local.table(name)).cache() for name in TOPIC_TABLES}
    for by, every in ((["api"], None), (["client", "broker"], 0.5), (["topic", "status"], None), ([], None)):
        expected = {key(row, by): row for row in local.analysis.latency(by, every).to_pylist()}
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


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_topics_of_sessions_whose_epochs_wrap(spark: Any) -> None:
    """Fetches that name nothing are about what their session holds at their epoch."""
    last = 2**31 - 1
    stays = [("a", 0, 5), ("b", 5, None), ("c", last - 1, 3), ("d", None, None), (None, 0, None)]
    epochs = [0, 1, 3, 4, 5, 6, last - 2, last - 1, last]
    ids = [f"00000000000000aa:{n}" for n in range(len(epochs) + 3)]
    uses = [(ids[n], "1/7/0", epoch) for n, epoch in enumerate(epochs)]
    uses += [(ids[-3], "1/8/0", 99), (ids[-2], None, 2), (ids[-1], "1/7/0", 6)]  # the last one names a topic
    tables = {
        "exchanges": table(exchange_id=ids),
        "fetches": table(exchange_id=ids, session_key=[use[1] for use in uses], session_epoch=[use[2] for use in uses]),
        "fetch_partitions": table(exchange_id=[ids[-1], ids[-1], ids[0]], topic=["z", None, None]),
        "session_partitions": table(
            session_key=["1/7/0"] * len(stays) + ["1/8/0"], topic=[stay[0] for stay in stays] + ["only"],
            from_epoch=[stay[1] for stay in stays] + [4], to_epoch=[stay[2] for stay in stays] + [5],
        ),
        "record_batches": table(exchange_id=[ids[-2]], topic=["w"]),
    }  # fmt: skip
    names, row, topic = topics_of(*tables.values())
    expected = {(ids[at], names[code]) for at, code in zip(row.tolist(), topic.tolist(), strict=True)}
    assert {(ids[1], "a"), (ids[1], "c"), (ids[8], "c"), (ids[-3], "only"), (ids[-1], "z")} < expected
    assert (ids[6], "c") not in expected
    assert (ids[-1], "b") not in expected
    frames = {name: spark.createDataFrame(one) for name, one in tables.items()}
    found = find_topics(frames).collect()
    assert {tuple(pair) for pair in found} == expected
    assert len(found) == len(expected)


def table(**columns: list[Any]) -> pa.Table:
    return pa.table(columns)


def key(row: dict[str, Any], by: list[str]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("api", "client_id", "broker", "topic", "status", "cluster", "at"))
