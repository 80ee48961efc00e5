"""`latency --of deliveries` against pandas on a recording, and at its edges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

import kdissect
from kdissect.analysis.deliveries.delivery_latency import USUAL, columns_read, delivery_latency
from kdissect.cli.main import main
from kdissect.problems import UsageError
from tests.analysis.wire import START, made
from tests.conftest import CAPTURES

SLOW = CAPTURES / "stories" / "slow_consumer.pcap.zst"
SECOND = 1_000_000


@pytest.mark.parametrize(
    "by", [["topic", "group"], ["topic", "reader"], ["partition"], ["client", "waited_for"], ["follower", "producer"]]
)
def test_quantiles_are_those_of_pandas(by: list[str]) -> None:
    capture = kdissect.open(SLOW)
    rows = capture.table("deliveries").to_pandas()
    rows["reader"] = rows.group_id.astype(object).fillna(rows.client_id.astype(object))
    found = capture.analysis.delivery_latency(by).to_pandas()
    columns = list(found.columns[: len(by)])
    if "follower" not in by:
        rows = rows[~rows.is_follower]
    expected = rows.groupby(columns, dropna=False).agg(
        deliveries=("records", "size"), timed=("delivery_ms", "count"), records=("records", "sum"),
        p50_ms=("delivery_ms", "median"), p99_ms=("delivery_ms", lambda one: one.quantile(0.99)),
        max_ms=("delivery_ms", "max"), mean_ms=("delivery_ms", "mean"), buffered_p50_ms=("buffered_ms", "median"),
    ).reset_index()  # fmt: skip
    merged = found.merge(expected, on=columns, suffixes=("", "_expected"))
    assert len(merged) == len(found) == len(expected) > 0
    for name in expected.columns[len(by) :]:
        pd.testing.assert_series_equal(merged[name], merged[f"{name}_expected"], check_names=False, check_dtype=False)


def test_readers_without_a_group_are_not_one() -> None:
    """Two clients that assign partitions to themselves, one of which is slow."""
    alone = {"group_id": None, "client_id": "quick"}
    rows = [delivery(0, 1.0, **alone), delivery(1, 5000.0, **{**alone, "client_id": "slow"}), delivery(2, 2.0)]
    found = {row["reader"]: row["max_ms"] for row in figures(rows)}
    assert found == {"quick": 1.0, "slow": 5000.0, "g": 2.0}


def delivery(n: int, took_ms: float | None, **more: Any) -> dict[str, Any]:
    """Sent n tenths of a second after the start; not known when for a delivery of unknown duration."""
    sent = START + n * SECOND // 10
    return {"topic": "t", "partition": 0, "records": 1, "group_id": "g", "client_id": "c", "is_follower": False,
            "produced_at": None if took_ms is None else sent, "delivered_at": sent + 1, "delivery_ms": took_ms,
            "waited_for": None if took_ms is None else "reader", **more}  # fmt: skip


def figures(rows: list[dict[str, Any]], by: Sequence[str] = USUAL, every: float | None = None) -> list[dict[str, Any]]:
    table = made("deliveries", rows).select(columns_read(by))
    found: list[dict[str, Any]] = delivery_latency(table, by, every).to_pylist()
    return found


def test_deliveries_of_unknown_duration_count_and_have_no_times() -> None:
    [one] = figures([delivery(0, None), delivery(1, None)])
    assert (one["deliveries"], one["timed"], one["p50_ms"], one["waited_for"]) == (2, 0, None, None)
    [one] = figures([delivery(0, None), delivery(1, 4.0)])
    assert (one["deliveries"], one["timed"], one["p50_ms"], one["waited_for"]) == (2, 1, 4.0, "reader")


def test_what_took_most_of_the_time_is_named_and_the_buffer_counts() -> None:
    rows = [delivery(0, 10.0), delivery(1, 10.0), delivery(2, 1.0, waited_for="producer", buffered_ms=50.0)]
    assert [one["waited_for"] for one in figures(rows)] == ["producer"]


def test_stretches_of_time_are_by_when_records_were_sent_and_topics_without_a_name_have_their_id() -> None:
    rows = [delivery(n, 1.0, topic=None, topic_id="id") for n in (0, 9, 10, 25)]
    found = figures(rows, by=("topic",), every=1.0)
    assert [(one["topic"], one["deliveries"]) for one in found] == [("id", 2), ("id", 1), ("id", 1)]
    assert [one["at"].timestamp() * SECOND - START for one in found] == [0, SECOND, 2 * SECOND]


def test_followers_count_where_rows_are_told_apart_by_them() -> None:
    rows = [delivery(0, 1.0), delivery(1, 2.0, is_follower=True)]
    assert [one["deliveries"] for one in figures(rows)] == [1]
    assert [one["deliveries"] for one in figures(rows, by=("follower",))] == [1, 1]


def test_nothing_and_unknown_groupings() -> None:
    assert figures([]) == []
    with pytest.raises(UsageError, match="did you mean 'group'"):
        kdissect.open(SLOW).analysis.delivery_latency(["grup"])
    with pytest.raises(UsageError, match="longer than nothing"):
        kdissect.open(SLOW).analysis.delivery_latency(every=0)


def test_the_command_prints_and_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["latency", "--demo", "--of", "deliveries"]
    assert main(asked) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["topic", "reader", "deliveries"]
    assert row.split()[:4] == ["py-kp", "kp-group", "10", "50"]
    assert main([*asked, "--by", "group", "--format", "jsonl"]) == 0
    [written] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (written["group_id"], written["deliveries"], written["waited_for"]) == ("kp-group", 10, "reader")
    assert main([*asked, "--by", "api"]) == 2
    assert "cannot group deliveries by 'api'" in capsys.readouterr().err
