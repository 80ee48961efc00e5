"""Who writes and reads what, against pandas over the tables that it is made of; and what empty fetches are about."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.topic_traffic import SCHEMA, topic_traffic, topics_of
from kdissect.cli.main import main
from kdissect.tables.declaration import SCHEMAS
from tests.conftest import CAPTURES


@pytest.mark.parametrize("name", ["base_short", "zoo_kafkajs", "k4_transactions"])
def test_sums_are_those_of_the_tables(name: str) -> None:
    opened = kdissect.open(CAPTURES / f"{name}.pcap")
    made = opened.analysis.topic_traffic()
    assert made.schema.equals(SCHEMA)
    tables = {one: table.to_pandas() for one, table in opened.tables(
        ["exchanges", "fetch_partitions", "record_batches"]).items()}  # fmt: skip
    rows = made.to_pandas()
    exchanges = tables["exchanges"].set_index("exchange_id")
    for table, api, column, of in (
        ("record_batches", 0, "produced_records", "records"),
        ("record_batches", 0, "produced_bytes", "compressed_bytes"),
        ("record_batches", 1, "fetched_records", "records"), ("fetch_partitions", 1, "fetched_bytes", "record_bytes"),
    ):  # fmt: skip
        joined = tables[table].join(exchanges[["client_id", "api_key"]], on="exchange_id")
        joined = joined[joined.api_key == api]
        expected = joined.groupby(["client_id", "topic", "partition"])[of].sum()
        found = rows.groupby(["client_id", "topic", "partition"])[column].sum()
        pd.testing.assert_series_equal(
            found[found > 0].astype(int), expected[expected > 0].astype(int), check_names=False, check_index_type=False
        )
    assert rows["first_at"].notna().all()
    known = rows.dropna(subset=["max_lag"])
    assert (known.max_lag >= known.last_lag).all()
    assert (known.max_lag >= known.first_lag).all()


def test_a_reader_catches_up() -> None:
    rows = kdissect.open(CAPTURES / "base.pcap").analysis.topic_traffic().to_pylist()
    reader = [row for row in rows if row["client_id"] == "base-reader"]
    assert [(row["topic"], row["partition"], row["group_id"]) for row in reader] == [
        ("base-full", n, "base-group") for n in range(3)
    ]
    assert all(row["first_lag"] == 140 > row["last_lag"] for row in reader)
    assert all(row["produced_records"] is None and row["fetched_records"] > 200 for row in reader)


def test_empty_fetches_of_followers_have_their_topics() -> None:
    """An incremental fetch whose answer is empty names no topic; its session does."""
    rows = kdissect.open(CAPTURES / "k4_follower_sessions.pcap").analysis.latency(["client", "topic"]).to_pylist()
    followers = [row for row in rows if "-fetcher-" in (row["client_id"] or "")]
    unnamed = sum(row["exchanges"] for row in followers if row["topic"] is None)
    assert unnamed < 0.1 * sum(row["exchanges"] for row in followers)
    producers = {row["topic"] for row in rows if row["client_id"] == "fs-producer"}
    assert {"fs-a", "fs-b", "fs-c"} <= producers


def rows(name: str, wanted: list[dict[str, Any]]) -> pa.Table:
    schema = pa.schema([SCHEMAS[name].field(column) for column in wanted[0]])
    return pa.Table.from_pylist(wanted, schema)


def test_what_a_session_holds_at_an_epoch() -> None:
    one = "0123456789abcdef"
    exchanges = rows("exchanges", [{"exchange_id": f"{one}:{n}"} for n in range(5)])
    fetches = rows(
        "fetches",
        [{"exchange_id": f"{one}:{n}", "session_key": "1/7/0", "session_epoch": n} for n in range(4)]
        + [{"exchange_id": f"{one}:4", "session_key": None, "session_epoch": None}],
    )
    named = rows(
        "fetch_partitions", [{"exchange_id": f"{one}:0", "topic": "a"}, {"exchange_id": f"{one}:0", "topic": "b"}]
    )
    stays = rows(
        "session_partitions",
        [
            {"session_key": "1/7/0", "topic": "a", "from_epoch": 0, "to_epoch": 2},
            {"session_key": "1/7/0", "topic": "b", "from_epoch": 0, "to_epoch": None},
        ],
    )
    batches = SCHEMAS["record_batches"].empty_table()
    names, row, topic = topics_of(exchanges, fetches, named, stays, batches)
    about = [sorted(names[t] for r, t in zip(row, topic, strict=True) if r == n) for n in range(5)]
    assert about == [["a", "b"], ["a", "b"], ["b"], ["b"], []]


def test_topics_without_a_name_are_called_by_their_ids() -> None:
    names = [f"0123456789abcdef:{n}" for n in range(3)]
    exchanges = rows("exchanges", [{"exchange_id": name} for name in names])
    fetches = rows(
        "fetches", [{"exchange_id": name, "session_key": "1/7/0", "session_epoch": n} for n, name in enumerate(names)]
    )
    named = rows(
        "fetch_partitions",
        [{"exchange_id": names[0], "topic": None, "topic_id": "A"}, {"exchange_id": names[0], "topic": "b",
          "topic_id": "B"}, {"exchange_id": names[1], "topic": None, "topic_id": "C"}],
    )  # fmt: skip
    stays = rows(
        "session_partitions",
        [{"session_key": "1/7/0", "topic": None, "topic_id": "A", "from_epoch": 0, "to_epoch": None}],
    )
    found = topics_of(exchanges, fetches, named, stays, SCHEMAS["record_batches"].empty_table())
    about = {(int(row), found[0][topic]) for row, topic in zip(*found[1:], strict=True)}
    assert about == {(0, "A"), (0, "b"), (1, "C"), (2, "A")}


TRANSACTIONS_LATER = "2026-11-21T02:28:26"
"""When no message of k4_transactions tells names of two topics any more."""


def test_silences_and_latencies_keep_topics_without_a_name_apart() -> None:
    capture = kdissect.open(CAPTURES / "k4_transactions.pcap", start=TRANSACTIONS_LATER)
    subjects = {row["subject"] for row in capture.analysis.silences().to_pylist() if row["by"] == "partition"}
    ids = {"L6-abiXZR4-nxNyTFbPpIw", "dXqtbQkaQ2-ur1pVr3XKgQ"}
    assert {f"{one}-2" for one in ids} < subjects
    assert not any("unknown" in one for one in subjects)
    assert ids < set(capture.analysis.latency(["topic"])["topic"].to_pylist())


def test_errors_keep_topics_without_a_name_apart() -> None:
    errors = kdissect.open(CAPTURES / "k4_session_eviction.pcap", start="2026-11-21T02:57:50").analysis.errors()
    told = {row["topic"]: row["count"] for row in errors.to_pylist() if row["client_id"] == "broker-3-fetcher-0"}
    ids = {"FTlb9-1pRLucScuuF-NJcQ", "L6-abiXZR4-nxNyTFbPpIw"}
    assert told == dict.fromkeys(ids, 1)


def test_nothing() -> None:
    empty = {
        name: SCHEMAS[name].empty_table() for name in ("exchanges", "connections", "fetch_partitions", "record_batches")
    }
    assert topic_traffic(empty).equals(SCHEMA.empty_table())


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    capture = str(CAPTURES / "base.pcap")
    assert main(["traffic", capture]) == 0
    seen = capsys.readouterr().out.splitlines()
    assert seen[0].split() == [
        "Client",
        "group",
        "topic",
        "partition",
        "written",
        "B/s",
        "read",
        "behind",
        "at",
        "first",
        "most",
    ]
    assert len(seen) == 8
    assert main(["traffic", capture, "--sort", "-produced_records,partition", "--limit", "2", "--format", "jsonl"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["client_id"], row["partition"]) for row in found] == [("base-producer", 0), ("base-producer", 1)]
    assert main(["traffic", str(CAPTURES / "field_header_only.pcap")]) == 0
    assert "No client writes or reads" in capsys.readouterr().out
    assert main(["traffic", capture, "--sort", "lag"]) == 2
