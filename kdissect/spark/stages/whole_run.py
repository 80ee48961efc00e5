"""A whole job by one task: the engine's own run over the captures' files, as on one machine.

Spreading connections over tasks takes two to three times the work. Packets are indexed and their payloads read again,
and rows go to the analysis, which needs all of a broker's, and back. Where there are not so many cores that this pays,
one task reads, decodes and analyses everything in one pass, and stages rows that are complete.

Names of brokers and topics are those that are known when rows are staged. If a later message gives another name, the
staged rows do not count. Then the captures are read once more, with unresolved rows in a temporary file until all names
are known (`AnalysedRun.settled_later`). Staged rows have the number of the reading as their `origin`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from kdissect.analysis.deliveries.first_deliveries import FirstRows
from kdissect.arrays.dictionaries import unified
from kdissect.engine.analysed_run import AnalysedRun, LateNames
from kdissect.engine.bounds.spool import Spool
from kdissect.net.scanner import Tally
from kdissect.output import scratch
from kdissect.problems import CaptureError, Kind
from kdissect.spark.cells.table_cells import STAGED, Cell, Pieces, Stash, kept_note, note, rows
from kdissect.spark.stages import analysing
from kdissect.spark.stages.committed_offsets import COMMITS
from kdissect.spark.stages.decoding import SENT, THERE
from kdissect.spark.stages.indexing import FILE, FileFacts
from kdissect.spark.stages.owners import OWNERS, Owned, owned
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names, Outcome
from kdissect.tables.builder import TableBuilder
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import ANSWERED_KEY, EXCHANGE_KEYS, By
from kdissect.tables.declaration.readers import FINDINGS
from kdissect.tables.order import sort_columns

OUTCOME = "_outcome"
"""Staged rows with what the driver knows afterwards, and which reading counts: (Outcome, number)."""
FILES = "_files"
"""Staged rows with the files that were written straight."""
ORIGIN = STAGED.get_field_index("origin")
FULL = "_full"
"""Staged rows with the columns that have no nulls, by table, of those whose rows are handed on in files."""
SINGLE = "_single"
"""Staged rows with the columns that have one value, by table: `Pieces.single`."""
ELSEWHERE = "_elsewhere"
"""Staged rows that say that a capture cannot be read like this: tasks for each file get farther."""
NOTHING_COUNTED = Tally(np.zeros((0, 0), np.int64), 0, 0, 0, {})


def read_whole(plan: Plan, straight: Straight | None = None) -> Iterator[pa.RecordBatch]:
    """All captures of a job to staged rows: of the tables asked for, and of what is made of whole tables. `straight`:
    tables that are written to files instead; the last rows have the names of these files."""
    captures = [source.capture_alone() for source in plan.sources]
    # beside a thread that makes Parquet, which is busy all the time, more of them are not sooner done
    jobs = 1 if straight is not None else max(plan.cores, 1)
    run = AnalysedRun(captures, plan.decoded, replace(plan.settings, jobs=jobs))
    try:
        try:
            yield from Reading(plan, run, 0, straight).staged(run.as_read())
        except LateNames:
            with scratch() as folder, Spool(Path(folder)) as spool:
                run = run.again()
                yield from Reading(plan, run, 1, straight).staged(run.settled_later(spool))
    except CaptureError:
        yield rows([note(ELSEWHERE, None)])
    finally:
        for capture in captures:
            capture.close()
        pa.default_memory_pool().release_unused()  # the worker goes on with other tasks


class Straight(Protocol):
    """Writes rows as they are made (`kdissect.spark.writing.straight_files`)."""

    @property
    def tables(self) -> Collection[str]:
        """The tables that it writes."""

    def writing(self, builder: TableBuilder, apart: bool) -> AbstractContextManager[None]:
        """Entered while rows come out of a run; what was written goes away where that ends badly. `apart`: by a thread
        of its own."""

    def add(self, name: str, table: pa.Table, columns: Sequence[str]) -> None:
        """Write rows."""

    def list_files(self) -> list[tuple[str, str, int, str]]:
        """The files: table, name, rows, folder (`kdissect.spark.writing.hive_folders.WRITTEN`)."""


class Reading:
    """One pass over the captures, as staged rows."""

    def __init__(self, plan: Plan, run: AnalysedRun, number: int, straight: Straight | None = None) -> None:
        self._plan, self._run, self._number = plan, run, number
        self._straight = straight
        self._columns = kept_columns(plan, () if straight is None else straight.tables)
        self._finds = "findings" in plan.tables
        self._first = FirstRows()
        self._pieces = Pieces(plan.pieces) if plan.pieces else None
        self._stash = Stash(number, self._pieces)
        self._full: dict[str, set[str]] = {}

    def staged(self, parts: Iterator[Mapping[str, pa.Table]]) -> Iterator[pa.RecordBatch]:
        """All rows, then the rows for the driver."""
        told: set[str] = set()
        straight, pieces = self._straight, self._pieces
        with (
            nullcontext() if straight is None else straight.writing(self._run.builder, self._plan.cores > 0),
            nullcontext() if pieces is None else pieces,
        ):
            for batch in self._rows(parts):
                told.update(batch.column("table").to_pylist())
                yield batch
            if pieces is not None:
                pieces.wait()
        notes = [kept_note(THERE, told, frozenset[str]), *self._facts()]
        if pieces is not None:
            notes += [note(FULL, self._full), note(SINGLE, pieces.single)]
        if self._straight is not None:
            notes.append(note(FILES, self._straight.list_files()))
        if self._plan.placed:
            notes.append(kept_note(OWNERS, owned(self._run.builder.directory), Owned))
        yield rows([*notes, note(OUTCOME, (self._outcome, self._number))])

    def _rows(self, parts: Iterator[Mapping[str, pa.Table]]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            if self._finds:
                self._first.add_rows(part)
            for name, table in part.items():
                if not TABLES[name].made.at_the_end:
                    yield from self._put(name, table)
        run = self._run
        small: dict[str, list[pa.Table]] = {}
        for name, why in self._plan.refused:
            run.books.ledger.note(Kind.CAPTURE, name, why)
        for name, piece in run.books.pieces_at_the_end():
            table = run.builder.finished(name, [piece])
            self._first.add(name, table)
            if TABLES[name].made is By.LEARNED:
                small.setdefault(name, []).append(table)
            elif TABLES[name].made is not By.SENT:
                yield from self._put(name, table)
        sent = run.builder.sent()
        if sent is not None:
            yield from self._stash.take(SENT, sent)
        yield from self._stash.rest()
        if self._finds:
            for batch in analysing.delivered(self._first):
                yield self._of_this_pass(batch)
        tables = {name: unified(pa.concat_tables(pieces, promote_options="none")) for name, pieces in small.items()}
        if "problems" in self._plan.tables:
            tables["problems"] = SCHEMAS["problems"].empty_table()  # those of captures are among the others
        self._outcome = Outcome(self._names(), tables, self._errors(), {})

    def _put(self, name: str, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if not table.num_rows:
            return
        if self._straight is not None and name in self._straight.tables:
            self._straight.add(name, table, self._plan.tables[name])
        if name in self._columns:
            kept = self._columns[name]
            part = table.select([column for column in table.column_names if column in kept])
            at = part.schema.get_field_index("exchange_id")
            if at >= 0 and pa.types.is_dictionary(part.schema.field(at).type):  # nearly every row has another one
                part = part.set_column(at, "exchange_id", part.column(at).cast(pa.string()))
            if self._pieces is not None:
                full = {one for one in self._plan.tables.get(name, ()) if not part[one].null_count}
                self._full[name] = self._full.get(name, full) & full
            yield from self._stash.take(name, part)
        if self._finds and name in FINDINGS.tables and name != COMMITS:
            for batch in analysing.evidence_of(name, table, self._plan):
                yield self._of_this_pass(batch)

    def _of_this_pass(self, staged: pa.RecordBatch) -> pa.RecordBatch:
        """Staged rows with the number of the reading as their origin."""
        number = pa.repeat(pa.scalar(self._number, pa.int32()), staged.num_rows)
        return staged.set_column(ORIGIN, STAGED.field(ORIGIN), number)

    def _names(self) -> Names:
        made = self._run.builder
        return Names(made.columns, made.brokers, made.topics, {}, made.offered, made.leaders, {})

    def _facts(self) -> Iterator[Cell]:
        for number, capture in enumerate(self._run.books.captures):
            for file, report in enumerate(capture.reports):
                problems = [problem for problem in capture.problems if problem.file == file]
                facts = FileFacts(number, file, report, problems, 0, NOTHING_COUNTED, None)
                yield kept_note(FILE, facts, FileFacts)

    def _errors(self) -> list[str]:
        """Files that could not be read, or not to their end, a line each."""
        found = [why for capture in self._run.books.captures for _, why in capture.left_out]
        for capture in self._run.books.captures:
            for file, report in enumerate(capture.reports):
                told = [one.detail for one in capture.problems if (one.file, one.where) == (file, report.name)]
                if not report.format:
                    found += told[:1]
                elif report.cut:
                    found.append(f"{report.name}: the file ends inside a packet.")
        return found + [why for _, why in self._plan.refused]


def kept_columns(plan: Plan, straight: Collection[str] = ()) -> dict[str, set[str]]:
    """Columns that staged rows have: those asked for, and what is read of them to write them or to sum them up. Tables
    that are written `straight` are staged for the latter only."""
    asked = {name: columns for name, columns in plan.decoded.items() if name not in straight}
    found = {name: set(columns) for name, columns in asked.items() if not TABLES[name].made.needs_everything}
    for name, columns in found.items():
        if plan.placed:
            columns.update(EXCHANGE_KEYS, sort_columns(name), [ANSWERED_KEY])
    for summed in analysing.SUMMED.keys() & plan.tables.keys():
        for name, read in analysing.SUMMED[summed].items():
            found.setdefault(name, set()).update(read, sort_columns(name))
    if "findings" in plan.tables:
        found.setdefault(COMMITS, set()).update(FINDINGS.tables[COMMITS], sort_columns(COMMITS))
    return found
