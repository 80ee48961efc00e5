"""How much findings are looked for in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import kdissect
import kdissect.spark
from kdissect.analysis.findings import AT_ONCE, BY_SPAN, FoundInCluster, spans
from kdissect.analysis.findings.spans import SECOND
from kdissect.spark.cells.table_cells import Cell, cell, rows
from kdissect.spark.stages import analysing
from kdissect.spark.stages.analysing import COUNTED, EVIDENCE, deal_evidence, find_findings, searched
from kdissect.tables.declaration.model import TIME, TIME_KEY
from tests.bench.applications import application
from tests.bench.packets import write
from tests.other_cluster import write_other_cluster

A, B = "clusterAAAAAAAAAAAAAAA", "clusterBBBBBBBBBBBBBBB"


def names_of(*clusters: str) -> Any:
    """Names that messages of these clusters have told."""
    told = pa.table({"cluster": pa.array(clusters, pa.string())})
    learned = SimpleNamespace(table=lambda *topics: told)
    return SimpleNamespace(builder=lambda plan: None, topics=learned, leaders=learned)


def test_the_clusters_that_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN_ROWS", 100)
    counted = [(A, 7, 60), (A, 5, 60), (B, 9, 100), ("", 1, 1)]
    assert searched(counted, names_of()) == {A: (7 * SECOND,), B: (), None: ()}
    assert searched([(A, 7, 60), ("", 5, 60)], names_of()) == {A: (7 * SECOND,)}
    assert searched([(A, 7, 60), ("", 5, 60)], names_of(B)) == {A: (), B: (), None: ()}
    assert searched([(A, 0, 0)], names_of()) == {A: ()}
    assert searched([], names_of()) == {None: ()}


def test_rows_of_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each span has its rows of requests; rules of lifetimes see all rows of these at once."""
    seen: list[tuple[dict[str, pa.Table], Any]] = []

    def looked(tables: dict[str, pa.Table], cluster: Any, alone: Any, limits: Any, by: Any) -> FoundInCluster:
        seen.append((tables, by))
        return FoundInCluster([], [], [])

    monkeypatch.setattr(analysing, "find_in_cluster", looked)
    timed = pa.table({"exchange_id": ["a", "b", "c"], TIME_KEY: [7, 3, 5]})
    sessions = pa.table({"session_key": ["1/2/0"]})
    connections = pa.table({
        "connection_id": ["0" * 16], "start_seen": [True], "end_reason": ["open"], "closed_by": ["client"],
        "started_at": pa.array([1], TIME), "ended_at": pa.array([6], TIME),
    })  # fmt: skip
    cells = [
        Cell(EVIDENCE + "produces", "", cell(timed)),
        Cell(EVIDENCE + "fetch_sessions", "", cell(sessions)),
        Cell(EVIDENCE + "connections", "", cell(connections)),
        Cell(COUNTED, "", b"", 3, 3),
    ]
    plan: Any = SimpleNamespace(settings=SimpleNamespace(slow=None), tables={"findings": ["id"]})
    for cuts in ((5, 7), ()):
        dealt = list(deal_evidence([rows([one]) for one in cells], {None: cuts}))
        dealt.sort(key=lambda batch: batch["lot"][0].as_py())
        list(find_findings(dealt, plan, names_of(), None, {None: cuts}))
    assert [by for _, by in seen] == [AT_ONCE, BY_SPAN, BY_SPAN, BY_SPAN, None]
    produced = [tables["produces"][TIME_KEY].to_pylist() for tables, _ in seen if "produces" in tables]
    assert produced == [[3], [5], [7], [3, 5, 7]]
    assert ["fetch_sessions" in tables for tables, _ in seen] == [True, False, False, False, True]
    assert ["connections" in tables for tables, _ in seen] == [True, True, True, False, True]


@pytest.mark.parametrize(
    "names",
    [
        ["k4_session_eviction.pcap"],
        pytest.param(["k4_java_classic.pcap"], marks=pytest.mark.exhaustive),  # test_spans.py has all four
        ["k4_transactions.pcap"],
        pytest.param(["k4_share_group.pcap"], marks=pytest.mark.exhaustive),
        ["stories/net_delay_client.pcap.zst", "stories/net_delay_broker.pcap.zst"],
    ],
)
def test_spans_are_those_of_one_machine(
    names: list[str], captures: Path, simulate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "SPAN_ROWS", 250)  # five to twenty spans
    paths = [captures / name for name in names]
    expected = kdissect.open(paths).table("findings").to_pylist()
    found = simulate(paths, 3, ["findings"])["findings"].to_pylist()
    assert expected
    assert sorted(map(str, found)) == sorted(map(str, expected))


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
    monkeypatch.setattr(spans, "SPAN_ROWS", 4 * rows_of_other)
    found = simulate(paths, 3, ["findings"])["findings"].to_pylist()
    (other,) = kdissect.open(paths[1]).table("topics")["cluster"].unique().to_pylist()
    assert {row["text"] for row in found if row["cluster"] == other} == {
        row["text"] for row in everything if row["cluster"] == other
    }
    assert any("spans of time" in row["text"] for row in found if row["cluster"] != other)
    assert sorted(map(str, found)) == sorted(map(str, kdissect.open(paths).table("findings").to_pylist()))


@pytest.mark.exhaustive
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("partitions", [None, 4])
def test_a_large_capture_beside_one_with_a_story(
    spark: Any, captures: Path, tmp_path: Path, partitions: int | None
) -> None:
    """By one task and by many: the findings of one machine, those of the small capture's story among them."""
    write(tmp_path / "large.pcap", application(), 160_000_000, 4000, interleave=None)
    paths = [tmp_path / "large.pcap", captures / "stories" / "slow_broker.pcap.zst"]
    expected = kdissect.open(paths, memory=512_000_000).table("findings")
    assert "slow_requests" in expected["id"].to_pylist()
    tables = kdissect.spark.dissect(spark, paths, ["findings"], partitions=partitions)
    found = pa.Table.from_pylist([row.asDict() for row in tables["findings"].collect()], expected.schema)
    assert sorted(len(cuts) for cuts in tables.searched.values()) == [0, 1]
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))
    tables.unpersist()
