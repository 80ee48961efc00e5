"""Parquet files that tasks write themselves."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kdissect.output import OutputError
from kdissect.spark.writing import task_files
from kdissect.spark.writing.task_files import TableFiles
from kdissect.tables.formats import ParquetFile

SCHEMA = pa.schema([pa.field("api", pa.string(), metadata={"doc": "The API."}), pa.field("n", pa.int64())])


def rows(*numbers: int) -> pa.Table:
    texts = pa.array([f"api {number % 2}" for number in numbers]).dictionary_encode()
    return pa.table({"api": texts, "n": pa.array(numbers, pa.int64())})


def test_files_are_told_when_they_are_complete(tmp_path: Path) -> None:
    with TableFiles(tmp_path, {"exchanges": SCHEMA, "fetches": SCHEMA}, {}) as files:
        files.add("exchanges", rows(1, 2, 3))
        files.add("exchanges", rows(5, 4))
        files.none("fetches")
        assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == files.told()[
            1
        ].to_pylist()
    told = {row["table"]: row for row in files.told().to_pylist()}
    assert {name: row["rows"] for name, row in told.items()} == {"exchanges": 5, "fetches": 0}
    found = pq.read_table(tmp_path / told["exchanges"]["file"])
    assert found["n"].to_pylist() == [1, 2, 3, 5, 4]
    assert found["api"].to_pylist() == ["api 1", "api 0", "api 1", "api 1", "api 0"]
    assert found.schema.field("api").metadata[b"doc"] == b"The API."
    assert pq.read_schema(tmp_path / told["fetches"]["file"]).names == SCHEMA.names


def test_a_task_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "GROUP_ROWS", 1)
    monkeypatch.setattr(task_files, "FILE_BYTES", 0)  # each row group is a file
    with pytest.raises(RuntimeError), TableFiles(tmp_path, {"exchanges": SCHEMA}, {}) as files:
        _some(files, tmp_path, monkeypatch)
    assert not list(tmp_path.iterdir())


def _some(files: TableFiles, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.add("exchanges", rows(1))
    files.add("exchanges", rows(2, 3))
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setattr(task_files, "GROUP_ROWS", 9)
    files.add("exchanges", rows(4))
    raise RuntimeError


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("fails", ["write", "__exit__"])
def test_a_full_disk_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool, fails: str
) -> None:
    """When rows are written, or when a file comes to its end."""
    plain = getattr(ParquetFile, fails)
    calls = []

    def fail_second(file: ParquetFile, *given: object) -> None:
        calls.append(given)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "Error writing bytes to file.")  # as pyarrow says it
        plain(file, *given)

    monkeypatch.setattr(ParquetFile, fails, fail_second)
    told = re.escape(f"cannot write {tmp_path}: No space left on device")
    with pytest.raises(OutputError, match=told):
        _write_two_tables(tmp_path, apart)
    assert not list(tmp_path.iterdir())


def _write_two_tables(folder: Path, apart: bool) -> None:
    with TableFiles(folder, {"a": SCHEMA, "b": SCHEMA}, {}, apart) as files:
        files.add("a", rows(1))
        files.add("b", rows(2))


@pytest.mark.parametrize("apart", [False, True])
def test_large_tables_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool) -> None:
    monkeypatch.setattr(task_files, "GROUP_ROWS", 2)
    monkeypatch.setattr(task_files, "FILE_BYTES", 0)
    with TableFiles(tmp_path, {"exchanges": SCHEMA}, {}, apart) as files:
        for number in range(5):
            files.add("exchanges", rows(number))
    assert files.told()["rows"].to_pylist() == [2, 2, 1]
    found = [
        number
        for name in files.told()["file"].to_pylist()
        for number in pq.read_table(tmp_path / name)["n"].to_pylist()
    ]
    assert found == [0, 1, 2, 3, 4]
