"""Every table into a Parquet file of its own, in memory that does not grow with the capture.

Rows are written as they are read, with the names of brokers and topics that are known by then, as soon as none can come
before them (`AnalysedRun.as_read`, `Ordered`). Where a later message tells another name of what was written, or rows
come too late to be in order, and of pipes, which are read once, they go through two temporary files in the folder that
is written to: as they were read, until every name is known, and analysed, in parts, until all are there and can be put
in order (`AnalysedRun.settled`, `Merge`). Held in memory is what the engine and the analysis carry, a part of the rows,
a row of each connection, the evidence of findings in a span, and of each request of a share session some 150 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa

from kdissect.arrays.dictionaries import join_tables
from kdissect.capture import CaptureSet
from kdissect.engine.analysed_run import AnalysedRun, LateNames, Lot
from kdissect.engine.bounds.spool import Spool
from kdissect.engine.readahead import LARGE, jobs
from kdissect.engine.saving.folder import ROW_GROUP, Folder, Wish, select_rows
from kdissect.engine.saving.second_process import FolderApart, possible
from kdissect.engine.saving.sorted_parts import Merge
from kdissect.engine.saving.spooled_evidence import MOST_SENT, searched_batches
from kdissect.kafka.completed import Quality
from kdissect.tables.builder import conform_to_schema
from kdissect.tables.declaration import TABLES, schema_of
from kdissect.tables.declaration.model import By
from kdissect.tables.where import Filter

PACKED = 4
"""Bytes of a capture that a byte of its compressed file stands for, about."""


def save(
    run: AnalysedRun, tables: Mapping[str, Sequence[str]], where: Mapping[str, Filter | None], folder: Path
) -> dict[str, int]:
    """Write the tables (name -> columns), rows for which the filters hold, as `folder/TABLE.parquet`; rows by table.

    The temporary files have no names and are gone afterwards, whatever happens. Raises OSError.
    """
    if all(capture.regular for capture in run.books.captures):
        try:
            return _saved(run, run.lots_as_read(), tables, where, folder, as_read=True)
        except LateNames:
            run = run.again()
    with Spool(folder) as unresolved:
        return _saved(run, run.settled_lots(unresolved), tables, where, folder, as_read=False)


def _saved(
    run: AnalysedRun,
    lots: Iterator[Lot],
    tables: Mapping[str, Sequence[str]],
    where: Mapping[str, Filter | None],
    folder: Path,
    as_read: bool,
) -> dict[str, int]:
    """Write the lots of a run and what is made at its end."""
    settings = run.books.settings
    threads = max(jobs(settings, capture) for capture in run.books.captures)
    apart = threads > 1 and possible() and sum(map(_bytes, run.books.captures)) >= LARGE
    wish = Wish(folder, run.asked, tables, where, settings.slow, settings.topics, as_read, writes_apart=threads > 2)
    with ExitStack() as open_files:
        files: Folder | FolderApart | None = None
        if apart:
            with suppress(OSError):  # no more processes, or files, are allowed
                files = open_files.enter_context(FolderApart(wish, settings.timings))
        if files is None:
            files = open_files.enter_context(Folder(wish, settings.timings))
        for lot in lots:
            files.feed(lot)
        files.lots_end()
        run.books.quality += _told_of_producers(run)
        for name, piece in run.books.pieces_at_the_end():
            noted = TABLES[name].made is By.NOTED
            named = run.builder.resolve(name, piece, plain=True) if noted else run.builder.finished(name, [piece])
            files.add(name, named)
        return files.finish()


def _bytes(capture: CaptureSet) -> int:
    """Bytes to read; of what is compressed a guess. None of what only comes while it is read."""
    if capture.size is not None:
        return capture.size
    return sum(PACKED * member.path.stat().st_size for member in capture.members if member.path and member.regular)


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
                    merge.add(select_rows(name, part[name], columns, where))
        yield from _batches(merge.ordered(), schema_of(name, columns))


def _batches(parts: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the parts, made plain a row group at a time."""
    for group in _groups(parts, ROW_GROUP):
        yield from conform_to_schema(group, schema).combine_chunks().to_batches()


def _told_of_producers(run: AnalysedRun) -> Iterator[Quality]:
    """The row of `capture_quality` where findings about producers were looked for in the first batches only."""
    if run.builder.sent_in_part:
        yield Quality(run.books.captures[0].name, None, "batches_searched", float(MOST_SENT), searched_batches())


def _groups(parts: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The rows of the parts, `size` at a time, and what is left."""
    waiting: list[pa.Table] = []
    count = 0
    for part in parts:
        waiting.append(part)
        count += part.num_rows
        if count < size:
            continue
        table = join_tables(waiting)
        for first in range(0, count - count % size, size):
            yield table.slice(first, size)
        count %= size
        waiting = [table.slice(table.num_rows - count)] if count else []
    if waiting:
        yield join_tables(waiting)
