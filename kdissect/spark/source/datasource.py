"""The data source: `spark.read.format("kdissect").option("table", "segments").load("captures/")`.

Captures are here, or in storage elsewhere that something in Python opens (`remote_captures`).

A Python data source is one stage: it cannot bring the packets of a connection together. So it gives packets and TCP
segments of any captures, a file being one partition. It gives tables of the contract only with the option
`per_capture`. Then one task reads each capture, all files of a rotated set, with the engine of one machine.

Options: `table` (packets when not given), `columns` (a,b: there is no column pruning in the API, so say it here),
`where` (rows, as in `kdissect.open(...).table`), `per_capture`, and as in `kdissect.open` `start`, `end`, `keylog`,
`verify`.

Filters are pushed down where the session asks for it (`registration.PUSHDOWN`): of packets and segments those on
`capture`, `file` and `at`, of tables those that compare a column with a value. A capture, or a file, that no row can
come from is not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kdissect.capture.clock import find_span, nanoseconds
from kdissect.capture.keys import read_key_log
from kdissect.engine.capture import Capture
from kdissect.engine.settings import Settings
from kdissect.net.scanner import BEGIN, END
from kdissect.problems import UsageError
from kdissect.spark.schemas import spark_schema
from kdissect.spark.source import packet_rows
from kdissect.spark.source.file_stream import FILES, FileStream
from kdissect.spark.source.remote_captures import is_elsewhere, open_remote, split_local, storage_of
from kdissect.spark.stages.plan import Source, open_readable, source_of
from kdissect.spark.workers import settled
from kdissect.tables.declaration import SCHEMAS, TABLES, columns_of
from kdissect.tables.host_names import read_names
from kdissect.tables.recording import Reading
from kdissect.tables.suggestion import near
from kdissect.tables.where import Filter, read_condition

NAME = "kdissect"
NAMES = ("capture", "file")
"""Columns by which captures and files are left out."""
STREAMED = "files"
"""The only table of a stream."""
OPTIONS = (
    "path",
    "paths",
    "table",
    "columns",
    "where",
    "per_capture",
    "start",
    "end",
    "hosts",
    "keylog",
    "verify",
)
"""Of a read; a stream of files has others (`Format.streamReader`)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a read, checked."""

    table: str
    columns: list[str]
    named: bool
    """Whether the columns were asked for by name: some are computed only then."""
    paths: list[str]
    settings: Settings
    where: str | None = None
    """Which rows of a table, as in `kdissect.open(...).table`."""

    @property
    def whole(self) -> bool:
        """Whether a partition is a capture with all its files."""
        return self.table not in packet_rows.TABLES

    def condition(self) -> Filter | None:
        """The condition on rows. Raises UsageError for one that the table cannot have."""
        schema = SCHEMAS[self.table] if self.whole else packet_rows.schema_of(self.table)
        return read_condition(self.where, schema)

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read, in Arrow's terms."""
        if not self.whole:
            return packet_rows.schema_of(self.table, self.columns)
        return pa.schema([SCHEMAS[self.table].field(column) for column in self.columns])


def parse_options(options: Mapping[str, str]) -> Asked:
    """The options of `spark.read.format("kdissect")`. Raises UsageError."""
    for name in options:
        if name.lower() not in OPTIONS:
            raise UsageError(f"no option {name!r}{near(name.lower(), OPTIONS)}; options: {', '.join(OPTIONS)}")
    table = options.get("table", packet_rows.PACKETS.name)
    named = options.get("columns")
    some = None if named is None else [column.strip() for column in named.split(",") if column.strip()]
    if table in packet_rows.TABLES:
        columns = packet_rows.schema_of(table, some).names
    elif table not in SCHEMAS:
        known = [*packet_rows.TABLES, *SCHEMAS]
        raise UsageError(f"no table {table!r}{near(table, known)}; tables: {', '.join(known)}")
    elif not _flag(options, "per_capture"):
        raise UsageError(
            f"table {table!r} needs the packets of a connection in one place, and a data source cannot shuffle: "
            "use kdissect.spark.dissect(spark, paths), or, where each capture is small enough for one task, "
            '.option("per_capture", True)'
        )
    else:
        columns = columns_of(table, some)
    if not columns:
        raise UsageError(f"no column of table {table!r} is named")
    key = options.get("keylog")
    settings = Settings(
        *find_span(options.get("start"), options.get("end")),
        keylog=None if key is None else read_key_log(key),
        hosts=read_names(options["hosts"].split(",") if "hosts" in options else []),
        reading=Reading(verify=_flag(options, "verify")),
    )
    asked = Asked(table, columns, some is not None, _paths(options), settings, options.get("where"))
    asked.condition()  # a wrong one is told here
    return asked


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = str(options.get(name, "false")).lower()
    if text not in ("true", "false"):
        raise UsageError(f"option {name!r} is true or false, not {text!r}")
    return text == "true"


def _seconds(options: Mapping[str, str], name: str) -> float | None:
    text = options.get(name)
    return None if text is None else float(text)


def _paths(options: Mapping[str, str]) -> list[str]:
    """The paths that `load` was given: one path, or a JSON list of them."""
    if "paths" in options:
        return [str(path) for path in json.loads(options["paths"])]
    if "path" in options:
        return [options["path"]]
    raise UsageError('no capture given: .load("captures/*.pcap")')


_SPANS: Mapping[str, Callable[[int], tuple[int, int]]] = {
    "=": lambda at: (at, min(at + 999, END)),
    ">": lambda at: (min(at + 1000, END), END),
    ">=": lambda at: (at, END),
    "<": lambda at: (BEGIN, max(at - 1, BEGIN)),
    "<=": lambda at: (BEGIN, min(at + 999, END)),
}
"""By operator, which times of packets (ns) compare so with a time in ns: they are rounded down to microseconds."""


class Part(InputPartition):
    """A partition: a file, or (`file` None) all files of a capture."""

    def __init__(self, source: Source, file: int | None) -> None:
        super().__init__((source, file))
        self.source = source
        self.file = file


class Reader(DataSourceReader):
    """Reads packets, segments, or tables capture by capture."""

    def __init__(self, wanted: Asked, storage: Mapping[str, str]) -> None:
        self.wanted = wanted
        self.storage = storage
        """Settings of storage elsewhere."""
        self.only: dict[str, set[str]] = {}
        """Values that filters let through, by column: captures and files."""
        condition = wanted.condition()
        for column, operator, values in () if condition is None else condition.limits:
            if operator in ("=", "in"):
                self._let_through(column, values)
            if column == "at" and not wanted.whole and operator in _SPANS:
                self._limit_time(operator, values[0])

    def _let_through(self, column: str, values: Iterable[str]) -> None:
        """Leave captures or files with other names unread, if the column is one of these."""
        if column in NAMES:
            self.only[column] = self.only.get(column, set(values)).intersection(values)

    def _limit_time(self, operator: str, moment: datetime) -> None:
        """Make no rows of packets that compare otherwise with this time."""
        settings = self.wanted.settings
        first, last = _SPANS[operator](nanoseconds(moment) or 0)
        after = first if settings.after is None else max(first, settings.after)
        before = last if settings.before is None else min(last, settings.before)
        self.wanted = replace(self.wanted, settings=replace(settings, after=after, before=before))

    def partitions(self) -> Sequence[Part]:
        """A partition for each file, or for each capture."""
        found = []
        for source in self._sources():
            if source.name not in self.only.get("capture", {source.name}):
                continue
            if self.wanted.whole:
                found.append(Part(source, None))
                continue
            files = self.only.get("file")
            found += [Part(source, i) for i, (name, _) in enumerate(source.files) if files is None or name in files]
        return found or [Part(Source("", [], [], True, []), None)]

    def _sources(self) -> Iterator[Source]:
        """The capture sets of the paths, here and elsewhere."""
        near, far = split_local(self.wanted.paths)
        captures, refused = ([], []) if near is None else open_readable(near, strict=False)
        for capture in captures:
            if not capture.regular:
                raise UsageError(f"{capture.name}: Spark reads files, not pipes")
            if refused:
                capture.left_out, refused = [*capture.left_out, *refused], []
            yield source_of(capture, payload=False)
        if far:
            yield from open_remote([(path, storage_of(path, self.storage)) for path in far], payload=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of a partition."""
        assert isinstance(partition, Part)
        return settled("source", rows(self.wanted, partition.source, partition.file))


class FilteringReader(Reader):
    """A reader that filters are pushed down to."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        """Keep what can be used; Spark applies the others."""
        from pyspark.sql import datasource as d

        from kdissect.spark.source.pushed_filters import SIGNS, condition, together

        conditions: list[str] = []
        left = []
        for one in filters:
            column = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else None
            if column in NAMES and isinstance(one, d.EqualTo | d.In):
                self._let_through(column, [one.value] if isinstance(one, d.EqualTo) else one.value)
                if not self.wanted.whole:
                    continue
            if self.wanted.whole:
                said = condition(one, SCHEMAS[self.wanted.table])
                if said is None:
                    left.append(one)
                else:
                    conditions.append(said)
            elif column == "at" and type(one) in SIGNS and isinstance(one.value, datetime):
                self._limit_time(SIGNS[type(one)], one.value.astimezone(UTC))
            else:
                left.append(one)
        if self.wanted.where is not None:
            conditions.append(self.wanted.where)
        self.wanted = replace(self.wanted, where=together(conditions))
        return left


class Format(DataSource):
    """`spark.read.format("kdissect")`."""

    storage: Mapping[str, str] = {}
    """Settings of storage elsewhere: processes that plan have no session."""

    @classmethod
    def with_settings(cls, storage: Mapping[str, str]) -> type[Format]:
        """The same with a session's settings of storage."""
        return type(cls.__name__, (cls,), {"storage": storage})

    @classmethod
    def name(cls) -> str:
        """The name that `format` is given."""
        return NAME

    def schema(self) -> StructType:
        """The table's columns with their meaning as comments."""
        if self.options.get("table") == STREAMED:
            return spark_schema(FILES)
        return spark_schema(parse_options(self.options).schema)

    def reader(self, schema: StructType) -> Reader:
        """Reads what the options say. `schema`, where the user gave one, may name some of the columns."""
        return Reader(_of(parse_options(self.options), schema), self.storage)

    def streamReader(self, schema: StructType) -> FileStream:  # noqa: N802
        """Files of a directory as they become complete: what `kdissect.spark.stream` is made of."""
        if self.options.get("table") != STREAMED:
            raise UsageError("a stream of tables is kdissect.spark.stream(spark, directory)")
        quiet, forget = (_seconds(self.options, name) for name in ("quiet", "forget"))
        most = self.options.get("most")
        directory = _paths(self.options)[0]
        storage = storage_of(directory, self.storage) if is_elsewhere(directory) else None
        return FileStream(
            directory, quiet, None if most is None else int(most), forget, storage, self.options.get("looks")
        )


class FilteringFormat(Format):
    """The same with filters pushed down."""

    def reader(self, schema: StructType) -> Reader:
        """Reads what the options say."""
        return FilteringReader(_of(parse_options(self.options), schema), self.storage)


def _of(query: Asked, schema: StructType) -> Asked:
    """The query with the columns that `.schema(...)` names. Raises UsageError for others."""
    if schema.names == query.columns:
        return query
    known = query.schema.names
    for name in schema.names:
        if name not in known:
            raise UsageError(f"table {query.table!r} has no column {name!r}{near(name, known)}")
    return replace(query, columns=list(schema.names), named=True)


def rows(query: Asked, source: Source, file: int | None) -> Iterator[pa.RecordBatch]:
    """Rows of a file, or with `file` None of a capture as a whole."""
    if file is not None:
        after, before = query.settings.after, query.settings.before
        condition = query.condition()
        read = query.columns if condition is None else [*dict.fromkeys([*query.columns, *sorted(condition.columns)])]
        for batch in packet_rows.read(query.table, source.name, source.member(file), read, after, before):
            yield batch if condition is None else batch.filter(condition.expression).select(query.columns)
        return
    if not source.files:
        return
    schema = pa.schema([field.remove_metadata() for field in query.schema])
    for batch in _rows_of(Capture([source.capture_alone()], query.settings), query):
        yield batch.cast(schema)


def _rows_of(capture: Capture, query: Asked) -> Iterator[pa.RecordBatch]:
    """Rows of a table of a capture: in flat memory, but for tables that are made of all rows or at the end."""
    name, columns, where = query.table, query.columns if query.named else None, query.where
    made = TABLES[name].made
    if made.needs_everything or made.at_the_end:
        yield from capture.ordered(name, columns, where)
        return
    for part in capture.parts({name: columns}, {} if where is None else {name: where}):
        if name in part:
            yield from part[name].to_batches()
