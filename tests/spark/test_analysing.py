"""How much findings are looked for in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.findings import FoundInCluster
from kdissect.spark.cells.table_cells import Cell, cell, rows
from kdissect.spark.stages import analysing
from kdissect.spark.stages.analysing import ALWAYS, EVIDENCE, find_findings, searched
from kdissect.tables.declaration.model import TIME_KEY
from tests.other_cluster import write_other_cluster

A, B = "clusterAAAAAAAAAAAAAAA", "clusterBBBBBBBBBBBBBBB"


def names_of(*clusters: str) -> Any:
    """Names that messages of these clusters have told."""
    told = pa.table({"cluster": pa.array(clusters, pa.string())})
    learned = SimpleNamespace(table=lambda *topics: told)
    return SimpleNamespace(builder=lambda plan: None, topics=learned, leaders=learned)


def test_findings_are_looked_for_in_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysing, "EVIDENCE_ROWS", 100)

    def until(*cells: tuple[int, int]) -> int | None:
        return searched([("", *one) for one in cells], names_of())[None]

    assert until((5, 60), (3, 40)) is None
    assert until((7, 60), (5, 60), (3, 40)) == 7
    assert until((3, 101)) == 3
    assert until((ALWAYS, 500)) is None  # what has no time is looked at in any case
    assert until() is None


def test_each_cluster_has_first_rows_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysing, "EVIDENCE_ROWS", 100)
    assert searched([(A, 7, 60), (A, 5, 60), (B, 9, 100), ("", 1, 1)], names_of()) == {A: 7, B: None, None: None}
    assert searched([(A, 7, 60), ("", 5, 60)], names_of()) == {A: 7}
    assert searched([(A, 7, 60), ("", 5, 60)], names_of(B)) == {A: None, B: None, None: None}


def test_rows_behind_the_first_ones_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, pa.Table] = {}

    def looked(tables: dict[str, pa.Table], *given: Any) -> FoundInCluster:
        seen.update(tables)
        return FoundInCluster([], [])

    monkeypatch.setattr(analysing, "find_in_cluster", looked)
    timed = pa.table({"exchange_id": ["a", "b", "c"], TIME_KEY: [7, 3, 5]})
    others = pa.table({"session_key": ["1/2/0"]})
    cells = [Cell(EVIDENCE + "produces", "", cell(timed), 3, 3), Cell(EVIDENCE + "share_sessions", "", cell(others))]
    plan: Any = SimpleNamespace(settings=SimpleNamespace(slow=None), tables={"findings": ["id"]})
    list(find_findings([rows([one]) for one in cells], plan, names_of(), None, {None: 7}))
    assert seen["produces"][TIME_KEY].to_pylist() == [3, 5]
    assert seen["share_sessions"].num_rows == 1
    list(find_findings([rows([one]) for one in cells], plan, names_of(), None, {None: None}))
    assert seen["produces"].num_rows == 3


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
