"""Every table into a Parquet file of its own, in memory that does not grow with the capture.

Rows are written as they are read, with the names of brokers and topics that are known by then, as soon as none can come
before them (`AnalysedRun.as_read`, `Ordered`). Where a later message tells another name of what was written, or rows
come too late to be in order, and of pipes, which are read once, they go through two temporary files in the folder that
is written to: as they were read, until every name is known, and analysed, in parts, until all are there and can be put
in order (`AnalysedRun.settled`, `Merge`). Held in memory is what the engine and the analysis carry, a part of the rows,
a row of each connection, what findings are looked for in, and of each request of a share session some 150 bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from kdissect.analysis.findings import findings, limits
from kdissect.arrays.dictionaries import unified
from kdissect.engine.analysed_run import AnalysedRun, LateNames
from kdissect.engine.readahead import jobs
from kdissect.engine.saving.evidence_rows import Evidence
from kdissect.engine.saving.ordered_rows import Ordered
from kdissect.engine.saving.sorted_parts import Merge
from kdissect.engine.saving.spool import Spool
from kdissect.engine.watermark import NOTHING_YET
from kdissect.kafka.exchanges.completed import Quality
from kdissect.tables import formats
from kdissect.tables.builder import filtered, shown
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import By
from kdissect.tables.order import sort_columns
from kdissect.tables.where import Filter

if TYPE_CHECKING:
    from concurrent.futures import Future

EVIDENCE = 250_000
"""Rows that findings are looked for in (exchanges in which something stands out, fetches and partitions), and
connections: some 50 MB. Of a larger capture findings are those of its beginning, and `capture_quality` says so."""
ROW_GROUP = 1 << 15
"""Rows of a Parquet row group, at least where there are so many at once, and less than twice as many: some 30 MB with
all columns."""
BEHIND = 3
"""Times that rows of a table wait for the thread that writes them, at most."""
WAITING = 1 << 13
"""Rows that are worth a row group of their own: while fewer wait, they keep whatever was made with them in memory."""


def save(
    run: AnalysedRun, tables: Mapping[str, Sequence[str]], where: Mapping[str, Filter | None], folder: Path
) -> dict[str, int]:
    """Write the tables (name -> columns), rows for which the filters hold, as `folder/TABLE.parquet`; rows by table.

    The temporary files have no names and are gone afterwards, whatever happens. Raises OSError.
    """
    if all(member.regular for capture in run.books.captures for member in capture.members):
        try:
            return _saved(run, run.as_read(), tables, where, folder)
        except LateNames:
            run = run.again()
    with Spool(folder) as unresolved:
        parts = ((part, NOTHING_YET) for part in run.settled(unresolved))
        return _saved(run, parts, tables, where, folder)


def _saved(
    run: AnalysedRun,
    parts: Iterator[tuple[dict[str, pa.Table], int]],
    tables: Mapping[str, Sequence[str]],
    where: Mapping[str, Filter | None],
    folder: Path,
) -> dict[str, int]:
    """Write the parts of a run, each with the instant before which no later one has rows."""
    evidence = Evidence(EVIDENCE, run.books.settings.slow)
    several = any(jobs(run.books.settings, capture) > 1 for capture in run.books.captures)
    with Spool(folder) as spool, ExitStack() as open_files:
        writing = Writing(several)
        files = {
            name: open_files.enter_context(_File(folder / f"{name}.parquet", _schema(name, columns), writing))
            for name, columns in tables.items()
        }
        open_files.enter_context(writing)  # ends before the files do
        ordered = {
            name: Ordered(name, spool) for name in tables
            if (TABLES[name].made is By.NOTED or not TABLES[name].made.at_the_end) and sort_columns(name)
        }  # fmt: skip
        for part, before in parts:
            evidence.take(part)
            for name in list(part):
                table = part.pop(name)  # one after the other is let go
                if name in ordered:
                    final = ordered[name].add(_wanted(name, table, tables[name], where[name]), before)
                    if final is not None:
                        files[name].add(final)
            del table
        run.books.quality += _searched(run, evidence)
        for name, piece in run.books.pieces_at_the_end():
            if TABLES[name].made is By.NOTED:
                ordered[name].add(_wanted(name, piece, tables[name], where[name]), NOTHING_YET)
                continue
            table = run.builder.finished(name, [piece])
            evidence.add(name, table)
            if name in tables:
                files[name].add(run.builder.finished(name, [table], where[name], tables[name]))
                files[name].flush()
        settings = run.books.settings
        found = findings(evidence.tables(settings.topics), limits(settings.slow))
        del evidence
        if "findings" in tables:
            files["findings"].add(found)
        for name in ordered:
            for rest in ordered[name].rest():
                files[name].add(rest)
        for file in files.values():
            file.flush()
        writing.wait()
    return {name: file.rows for name, file in files.items()}


class Writing:
    """Calls, one after the other, by a thread of their own where `apart`, a few behind whoever asks for them."""

    def __init__(self, apart: bool) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._thread = ThreadPoolExecutor(1, "kdissect-writing") if apart else None
        self._asked: deque[Future[None]] = deque()

    def __enter__(self) -> Writing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def do(self, call: Callable[[], None]) -> None:
        """Call it. Raises what an earlier call raised."""
        if self._thread is None:
            call()
        else:
            self.wait(BEHIND)
            self._asked.append(self._thread.submit(call))

    def wait(self, but: int = 0) -> None:
        """Until everything is done, or all but so many calls. Raises what a call raised."""
        while len(self._asked) > but:
            self._asked.popleft().result()


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
        rows = unified(pa.concat_tables(parts, promote_options="permissive").select(self._names))
        parts.clear()
        groups = max(1, rows.num_rows // ROW_GROUP)
        ends = [rows.num_rows * number // groups for number in range(groups + 1)]
        for first, end in pairwise(ends):
            for batch in rows.slice(first, end - first).combine_chunks().to_batches():
                self._file.write(batch)


def in_order(
    run: AnalysedRun, name: str, columns: Sequence[str], where: Filter | None, folder: Path
) -> Iterator[pa.RecordBatch]:
    """The rows of one table that is made part by part, for which the filter holds, in the contract's order: as `table`
    gives them, in memory that does not grow. The temporary files lie in `folder`. Raises OSError."""
    with Spool(folder) as ordered:
        merge = Merge(name, ordered)
        with Spool(folder) as unresolved:
            for part in run.settled(unresolved):
                if name in part:
                    merge.add(_wanted(name, part[name], columns, where))
        yield from _batches(merge.ordered(), _schema(name, columns))


def _wanted(name: str, table: pa.Table, columns: Sequence[str], where: Filter | None) -> pa.Table:
    """The rows for which the filter holds, with these columns and those that they are ordered by."""
    if where is not None:
        table = filtered(name, table, where)
    kept = {*columns, *sort_columns(name)}
    table = table.select([column for column in table.column_names if column in kept])
    at = table.schema.get_field_index("exchange_id")
    if at >= 0 and pa.types.is_dictionary(table.schema.field(at).type):  # nearly every row has another one
        table = table.set_column(at, "exchange_id", table.column(at).cast(pa.string()))
    return table


def _schema(name: str, columns: Sequence[str]) -> pa.Schema:
    declared = SCHEMAS[name]
    return pa.schema([declared.field(column) for column in columns], metadata=declared.metadata)


def _batches(parts: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the parts, made plain a row group at a time."""
    for group in _groups(parts, ROW_GROUP):
        yield from shown(group, schema).combine_chunks().to_batches()


def _searched(run: AnalysedRun, evidence: Evidence) -> Iterator[Quality]:
    """What to say of findings that were looked for in the beginning only."""
    capture = run.books.captures[0].name
    if not evidence.whole:
        text = f"findings are those of the first {evidence.exchanges:,} exchanges"
        yield Quality(capture, None, "exchanges_searched", float(evidence.exchanges), text)
    if run.builder.sent_in_part:
        text = f"findings about producers are those of the first {evidence.most:,} batches, about"
        yield Quality(capture, None, "batches_searched", float(evidence.most), text)


def _groups(parts: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The rows of the parts, `size` at a time, and what is left."""
    waiting: list[pa.Table] = []
    count = 0
    for part in parts:
        waiting.append(part)
        count += part.num_rows
        if count < size:
            continue
        table = unified(pa.concat_tables(waiting, promote_options="permissive"))
        for first in range(0, count - count % size, size):
            yield table.slice(first, size)
        count %= size
        waiting = [table.slice(table.num_rows - count)] if count else []
    if waiting:
        yield unified(pa.concat_tables(waiting, promote_options="permissive"))
