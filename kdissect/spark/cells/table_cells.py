"""Pieces of tables between stages: Arrow IPC streams in binary cells, or the places of files that have them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa

from kdissect.arrays.dictionaries import join_tables, shrunk, unified
from kdissect.arrays.ipc_streams import pack_stream, write_stream
from kdissect.arrays.typed_values import dumped
from kdissect.engine.saving.writing import Writing
from kdissect.spark.cells.single_values import split_single_values, together

STAGED = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("broker", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("at", pa.int64()),
        pa.field("lot", pa.int32()),
        pa.field("origin", pa.int32()),
    ]
)
"""Rows between stages: a piece of a table as an Arrow IPC stream; tables that begin with `_` are for the driver.
What the analysis works on has the first instant (microseconds) of the exchanges that lie together, and which lot of a
task they are: pieces of one lot and broker hold all rows of their exchanges. Other rows have 0 there. `origin`: by
which task rows were decoded, one of `Plan.labels`; what is found out about exchanges goes back to their rows by it."""
PIECE_BYTES = 8 << 20
"""A table's rows are passed on when there are so many bytes of them: a cell must fit many times into a worker."""
FILE_BYTES = 32 << 20
"""The same of rows in files, which one machine's tasks share. `exchanges` of 2 GB of small frames in 40 of them instead
of 238 take a tenth less of whoever reads captures and writes these."""
JOINED_ROWS = 1 << 13
"""Rows of a table that are worth working on: of many small pieces so many are put together."""
OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
FILED = b"file:"
"""What a cell begins with that has the place of a file; a stream begins with four bytes of ones."""
SINGLE, WHOLE = b"single", b"whole"
"""What the schema in such a file says besides: columns of one value, as JSON, and the schema of the whole table."""


def cell(table: pa.Table) -> bytes:
    """A table as bytes, in one batch: each costs its reader as much as thousands of rows."""
    data: bytes = pack_stream(shrunk(unified(table)).combine_chunks(), OPTIONS).to_pybytes()
    return data


class Pieces:
    """Tables in files of a folder, whose places are the cells. So rows that one machine's tasks hand on need not go
    through the JVM, which copies them four times and packs them twice. A thread of its own packs and writes the files,
    a few behind the caller. Columns of one value are not among a file's rows (`single_values`)."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._writing = Writing(True)
        self.single: dict[str, dict[str, Any]] = {}
        """Table -> column -> the value that all of its rows have, in any file; complete after `wait`."""

    def __enter__(self) -> Pieces:
        self._folder.mkdir(exist_ok=True)  # gone where frames are used again after their rows were given up
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writing.__exit__(kind, error, trace)

    def cell(self, name: str, table: pa.Table) -> bytes:
        """The cell of rows of a table of that name; its file is there after `wait`. Raises OSError where an earlier one
        could not be written."""
        path = self._folder / f"{uuid4().hex}.arrow"
        self._writing.do(partial(self._into_file, name, table, str(path)))
        return FILED + str(path).encode()

    def wait(self) -> None:
        """Until all files are complete. Raises OSError."""
        self._writing.wait()

    def _into_file(self, name: str, table: pa.Table, path: str) -> None:
        rest, single = split_single_values(unified(table))
        told = {SINGLE: json.dumps(single).encode(), WHOLE: table.schema.serialize().to_pybytes()}
        with pa.OSFile(path, "wb") as sink:
            write_stream(shrunk(rest).replace_schema_metadata(told), sink, OPTIONS)
        known = self.single.get(name, single)
        self.single[name] = {one: known[one] for one in known if one in single and single[one] == known[one]}


def read_cell(data: bytes, constants: Mapping[str, Any] | None = None) -> pa.Table:
    """A table out of a cell. `constants`: columns that are left out where each row has this value in a file of
    `Pieces`."""
    if data.startswith(FILED):
        with pa.memory_map(data.removeprefix(FILED).decode()) as file, pa.ipc.open_stream(file) as reader:
            rest = reader.read_all()
        told = rest.schema.metadata
        single, constants = json.loads(told[SINGLE]), constants or {}
        single = {name: value for name, value in single.items() if name not in constants or constants[name] != value}
        return together(rest, single, pa.ipc.read_schema(pa.py_buffer(told[WHOLE])))
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


class Cell(NamedTuple):
    """A staged row; see STAGED."""

    table: str
    broker: str
    data: bytes
    at: int = 0
    lot: int = 0
    origin: int = 0


def rows(staged_cells: Sequence[Cell]) -> pa.RecordBatch:
    """Staged rows."""
    columns = zip(*staged_cells, strict=True) if staged_cells else [[] for _ in STAGED]
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, STAGED, strict=True)], schema=STAGED
    )


def cells_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Cell]:
    """Staged rows, one by one."""
    for batch in batches:
        for i in range(batch.num_rows):
            yield Cell(*(batch.column(name)[i].as_py() for name in Cell._fields))


def join_cells(
    cells: Iterable[Cell], constants: Mapping[str, Any] | None = None, first: Collection[str] = ()
) -> Iterator[tuple[str, pa.Table]]:
    """The tables in staged rows: (name, rows), small pieces of a table together. Each capture has pieces of its own,
    and what is done to a piece costs as much as some thousand rows. Tables in `first` come at once. `constants`: see
    `read_cell`."""
    waiting: dict[str, list[pa.Table]] = {}
    count: dict[str, int] = {}
    for one in cells:
        name, table = one.table, read_cell(one.data, constants)
        if name in first or (table.num_rows >= JOINED_ROWS and name not in waiting):
            yield name, table
            continue
        waiting.setdefault(name, []).append(table)
        count[name] = count.get(name, 0) + table.num_rows
        if count[name] >= JOINED_ROWS:
            del count[name]
            yield name, join_tables(waiting.pop(name))
    for name in list(waiting):
        yield name, join_tables(waiting.pop(name))


def by_table(cells: Iterable[Cell]) -> dict[str, list[pa.Table]]:
    """The pieces in staged rows, by table."""
    parts: dict[str, list[pa.Table]] = {}
    for one in cells:
        parts.setdefault(one.table, []).append(read_cell(one.data))
    return parts


def cut(table: pa.Table, size: int = PIECE_BYTES) -> Iterator[tuple[int, int]]:
    """Row ranges of about so many bytes each."""
    if table.num_rows:
        step = max(1, table.num_rows * size // max(table.nbytes, 1))
        for begin in range(0, table.num_rows, step):
            yield begin, min(begin + step, table.num_rows)


def note(name: str, value: Any) -> Cell:
    """A staged row with a value for the driver or for a task of the same job. No later job reads it."""
    return Cell(name, "", pickle.dumps(value))


def kept_note(name: str, value: Any, kind: Any) -> Cell:
    """A staged row with a value of this type (`kdissect.arrays.typed_values`), which a later job may read."""
    return Cell(name, "", dumped(value, kind))


class Stash:
    """Rows of tables until there are enough of them. `files`: what makes cells of them, else `cell`."""

    def __init__(self, origin: int = 0, files: Pieces | None = None) -> None:
        self._origin, self._files = origin, files
        self._enough = PIECE_BYTES if files is None else FILE_BYTES
        self._kept: dict[str, list[pa.RecordBatch]] = {}
        self._size: dict[str, int] = {}

    def put(self, name: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows; staged rows when there are enough."""
        if not batch.num_rows:
            return
        kept = self._kept.setdefault(name, [])
        if kept and kept[0].schema != batch.schema:
            yield from self._out(name)
            kept = self._kept.setdefault(name, [])
        kept.append(batch)
        self._size[name] = self._size.get(name, 0) + batch.nbytes
        if self._size[name] >= self._enough:
            yield from self._out(name)

    def take(self, name: str, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Take rows that may be enough already; staged rows when there are enough."""
        if table.nbytes < self._enough:
            for batch in table.combine_chunks().to_batches():
                yield from self.put(name, batch)
            return
        for begin, end in cut(table, self._enough):
            yield self._row(name, table.slice(begin, end - begin))

    def _row(self, name: str, table: pa.Table) -> pa.RecordBatch:
        data = cell(table) if self._files is None else self._files.cell(name, table)
        return rows([Cell(name, "", data, origin=self._origin)])

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Staged rows of everything that is left."""
        for name in list(self._kept):
            yield from self._out(name)

    def _out(self, name: str) -> Iterator[pa.RecordBatch]:
        batches = self._kept.pop(name, [])
        self._size.pop(name, None)
        if batches:
            yield self._row(name, pa.Table.from_batches(batches))
