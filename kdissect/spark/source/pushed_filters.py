"""Filters that Spark pushes down, as conditions of `kdissect.tables.where`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as d


def condition(pushed: Any, schema: pa.Schema) -> str | None:
    """A filter of Spark (`pyspark.sql.datasource.Filter`) on a row of a table. None where no condition says it: for
    columns inside of others, for lists, and for comparisons that are not with a number, text, time or truth value."""
    if isinstance(pushed, d.Not):
        inner = pushed.child
        return condition(d.IsNotNull(inner.attribute), schema) if isinstance(inner, d.IsNull) else None
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in schema.names:
        return None
    column, kind = f'"{attribute[0]}"', schema.field(attribute[0]).type
    if isinstance(pushed, d.IsNull):
        return f"{column} is null"
    if isinstance(pushed, d.IsNotNull):
        return f"{column} is not null"
    if isinstance(pushed, d.In):
        values = [_literal(value, kind) for value in pushed.value if value is not None]
        return None if None in values or not values else f"{column} in ({', '.join(map(str, values))})"
    compared = SIGNS.get(type(pushed))
    value = None if compared is None else _literal(pushed.value, kind)
    return None if value is None else f"{column} {compared} {value}"


def together(conditions: Sequence[str]) -> str | None:
    """One condition that holds where all of these do, None for none."""
    return " and ".join(f"({one})" for one in conditions) or None


SIGNS: Mapping[type, str] = {
    d.EqualTo: "=",
    d.GreaterThan: ">",
    d.GreaterThanOrEqual: ">=",
    d.LessThan: "<",
    d.LessThanOrEqual: "<=",
}


def _literal(value: Any, kind: pa.DataType) -> str | None:
    """A value to compare a column of this type with; None where it is of another type."""
    if pa.types.is_boolean(kind):
        return str(value).lower() if isinstance(value, bool) else None
    if pa.types.is_integer(kind):
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
    if pa.types.is_floating(kind):
        return repr(value) if isinstance(value, float) and math.isfinite(value) else None
    if pa.types.is_string(kind):
        return "'{}'".format(value.replace("'", "''")) if isinstance(value, str) else None
    if pa.types.is_timestamp(kind):
        return f"'{value.astimezone(UTC).isoformat()}'" if isinstance(value, datetime) else None
    return None
