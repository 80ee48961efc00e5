"""The columns that tables have behind their own where they are written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kdissect
from kdissect.arrays.dictionaries import join_tables
from kdissect.spark.placing import (
    ADDED,
    CONNECTION_NUMBER,
    EXCHANGE_NUMBER,
    Places,
    find_sole_captures,
    has_times,
    id_numbers,
    schema_of,
)
from kdissect.spark.stages.owners import Owned
from kdissect.tables.brokers import Brokers
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import By
from kdissect.tables.identity import connection_ids

ID = 0x82E25F8B285B1D77
WRITTEN = [
    "connections", "exchanges", "fetches", "fetch_partitions", "fetch_sessions", "session_partitions", "record_batches",
    "list_offsets", "producer_ids", "leaders", "findings", "capture_quality", "problems", "share_sessions", "groups",
    "offset_commits", "produces", "produce_partitions",
]  # fmt: skip
"""A table of each way that rows and their times come from."""
DAY = datetime(2026, 11, 21, tzinfo=UTC)


def places(*captures: str) -> Places:
    found = [f"{name}\t10.0.0.1:9092" for name in captures]
    mine = Owned(np.array([ID], np.uint64), np.array([0], np.int32), found)
    return Places.of([mine, mine], Brokers(), captures, {("a.pcap", "a.pcap1"): 1_000_000})


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_table_has_the_columns_of_its_place_once(name: str) -> None:
    schema = schema_of(name, SCHEMAS[name].names)
    assert len(set(schema.names)) == len(schema.names)
    assert set(ADDED.names) <= set(schema.names)
    made = places("a.pcap").placed(name, SCHEMAS[name].empty_table(), SCHEMAS[name].names)
    assert made.schema.names == schema.names


def test_every_table_has_its_time_from_somewhere() -> None:
    assert {name for name in SCHEMAS if not has_times(name)} == {"api_versions", "clock_offsets", "session_partitions"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_tables_with_ids_have_them_as_numbers(name: str) -> None:
    own = SCHEMAS[name].names
    numbers = {one.name for one in (CONNECTION_NUMBER, EXCHANGE_NUMBER)}
    found = [column for column in schema_of(name, own).names if column in numbers]
    expected = [] if "connection_id" not in own else [CONNECTION_NUMBER.name]
    assert found == ([CONNECTION_NUMBER.name, EXCHANGE_NUMBER.name] if "exchange_id" in own else expected)


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("helpers", [False, True])
def test_numbers_are_what_the_ids_say(encoded: bool, helpers: bool) -> None:
    exchanges = pa.array(["ffffffffffffffff:0", "7fffffffffffffff:r0", "0000000000000001:3000000000"])
    table = pa.table({"exchange_id": exchanges.dictionary_encode() if encoded else exchanges})
    if helpers:
        table = table.append_column("_connection", pa.array([-1, 2**63 - 1, 1]))
        table = table.append_column("_ordinal", pa.array([0, -1, 3_000_000_000]))
    found = id_numbers(table, ["exchange_id"])
    assert found["connection_number"].to_pylist() == [-1, 2**63 - 1, 1]
    assert found["exchange_number"].to_pylist() == [0, -1, 3_000_000_000]


def test_numbers_of_rows_that_lack_an_id() -> None:
    exchanges = pa.array([f"{ID:016x}:7", None, None])
    connections = pa.array([f"{ID:016x}", "0000000000000002", None])
    table = pa.table({"exchange_id": exchanges, "connection_id": connections})
    found = id_numbers(table, table.column_names)
    assert found["connection_number"].to_pylist() == [ID - 2**64, 2, None]
    assert found["exchange_number"].to_pylist() == [7, None, None]
    assert list(id_numbers(table, ["connection_id"])) == ["connection_number"]
    assert id_numbers(table.slice(0, 0), table.column_names)["connection_number"].to_pylist() == []


def test_rows_of_a_connection_and_of_none() -> None:
    ids = pa.array([f"{ID:016x}:7", f"{ID + 1:016x}:7", f"{ID:016x}:r3"])
    at = int(DAY.timestamp()) * 1_000_000
    rows = pa.table({"exchange_id": ids, "_time": [at, None, None], "_answered": [None, None, at + 1]})
    made = places("a.pcap", "b.pcap").placed("producer_ids", rows, ["exchange_id"])
    assert made.select(["capture", "broker"]).to_pylist()[:2] == [
        {"capture": "a.pcap", "broker": "10.0.0.1:9092"}, {"capture": None, "broker": None}
    ]  # fmt: skip
    assert made["at"].to_pylist() == [DAY, None, DAY + timedelta(microseconds=1)]
    assert made["date"].to_pylist() == [DAY.date(), None, DAY.date()]
    keys = pa.table({"session_key": ["10.0.0.1:9092/334/1", "ClusterId/3/334/2"]})
    told = places("a.pcap", "b.pcap").placed("session_partitions", keys, ["session_key"])
    assert told["broker"].to_pylist() == ["10.0.0.1:9092", "3"]
    assert told["capture"].to_pylist() == [None, None]  # the broker is in both
    files = pa.table({"capture": ["a.pcap"] * 3, "file": ["a.pcap1", None, "a.pcap2"]})
    quality = places("a.pcap").placed("capture_quality", files, ["capture", "file"])
    assert [at and at.second for at in quality["at"].to_pylist()] == [1, 1, None]


def test_a_delivery_is_of_the_capture_that_has_its_fetch() -> None:
    fetches = pa.array([f"{ID:016x}:7", None, None])
    produces = pa.array([f"{ID + 1:016x}:7", f"{ID:016x}:2", f"{ID + 1:016x}:3"])
    table = pa.table({"fetch_exchange_id": fetches, "produce_exchange_id": produces})
    made = places("a.pcap", "b.pcap").placed("traced", table, table.column_names)
    assert made["capture"].to_pylist() == ["a.pcap", "a.pcap", None]


def test_brokers_and_clusters_that_one_capture_has_seen() -> None:
    seen = [("a", "A", "1"), ("a", "A", "2"), ("b", "B", "1"), ("c", "B", "2")]
    sole = {("A", "1"): "a", ("A", "2"): "a", ("A", None): "a", ("B", "1"): "b", ("B", "2"): "c"}
    assert find_sole_captures(seen) == sole
    doubt = [*seen, ("d", None, "1")]  # which of the two clusters it is of no message tells
    assert find_sole_captures(doubt) == {("A", "2"): "a", ("B", "2"): "c"}
    assert find_sole_captures([("a", None, "1"), ("b", None, "2")]) == {(None, "1"): "a", (None, "2"): "b"}


def test_rows_of_a_cluster_that_one_capture_has_seen() -> None:
    brokers = Brokers()
    found = ["a.pcap\t10.0.0.1:9092", "b.pcap\t10.0.0.1:9092"]
    for place, cluster in zip(found, "AB", strict=True):
        brokers.serves(place)
        brokers.clusters.note(brokers.clusters.ids, place, cluster)
    mine = Owned(np.array([ID, ID + 1], np.uint64), np.array([0, 1], np.int32), found)
    known = Places.of([mine], brokers, ["a.pcap", "b.pcap"], {})
    rows = pa.table({"topic": ["t", "t", "t"], "cluster": ["A", "B", None]})
    assert known.placed("topics", rows, rows.column_names)["capture"].to_pylist() == ["a.pcap", "b.pcap", None]
    rows = pa.table({"broker": ["10.0.0.1:9092"] * 3, "cluster": ["A", "B", None]})
    assert known.placed("api_versions", rows, rows.column_names)["capture"].to_pylist() == ["a.pcap", "b.pcap", None]


def test_pieces_of_a_table_can_be_joined() -> None:
    """Those with rows of a connection that nobody knows, and those without."""
    found = ["a.pcap\t10.0.0.1:9092", "b.pcap\t10.0.0.1:9092"]
    mine = Owned(np.array([ID, ID + 1], np.uint64), np.array([0, 1], np.int32), found)
    known = Places.of([mine], Brokers(), ["a.pcap", "b.pcap"], {})
    ids = connection_ids(np.array([ID, ID + 1, ID + 2], np.uint64)).cast(pa.string())
    rows = pa.table({"connection_id": ids, "kind": ["tls"] * 3})
    pieces = [known.placed("problems", part, rows.column_names, coded=True) for part in (rows.slice(0, 2), rows)]
    assert join_tables(pieces)["capture"].to_pylist() == ["a.pcap", "b.pcap", "a.pcap", "b.pcap", None]


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_tables_that_are_written(spark: Any, captures: Path, tmp_path: Path) -> None:
    from kdissect.spark.job import prepare
    from kdissect.spark.writing.placed_tables import PlacedTables

    names = ("k4_transactions.pcap", "k4_list_offsets_raw.pcap", "k4_share_group.pcap", "field_loss5.pcap")
    paths = [captures / name for name in names]
    local = kdissect.open(paths).tables(WRITTEN)
    job = prepare(paths, WRITTEN)
    whole = job.on(spark, 2)
    whole.place()
    made = {name: frame.toArrow() for name, frame in PlacedTables(whole).items()}
    whole.unpersist()
    exchanges = {row["exchange_id"]: row for row in local["exchanges"].to_pylist()}
    for name, table in made.items():
        own = local[name].column_names
        assert table.column_names == schema_of(name, own).names
        mine = sorted(map(repr, table.select(own).to_pylist()))
        assert mine == sorted(map(repr, local[name].to_pylist())), name
        for row in table.to_pylist():
            assert row["date"] == (row["at"] and row["at"].date()), name
            exchange = exchanges.get(row.get("exchange_id") or row.get("first_exchange_id") or "")
            if exchange is not None:
                assert row["capture"] == exchange["capture"], name
                assert row["broker"] == (row["broker"] if name == "findings" else exchange["broker"]), name
            if exchange is not None and TABLES[name].made in (By.BLOCK, By.RECORD_SETS):
                assert row["at"] == (exchange["request_first_at"] or exchange["response_first_at"]), name
            assert (row["capture"] and row["at"]) or name in ("findings", "capture_quality"), name
    assert any(":r" in row["exchange_id"] for row in made["fetch_partitions"].to_pylist())
    assert made["share_sessions"].num_rows
    days = {row["date"] for row in made["list_offsets"].to_pylist()} - {None}
    assert days
    sessions = made["session_partitions"].to_pylist()
    assert sessions
    assert all(row["capture"] and row["broker"] and row["at"] for row in sessions)
    alone = prepare(paths, ["producer_ids"]).on(spark, 2)
    alone.place()
    rows = PlacedTables(alone)["producer_ids"].toArrow().to_pylist()
    assert {row["broker"] for row in rows} == {exchanges[row["exchange_id"]]["broker"] for row in rows}
    alone.unpersist()
