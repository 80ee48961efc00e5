"""Rows between decoding and what is shown of them: columns by name, as integers or as they stand in an Arrow table.

A reader of a column asks for integers (`ints`, `times`), numbers (`reals`) or the codes of texts (`codes`) and does not
see how it lies. Integers, flags and microseconds are int64 with NULL where null, numbers float64 with NaN, texts
`Texts`. `table` makes an Arrow table of all columns.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays import arrow
from kdissect.arrays.arrow import NULL_TIME, Coder, Int64s
from kdissect.arrays.dictionaries import coded, join_tables
from kdissect.arrays.from_numpy import arrow_array

NULL = -(2**63)
"""Nothing, in a column of integers."""


class Texts(NamedTuple):
    """A column of texts: codes into values; -1, or the code of a None, is null. Rows that are put behind one another
    have the same list of values, which may grow."""

    codes: Int64s
    values: Sequence[str | None]


Column = Int64s | npt.NDArray[np.float64] | Texts


class Rows:
    """Rows: columns of equal length by name. Slices share memory with what they are cut from.

    Columns that lie behind one another in a matrix (`in_one`) are taken, and put behind others, all at once, as are
    those of an Arrow table (`of`)."""

    __slots__ = ("_arrow", "_matrix", "_places", "columns", "num_rows")

    def __init__(
        self, columns: Mapping[str, Column], rows: int, matrix: Int64s | None = None,
        places: Mapping[str, int] | None = None, table: pa.Table | None = None,
    ) -> None:  # fmt: skip
        self.columns = columns
        """Those that are integers, numbers or `Texts`."""
        self.num_rows = rows
        self._matrix = matrix
        self._places: Mapping[str, int] = places or {}
        """Columns that are rows of the matrix."""
        self._arrow = table
        """The other columns."""

    @classmethod
    def of(cls, data: Rows | pa.Table | pa.RecordBatch | None) -> Rows:
        """The rows of an Arrow table, whose columns stay as they are, or no rows for None. Rows are given back."""
        if isinstance(data, Rows):
            return data
        if data is None:
            return cls({}, 0)
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        return cls({}, table.num_rows, table=table)

    @classmethod
    def in_one(cls, matrix: Int64s, kinds: Mapping[str, type | Sequence[str | None]]) -> Rows:
        """The columns of `kinds` in their order, which are the rows of `matrix` [columns, rows]: of integers (int), of
        numbers (float, as their bits), or codes into these texts."""
        columns: dict[str, Column] = {}
        for row, (name, kind) in zip(matrix, kinds.items(), strict=True):
            columns[name] = row.view(np.float64) if kind is float else row if kind is int else Texts(row, kind)  # type: ignore[arg-type]
        return cls(columns, matrix.shape[1], matrix, {name: at for at, name in enumerate(kinds)})

    @property
    def matrix(self) -> Int64s:
        """The columns of `in_one`, as they were given. Raises ValueError for other rows."""
        if self._matrix is None or len(self._places) != len(self._matrix):
            raise ValueError("these rows do not lie in one matrix")
        return self._matrix

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return [*([] if self._arrow is None else self._arrow.column_names), *self.columns]

    def has(self, name: str) -> bool:
        """Whether there is a column of this name."""
        return name in self.columns or (self._arrow is not None and self._arrow.schema.get_field_index(name) >= 0)

    def ints(self, name: str, null: int = -1) -> Int64s:
        """A column of integers, flags or instants (µs), `null` where it is null or missing. Not to be written to."""
        column: Any = self.columns.get(name)
        if column is None and self._arrow is None:
            return np.full(self.num_rows, null, np.int64)
        if column is None:
            return arrow.ints(self._arrow, name, null)
        if null == NULL:
            found: Int64s = column
            return found
        missing = column == NULL
        return np.where(missing, null, column) if missing.any() else column

    def times(self, name: str) -> Int64s:
        """A column of instants in microseconds, NULL_TIME where it is null or missing. Not to be written to."""
        return self.ints(name, NULL_TIME)

    def reals(self, name: str) -> npt.NDArray[np.float64]:
        """A column of numbers, NaN where it is null or missing. Not to be written to."""
        column: Any = self.columns.get(name)
        if column is None:
            return np.full(self.num_rows, np.nan) if self._arrow is None else arrow.reals(self._arrow, name)
        if column.dtype == np.int64:
            return np.where(column == NULL, np.nan, column)
        found: npt.NDArray[np.float64] = column
        return found

    def codes(self, name: str, coder: Coder) -> Int64s:
        """A column of texts by their codes in `coder`, -1 where it is null or missing."""
        column = self.columns.get(name)
        if isinstance(column, Texts):
            found: Int64s = coder.taken_over(column.values)[column.codes]
            return found
        return np.full(self.num_rows, -1, np.int64) if self._arrow is None else coder.column(self._arrow, name)

    def array(self, name: str) -> pa.Array:
        """A column as an Arrow array, None where it is missing."""
        column = self.columns.get(name)
        if column is None:
            return None if self._arrow is None else arrow.one(self._arrow, name)
        return _as_array(column)

    def table(self) -> pa.Table:
        """The rows as an Arrow table, texts as dictionaries."""
        table = self._arrow
        if table is None:
            return pa.table({name: _as_array(column) for name, column in self.columns.items()})
        for name, column in self.columns.items():
            table = table.append_column(name, _as_array(column))
        return table

    def slice(self, begin: int, rows: int | None = None) -> Rows:
        """`rows` rows from `begin` on, all that are left by default."""
        rows = max(0, min(self.num_rows - begin, self.num_rows if rows is None else rows))
        table = None if self._arrow is None else self._arrow.slice(begin, rows)
        return self._each(slice(begin, begin + rows), rows, table)

    def take(self, at: Int64s) -> Rows:
        """The rows at these places."""
        return self._each(at, len(at), None if self._arrow is None else self._arrow.take(arrow_array(at)))

    def filter(self, mask: npt.NDArray[np.bool_]) -> Rows:
        """The rows for which this holds."""
        at = np.flatnonzero(mask)
        return self._each(at, len(at), None if self._arrow is None else self._arrow.filter(arrow_array(mask)))

    def cut(self, ends: Sequence[tuple[int, int]]) -> list[Rows]:
        """Stretches of rows, each from a place to another one."""
        return [self.slice(begin, end - begin) for begin, end in ends]

    def select(self, names: Collection[str]) -> Rows:
        """The same rows with these columns alone, as far as they are there."""
        kept = {name: column for name, column in self.columns.items() if name in names}
        places = {name: at for name, at in self._places.items() if name in kept}
        table = self._arrow
        if table is not None:
            asked = [name for name in table.column_names if name in names]
            table = table.select(asked) if asked else None
        return Rows(kept, self.num_rows, self._matrix, places, table)

    def without(self, names: Collection[str]) -> Rows:
        """The same rows without these columns."""
        return self.select([name for name in self.column_names if name not in names])

    def without_rows(self) -> Rows:
        """No rows with the same columns. A slice would keep the memory of what it is cut from."""
        none = np.zeros(0, np.int64)
        table = None if self._arrow is None else self._arrow.schema.empty_table()
        return Rows({name: _like(column, none) for name, column in self.columns.items()}, 0, table=table)

    def with_columns(self, columns: Mapping[str, Column]) -> Rows:
        """The same rows, with these columns in place of those of their names."""
        places = {name: at for name, at in self._places.items() if name not in columns}
        table = self._arrow
        if table is not None and any(name in columns for name in table.column_names):
            table = table.drop_columns([name for name in table.column_names if name in columns])
        return Rows({**self.columns, **columns}, self.num_rows, self._matrix, places, table)

    def with_arrays(self, arrays: Mapping[str, pa.Array]) -> Rows:
        """The same rows, with these Arrow columns in place of those of their names."""
        if not arrays:
            return self
        rows = self.without(arrays) if any(name in arrays for name in self.columns) else self
        table = pa.table(arrays) if rows._arrow is None else arrow.with_columns(rows._arrow, arrays)
        return Rows(rows.columns, rows.num_rows, rows._matrix, rows._places, table)

    def recoded(self, name: str, values: Sequence[str | None], lasting: Coder) -> Rows:
        """The same rows with other texts in a column of texts, one in place of each, by the codes that they have among
        `lasting`. A column that shares memory with a column of a matrix is not to be used any more."""
        column = self.columns[name]
        assert isinstance(column, Texts)
        codes = lasting.taken_over(values)
        if name not in self._places:
            return self.with_columns({name: Texts(codes[column.codes], lasting.texts)})
        codes.take(column.codes, out=column.codes, mode="wrap")
        columns = {**self.columns, name: Texts(column.codes, lasting.texts)}
        return Rows(columns, self.num_rows, self._matrix, self._places, self._arrow)

    @classmethod
    def together(cls, parts: Sequence[Rows]) -> Rows:
        """Rows behind one another, at least one part; those without rows need no columns. Arrow columns that some lack
        are null there; raises ValueError where others differ."""
        parts = [part for part in parts if part.num_rows] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        tables = [part._arrow for part in parts if part._arrow is not None]
        alike = all(part.columns.keys() == parts[0].columns.keys() for part in parts)
        if not alike or len(tables) not in (0, len(parts)):
            raise ValueError("rows that stand behind one another must have the same columns")
        made: dict[str, Column] = {}
        places = parts[0]._places
        matrix = None
        if places and all(part._places == places for part in parts):
            matrix = np.concatenate([part._matrix for part in parts if part._matrix is not None], axis=1)
        for name, first in parts[0].columns.items():
            columns: list[Any] = [part.columns[name] for part in parts]
            if isinstance(first, Texts) and any(column.values is not first.values for column in columns):
                raise ValueError(f"{name}: codes into two lists of values cannot stand in one column")
            if matrix is not None and name in places:
                made[name] = _like(first, matrix[places[name]])
            elif isinstance(first, Texts):
                made[name] = Texts(np.concatenate([column.codes for column in columns]), first.values)
            else:
                made[name] = np.concatenate(columns)
        table = join_tables(tables) if tables else None
        return cls(made, sum(part.num_rows for part in parts), matrix, None if matrix is None else places, table)

    def _each(self, at: builtins.slice | Int64s, rows: int, table: pa.Table | None) -> Rows:
        columns: dict[str, Column] = {}
        matrix = self._matrix
        if matrix is not None and self._places:
            matrix = matrix[:, at] if isinstance(at, builtins.slice) else matrix.take(at, axis=1)
        for name, column in self.columns.items():
            if matrix is not None and name in self._places:
                columns[name] = _like(column, matrix[self._places[name]])
            else:
                columns[name] = Texts(column.codes[at], column.values) if isinstance(column, Texts) else column[at]
        return Rows(columns, rows, matrix, self._places, table)


def as_rows(tables: Mapping[str, pa.Table]) -> dict[str, Rows]:
    """The rows of Arrow tables by name."""
    return {name: Rows.of(table) for name, table in tables.items()}


def as_tables(rows: Mapping[str, Rows]) -> dict[str, pa.Table]:
    """Rows by name as Arrow tables."""
    return {name: one.table() for name, one in rows.items()}


def _like(column: Column, row: Int64s) -> Column:
    """A row of a matrix as a column such as another one."""
    if isinstance(column, Texts):
        return Texts(row, column.values)
    return row.view(np.float64) if column.dtype == np.float64 else row


def _as_array(column: Column) -> pa.Array:
    """A column as an Arrow array."""
    if isinstance(column, Texts):
        return coded(column.codes, pa.array(column.values, pa.string()))
    missing = np.isnan(column) if column.dtype == np.float64 else column == NULL
    return arrow_array(column, mask=missing)
