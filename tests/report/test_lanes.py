"""Lanes of the page's time axis: who was there, deliveries, transactions."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.report.budget_chart import BudgetRows
from kdissect.report.lanes.absences import absences
from kdissect.report.lanes.delivery_lanes import READ, delivery_heat, long_transactions, slow_deliveries
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import BUDGET
from tests.conftest import CAPTURES

KILLED = Path(__file__).parent.parent / "live" / "recordings" / "broker_killed.pcap.zst"
STORIES = CAPTURES / "stories"
T = datetime(2026, 11, 22, 1, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return T + timedelta(seconds=seconds)


def lanes(path: Path) -> list[dict[str, Any]]:
    return absences(kdissect.open(path).tables(BUDGET.tables)).to_pylist()


def test_a_killed_broker_is_gone() -> None:
    """Node 3 got SIGKILL at 01:12:23.138; nobody connected to it again, and its own fetches began again at 01:12:43."""
    rows = lanes(KILLED)
    broker = [row for row in rows if (row["by"], row["subject"]) == ("broker", "3")]
    assert [row["state"] for row in broker] == ["there", "gone"]
    assert abs(broker[1]["at"] - datetime(2026, 11, 22, 1, 12, 23, 138000, UTC)) < timedelta(seconds=1)
    assert broker[1]["until"] == max(row["until"] for row in rows)
    follower = [row["state"] for row in rows if row["subject"] == "broker-3-fetcher-0"]
    assert follower == ["there", "gone", "there"]
    assert all(
        row["state"] == "there" for row in rows if (row["by"], row["subject"]) in (("broker", "1"), ("broker", "2"))
    )


def test_a_suspended_broker_is_stalled() -> None:
    """Node 3 stood still from 01:02:51.698 to 01:02:54.696."""
    away = [row for row in lanes(STORIES / "slow_broker.pcap.zst") if row["state"] in ("stalled", "silent", "gone")]
    assert [(row["by"], row["subject"], row["state"]) for row in away] == [("broker", "3", "stalled")]
    assert (away[0]["until"] - away[0]["at"]).total_seconds() == pytest.approx(3.0, abs=0.05)


def test_everybody_is_there_in_a_healthy_cluster() -> None:
    states = {row["state"] for row in lanes(STORIES / "healthy.pcap.zst")}
    assert states <= {"there", "idle"}


def test_what_was_not_kept_is_not_absent() -> None:
    """Of the first exchanges alone: lanes end with them, and no one is silent or gone after that."""
    tables = kdissect.open(STORIES / "healthy.pcap.zst").tables(BUDGET.tables)
    kept = BudgetRows(most=500)
    assert kept.last_us is None
    kept.add_rows(tables)
    assert kept.last_us is not None
    rows = absences(kept.tables(), kept.last_us).to_pylist()
    last = max(row["until"] for row in rows)
    assert round(last.timestamp() * 1e6) <= kept.last_us
    assert last < max(tables["exchanges"]["request_first_at"].drop_null().to_pylist())
    assert {row["state"] for row in rows} <= {"there", "idle"}


def test_lanes_follow_each_other_without_gaps() -> None:
    rows = lanes(KILLED)
    for a, b in itertools.pairwise(rows):
        if (a["by"], a["subject"], a["client_ip"]) == (b["by"], b["subject"], b["client_ip"]):
            assert a["until"] == b["at"]
            assert a["state"] != b["state"]


def test_no_exchange_no_lane() -> None:
    empty = {name: SCHEMAS[name].empty_table() for name in BUDGET.tables}
    assert absences(empty).num_rows == 0


def delivery(produced: float, took: float | None, **more: Any) -> dict[str, Any]:
    return {"produced_at": after(produced), "delivery_ms": took, "is_follower": False, "topic": "t", "client_id": "c",
            "waited_for": "broker", "fetch_exchange_id": f"x:{took}", **more}  # fmt: skip


def test_deliveries_by_stretch_of_time() -> None:
    rows = [
        delivery(0.1, 5.0), delivery(0.2, 9.0, waited_for="reader"), delivery(0.9, 1.0),
        delivery(0.5, 900.0, is_follower=True), delivery(0.6, None), delivery(7.2, 3.0),
    ]  # fmt: skip
    found = slow_deliveries(pa.Table.from_pylist(rows, SCHEMAS["deliveries"]), 1.0).to_pylist()
    assert [(row["at"], row["until"]) for row in found] == [(T, after(1)), (after(7), after(8))]
    assert [(row["deliveries"], row["p50_ms"], row["max_ms"]) for row in found] == [(3, 5.0, 9.0), (1, 3.0, 3.0)]
    assert (found[0]["waited_for"], found[0]["fetch_exchange_id"]) == ("reader", "x:9.0")
    assert slow_deliveries(SCHEMAS["deliveries"].empty_table(), 1.0).num_rows == 0


def test_deliveries_by_time_and_duration_for_each_topic_and_reader() -> None:
    rows = [
        delivery(0.1, 5.0, group_id="g"), delivery(0.2, 5.1, group_id="g"), delivery(0.9, 500.0, group_id="g"),
        delivery(7.2, 5.0, group_id="g"), delivery(0.3, 5.0), delivery(0.5, 900.0, is_follower=True),
        delivery(0.6, None),
        delivery(0.7, 2.0, topic=None, topic_id="i", group_id="h"), delivery(0.7, 2.0, topic="u", group_id="h"),
        delivery(0.7, 2.0, topic="u", group_id="h"),
    ]  # fmt: skip
    found = delivery_heat(pa.Table.from_pylist(rows, SCHEMAS["deliveries"]), 1.0).to_pylist()
    cells = [(row["name"], row["at"], row["deliveries"]) for row in found]
    assert cells == [
        ("t to g", T, 2), ("t to g", T, 1), ("t to g", after(7), 1), ("u to h", T, 2),
        ("i to h", T, 1), ("t to c", T, 1),
    ]  # fmt: skip
    assert all(row["from_ms"] <= took < row["to_ms"] for row, took in zip(found, (5, 500, 5, 2, 2, 5), strict=True))
    assert delivery_heat(SCHEMAS["deliveries"].empty_table(), 1.0).num_rows == 0


def test_transactions_in_order_of_time_and_open_ones_to_the_end() -> None:
    rows = [
        {"transactional_id": "open", "began_at": after(3), "ended_at": None, "outcome": "open"},
        {"transactional_id": "first", "began_at": after(1), "ended_at": after(2), "outcome": "committed"},
        {"transactional_id": "before", "began_at": None, "ended_at": after(1), "outcome": "aborted"},
    ]
    last = round(after(9).timestamp() * 1e6)
    found = long_transactions(pa.Table.from_pylist(rows, SCHEMAS["transactions"]), last).to_pylist()
    assert [(row["transactional_id"], row["at"], row["until"]) for row in found] == [
        ("first", after(1), after(2)), ("open", after(3), after(9)),
    ]  # fmt: skip
    assert long_transactions(SCHEMAS["transactions"].empty_table(), last).num_rows == 0


def test_a_transaction_that_timed_out() -> None:
    table = kdissect.open(STORIES / "txn_timeout.pcap.zst").table("transactions", READ["transactions"])
    (row,) = long_transactions(table, 0).to_pylist()
    assert (row["outcome"], row["client_id"]) == ("timed_out", "a11t")
    assert (row["until"] - row["at"]).total_seconds() == pytest.approx(5.07, abs=0.01)
