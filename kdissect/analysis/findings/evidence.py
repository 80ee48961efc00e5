"""What a finding is, and how its evidence is counted: by the very filter that shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from kdissect.arrays.arrow import Int64s
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import TIME_KEY
from kdissect.tables.order import order
from kdissect.tables.where import parse

Tables = Mapping[str, pa.Table]
"""Tables by name; those that are not there count as empty."""

HIGH, MEDIUM, LOW, INFO = SEVERITIES = ("high", "medium", "low", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of `findings`."""

    id: str
    severity: str
    text: str
    table: str
    filter: str
    count: int
    first_exchange_id: str | None


NULLS = 4096
"""Nulls that stand in memory for all of a column."""

Finder = Callable[[Tables], list[Finding]]


def get(tables: Tables, name: str) -> pa.Table:
    """A table with every column that its declaration has, absent ones null."""
    schema = SCHEMAS[name]
    table = tables.get(name)
    if table is None:
        return schema.empty_table()
    for field in schema:
        if table.schema.get_field_index(field.name) < 0:
            table = table.append_column(field.name, _nulls(table.num_rows, field.type))
    return table


def _nulls(count: int, kind: pa.DataType) -> pa.ChunkedArray:
    """So many nulls, of which few take memory."""
    some = pa.nulls(min(count, NULLS), kind)
    return pa.chunked_array([some] * (count // NULLS) + [some.slice(0, count % NULLS)], kind)


def literal(value: object) -> str:
    """A value as `--where` writes it."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)


def equals(column: str, value: object) -> str:
    """`column = value`, or `column is null`."""
    return f"{column} is null" if value is None else f"{column} = {literal(value)}"


def both(*conditions: str) -> str:
    """All of the conditions."""
    return " and ".join(conditions)


def finding(tables: Tables, kind: str, severity: str, text: str, table: str, condition: str) -> list[Finding]:
    """A finding with its evidence counted, in a list; none when the filter selects no row."""
    whole = get(tables, table)
    found = parse(condition, SCHEMAS[table])
    columns = {name: whole[name].cast(SCHEMAS[table].field(name).type) for name in found.columns}
    times = [name for name in (TIME_KEY, "request_first_at", "requested_at") if name in whole.column_names]
    extra = [name for name in ("exchange_id", *times) if name in whole.column_names]
    for name in extra:
        columns[name] = whole[name].cast(pa.int64() if name == TIME_KEY else SCHEMAS[table].field(name).type)
    rows = pa.table(columns).filter(found.expression)
    if not rows.num_rows:
        return []
    first = None
    if "exchange_id" in extra:
        if times:
            rows = rows.sort_by([(times[0], "ascending"), ("exchange_id", "ascending")])
        first = rows["exchange_id"][0].as_py()
    return [Finding(kind, severity, text, table, condition, rows.num_rows, first)]


def error_names(exchanges: pa.Table, rows: Int64s) -> list[str]:
    """Names of the errors of these rows."""
    return sorted({str(name) for name in exchanges["error"].take(pa.array(rows)).to_pylist() if name})


def who(client: object) -> str:
    """A client as sentences name it."""
    return "a client without an id" if client is None else f"client {client}"


def many(count: int, one: str, more: str | None = None) -> str:
    """`1 session`, `1,234 sessions`."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def duration(ms: float) -> str:
    """A time as people say it."""
    if ms < 10:
        return f"{ms:.1f} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.1f} min"


__all__ = ["Finder", "Finding", "Tables", "order"]
