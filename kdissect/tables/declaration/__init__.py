"""Every table of kdissect, declared once: names, types and the meaning of each column.

`SCHEMAS[name]` is what any surface returns for a table, whole; `doc(name)` and the field metadata are what help, the
reference and notebooks print. Builders make columns to these types, readers check against them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from kdissect.problems import UsageError
from kdissect.tables.declaration.apis import (
    API_VERSIONS,
    GROUPS,
    LEADERS,
    LIST_OFFSETS,
    OFFSET_COMMITS,
    PRODUCER_IDS,
    TOPICS,
)
from kdissect.tables.declaration.conversations import CONNECTIONS, EXCHANGES
from kdissect.tables.declaration.diagnosis import (
    CAPTURE_QUALITY,
    CLOCK_OFFSETS,
    FINDINGS,
    PROBLEMS,
    TIME_BUDGET,
    TIME_LEDGER,
    TOPIC_TRAFFIC,
)
from kdissect.tables.declaration.fetching import FETCH_PARTITIONS, FETCHES
from kdissect.tables.declaration.journeys import DELIVERIES, TRACED, TRANSACTION_STEPS, TRANSACTIONS
from kdissect.tables.declaration.model import Column, Table
from kdissect.tables.declaration.producing import PRODUCE_PARTITIONS, PRODUCES
from kdissect.tables.declaration.record_data import PRODUCERS, RECORD_BATCHES, RECORDS
from kdissect.tables.declaration.sessions import FETCH_SESSIONS, SESSION_PARTITIONS, SHARE_SESSIONS
from kdissect.tables.suggestion import near

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        declared.name: declared
        for declared in (
            CONNECTIONS,
            EXCHANGES,
            FETCHES,
            FETCH_PARTITIONS,
            PRODUCES,
            PRODUCE_PARTITIONS,
            FETCH_SESSIONS,
            SESSION_PARTITIONS,
            SHARE_SESSIONS,
            RECORD_BATCHES,
            RECORDS,
            PRODUCERS,
            LIST_OFFSETS,
            PRODUCER_IDS,
            GROUPS,
            OFFSET_COMMITS,
            LEADERS,
            API_VERSIONS,
            TOPICS,
            TOPIC_TRAFFIC,
            TIME_BUDGET,
            TIME_LEDGER,
            DELIVERIES,
            TRACED,
            TRANSACTIONS,
            TRANSACTION_STEPS,
            CLOCK_OFFSETS,
            FINDINGS,
            CAPTURE_QUALITY,
            PROBLEMS,
        )
    }
)
"""Every table by name, in the order in which they are listed everywhere."""


PROPOSED = 6
"""Columns that a message names where no name is near the one asked for."""


class _Schemas(Mapping[str, pa.Schema]):
    """Made when they are asked for."""

    def __getitem__(self, name: str) -> pa.Schema:
        return TABLES[name].schema

    def __iter__(self) -> Iterator[str]:
        return iter(TABLES)

    def __len__(self) -> int:
        return len(TABLES)


SCHEMAS: Mapping[str, pa.Schema] = _Schemas()
"""The Arrow schema of each table: plain strings, times as timestamp[us, UTC], a `doc` in each field's metadata."""


def schema_of(name: str, columns: Iterable[str]) -> pa.Schema:
    """The schema of these columns of a table, with what is said of the table."""
    whole = SCHEMAS[name]
    return pa.schema([whole.field(column) for column in columns], metadata=whole.metadata)


def declared(name: str) -> Table:
    """The declaration of a table. Raises UsageError, with the nearest name, when there is none."""
    if not isinstance(name, str):
        raise UsageError(f"the name of a table is a text, not {name!r}")
    try:
        return TABLES[name]
    except KeyError:
        raise UsageError(f"no table {name!r}{near(name, TABLES)}; tables: {', '.join(TABLES)}") from None


def row_text(table: Table) -> str:
    """What a row of a table is, and whether the table is made only when somebody asks for it."""
    return f"one row per {table.row}{'; only when asked for' if table.on_request else ''}"


def doc(name: str) -> str:
    """A table as text: what a row is, then each column with its type and meaning, a line each."""
    table = declared(name)
    width = max(len(column.name) for column in table.columns)
    lines = [f"{table.name}: {row_text(table)}"]
    lines += [f"  {column.name:<{width}}  {column_type(column)}: {column.doc}" for column in table.columns]
    return "\n".join(lines)


def columns_of(name: str, columns: Sequence[str] | None = None) -> list[str]:
    """The names asked for, checked; all of the table's when None. Raises UsageError for a name that it has not, with
    the nearest one or those that a terminal shows first, and for one that is there twice."""
    table = declared(name)
    known = [column.name for column in table.columns]
    if columns is None:
        return known
    for at, column in enumerate(columns):
        if column in columns[:at]:
            raise UsageError(f"column {column!r} of table {name!r} is named twice")
        if column not in known:
            some = ", ".join((table.shown or tuple(known))[:PROPOSED])
            meant = near(column, known) or f"; it has {some} and others: kdissect tables {name}"
            raise UsageError(f"table {name!r} has no column {column!r}{meant}")
    return list(columns)


def column_type(column: Column) -> str:
    """A column's type as people read it, and whether it always has a value."""
    return f"{type_name(column.type)}{', never null' if column.never_null else ''}"


def type_name(kind: pa.DataType) -> str:
    """A type as people read it: `timestamp`, `int64`, `list of int64`."""
    if pa.types.is_timestamp(kind):
        return "timestamp (UTC)"
    if pa.types.is_list(kind):
        return f"list of {type_name(kind.value_type)}"
    if pa.types.is_struct(kind):
        return (
            "("
            + ", ".join(f"{kind.field(i).name} {type_name(kind.field(i).type)}" for i in range(kind.num_fields))
            + ")"
        )
    return str(kind)


__all__ = [
    "SCHEMAS", "TABLES", "Column", "Table", "column_type", "columns_of", "declared", "doc", "schema_of", "type_name",
]  # fmt: skip
