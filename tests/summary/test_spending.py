"""The time budget of the client in most trouble: the one that `budget` gives, of nobody where nothing is wrong."""

from __future__ import annotations

import pytest

import kdissect
from kdissect.analysis import stage
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import analysed_run
from kdissect.engine.extracts import overview
from kdissect.summary import summarize
from kdissect.summary.spending import Spending
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import BUDGET
from tests.cli.standin import small
from tests.conftest import ROOT

STORIES = ROOT / "captures" / "stories"
TROUBLED = {"slow_broker": "p1short", "slow_consumer": "c3a", "quotas": "p4"}


@pytest.mark.parametrize("name", TROUBLED)
def test_it_is_the_row_of_the_budget(name: str) -> None:
    capture = kdissect.open(STORIES / f"{name}.pcap.zst")
    found = capture.summary().budget
    assert found is not None
    assert found["subject"] == TROUBLED[name]
    (row,) = [row for row in capture.analysis.budget().to_pylist() if row["subject"] == TROUBLED[name]]
    assert found == row


@pytest.mark.parametrize("name", ["healthy", "net_delay_client", "leader_move"])
def test_nobody_is_named_where_no_client_is_in_trouble(name: str) -> None:
    summary = kdissect.open(STORIES / f"{name}.pcap.zst").summary()
    assert summary.budget is None
    assert not [row for row in summary.findings if row["severity"] in ("high", "medium") and row["client_id"]]


def test_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "captures" / "k4_session_eviction.pcap"
    whole = kdissect.open(path).summary().budget
    assert whole is not None
    monkeypatch.setattr(overview, "HELD_BACK", 10_000)
    monkeypatch.setattr(stage, "HELD_ROWS", 0)
    monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 0)
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))
    assert kdissect.open(path).summary().budget == whole


def test_of_a_part_nothing_is_said() -> None:
    assert kdissect.open(STORIES / "slow_consumer.pcap.zst", client="c3a").summary().budget is None


@pytest.mark.parametrize("few", ["exchanges", "connections"])
def test_of_too_much_nothing_is_kept(few: str) -> None:
    tables = small()
    summary = summarize(tables)
    summary.findings[0]["client_id"] = "shop"
    for room in (tables[few].num_rows, tables[few].num_rows - 1):
        kept = Spending(100)
        kept._room[few] = room
        for name in BUDGET.tables:
            kept.add_rows({name: tables.get(name, SCHEMAS[name].empty_table())})
        assert (kept.of(summary) is None) == (room < tables[few].num_rows)
        assert any(kept._parts.values()) == (room == tables[few].num_rows)
