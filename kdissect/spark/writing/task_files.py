"""Tables as Parquet files that the tasks of a job write themselves, into a folder that they and the driver share.

So no row goes through the JVM. Every file has a name of its own, and counts only if a task that has ended well lists
it. Files of tasks that failed, were killed or ran twice go away with the folder.

Rows of tables that are cut go into one file for each folder (`hive_folders`), without the columns that folders are made
by. If other rows of such a table cannot be in a folder, `restore_columns` gives its files these columns again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from uuid import uuid4

import pyarrow as pa

from kdissect.arrays.dictionaries import join_tables
from kdissect.engine.saving.writing import Writing
from kdissect.output import naming_output
from kdissect.spark.cells.table_cells import cells_of, join_cells
from kdissect.spark.placing import Places
from kdissect.spark.stages.found_holds import FOUND, Found
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names
from kdissect.spark.writing.hive_folders import WRITTEN, Folder, cut_table, folder_as_text, without_columns
from kdissect.tables.formats import ParquetFile

FILE_BYTES = 128 << 20
"""What a file may have at most."""
GROUP_ROWS, GROUP_BYTES = 1 << 16, 32 << 20
"""Rows of a row group, or their bytes in memory, at most: they wait until there are so many."""
MOST_OPEN = 256
"""Files that a task writes at the same time. If there are more, the one without rows for longest comes to its end."""
MOST_FOLDERS = 1024
"""Folders of a table in a task. A table with more is not cut: hostile captures have a day for each packet."""


class TableFiles:
    """Files of several tables in the making, below `folder`. By table, `schemas`: with metadata that go into files;
    `by`: the columns that it is cut by. `apart`: they are written by a thread of its own. Raises OutputError where
    there is no room."""

    def __init__(
        self, folder: Path, schemas: Mapping[str, pa.Schema], by: Mapping[str, Sequence[str]], apart: bool = False
    ) -> None:
        self._writing = Writing(apart)
        self._folder = folder
        self._schemas = schemas
        self._cut = {name: list(columns) for name, columns in by.items()}
        self._folders: dict[str, set[Folder]] = {}
        self._open: dict[tuple[str, Folder], ParquetFile] = {}
        self._waiting: dict[str, list[pa.Table]] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        """Rows and bytes of those that wait."""
        self._done: list[tuple[str, Path, int, Folder]] = []

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
                for place in list(self._open):
                    self._close(place)
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
        for _, path, *_ in self._done:
            path.unlink(missing_ok=True)

    def add(self, name: str, table: pa.Table) -> None:
        """Rows of a table, whose texts may have dictionaries."""
        if not table.num_rows:
            return
        self._waiting.setdefault(name, []).append(table)
        rows, size = self._sizes.get(name, (0, 0))
        rows, size = self._sizes[name] = rows + table.num_rows, size + table.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            self._flush(name)

    def told(self) -> pa.RecordBatch:
        """The files that are complete: rows of WRITTEN."""
        told = [(name, path.name, rows, folder_as_text(folder)) for name, path, rows, folder in self._done]
        columns = zip(*told, strict=True) if told else [() for _ in WRITTEN]
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, WRITTEN, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=WRITTEN)

    def none(self, name: str) -> None:
        """A file without rows."""
        with naming_output(self._folder):
            self._file((name, ()))
        self._close((name, ()))

    def _flush(self, name: str) -> None:
        del self._sizes[name]
        self._writing.do(partial(self._write, name, self._waiting.pop(name)))

    def _write(self, name: str, waiting: list[pa.Table]) -> None:
        whole = join_tables(waiting)
        parts = cut_table(whole, self._cut.get(name, ()))
        known = self._folders.setdefault(name, set())
        known.update(folder for folder, _ in parts)
        if len(known) > MOST_FOLDERS:
            parts = [((), whole)]
        if self._cut.get(name):
            self._cut[name] = [column for column, _ in parts[0][0]]
        for folder, part in parts:
            self._write_part((name, folder), part)

    def _write_part(self, place: tuple[str, Folder], part: pa.Table) -> None:
        with naming_output(self._folder):
            file = self._file(place)
            for batch in part.combine_chunks().to_batches():
                file.write(batch)
            large = file.size >= FILE_BYTES - GROUP_BYTES
        if large:
            self._close(place)

    def _file(self, place: tuple[str, Folder]) -> ParquetFile:
        name, folder = place
        file = self._open.pop(place, None)
        if file is None:
            if len(self._open) >= MOST_OPEN:
                self._close(next(iter(self._open)))
            schema = without_columns(self._schemas[name], [column for column, _ in folder])
            file = ParquetFile(self._folder / f"{uuid4().hex}.parquet", schema)
        self._open[place] = file  # the last one is that which got rows last
        return file

    def _close(self, place: tuple[str, Folder]) -> None:
        with naming_output(self._folder):
            self._open[place].__exit__(None)
        file = self._open.pop(place)
        self._done.append((place[0], file.path, file.rows, place[1]))


def write_staged(
    batches: Iterable[pa.RecordBatch],
    folder: str,
    schemas: Mapping[str, pa.Schema],
    by: Mapping[str, Sequence[str]],
    plan: Plan,
    names: Names,
    places: Places,
) -> Iterator[pa.RecordBatch]:
    """Staged rows of tables to files of them; of `exchanges` what was found out about them comes first (FOUND)."""
    builder, found = names.builder(plan), Found()
    with TableFiles(Path(folder), schemas, by) as files:
        for name, table in join_cells(cells_of(batches), first=(FOUND,)):
            if name == FOUND:
                found.add_rows(table)
                continue
            table = names.resolved(builder, name, table)
            if name == "exchanges" and not plan.whole:
                table = found.filled(table)
            files.add(name, places.placed(name, table, plan.tables[name], coded=True))
    yield files.told()


def write_rows(
    batches: Iterable[pa.RecordBatch],
    folder: str,
    schemas: Mapping[str, pa.Schema],
    by: Mapping[str, Sequence[str]],
    name: str,
) -> Iterator[pa.RecordBatch]:
    """Rows of one table, as they are written, to files of it."""
    with TableFiles(Path(folder), schemas, by) as files:
        for batch in batches:
            files.add(name, pa.Table.from_batches([batch]))
    yield files.told()
