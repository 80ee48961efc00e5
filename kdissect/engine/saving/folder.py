"""What becomes of the rows of a run: analysed, in order, each table in a Parquet file of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.cluster_stages import Stages
from kdissect.analysis.stage import NO_WATERMARK
from kdissect.arrays.dictionaries import join_tables
from kdissect.arrays.rows import Rows
from kdissect.engine import timings
from kdissect.engine.analysed_run import Lot, Working
from kdissect.engine.bounds.spool import Spool
from kdissect.engine.passes.watermark import NOTHING_YET
from kdissect.engine.saving.ordered_rows import Ordered
from kdissect.engine.saving.spooled_evidence import SpooledEvidence
from kdissect.engine.saving.writing import Writing
from kdissect.engine.timings import Timings
from kdissect.tables import formats
from kdissect.tables.builder import filtered
from kdissect.tables.declaration import TABLES, schema_of
from kdissect.tables.declaration.model import TIME_KEY, By
from kdissect.tables.order import sort_columns
from kdissect.tables.where import Filter

ROW_GROUP = 1 << 15
"""Rows of a Parquet row group, at least where there are so many at once, and less than twice as many: some 30 MB with
all columns."""
WAITING = 1 << 13
"""Rows that are worth a row group of their own: while fewer wait, they keep whatever was made with them in memory."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of a run, and where."""

    folder: Path
    asked: Mapping[str, Sequence[str]]
    """Name -> columns that are read, those of filters among them."""
    tables: Mapping[str, Sequence[str]]
    """Name -> columns that are written."""
    where: Mapping[str, Filter | None]
    """Name -> what holds for the rows that are wanted."""
    slow: float | None
    """Seconds from which on findings call a request slow; None: their own default."""
    topics: Sequence[str]
    """Findings are looked for in rows of these alone, where any are named."""
    as_read: bool
    """Lots come in order, with the names known by then; else with all names, in any order."""
    writes_apart: bool
    """A thread of its own writes the files."""


class InFlight:
    """The requests' times of exchanges that went into the analysis and have not come back."""

    def __init__(self) -> None:
        self._times = np.zeros(0, np.int64)

    def take_off(self, exchanges: Rows) -> None:
        """These go in."""
        if exchanges.num_rows:
            self._times = np.sort(np.concatenate([self._times, _request_times(exchanges)]), kind="stable")

    def land(self, exchanges: Rows) -> None:
        """These came back."""
        if not exchanges.num_rows:
            return
        back = np.sort(_request_times(exchanges), kind="stable")
        among_equal = np.arange(len(back)) - np.searchsorted(back, back)
        gone = np.searchsorted(self._times, back) + among_equal
        self._times = np.delete(self._times, gone)

    @property
    def earliest(self) -> int:
        """Microseconds; NO_WATERMARK where none is under way."""
        return int(self._times[0]) if len(self._times) else NO_WATERMARK


def _request_times(exchanges: Rows) -> npt.NDArray[np.int64]:
    """`_time` of rows, those that have none last."""
    return exchanges.ints(TIME_KEY, NO_WATERMARK)


class Folder:
    """The Parquet files of a run in the making; to be used in a `with`, which takes the temporary ones away, and
    everything where it ends badly. Methods raise OSError, and LateNames where `as_read` does not hold."""

    def __init__(self, wish: Wish, clock: Timings) -> None:
        self.wish = wish
        self._clock = clock
        self._working = Working(Stages(wish.asked, wish.slow, topics=wish.topics), clock)
        self._flight = InFlight()
        self._evidence: SpooledEvidence | None = None
        self._files: dict[str, _File] = {}
        self._ordered: dict[str, Ordered] = {}
        self._open = ExitStack()
        self._writing = Writing(wish.writes_apart)

    def __enter__(self) -> Folder:
        with ExitStack() as opened:
            spool = opened.enter_context(Spool(self.wish.folder))
            if "findings" in self.wish.tables:
                self._evidence = SpooledEvidence(spool, self.wish.slow)
            for name, columns in self.wish.tables.items():
                file = _File(self.wish.folder / f"{name}.parquet", schema_of(name, columns), self._writing)
                self._files[name] = opened.enter_context(file)
                if (TABLES[name].made is By.NOTED or not TABLES[name].made.at_the_end) and sort_columns(name):
                    self._ordered[name] = Ordered(name, spool)
            opened.enter_context(self._writing)  # ends before the files do
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def feed(self, lot: Lot) -> None:
        """The next rows."""
        self._flight.take_off(Rows.of(lot.rows.get("exchanges")))
        part = self._working.feed(lot)
        self._flight.land(Rows.of(part.get("exchanges")))
        self._write_part(part, min(lot.mark, self._flight.earliest) if self.wish.as_read else NOTHING_YET)

    def lots_end(self) -> None:
        """There are no more rows but those of tables that are made at the end."""
        self._write_part(self._working.finish(), NO_WATERMARK if self.wish.as_read else NOTHING_YET)

    def add(self, name: str, table: pa.Table) -> None:
        """A piece of a table that is made at the end, resolved."""
        where = self.wish.where.get(name)
        if TABLES[name].made is By.NOTED:
            self._ordered[name].add(select_rows(name, table, self.wish.tables[name], where), NOTHING_YET)
            return
        if self._evidence is not None:
            self._evidence.add(name, table)
        if name in self._files:
            self._files[name].add(table if where is None else filtered(name, table, where))
            self._files[name].flush()

    def finish(self) -> dict[str, int]:
        """Everything is there: look for findings, write what waits. How many rows each table has."""
        if self._evidence is not None:
            self._clock.at(timings.ANALYSIS)
            found = self._evidence.search(self.wish.topics)
            self._clock.at(timings.REST)
            self._evidence = None
            self._files["findings"].add(found.findings)
            if "problems" in self._ordered and found.problems.num_rows:
                self.add("problems", found.problems)
        for name, ordered in self._ordered.items():
            for rest in ordered.drain():
                self._files[name].add(rest)
        for file in self._files.values():
            file.flush()
        self._writing.wait()
        return {name: file.rows for name, file in self._files.items()}

    def _write_part(self, part: dict[str, pa.Table], before: int) -> None:
        if self._evidence is not None:
            self._evidence.add_rows(part)
        for name in list(part):
            table = part.pop(name)  # one after the other is let go
            if name in self._ordered:
                rows = select_rows(name, table, self.wish.tables[name], self.wish.where.get(name))
                final = self._ordered[name].add(rows, before)
                if final is not None:
                    self._files[name].add(final)


class _File:
    """A table's Parquet file in the making: rows in order, made plain a row group at a time."""

    def __init__(self, path: Path, schema: pa.Schema, writing: Writing) -> None:
        self._names = schema.names
        self._writing = writing
        self._file = formats.ParquetFile(path, schema)
        self._waiting: list[pa.Table] = []
        self._count = 0

    @property
    def rows(self) -> int:
        """Rows written."""
        return self._file.rows

    def __enter__(self) -> _File:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def add(self, table: pa.Table) -> None:
        """The next rows."""
        self._waiting.append(table)
        self._count += table.num_rows
        if self._count >= WAITING:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._count:
            self._writing.do(partial(self._write, self._waiting))
            self._waiting, self._count = [], 0

    def _write(self, parts: list[pa.Table]) -> None:
        rows = join_tables(parts).select(self._names)
        parts.clear()
        groups = max(1, rows.num_rows // ROW_GROUP)
        ends = [rows.num_rows * number // groups for number in range(groups + 1)]
        for first, end in pairwise(ends):
            for batch in rows.slice(first, end - first).combine_chunks().to_batches():
                self._file.write(batch)


def select_rows(name: str, table: pa.Table, columns: Sequence[str], where: Filter | None) -> pa.Table:
    """The rows for which the filter holds, with these columns and those that they are ordered by."""
    if where is not None:
        table = filtered(name, table, where)
    kept = {*columns, *sort_columns(name)}
    table = table.select([column for column in table.column_names if column in kept])
    at = table.schema.get_field_index("exchange_id")
    if at >= 0 and pa.types.is_dictionary(table.schema.field(at).type):  # nearly every row has another one
        table = table.set_column(at, "exchange_id", table.column(at).cast(pa.string()))
    return table
