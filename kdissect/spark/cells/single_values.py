"""Columns that have one value in all rows of a table: taken out of it, and put back.

Many columns are like that for a whole capture: its name, a broker, errors that no one made. A value that is kept once
need not be packed and unpacked, nor made a part of every row, a million times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from kdissect.arrays.dictionaries import first_codes

_VARIED = object()


def split_single_values(table: pa.Table) -> tuple[pa.Table, dict[str, Any]]:
    """All rows without the columns that have the same value in each, and these values: of texts that have dictionaries
    (one for all chunks), numbers and flags; None where all are null. Negative zeros and what is no number stay where
    they are, so that equal values are the same. One column stays where all are like that: it has the number of rows."""
    single = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        value = _value(column)
        if value is not _VARIED:
            single[name] = value
    if len(single) == table.num_columns:
        del single[table.column_names[0]]
    return table.drop_columns(list(single)), single


def together(table: pa.Table, single: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """The table with this schema that `parted` was given; columns that neither has are left out."""
    there, columns = set(table.column_names), {}
    for field in schema:
        if field.name in there:
            columns[field.name] = table[field.name]
        elif field.name in single:
            columns[field.name] = _repeated(single[field.name], field.type, table.num_rows)
    return pa.table(columns)


def _value(column: pa.ChunkedArray) -> Any:
    """The one value of a column; _VARIED where it has several, or of a type that is not looked at."""
    if not len(column):
        return _VARIED
    if column.null_count:
        return None if column.null_count == len(column) else _VARIED
    kind = column.type
    if pa.types.is_dictionary(kind):
        known = column.chunk(0).dictionary
        code = 0 if len(known) == 1 else _number([chunk.indices for chunk in column.chunks])
        return _VARIED if code is _VARIED else known[code].as_py()
    if pa.types.is_boolean(kind):
        true = sum(chunk.true_count for chunk in column.chunks)
        return _VARIED if 0 < true < len(column) else true > 0
    return _number(column.chunks) if pa.types.is_integer(kind) or pa.types.is_floating(kind) else _VARIED


def _number(chunks: list[pa.Array]) -> Any:
    """The one value of numbers, _VARIED for several. Most columns of several differ at their ends."""
    parts = [chunk.to_numpy() for chunk in chunks if len(chunk)]
    value = parts[0][0]
    if parts[0].dtype.kind == "f":
        if np.isnan(value) or (value == 0 and np.signbit(value)):
            return _VARIED
        parts = [part.view(f"i{part.itemsize}") for part in parts]  # zeros have signs
    first = parts[0][0]
    if any(part[0] != first or part[-1] != first for part in parts):
        return _VARIED
    return value.item() if all((part == first).all() for part in parts) else _VARIED


def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    if value is None:
        return pa.nulls(rows, kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(
            first_codes(rows).cast(kind.index_type), pa.array([value], kind.value_type)
        )
    return pa.repeat(pa.scalar(value, kind), rows)
