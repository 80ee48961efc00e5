"""The tables of open captures: whole, in pieces, in order, and by how much memory they may take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from kdissect.analysis.stage import Stage
from kdissect.capture import CaptureSet
from kdissect.engine.analysed_run import AnalysedRun
from kdissect.engine.books import Books
from kdissect.engine.bounds.room import READING, memory_text
from kdissect.engine.common import ReadingTurns, reads_capture
from kdissect.engine.run import Run
from kdissect.engine.settings import Settings
from kdissect.output import distinct, scratch
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS, TABLES, columns_of, declared, schema_of
from kdissect.tables.declaration.model import By
from kdissect.tables.projection import choose_columns, choose_columns_of_each, list_names
from kdissect.tables.where import Filter, read_condition

if TYPE_CHECKING:
    import pandas

    from kdissect.engine.timings import Timings
    from kdissect.report.session_rows import SessionRows
    from kdissect.summary import Summary

MADE = tuple(name for name, one in TABLES.items() if not one.on_request)
"""The tables that a run makes unless others are asked for, in the order in which they are written. `records` and
`producers`, which go into every record and every batch sent, are made when they are asked for."""

BY_TOPIC = frozenset(name for name, one in TABLES.items() if "topic" in one.by_name) - {"findings"}
"""Tables whose rows are each of one topic. A finding names one, too, but is made of rows of the topics asked for."""
SMALL = 16 << 20
"""Bytes of input up to which all rows are held, where memory is limited: of the smallest exchanges that there are, 200
bytes each, they take some 400 MB, those of records aside."""
JOINED = "deliveries"
"""The table that is made in shares on disk where it is asked for alone."""
ORDERED = ("records",)
"""Tables whose rows are put in order on disk: compressed, a small capture may hold any number of them."""


class CaptureTables:
    """The tables of one or more captures. Every method reads them again, and one thread at a time may.

    A table has the same name, columns and values here, on the command line, in Parquet and in Spark; see
    `kdissect.tables.declaration`.
    """

    def __init__(self, captures: list[CaptureSet], settings: Settings, keylog: str | Path | None = None) -> None:
        self._captures = captures
        self._settings = settings
        self._keylog = keylog
        self.turns = ReadingTurns(captures)
        """Lets one thread read at a time."""

    @property
    def names(self) -> list[str]:
        """The name of each in the `capture` column."""
        return [capture.name for capture in self._captures]

    @property
    def size(self) -> int | None:
        """Bytes of all files as they lie there, compressed or not; None where one is a pipe or an open file."""
        paths = [member.path for one in self._captures for member in one.members if member.regular]
        if len(paths) < sum(len(one.members) for one in self._captures):
            return None
        return sum(path.stat().st_size for path in paths if path is not None)

    def path(self, capture: str, file: str) -> Path | None:
        """Where a file that tables name (`capture` and, say, `request_file`) lies; None for an open file."""
        for one in self._captures:
            for member in one.members:
                if one.name == capture and member.name == file:
                    return member.path
        return None

    @reads_capture
    def table(
        self, name: str, columns: Sequence[str] | None = None, where: str | None = None, *, reveal: bool = False,
        sort: Sequence[str] | None = None, limit: int | None = None,
    ) -> pa.Table:  # fmt: skip
        """A whole table in the contract's order.

        `columns`: names, in the order wanted, each once; a text is one name. `where`: an expression such as "api =
        'Fetch' and latency_ms > 500". `reveal`: keys, values and headers of `records` are shown; without it only their
        sizes are. `sort`: columns to order by instead, `-` before a name for the largest first, null last; `limit`: at
        most so many rows. Raises UsageError for an unknown table or column or a bad expression, CaptureError when
        nothing can be read.
        """
        columns = choose_columns(name, columns)
        if sort is None and limit is None:
            return self._tables({name: columns}, {name: where}, reveal=reveal)[name]
        from kdissect.tables.sorting import arranged, sort_keys

        sort = None if sort is None else list_names(sort)
        keys = [key.column for key in sort_keys(sort, declared(name).schema)]
        wanted = None if columns is None else [*dict.fromkeys([*columns, *keys])]
        made = arranged(self._tables({name: wanted}, {name: where}, reveal=reveal)[name], sort, limit)
        return made if columns is None else made.select(columns)

    @reads_capture
    def tables(
        self,
        names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
        where: Mapping[str, str] | None = None,
        *,
        reveal: bool = False,
    ) -> dict[str, pa.Table]:
        """Several tables in one pass (all but `records` and `producers` when None); a mapping also says their columns
        (None: all).

        `where` has filters by table. `reveal` as in `table`.
        """
        asked = choose_columns_of_each(MADE if names is None else names)
        return self._tables(asked, where or {}, reveal=reveal)

    @property
    def timings(self) -> Timings:
        """Where the time went, by layer, of everything that was read so far."""
        return self._settings.timings

    @property
    def frugal(self) -> bool:
        """Whether answers are to be made without holding all rows: memory is limited, and the input is not small."""
        return self._settings.memory is not None and (self.size is None or self.size > SMALL)

    @reads_capture
    def latencies(
        self, columns: Sequence[str], read: Mapping[str, Sequence[str]], every: float | None, where: str | None
    ) -> pa.Table:
        """Latencies by columns of `exchanges` in flat memory; `read`: table -> columns that they are made of."""
        from kdissect.engine.flowing_answers import latencies

        condition = self._condition("exchanges", where)
        tables = {name: list(names) for name, names in read.items()}
        tables["exchanges"] = _with_filter(tables["exchanges"], condition)
        settings = self._reading(tables, {"exchanges": condition}, False)
        return latencies(self._captures, settings, columns, tables, every, condition)

    @reads_capture
    def session_rows(self, read: Mapping[str, Sequence[str]]) -> tuple[SessionRows, pa.Table]:
        """The rows for figures of fetch sessions, in flat memory, and the table `share_sessions`; `read`: table ->
        columns that they are made of."""
        from kdissect.engine.flowing_answers import sessions

        return sessions(self._captures, self._reading(dict.fromkeys(read), {}, False), read)

    @property
    def left_out(self) -> list[str]:
        """The rows that did not fit into `memory` in all reads so far, a line each."""
        return list(self._settings.limited.notes)

    @property
    def overwritten(self) -> list[str]:
        """The files that another capture was written over while they were followed, so far, a line each."""
        return [line for capture in self._captures for line in capture.overwritten]

    def pandas(
        self, name: str, columns: Sequence[str] | None = None, where: str | None = None, *, reveal: bool = False,
        sort: Sequence[str] | None = None, limit: int | None = None,
    ) -> pandas.DataFrame:  # fmt: skip
        """A table as a DataFrame with Arrow-backed dtypes; arguments as in `table`."""
        import pandas

        table = self.table(name, columns, where, reveal=reveal, sort=sort, limit=limit)
        frame: pandas.DataFrame = table.to_pandas(types_mapper=pandas.ArrowDtype)
        return frame

    @reads_capture
    def batches(
        self, name: str, columns: Sequence[str] | None = None, where: str | None = None, *, reveal: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """A table in pieces, as exchanges complete: memory stays flat. Names that come later are not known yet. Where a
        filter says up to when, and the analysis takes part, rows come once everything was read, as from `parts`."""
        columns = choose_columns(name, columns)
        shown = columns_of(name, columns)
        condition = self._condition(name, where)
        made = _with_filter(shown, condition)
        settings = self._reading({name: columns}, {name: condition}, reveal)
        if not Stage({name: made}).idle:
            yield from self._analysed_batches(name, made, condition, shown)
            return
        books = Books(self._captures, {name: made}, settings)
        if condition is not None:
            from kdissect.tables.candidates import candidates

            if (found := candidates([name], {name: condition}, analysed=False)) is not None:
                books.pass_over(found)
        for rows in _together(Run(books), name):
            yield from books.builder.finished(name, rows, condition, shown).combine_chunks().to_batches()
        if TABLES[name].made.at_the_end:
            for _, piece in books.pieces_at_the_end():
                yield from books.builder.finished(name, [piece], condition, shown).to_batches()

    @reads_capture
    def ordered(
        self, name: str, columns: Sequence[str] | None = None, where: str | None = None, *, reveal: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """As `table`, in pieces: flat memory, for rows lie in temporary files until they can be put in order. Of tables
        whose rows a capture's own size bounds, these are `table`'s.

        Raises ScratchFull (a KdissectError) where there is no room for them.
        """
        columns = choose_columns(name, columns)
        if name == JOINED:
            yield from self.batches(name, columns, where)
            return
        if name not in ORDERED and not self._may_not_fit(name):
            yield from self.table(name, columns, where, reveal=reveal).to_batches()
            return
        from kdissect.engine.saving.parquet import in_order

        run, shown, found = self._run({name: columns}, {name: where}, None, reveal)
        with scratch() as folder:
            yield from in_order(run, name, shown[name], found[name], Path(folder))

    @reads_capture
    def parts(
        self, tables: Mapping[str, Sequence[str] | None], where: Mapping[str, str] | None = None
    ) -> Iterator[dict[str, pa.Table]]:
        """Several tables in pieces (name -> columns, None: all), each with what was read together, in flat memory: rows
        lie in temporary files until every name is known. Rows of other tables that belong to an exchange come with
        it or before it. `where` has filters by table.

        Raises ScratchFull (a KdissectError) where there is no room for them.
        """
        from kdissect.engine.bounds.spool import Spool

        run, shown, found = self._run(choose_columns_of_each(tables), where or {})
        with scratch() as folder, Spool(Path(folder)) as spool:
            for part in run.settled(spool):
                names = [name for name in tables if name in part]
                yield {name: run.builder.finished(name, [part[name]], found[name], shown[name]) for name in names}

    def _delivery_batches(self, condition: Filter | None, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Rows of the table JOINED, in order."""
        from kdissect.engine.extracts.delivery_shares import deliveries
        from kdissect.tables.builder import conform_to_schema as plain

        schema = schema_of(JOINED, columns)
        settings = self._reading({JOINED: columns}, {JOINED: condition}, False)
        for part in deliveries(self._captures, settings, _with_filter(columns, condition), condition):
            yield from plain(part, schema).combine_chunks().to_batches()

    def _as_many_as_fit(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first rows of the table JOINED, for which half of the memory allowed is room. Others are noted."""
        memory = self._settings.memory
        room = None if memory is None else (memory - READING) // 2
        kept = left_out = 0
        for batch in batches:
            room = None if room is None else room - batch.nbytes
            if room is None or room >= 0:
                kept += batch.num_rows
                yield batch
            else:
                left_out += batch.num_rows
        if left_out:
            allowed = memory_text(memory)
            told = f"the first {kept:,} {JOINED} fit in {allowed}; {left_out:,} more are left out"
            self._settings.limited.note(told)
            self._settings.limited.note_problem(JOINED, told)

    def _may_not_fit(self, name: str) -> bool:
        """Whether rows of a table that is made part by part may be more than the memory allowed."""
        return self.frugal and (TABLES[name].is_analysed or TABLES[name].made is By.BLOCK)

    def _analysed_batches(
        self, name: str, read_columns: list[str], condition: Filter | None, shown_columns: list[str]
    ) -> Iterator[pa.RecordBatch]:
        if name == JOINED:
            yield from self._delivery_batches(condition, shown_columns)
            return
        if not TABLES[name].progressive:
            yield from self._tables({name: shown_columns}, {}, {name: condition})[name].to_batches()
            return
        early = {} if condition is None else {name: condition}
        run = AnalysedRun(self._captures, {name: read_columns}, self._settings, where=early)
        if run.ends_early:
            from kdissect.engine.bounds.spool import Spool

            with scratch() as folder, Spool(Path(folder)) as spool:
                for part in run.settled(spool):
                    if name in part and part[name].num_rows:
                        yield from run.builder.pieces(name, [part[name]], condition, shown_columns)
            return
        for part in run.parts():
            if name in part and part[name].num_rows:
                yield from run.builder.pieces(name, [part[name]], condition, shown_columns, resolved=True)

    def stream(
        self, name: str, columns: Sequence[str] | None = None, where: str | None = None, *, reveal: bool = False
    ) -> pa.RecordBatchReader:
        """`batches` as a stream with the Arrow PyCapsule interface, which other libraries take as it is."""
        shown = columns_of(name, choose_columns(name, columns))
        schema = pa.schema([SCHEMAS[name].field(column) for column in shown])
        return pa.RecordBatchReader.from_batches(schema, self.batches(name, columns, where, reveal=reveal))

    def messages(self, api: str, direction: str) -> pa.Table:
        """Every message of one API and direction ("request" or "response"), nested as on the wire, a row each.

        The columns are those of all versions together; a field that a message's version does not have is null. Bytes
        that hold another message stand next to it as `<name>_decoded`.
        """
        batches = list(self.message_batches(api, direction))
        return pa.Table.from_batches(batches)

    @reads_capture
    def message_batches(self, api: str, direction: str) -> Iterator[pa.RecordBatch]:
        """`messages` in pieces of one schema; at least one, maybe empty."""
        kind = _message_type(api, direction)
        schema = _message_schema(kind)
        none = True
        for part in Run(Books(self._captures, {}, self._settings, kind)).rows():
            if part.messages is not None:
                none = False
                yield part.messages.cast(schema)
        if none:
            yield pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)

    @reads_capture
    def summary(self, by: str = "api") -> Summary:
        """The first screen as data; `by` groups its latencies: api, client, broker or version."""
        from kdissect.engine.extracts.overview import overview

        return overview(self._captures, self._settings, by)

    def not_input(self, target: object) -> None:
        """Raise UsageError where `target` is a path of a file that is read here, by any name."""
        files = [one.path or one.file for capture in self._captures for one in capture.members]
        distinct(target, [*files, self._keylog])

    def _tables(
        self,
        wanted_columns: Mapping[str, Sequence[str] | None],
        where: Mapping[str, str | None],
        conditions: Mapping[str, Filter | None] | None = None,
        reveal: bool = False,
    ) -> dict[str, pa.Table]:
        if self.frugal and list(wanted_columns) == ["findings"]:
            from kdissect.engine.flowing_answers import find_findings

            columns = columns_of("findings", wanted_columns["findings"])
            condition = (conditions or {}).get("findings") or read_condition(where.get("findings"), SCHEMAS["findings"])
            looked, rows = find_findings(self._captures, self._settings)
            return {"findings": looked.builder.finished("findings", [rows], condition, columns)}
        if list(wanted_columns) == [JOINED]:
            columns = columns_of(JOINED, wanted_columns[JOINED])
            condition = (conditions or {}).get(JOINED) or self._condition(JOINED, where.get(JOINED))
            rows = self._as_many_as_fit(self._delivery_batches(condition, columns))
            return {JOINED: pa.Table.from_batches(rows, schema_of(JOINED, columns))}
        run, shown, found = self._run(wanted_columns, where, conditions, reveal)
        return {
            name: run.builder.finished(name, parts, found[name], shown[name])
            for name, parts in run.all_tables().items()
        }

    def _run(
        self,
        wanted_columns: Mapping[str, Sequence[str] | None],
        where: Mapping[str, str | None],
        conditions: Mapping[str, Filter | None] | None = None,
        reveal: bool = False,
    ) -> tuple[AnalysedRun, dict[str, list[str]], Mapping[str, Filter | None]]:
        """A run for whole tables, the columns to show of each, and the filters."""
        shown = {name: columns_of(name, columns) for name, columns in wanted_columns.items()}
        found = conditions or {name: self._condition(name, where.get(name)) for name in wanted_columns}
        columns = {name: _with_filter(names, found[name]) for name, names in shown.items()}
        early = {name: condition for name, condition in found.items() if condition is not None}
        return (
            AnalysedRun(self._captures, columns, self._reading(wanted_columns, found, reveal), where=early),
            shown,
            found,
        )

    def _reading(
        self, wanted_columns: Mapping[str, Sequence[str] | None], filters: Mapping[str, Filter | None], reveal: bool
    ) -> Settings:
        """The settings, with what the columns asked for by name and the filters say of record batches. Where rows of
        topics alone are wanted, the filter does what the selection would."""
        reading = self._settings.reading.with_columns(wanted_columns, filters, reveal)
        wish = self._settings.selection
        if wish is not None and wish.topics and all(name in BY_TOPIC for name in wanted_columns):
            wish = wish.without_topics() or None
        return replace(self._settings, reading=reading, selection=wish)

    def _condition(self, name: str, where: str | None) -> Filter | None:
        """The filter of a table, with the topics that are wanted. Raises UsageError."""
        wish = self._settings.selection
        if wish is not None and wish.topics and name in BY_TOPIC:
            names = ", ".join("'{}'".format(topic.replace("'", "''")) for topic in wish.topics)
            where = f"topic in ({names})" + ("" if where is None else f" and ({where})")
        return read_condition(where, SCHEMAS[name])

    @property
    def _everything(self) -> Settings:
        """The settings without a selection, for what is there now, and for one thread, which sees every exchange."""
        return replace(self._settings, selection=None, follow=None, jobs=1)


def _together(run: Run, name: str) -> Iterator[list[pa.RecordBatch]]:
    """Rows of a table, those of a block together, so that they can be put in order; one by one where there may be too
    many of them."""
    found: list[pa.RecordBatch] = []
    block = 0
    for part in run.rows():
        if found and part.block != block:
            yield found
            found = []
        block = part.block
        rows = part.tables.get(name)
        if rows is not None and rows.num_rows:
            found.append(rows)
        if found and run.books.flowing:
            yield found
            found = []
    if found:
        yield found


def _with_filter(columns: list[str], condition: Filter | None) -> list[str]:
    """The columns to make: those shown and those that the filter reads."""
    return columns if condition is None else list(dict.fromkeys([*columns, *sorted(condition.columns)]))


def _message_type(api: str, direction: str) -> tuple[int, int]:
    from kdissect.schema import index

    if direction not in ("request", "response"):
        raise UsageError(f"direction is request or response, not {direction!r}")
    return index.load().find_api(api).key, 1 if direction == "response" else 0


def _message_schema(kind: tuple[int, int]) -> pa.Schema:
    from kdissect.kafka.exchanges.messages import schema_for
    from kdissect.kafka.exchanges.payloads import unfolded_schema

    fields = unfolded_schema(schema_for(*kind), kind)
    head = [("exchange_id", pa.string()), ("api_version", pa.int16()), ("correlation_id", pa.int32())]
    return pa.schema([*(pa.field(name, kind) for name, kind in head), *fields])
