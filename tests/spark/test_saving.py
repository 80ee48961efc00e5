"""What is said while tables are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import kdissect.spark
from kdissect.engine.capture_tables import MADE
from kdissect.problems import UsageError
from kdissect.spark.job import prepare
from kdissect.spark.writing import saving
from kdissect.spark.writing.destination import DATE_AND_CLUSTER
from kdissect.spark.writing.hive_folders import Folder, common_columns
from kdissect.spark.writing.saving import write
from kdissect.tables.declaration import SCHEMAS, TABLES
from tests.spark.conftest import numbers_of, read_cut, rows_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def test_each_job_and_each_capture_set_is_told(
    spark: Any, captures: Path, rotate: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = rotate(captures / "base_tiny.pcap", 2)
    (folder / "short.pcap").write_bytes((captures / "raw_ids.pcap").read_bytes()[:-5])
    said: list[tuple[str, str]] = []
    with caplog.at_level("INFO", "kdissect.spark"):
        write(
            prepare(folder, ["groups", "problems"]).on(spark, 2),
            str(tmp_path / "out"),
            on_start=lambda name: said.append((name, spark.sparkContext.getLocalProperty("spark.job.description"))),
        )
    whole, short = sorted(caplog.messages)
    assert whole.startswith("cut.pcap: 2 files, ")
    assert short.startswith("short.pcap: 1 file, ")
    assert "short.pcap" in short.partition("packets, ")[2]
    assert [name for name, _ in said] == ["decoding", "2 tables"]
    assert said[0][1] == "kdissect: decoding 2 captures of 3 files"
    assert said[1][1].startswith("kdissect: 2 tables of 2 captures, ")
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


@pytest.mark.parametrize("partitions", [None, 2])
def test_every_row_has_its_ids_as_numbers(spark: Any, captures: Path, tmp_path: Path, partitions: int | None) -> None:
    """Written by one task and by many; among them are orphans and problems with a connection alone."""
    paths = [captures / f"{name}.pcap" for name in ("k4_transactions", "k4_share_group", "field_midstream")]
    write(prepare(paths, list(SCHEMAS)).on(spark, partitions), str(tmp_path))
    rows = {name: read_cut(tmp_path / name) for name in SCHEMAS}
    numbered = [name for name, table in rows.items() if "connection_number" in table.column_names]
    assert len([name for name in numbered if rows[name].num_rows]) > 12
    for name in numbered:
        for row in rows[name].to_pylist():
            assert numbers_of(row) == (row["connection_number"], row.get("exchange_number")), name
    orphans = [row for row in rows["exchanges"].to_pylist() if row["exchange_number"] < 0]
    assert orphans
    partial = [
        row for row in rows["problems"].to_pylist() if row["connection_number"] and row["exchange_number"] is None
    ]
    assert partial
    for name in SCHEMAS:
        (file, *_) = sorted((tmp_path / name).rglob("*.parquet"))
        filled = {field.name for field in pq.read_schema(file) if not field.nullable}
        assert filled - {"connection_number", "exchange_number"} == TABLES[name].never_null, name
        expected = {"exchange_id", "connection_id"} & TABLES[name].never_null
        assert ("connection_number" in filled) == bool(expected), name
    places = ("connection_number", "exchange_number")
    both = rows["fetch_partitions"].select(["exchange_id", *places]).join(rows["fetches"].select(places), places)
    assert both.num_rows == rows["fetch_partitions"].num_rows > 0


def test_no_column_of_folders_is_void(spark: Any, captures: Path, tmp_path: Path) -> None:
    """Of tables without times, without brokers, without rows, and of captures that tell no cluster."""
    names = ["exchanges", "session_partitions", "api_versions", "topics", "clock_offsets", "problems"]
    by = ["date", "cluster", "broker"]
    for folder, capture in (("told", "base_tiny.pcap"), ("untold", "field_midstream.pcap")):
        job = prepare(captures / capture, names).on(spark)
        rows = write(job, str(tmp_path / folder), by=dict.fromkeys(names, by))
        for name in names:
            frame = spark.read.parquet(str(tmp_path / folder / name))
            assert frame.count() == rows[name], name
            assert "void" not in dict(frame.dtypes).values(), name
            assert set(by) <= set(frame.columns), name
        (day,) = (tmp_path / folder / "exchanges").glob("date=*")
        assert any(day.glob("cluster=*")) == (folder == "told")
        assert not list((tmp_path / folder / "api_versions").glob("date=*"))
        assert not list((tmp_path / folder / "session_partitions").glob("date=*"))


@pytest.mark.parametrize("partitions", [None, 8])
def test_tables_are_cut_by_date_and_cluster(
    spark: Any, captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int | None
) -> None:
    """By one task and by several, of which some have connections of a known cluster only."""
    uneven: list[bool] = []

    def note_folders(folders: list[Folder]) -> list[str]:
        columns = common_columns(folders)
        uneven.append(any(len(folder) > len(columns) for folder in folders))
        return columns

    monkeypatch.setattr(saving, "common_columns", note_folders)
    monkeypatch.setattr(saving, "FILE_BYTES", 1 << 10)  # of captures for each task
    names = ["exchanges", "connections", "fetch_sessions", "topics", "api_versions", "findings", "problems"]
    job = prepare([captures / "base.pcap", captures / "era_0_8_2.pcap", captures / "k4_share_group.pcap"], names)
    made = job.on(spark, partitions)
    plain = write(made, str(tmp_path / "plain"), by={})
    # What several tasks decoded is there for a second time; a task that does all writes rows as it makes them.
    assert write(made if partitions else job.on(spark), str(tmp_path / "cut")) == plain
    made.unpersist()
    for name in names:
        place, rows = tmp_path / "cut" / name, ds.dataset(tmp_path / "plain" / name).to_table()
        cut_by = [one for one in ("date", "cluster") if plain[name] and not rows[one].null_count]
        first = next(place.rglob("*.parquet")).relative_to(place).parts[:-1]
        assert [part.partition("=")[0] for part in first] == cut_by, name
        assert rows_of(read_cut(place).select(rows.column_names)) == rows_of(rows), name
        frame = spark.read.parquet(str(place))
        assert (dict(frame.dtypes)["date"], dict(frame.dtypes)["cluster"]) == ("date", "string"), name
        assert rows_of(frame.select(*rows.column_names).toArrow().select(["date", "cluster", "capture"])) == rows_of(
            rows.select(["date", "cluster", "capture"])
        )
        assert len(pd.read_parquet(place)) == plain[name]
    assert not list((tmp_path / "plain").glob("*/*=*"))
    assert list((tmp_path / "cut" / "fetch_sessions").glob("date=*/cluster=*"))
    assert list((tmp_path / "cut" / "exchanges").glob("date=*/*.parquet"))
    assert any(uneven) == (partitions is not None)


@pytest.mark.exhaustive
def test_one_task_writes_what_many_write(spark: Any, captures: Path, tmp_path: Path) -> None:
    """And tables in folders are what those without are, comments and all."""
    sums = ["time_budget", "time_ledger", "topic_traffic", "deliveries", "traced"]
    tables = [*MADE, "producers", *sums, "transactions", "transaction_steps"]
    job = prepare([captures / "base.pcap", captures / "k4_share_group.pcap"], tables)
    counts = [write(job.on(spark, parts), str(tmp_path / str(parts))) for parts in (None, 3)]
    plain = write(job.on(spark, 3), str(tmp_path / "plain"), by={})
    assert counts == [plain, plain]
    assert list(plain) == tables
    for name in tables:
        one, many = (read_cut(tmp_path / made / name) for made in ("None", "3"))
        assert rows_of(one) == rows_of(many), name
        assert one.schema.names == many.schema.names
        frames = [spark.read.parquet(str(tmp_path / made / name)) for made in ("None", "3", "plain")]
        schemas = [
            {one.name: (one.dataType, one.metadata) for one in frame.schema if one.name not in DATE_AND_CLUSTER}
            for frame in frames
        ]
        assert schemas[0] == schemas[1] == schemas[2], name
        read = [sorted(map(repr, frame.select(*one.schema.names).collect())) for frame in frames]
        assert read[0] == read[1] == read[2], name
    assert not list((tmp_path / "None" / "_snapshots").glob("*/_parts"))
    file = next((tmp_path / "None" / "exchanges").rglob("*.parquet"))
    assert pq.read_schema(file).field("api").metadata[b"doc"]


@pytest.mark.parametrize("partitions", [None, 2])
def test_tables_are_there_before_and_after_they_are_written(
    spark: Any, captures: Path, tmp_path: Path, partitions: int | None
) -> None:
    """Those of `dissect`, written twice."""
    made = kdissect.spark.dissect(spark, captures / "base_tiny.pcap", ["exchanges", "groups"], partitions=partitions)
    count = made["exchanges"].count()
    for place in ("one", "two"):
        assert kdissect.spark.write(made, tmp_path / place)["exchanges"] == count > 0
        assert spark.read.parquet(str(tmp_path / place / "exchanges")).count() == made["exchanges"].count() == count
    made.unpersist()


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ({"groups": ["nosuch"]}, "none of these tables has a column 'nosuch'"),
        ({"groups": "nosuch"}, "none of these tables has a column 'nosuch'"),
        ({"group": ["date"]}, "did you mean 'groups'"),
    ],
)
def test_folders_by_what_is_not_there(spark: Any, captures: Path, tmp_path: Path, by: Any, told: str) -> None:
    made = kdissect.spark.dissect(spark, captures / "base_tiny.pcap", ["groups"])
    with pytest.raises(UsageError, match=told):
        kdissect.spark.write(made, tmp_path / "out", by=by)
    assert not (tmp_path / "out").exists()


def test_tables_of_some_columns_are_not_written(spark: Any, captures: Path, tmp_path: Path) -> None:
    made = kdissect.spark.dissect(spark, captures / "base_tiny.pcap", {"exchanges": ["api"]})
    with pytest.raises(UsageError, match="only whole tables"):
        kdissect.spark.write(made, str(tmp_path))
