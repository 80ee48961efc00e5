"""How much findings are looked for in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.findings import OF_REQUESTS, FoundInCluster
from kdissect.spark.cells.table_cells import Cell, cell, rows
from kdissect.spark.stages import analysing
from kdissect.spark.stages.analysing import ALWAYS, EVIDENCE, deal_evidence, find_findings, searched
from kdissect.tables.declaration.model import TIME_KEY
from tests.other_cluster import write_other_cluster

A, B = "clusterAAAAAAAAAAAAAAA", "clusterBBBBBBBBBBBBBBB"


def names_of(*clusters: str) -> Any:
    """Names that messages of these clusters have told."""
    told = pa.table({"cluster": pa.array(clusters, pa.string())})
    learned = SimpleNamespace(table=lambda *topics: told)
    return SimpleNamespace(builder=lambda plan: None, topics=learned, leaders=learned)


def test_findings_are_looked_for_in_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysing, "EVIDENCE_ROWS", 100)

    def cuts(*cells: tuple[int, int]) -> tuple[int, ...]:
        return searched([("", *one) for one in cells], names_of())[None]

    assert cuts((5, 60), (3, 40)) == ()
    assert cuts((7, 60), (5, 60), (3, 40)) == (7,)
    assert cuts((3, 90), (3, 90), (4, 90), (5, 5), (6, 6)) == (4, 6)
    assert cuts((3, 101), (3, 1)) == ()
    assert cuts((ALWAYS, 500), (3, 60)) == ()  # what has no time is looked at in any case
    assert cuts() == ()


def test_each_cluster_has_spans_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysing, "EVIDENCE_ROWS", 100)
    assert searched([(A, 7, 60), (A, 5, 60), (B, 9, 100), ("", 1, 1)], names_of()) == {A: (7,), B: (), None: ()}
    assert searched([(A, 7, 60), ("", 5, 60)], names_of()) == {A: (7,)}
    assert searched([(A, 7, 60), ("", 5, 60)], names_of(B)) == {A: (), B: (), None: ()}


def test_rows_of_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each span has its rows of requests, the first one all that has no time, too."""
    seen: list[tuple[dict[str, pa.Table], Any]] = []

    def looked(tables: dict[str, pa.Table], cluster: Any, alone: Any, limits: Any, by: Any) -> FoundInCluster:
        seen.append((tables, by))
        return FoundInCluster([], [])

    monkeypatch.setattr(analysing, "find_in_cluster", looked)
    timed = pa.table({"exchange_id": ["a", "b", "c"], TIME_KEY: [7, 3, 5]})
    others = pa.table({"session_key": ["1/2/0"]})
    cells = [Cell(EVIDENCE + "produces", "", cell(timed), 3, 3), Cell(EVIDENCE + "share_sessions", "", cell(others))]
    plan: Any = SimpleNamespace(settings=SimpleNamespace(slow=None), tables={"findings": ["id"]})
    for cuts in ((5, 7), ()):
        dealt = list(deal_evidence([rows([one]) for one in cells], {None: cuts}))
        dealt.sort(key=lambda batch: batch["lot"][0].as_py())
        list(find_findings(dealt, plan, names_of(), None, {None: cuts}))
    assert [tables["produces"][TIME_KEY].to_pylist() for tables, _ in seen] == [[3], [5], [7], [3, 5, 7]]
    assert [tables["share_sessions"].num_rows for tables, _ in seen if "share_sessions" in tables] == [1, 1]
    assert [by for _, by in seen] == [None, OF_REQUESTS, OF_REQUESTS, None]


def test_the_worst_span_tells(captures: Path, simulate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What requests alone show is found wherever it is, once for each subject, and as true as in a capture of the
    span."""
    path = captures / "k4_session_eviction.pcap"
    whole = kdissect.open(path).table("findings").to_pylist()
    monkeypatch.setattr(analysing, "EVIDENCE_ROWS", 100)
    cut = simulate([path], 2, ["findings"])["findings"].to_pylist()
    monkeypatch.setattr(analysing, "OF_REQUESTS", ())
    first = simulate([path], 2, ["findings"])["findings"].to_pylist()
    assert {row["id"] for row in first} < {row["id"] for row in cut}
    subject = ("id", "table", "filter", "broker", "client_id", "group_id", "topic", "partition", "transactional_id")
    told = Counter(tuple(row[name] for name in subject) for row in cut)
    assert set(told.values()) == {1}
    most = {tuple(row[name] for name in subject): row["count"] for row in whole}
    later = [row for row in cut if row not in first]
    assert later
    for row in later:
        assert row["count"] <= most[tuple(row[name] for name in subject)], row["text"]


def test_findings_of_each_cluster(
    captures: Path, tmp_path: Path, simulate: Any, equal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters are searched by themselves: where one has more evidence than is searched, another one loses nothing."""
    busy = captures / "k4_session_eviction.pcap"
    write_other_cluster(captures / "k4_java_classic.pcap", tmp_path / "other.pcap")
    paths = [busy, tmp_path / "other.pcap"]
    expected = kdissect.open(paths).tables(["findings"])
    equal(simulate(paths, 3, ["findings"]), expected)
    everything = expected["findings"].to_pylist()
    counted = Counter(row["cluster"] for row in everything)
    assert len(counted) == 2
    rows_of_other = kdissect.open(paths[1]).table("exchanges").num_rows
    monkeypatch.setattr(analysing, "EVIDENCE_ROWS", 4 * rows_of_other)
    found = simulate(paths, 3, ["findings"])["findings"].to_pylist()
    (other,) = kdissect.open(paths[1]).table("topics")["cluster"].unique().to_pylist()
    assert {row["text"] for row in found if row["cluster"] == other} == {
        row["text"] for row in everything if row["cluster"] == other
    }
    assert len([row for row in found if row["cluster"] != other]) < len(everything) - counted[other]
