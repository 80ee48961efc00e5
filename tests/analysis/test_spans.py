"""Findings of large captures: where they are cut, what each span sees, and that all ways of cutting them agree."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.findings import (
    AT_ONCE,
    BY_SPAN,
    FINDERS,
    FoundInCluster,
    find_in_cluster,
    findings,
    join_spans,
    spans,
)
from kdissect.analysis.findings.evidence import Finding
from kdissect.analysis.findings.spans import SECOND, SecondCounts, cut, deal_rows, rows_in_span, spans_between
from kdissect.capture import open_captures
from kdissect.engine.flowing_answers import find_findings
from kdissect.engine.saving import spooled_evidence
from kdissect.engine.settings import Settings
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import TIME_KEY

AT = 1_700_000_000 * SECOND


def exchanges_at(*seconds: float, cluster: str | None = None) -> pa.Table:
    at = pa.array([AT + round(one * SECOND) for one in seconds], pa.int64())
    return pa.table({TIME_KEY: at, "cluster": pa.array([cluster] * len(at), pa.string())})


def test_spans_hold_whole_seconds_or_parts_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN_ROWS", 10)
    assert cut(np.array([1, 2, 3, 9]), np.array([4, 6, 1, 10])) == (3 * SECOND, 9 * SECOND)
    assert cut(np.array([1, 2, 3]), np.array([20, 1, 30])) == (
        SECOND + SECOND // 2, 2 * SECOND, 3 * SECOND, 3 * SECOND + SECOND // 3, 3 * SECOND + 2 * SECOND // 3,
    )  # fmt: skip
    assert cut(np.array([1, 2]), np.array([11, 4])) == (SECOND + SECOND // 2,)
    assert cut(np.array([5]), np.array([10])) == ()
    assert cut(np.zeros(0, np.int64), np.zeros(0, np.int64)) == ()


def test_it_does_not_matter_in_which_parts_rows_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN_ROWS", 3)
    every = [0.1, 0.2, 1.5, 1.6, 2.9, 2.95, 7.0]
    at_once, in_parts = SecondCounts(), SecondCounts()
    at_once.add_rows("exchanges", exchanges_at(*every))
    for one in (every[3:], every[:1], every[1:3]):
        in_parts.add_rows("exchanges", exchanges_at(*one))
    assert (
        at_once.cuts(None, only_cluster=True)
        == in_parts.cuts(None, only_cluster=True)
        == (AT + SECOND, AT + 2 * SECOND)
    )


def test_each_cluster_has_spans_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN_ROWS", 2)
    counts = SecondCounts()
    counts.add_rows(
        "exchanges", pa.concat_tables([exchanges_at(0, 0, 1, 2, cluster="a"), exchanges_at(0, 5, cluster="b")])
    )
    assert counts.cuts("a", only_cluster=False) == (AT + SECOND,)
    assert counts.cuts("b", only_cluster=False) == ()
    assert counts.cuts("c", only_cluster=False) == ()
    counts.add_rows("exchanges", exchanges_at(1))
    assert counts.cuts("a", only_cluster=False) == (AT + SECOND,)
    # rows without a cluster are of the only one
    assert counts.cuts("a", only_cluster=True) == (AT + SECOND // 2, AT + SECOND, AT + 2 * SECOND)


def test_each_row_is_seen_by_one_span() -> None:
    cuts = [AT + SECOND, AT + 3 * SECOND]
    rows = exchanges_at(0, 0.999, 1.0, 2.5, 3.0, 9.0)
    without = pa.concat_tables([rows, rows.slice(0, 1).set_column(0, TIME_KEY, pa.nulls(1, pa.int64()))])
    dealt = dict(deal_rows("exchanges", without, cuts))
    assert [dealt[number].num_rows for number in range(3)] == [3, 2, 2]
    for number in range(3):
        assert rows_in_span("exchanges", without, cuts, number).equals(dealt[number])
    assert list(deal_rows("exchanges", rows, [])) == [(0, rows)]
    assert list(spans_between(cuts, AT, AT)) == [0]
    assert list(spans_between(cuts, AT + 2 * SECOND, AT + 3 * SECOND)) == [1, 2]


def test_connections_are_as_a_capture_of_the_span_has_them() -> None:
    def at(seconds: float) -> datetime:
        return datetime.fromtimestamp(AT / SECOND + seconds, UTC)

    fields = {name: SCHEMAS["connections"].field(name) for name in
              ("connection_id", "started_at", "ended_at", "start_seen", "end_reason", "closed_by")}  # fmt: skip
    rows = [
        ("before", at(0), at(1), True, "fin", "client"),
        ("through", at(0), at(9), True, "rst", "broker"),
        ("within", at(3), at(4), True, "fin", "broker"),
        ("later", at(6), at(9), True, "fin", "client"),
    ]
    table = pa.Table.from_pylist([dict(zip(fields, row, strict=True)) for row in rows], pa.schema(fields.values()))
    cuts = [AT + 2 * SECOND, AT + 5 * SECOND]
    seen = [rows_in_span("connections", table, cuts, number).to_pylist() for number in range(3)]
    assert [[row["connection_id"] for row in some] for some in seen] == [
        ["before", "through"], ["through", "within"], ["through", "later"],
    ]  # fmt: skip
    first, middle, last = (next(row for row in some if row["connection_id"] == "through") for some in seen)
    assert (first["started_at"], first["ended_at"], first["start_seen"]) == (at(0), at(2), True)
    assert (middle["started_at"], middle["ended_at"], middle["start_seen"]) == (at(2), at(5), False)
    assert (middle["end_reason"], middle["closed_by"]) == ("open", None)
    assert (last["started_at"], last["ended_at"], last["end_reason"]) == (at(5), at(9), "rst")
    assert seen[1][1] == dict(zip(fields, rows[2], strict=True))
    assert {number for number, _ in deal_rows("connections", table, cuts)} == {0, 1, 2}


def found(subject: str, count: int, at: int, severity: str = "low", table: str = "exchanges") -> Finding:
    return Finding("slow_requests", severity, f"{count} of {subject}.", table, "", count, f"{at:016x}:1",
                   first_at=at, last_at=at + 1, client_id=subject)  # fmt: skip


def test_the_worst_span_tells_and_all_count() -> None:
    def of(*some: Finding, finder: int = 3) -> FoundInCluster:
        return FoundInCluster(list(some), [finder] * len(some), [])

    lifetimes = of(found("z", 1, 5, table="connections"), finder=1)
    made = join_spans([of(found("a", 2, 10)), of(found("a", 7, 20), found("b", 1, 20))], 9, lifetimes)
    assert [(one.client_id, one.count, one.first_at, one.last_at) for one in made.findings] == [
        ("z", 1, 5, 6), ("a", 9, 10, 21), ("b", 1, 20, 21),
    ]  # fmt: skip
    assert made.findings[1].text == "7 of a. This was so in 2 of 9 spans of time; the figures are of the worst one."
    assert made.findings[1].first_exchange_id == f"{10:016x}:1"
    assert made.findings[2].text == "1 of b."
    severe = join_spans([of(found("a", 9, 10)), of(found("a", 1, 20, "high"))], 2, of())
    assert (severe.findings[0].severity, severe.findings[0].count) == ("high", 10)
    early, late = (found("a", n, n)._replace(filter=f"at >= '2026-11-2{n}T00:00:00.000000Z'") for n in (3, 5))
    (paused,) = join_spans([of(early), of(late)], 2, of()).findings
    assert (paused.count, paused.first_at, paused.filter) == (5, 5, late.filter)  # it selects those of its span
    assert paused.text.startswith("5 of a. This was so in 2 of 2 spans of time")
    same = join_spans([of(found("a", 4, 10, table="connections"))] * 2, 2, of())
    assert same.findings[0].count == 4  # the same connections in both


def test_a_finder_that_fails_in_each_span_is_one_problem() -> None:
    failed = {"kind": "finder_failed", "where": "slow", "detail": "finder slow failed"}
    made = join_spans([FoundInCluster([], [], [failed])] * 3, 3, FoundInCluster([], [], []))
    assert made.failed == [failed]


def test_every_finder_looks_at_spans_or_at_lifetimes() -> None:
    assert {one.name for one in AT_ONCE} >= {"demand", "refused", "met_late"}
    assert sorted((*AT_ONCE, *BY_SPAN), key=FINDERS.index) == list(FINDERS)


@pytest.mark.parametrize(
    "name", ["k4_session_eviction.pcap", "k4_java_classic.pcap", "k4_transactions.pcap", "k4_share_group.pcap"]
)
def test_rows_in_memory_and_in_a_file_are_cut_alike(name: str, captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN_ROWS", 250)  # five to twenty spans
    path = captures / name
    rows = kdissect.open(path).table("findings")
    run, spooled = find_findings(open_captures(path), Settings())
    assert run.builder.finished("findings", [spooled]).to_pylist() == rows.to_pylist()
    assert rows.num_rows


def test_what_happens_late_in_a_capture_is_found(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of finding that the whole has is there, but for a broker that stopped: it did so for longer than a
    span."""
    path = captures / "k4_session_eviction.pcap"
    whole = {row["id"] for row in kdissect.open(path).table("findings").to_pylist() if row["severity"] != "info"}
    assert {"session_evictor", "broker_stopped"} < whole
    monkeypatch.setattr(spans, "SPAN_ROWS", 600)
    cut_up = kdissect.open(path).table("findings").to_pylist()
    assert any("spans of time" in row["text"] for row in cut_up)
    assert whole - {row["id"] for row in cut_up if row["severity"] != "info"} <= {"broker_stopped"}


def test_rows_of_one_instant_have_a_bound(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = captures / "base.pcap"
    monkeypatch.setattr(spooled_evidence, "MOST_ROWS", 50)
    settings = Settings()
    find_findings(open_captures(path), settings)
    (told,) = settings.limited.notes
    assert re.fullmatch(r"[\d,]+ rows are of requests that began at nearly the same instant: findings look at .*", told)


def test_small_tables_are_not_cut() -> None:
    tables = {"exchanges": SCHEMAS["exchanges"].empty_table()}
    assert findings(tables).findings.num_rows == len(find_in_cluster(tables, None, True).findings) == 0
