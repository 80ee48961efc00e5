"""Tables as Parquet files that the tasks of a job write themselves, into a folder that they and the driver share.

So no row goes through the JVM. Every file has a name of its own, and counts only where a task that has ended well tells
it: what tasks leave behind that failed, were killed or ran twice goes away with the folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from uuid import uuid4

import pyarrow as pa

from kdissect.arrays.dictionaries import unified
from kdissect.engine.saving.writing import Writing
from kdissect.output import OutputError
from kdissect.spark.cells.table_cells import read_cell
from kdissect.spark.placing import Places
from kdissect.spark.stages.found_holds import FOUND, Found
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names
from kdissect.tables.formats import ParquetFile

WRITTEN = pa.schema([("table", pa.string()), ("file", pa.string()), ("rows", pa.int64())])
"""What tasks tell: the files that they have written."""
FILE_BYTES = 128 << 20
"""What a file may have at most."""
GROUP_ROWS, GROUP_BYTES = 1 << 16, 32 << 20
"""Rows of a row group, or their bytes in memory, at most: they wait until there are so many."""
SPARKS = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark looks for a file's schema with the comments of its columns."""


class TableFiles:
    """Files of several tables in the making, below `folder`. `schemas`: by table, with metadata that go into files.
    `apart`: they are written by a thread of its own. Raises OutputError where there is no room."""

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema], apart: bool = False) -> None:
        self._writing = Writing(apart)
        self._folder = folder
        self._schemas = schemas
        self._open: dict[str, ParquetFile] = {}
        self._waiting: dict[str, list[pa.Table]] = {}
        self._done: list[tuple[str, Path, int]] = []

    def __enter__(self) -> TableFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        complete = False
        try:
            if kind is None:
                for name in list(self._waiting):
                    self._flush(name)
                self._writing.wait()
                for name in list(self._open):
                    self._close(name)
                complete = True
        finally:
            try:
                self._writing.__exit__(kind, error, trace)
            finally:
                if not complete:
                    self._remove_files()

    def _remove_files(self) -> None:
        """Leave nothing of what was written."""
        for file in self._open.values():
            with contextlib.suppress(OSError):  # there is no room for its end either
                file.__exit__(OSError)
        for _, path, _ in self._done:
            path.unlink(missing_ok=True)

    def add(self, name: str, table: pa.Table) -> None:
        """Rows of a table, whose texts may have dictionaries."""
        if not table.num_rows:
            return
        waiting = self._waiting.setdefault(name, [])
        waiting.append(table)
        if sum(one.num_rows for one in waiting) >= GROUP_ROWS or sum(one.nbytes for one in waiting) >= GROUP_BYTES:
            self._flush(name)

    def told(self) -> pa.RecordBatch:
        """The files that are complete: rows of WRITTEN."""
        columns = [[name for name, _, _ in self._done], [path.name for _, path, _ in self._done]]
        return pa.RecordBatch.from_arrays(
            [
                *(pa.array(column, pa.string()) for column in columns),
                pa.array([rows for *_, rows in self._done], pa.int64()),
            ],
            schema=WRITTEN,
        )

    def none(self, name: str) -> None:
        """A file without rows."""
        with self._naming_folder():
            self._file(name)
        self._close(name)

    def _flush(self, name: str) -> None:
        self._writing.do(partial(self._write, name, self._waiting.pop(name)))

    def _write(self, name: str, waiting: list[pa.Table]) -> None:
        with self._naming_folder():
            file = self._file(name)
            for batch in unified(pa.concat_tables(waiting, promote_options="permissive")).combine_chunks().to_batches():
                file.write(batch)
            large = file.size >= FILE_BYTES - GROUP_BYTES
        if large:
            self._close(name)

    def _file(self, name: str) -> ParquetFile:
        if name not in self._open:
            self._open[name] = ParquetFile(self._folder / f"{uuid4().hex}.parquet", self._schemas[name])
        return self._open[name]

    def _close(self, name: str) -> None:
        with self._naming_folder():
            self._open[name].__exit__(None)
        file = self._open.pop(name)
        self._done.append((name, file.path, file.rows))

    @contextlib.contextmanager
    def _naming_folder(self) -> Iterator[None]:
        """Raises OutputError, which names the folder, where a file cannot be written."""
        try:
            yield
        except OSError as error:
            raise OutputError(self._folder, error) from None


def write_staged(
    batches: Iterable[pa.RecordBatch],
    folder: str,
    schemas: Mapping[str, pa.Schema],
    plan: Plan,
    names: Names,
    places: Places,
) -> Iterator[pa.RecordBatch]:
    """Staged rows of tables to files of them; of `exchanges` what was found out about them comes first (FOUND)."""
    builder, found = names.builder(plan), Found()
    with TableFiles(Path(folder), schemas) as files:
        for batch in batches:
            for name, data in zip(batch.column("table").to_pylist(), batch.column("data"), strict=True):
                table = read_cell(data.as_py())
                if name == FOUND:
                    found.add_rows(table)
                    continue
                table = names.resolved(builder, name, table)
                if name == "exchanges" and not plan.whole:
                    table = found.filled(table)
                files.add(name, places.placed(name, table, plan.tables[name], coded=True))
    yield files.told()


def write_rows(
    batches: Iterable[pa.RecordBatch], folder: str, schemas: Mapping[str, pa.Schema], name: str
) -> Iterator[pa.RecordBatch]:
    """Rows of one table, as they are written, to files of it."""
    with TableFiles(Path(folder), schemas) as files:
        for batch in batches:
            files.add(name, pa.Table.from_batches([batch]))
    yield files.told()
