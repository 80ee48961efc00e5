"""Folders by columns: which are made, and that readers find the values again."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kdissect.spark.writing import task_files
from kdissect.spark.writing.hive_folders import (
    Folder,
    common_columns,
    cut_table,
    folder_path,
    read_folder,
    restore_columns,
)
from kdissect.spark.writing.task_files import TableFiles

SCHEMA = pa.schema([("date", pa.date32()), ("n", pa.int64()), ("cluster", pa.string()), ("topic", pa.string())])
BY = ["date", "cluster"]
DAY, NEXT = date(2026, 11, 27), date(2026, 11, 28)
ID = "MkU3OEVBNTcwNTJENDM2Qk"


def rows(*values: tuple[date | None, str | None]) -> pa.Table:
    days, clusters = zip(*values, strict=True)
    columns = [list(days), list(range(len(values))), list(clusters), [f"t{n}" for n in range(len(values))]]
    return pa.table([pa.array(one, field.type) for one, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def told(table: pa.Table, by: list[str] = BY) -> dict[Folder, list[int]]:
    return {folder: part["n"].to_pylist() for folder, part in cut_table(table, by)}


def test_rows_of_a_folder_stay_in_order() -> None:
    assert told(rows((DAY, ID), (NEXT, ID), (DAY, ID), (DAY, "lkc-1~"))) == {
        (("date", "2026-11-27"), ("cluster", ID)): [0, 2],
        (("date", "2026-11-28"), ("cluster", ID)): [1],
        (("date", "2026-11-27"), ("cluster", "lkc-1~")): [3],
    }


@pytest.mark.parametrize("cluster", [None, "", "12345", "1e5", "nan", "2026-11-27T10", "a/b", "x" * 300, "null"])
def test_values_that_no_folder_can_have_stay_in_the_files(cluster: str | None) -> None:
    assert told(rows((DAY, ID), (DAY, cluster))) == {(("date", "2026-11-27"),): [0, 1]}


def test_days_without_a_plain_name_stay_in_the_files() -> None:
    far = rows((DAY, ID)).set_column(0, SCHEMA.field(0), pa.array([4_000_000], pa.int32()).cast(pa.date32()))
    assert told(far) == {(("cluster", ID),): [0]}
    assert told(rows((None, None), (DAY, ID))) == {(): [0, 1]}


def written(folder: Path, *tables: pa.Table, by: list[str] = BY) -> list[dict[str, Any]]:
    with TableFiles(folder, {"exchanges": SCHEMA}, {"exchanges": by}) as files:
        for table in tables:
            files.add("exchanges", table)
    found: list[dict[str, Any]] = files.told().to_pylist()
    return found


def put_in_folders(folder: Path, found: list[dict[str, Any]]) -> None:
    for one in found:
        place = folder / "table" / folder_path(read_folder(one["folder"]))
        place.mkdir(parents=True, exist_ok=True)
        (folder / one["file"]).rename(place / one["file"])


def test_every_reader_finds_dates_and_texts(tmp_path: Path) -> None:
    put_in_folders(tmp_path, written(tmp_path, rows((DAY, ID), (NEXT, "lkc-1"), (DAY, ID))))
    place = str(tmp_path / "table")
    frame = pd.read_parquet(place).sort_values("n")
    assert frame["cluster"].tolist() == [ID, "lkc-1", ID]
    assert frame["date"].tolist() == ["2026-11-27", "2026-11-28", "2026-11-27"]
    folders = ds.partitioning(pa.schema([SCHEMA.field("date"), SCHEMA.field("cluster")]), flavor="hive")
    frame = pd.read_parquet(place, partitioning=folders, filters=[("date", "==", DAY)])
    assert set(frame["date"]) == {DAY}
    assert sorted(frame["n"]) == [0, 2]
    found = duckdb.sql(f"select n, date, cluster from read_parquet('{place}/**/*.parquet') order by n").fetchall()
    assert found == [(0, DAY, ID), (1, NEXT, "lkc-1"), (2, DAY, ID)]


@pytest.mark.parametrize("topic", ["a b", "a=b/../c", "100%", "größe", "a:b?*[c]", "\x01\x7f", "%2F"])
def test_names_are_written_so_that_they_are_read_back(tmp_path: Path, topic: str) -> None:
    table = rows((DAY, ID)).set_column(3, SCHEMA.field(3), pa.array([topic]))
    put_in_folders(tmp_path, written(tmp_path, table, by=["topic"]))
    assert len(list((tmp_path / "table").iterdir())) == 1
    assert pq.read_table(tmp_path / "table")["topic"].to_pylist() == [topic]


def test_columns_are_put_back_where_not_all_rows_have_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task wrote files by both columns before it met a row without a cluster, and another one before its first."""
    monkeypatch.setattr(task_files, "GROUP_ROWS", 1)
    found = written(tmp_path, rows((DAY, ID), (NEXT, ID)), rows((DAY, None)), rows((NEXT, "lkc-1")))
    assert sorted(len(read_folder(one["folder"])) for one in found) == [1, 1, 2, 2]
    columns = common_columns([read_folder(one["folder"]) for one in found])
    assert columns == ["date"]
    others = [{**one, "columns": columns} for one in found if len(read_folder(one["folder"])) > 1]
    batches = [pa.RecordBatch.from_pylist([one]) for one in others]
    again = [
        row for batch in restore_columns(batches, str(tmp_path), {"exchanges": SCHEMA}) for row in batch.to_pylist()
    ]
    put_in_folders(tmp_path, [one for one in found if len(read_folder(one["folder"])) == 1] + again)
    expected = [*rows((DAY, ID), (NEXT, ID)).to_pylist(), *rows((DAY, None)).to_pylist()]
    expected += rows((NEXT, "lkc-1")).to_pylist()
    folders = ds.partitioning(pa.schema([SCHEMA.field("date")]), flavor="hive")
    whole = ds.dataset(tmp_path / "table", partitioning=folders, schema=SCHEMA).to_table()
    assert sorted(map(repr, whole.to_pylist())) == sorted(map(repr, expected))
    assert sorted(pd.read_parquet(tmp_path / "table")["cluster"].dropna()) == [ID, ID, "lkc-1"]


def test_a_table_with_too_many_folders_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "MOST_FOLDERS", 2)
    found = written(tmp_path, rows((DAY, ID), (NEXT, ID), (DAY, "lkc-1")))
    assert [read_folder(one["folder"]) for one in found] == [()]
    assert pq.read_schema(tmp_path / found[0]["file"]).names == SCHEMA.names


def test_only_so_many_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "MOST_OPEN", 1)
    monkeypatch.setattr(task_files, "GROUP_ROWS", 1)
    found = written(tmp_path, rows((DAY, ID), (NEXT, ID)), rows((DAY, ID)))
    assert [one["rows"] for one in found] == [1, 1, 1]
