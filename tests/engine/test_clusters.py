"""Two clusters in one run: one recording beside itself, with the same node ids and everything else another's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import analysed_run
from kdissect.engine.extracts import delivery_shares, overview
from kdissect.kafka.exchanges.completion import Joining
from kdissect.summary import topic_traffic_lines
from kdissect.tables.builder import filtered
from kdissect.tables.clusters import Clusters
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.where import parse
from tests.conftest import CAPTURES
from tests.other_cluster import write_other_cluster, write_together

ASKED = [
    name for name, table in TABLES.items() if not table.on_request or table.name in ("time_budget", "topic_traffic")
]
RECORDINGS = ("k4_session_eviction", "k4_follower_sessions", "k4_transactions")
NUMBERED = ("incident",)
"""Numbers that go over everything in a run."""
OF_A_FILE = (
    "capture", "connection_id", "exchange_id", "file", "frame", "first_exchange_id", "connections", "request_file",
    "request_frame", "response_file", "response_frame",
)  # fmt: skip
"""What differs where the packets of two files stand in one."""
ABOUT_FILES = ("capture_quality", "problems", "clock_offsets")

Rows = dict[str, list[dict[str, Any]]]


@cache
def rows_of(*captures: Path) -> Rows:
    tables = kdissect.open([str(one) for one in captures]).tables(ASKED)
    return {name: table.to_pylist() for name, table in tables.items()}


def counted(rows: list[dict[str, Any]], without: tuple[str, ...]) -> Counter[str]:
    """How often each row stands there, but for what numbers it and for how its filter names its cluster."""

    def said(row: dict[str, Any]) -> dict[str, Any]:
        found = {name: value for name, value in row.items() if name not in without}
        if "filter" in found:
            own = re.sub(r" and cluster = '[^']*'$", "", found["filter"])
            own = own[1:-1] if own.startswith("(") and own.endswith(")") and own != found["filter"] else own
            found["filter"] = re.sub(r"'[0-9a-f]{16}'", "''", own)
        return found

    return Counter(repr(said(row)) for row in rows)


@pytest.fixture(params=RECORDINGS, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recording, and what another cluster would have made of it."""
    first, second = CAPTURES / f"{request.param}.pcap", tmp_path_factory.mktemp(request.param) / "other.pcap"
    write_other_cluster(first, second)
    return first, second


def test_two_captures_of_two_clusters_are_what_each_is_alone(pair: tuple[Path, Path]) -> None:
    first, second = rows_of(pair[0]), rows_of(pair[1])
    both = rows_of(*pair)
    clusters = [{row["cluster"] for row in rows["exchanges"]} for rows in (first, second)]
    assert all(len(one) == 1 and None not in one for one in clusters)
    assert clusters[0] != clusters[1]
    assert {row["broker"] for row in first["exchanges"]} == {row["broker"] for row in second["exchanges"]}
    for name in ASKED:
        assert counted(both[name], NUMBERED) == counted(first[name], NUMBERED) + counted(second[name], NUMBERED), name


def test_two_clusters_in_one_capture_are_what_each_is_alone(pair: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = rows_of(pair[0]), rows_of(pair[1])
    write_together(list(pair), tmp_path / "together.pcap")
    both = rows_of(tmp_path / "together.pcap")
    without = (*NUMBERED, *OF_A_FILE)
    for name in ASKED:
        if name not in ABOUT_FILES:
            assert counted(both[name], without) == counted(first[name], without) + counted(second[name], without), name


def test_deliveries_of_two_clusters_are_what_each_is_alone(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics, partitions and groups have the same names in both: their batches meet in one share."""
    monkeypatch.setattr(delivery_shares, "GATHERED", 1)
    alone = [kdissect.open(str(one)).table("deliveries").to_pylist() for one in pair]
    both = kdissect.open([str(one) for one in pair]).table("deliveries").to_pylist()
    assert alone[0]
    assert {row["cluster"] for row in alone[0]} != {row["cluster"] for row in alone[1]}
    assert counted(both, ()) == counted(alone[0], ()) + counted(alone[1], ())


def test_a_cluster_in_which_nothing_was_delivered_changes_nothing() -> None:
    tiny, other = CAPTURES / "base_tiny.pcap", CAPTURES / "rules" / "heartbeats.pcap.zst"
    alone = kdissect.open(tiny).tables(["deliveries", "findings"])["deliveries"].to_pylist()
    both = kdissect.open([str(tiny), str(other)]).tables(["deliveries", "findings"])["deliveries"].to_pylist()
    assert alone
    assert counted(both, ()) == counted(alone, ())


def test_a_filter_of_a_finding_selects_its_cluster(pair: tuple[Path, Path]) -> None:
    capture = kdissect.open([str(one) for one in pair])
    found = [row for row in capture.table("findings").to_pylist() if row["table"] != "capture_quality"]
    tables = capture.tables([*dict.fromkeys(row["table"] for row in found)])
    for row in found:
        table = row["table"]
        selected = filtered(table, tables[table], parse(row["filter"], SCHEMAS[table]))
        assert selected.num_rows == row["count"]
        assert set(selected["cluster"].to_pylist()) == {row["cluster"]}


def test_the_first_screen_counts_clusters_apart(pair: tuple[Path, Path]) -> None:
    alone = [kdissect.open(str(one)).summary() for one in pair]
    both = kdissect.open([str(one) for one in pair]).summary()
    sessions = sorted((line.broker, line.sessions, line.evicted, line.peak) for one in alone for line in one.sessions)
    assert sorted((line.broker, line.sessions, line.evicted, line.peak) for line in both.sessions) == sessions
    brokers = sorted((line.broker, line.exchanges) for one in alone for line in one.brokers)
    assert sorted((line.broker, line.exchanges) for line in both.brokers) == brokers
    assert sorted(both.deliveries) == sorted(line for one in alone for line in one.deliveries)


def answers_of(*captures: Path, memory: int | None = None) -> Rows:
    """The rows that `Capture.analysis` gives for each question about brokers, topics and groups."""
    ask = kdissect.open([str(one) for one in captures], memory=memory).analysis
    tables = {
        "slots": ask.with_slots(4), "fetching": ask.with_fetching(1000), "batching": ask.with_batching(20.0),
        "errors": ask.errors(), "silences": ask.silences(), "slowest": ask.slowest(), "deliveries": ask.deliveries(),
        **ask.sessions(every=10),
    }  # fmt: skip
    return {name: table.to_pylist() for name, table in tables.items()}


@pytest.mark.parametrize("pair", ["k4_session_eviction", "k4_transactions"], indirect=True)
def test_questions_about_two_clusters_are_answered_as_about_each_alone(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, both = answers_of(pair[0]), answers_of(pair[1]), answers_of(*pair)
    for name, rows in both.items():
        assert counted(rows, ()) == counted(first[name], ()) + counted(second[name], ()), name
        assert name == "share_sessions" or len({row["cluster"] for row in rows}) == 2 * bool(rows), name
    monkeypatch.setattr("kdissect.engine.capture_tables.SMALL", 0)
    assert both == answers_of(*pair, memory=512_000_000)


ANSWERS: dict[str, Callable[[kdissect.Capture], pa.Table | list[Any]]] = {
    "latency": lambda capture: capture.analysis.latency(["broker", "api"]),
    "latency of topics": lambda capture: capture.analysis.latency(["topic"], where="api = 'Fetch'"),
    "ways of records": lambda capture: capture.analysis.deliveries(),
    "delivery latency": lambda capture: capture.analysis.delivery_latency(["group", "broker"]),
    "brokers on the screen": lambda capture: capture.summary("broker").latencies,
    "errors on the screen": lambda capture: capture.summary("broker").errors,
    "topics on the screen": lambda capture: capture.summary().topics or [],
}
OF_THE_WHOLE = ("per_second", "cluster", "slowest")
"""A rate is over the time of everything. A topic has its cluster on the screen where there are several."""


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("frugal", [False, True])
def test_answers_by_broker_or_topic_tell_clusters_apart(
    answer: str, frugal: bool, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if frugal:  # as of large captures: what is kept is soon enough
        monkeypatch.setattr(kdissect.Capture, "frugal", True)
        monkeypatch.setattr(overview, "HELD_BACK", 100)
        monkeypatch.setattr(topic_traffic_lines, "COMPACT", 3)
        monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 0)
        monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))

    def rows(*paths: Path) -> list[dict[str, Any]]:
        answered = ANSWERS[answer](kdissect.open([str(path) for path in paths]))
        found = [one._asdict() for one in answered] if isinstance(answered, list) else answered.to_pylist()
        return [
            {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}
            for row in found
        ]

    first, second, both = rows(pair[0]), rows(pair[1]), rows(*pair)
    assert counted(both, OF_THE_WHOLE) == counted(first, OF_THE_WHOLE) + counted(second, OF_THE_WHOLE)
    assert len({row["cluster"] for row in both}) == (2 if both else 0)


def test_exchanges_alone_are_held_within_their_cluster(pair: tuple[Path, Path]) -> None:
    """Nobody is shown fetches: their rows are codes (`kdissect.tables.coded_rows`)."""
    columns = ["exchange_id", "cluster", "broker", "hold", "replication_ms"]
    parts = [kdissect.open(str(one)).table("exchanges", columns).to_pylist() for one in pair]
    batches = kdissect.open([str(one) for one in pair]).batches("exchanges")
    found = [row for batch in batches for row in batch.select(columns).to_pylist()]
    assert Counter(map(repr, found)) == Counter(map(repr, [row for part in parts for row in part]))


@pytest.mark.parametrize(
    "name",
    ["k4_session_eviction", "k4_java_classic", pytest.param("k4_follower_sessions", marks=pytest.mark.exhaustive)],
)
def test_topic_ids_are_read_until_brokers_tell_their_cluster(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of some packets, so that a broker's Fetch comes behind its ClusterId: the rows are those of a run that
    reads every topic id."""
    first, second = CAPTURES / f"{name}.pcap", tmp_path / "other.pcap"
    write_other_cluster(first, second)

    def read() -> list[dict[str, Any]]:
        capture = kdissect.open([str(first), str(second)], jobs=1)
        monkeypatch.setattr(capture, "_settings", replace(capture._settings, block_packets=50))
        return capture.table("exchanges", ["exchange_id", "api", "broker", "cluster"]).to_pylist()

    known: list[bool] = []
    over = Joining.over
    monkeypatch.setattr(Joining, "over", lambda *given: known.append(over(*given)) or known[-1])
    found = read()
    assert {False, True} == set(known)
    monkeypatch.setattr(Joining, "over", lambda *given: False)
    assert found == read() != []


def test_clusters_do_not_depend_on_what_was_read_first() -> None:
    """Topic ids of an address with a ClusterId are collected until that is known: they join nothing."""
    own, other = "capture\t10.0.0.1:9092", "capture\t10.0.0.2:9092"
    early, late = Clusters(), Clusters()
    early.mention(own, ["topic-id"])
    for clusters in (early, late):
        clusters.note(clusters.ids, own, "cluster")
        clusters.mention(other, ["topic-id"])
    assert early.assign_clusters({}, {}) == late.assign_clusters({}, {}) == {own: "cluster"}
