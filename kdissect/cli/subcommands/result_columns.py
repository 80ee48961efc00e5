"""Columns of DuckDB's results in the types that all formats can write."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.problems import UsageError

DURATION = pa.duration("us")
INTERVAL = np.dtype([("months", np.int32), ("days", np.int32), ("nanoseconds", np.int64)])
"""Arrow's layout of an interval (its format page, "MonthDayNano")."""
DAY_US = 86_400_000_000
MONTH_DAYS = 30
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""Days since 1970 of 0001-01-01 and 9999-12-31."""


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with plain types: intervals are durations, times are in microseconds, dictionaries are their values.
    Columns have different names, as `distinct_names` makes them. Raises UsageError for intervals in lists and structs,
    which no file format here has."""
    names = distinct_names(schema.names)
    return pa.schema(
        [pa.field(name, _plain_type(field), field.nullable) for name, field in zip(names, schema, strict=True)]
    )


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names, each once: a name that an earlier column has gets a number that makes it new, as `a_1`. A join of two
    tables has such names, and rows of JSON and Arrow find a column by its name."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        distinct.append(
            name if name not in distinct else next(one for one in numbered if one not in names and one not in distinct)
        )
    return distinct


def plain_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a batch in the types that `plain_schema` gave. A time between two microseconds is the earlier
    one; times and dates outside of the years 1 to 9999, infinity among them, are null, as in the tables."""
    columns = [_plain_column(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def durations(intervals: pa.Array) -> pa.Array:
    """Intervals of months, days and nanoseconds as durations in microseconds: a day has 24 hours and a month 30 days,
    as where DuckDB compares intervals."""
    values = np.frombuffer(intervals.buffers()[1], INTERVAL)[intervals.offset : intervals.offset + len(intervals)]
    days = values["months"].astype(np.int64) * MONTH_DAYS + values["days"]
    microseconds = days * DAY_US + values["nanoseconds"] // 1000
    return pa.array(microseconds, DURATION, mask=intervals.is_null().to_numpy(zero_copy_only=False))


def _plain_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_interval(column.type):
        return durations(column)
    plain = column if column.type == kind else column.cast(kind, safe=False)
    if pa.types.is_timestamp(kind):
        return _between(plain, pa.int64(), FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1)
    if pa.types.is_date(kind):
        return _between(plain, pa.int32(), FIRST_DAY, LAST_DAY)
    return plain


def _between(column: pa.Array, number: pa.DataType, least: int, most: int) -> pa.Array:
    """The column, null where the number that stands for the value lies outside of these."""
    numbers = column.cast(number)
    inside = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
    return pc.if_else(inside, column, pa.scalar(None, column.type))


def _plain_type(field: pa.Field) -> pa.DataType:
    kind = field.type
    if pa.types.is_interval(kind):
        return DURATION
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_nested(kind) and _holds_intervals(kind):
        raise UsageError(
            f"SQL: column {field.name!r} has intervals inside of a list or struct; epoch_ms(...) gives numbers"
        )
    return kind


def _holds_intervals(kind: pa.DataType) -> bool:
    """Whether a nested type has intervals in it."""
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return any(pa.types.is_interval(one) or (pa.types.is_nested(one) and _holds_intervals(one)) for one in inner)
