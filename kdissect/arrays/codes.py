"""Rows as numpy columns, for analyses whose caller does not look at the rows themselves.

A reader of columns with `kdissect.arrays.arrow` (`ints`, `times`, `reals`, `Coder.column`) may be given these instead
of an Arrow table, and takes the columns as they are. Integers, flags and microseconds are int64 with NULL where null,
numbers float64 with NaN, texts `Texts`.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
NULL = -(2**63)
"""Nothing, in a column of integers."""


class Texts(NamedTuple):
    """A column of texts: codes into values; -1, or the code of a None, is null. Rows that are put behind one another
    have the same list of values, which may grow."""

    codes: Int64s
    values: Sequence[str | None]


class LastingCodes(Protocol):
    """Distinct texts whose codes stay; `kdissect.arrays.arrow.Coder` is one."""

    texts: list[str]

    def taken_over(self, texts: Sequence[str | None]) -> Int64s:
        """The codes of texts, new ones for new texts, -1 for None and behind them."""


Column = Int64s | npt.NDArray[np.float64] | Texts


class Codes:
    """Rows: columns of equal length by name. Slices share memory with what they are cut from.

    Columns that lie behind one another in a matrix (`in_one`) are taken, and put behind others, all at once."""

    __slots__ = ("_matrix", "_places", "columns", "num_rows")

    def __init__(
        self, columns: Mapping[str, Column], rows: int, matrix: Int64s | None = None,
        places: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.columns = columns
        self.num_rows = rows
        self._matrix = matrix
        self._places: Mapping[str, int] = places or {}
        """Columns that are rows of the matrix."""

    @classmethod
    def in_one(cls, matrix: Int64s, kinds: Mapping[str, type | Sequence[str | None]]) -> Codes:
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
        return list(self.columns)

    def ints(self, name: str, null: int) -> Int64s:
        """A column of integers, `null` where it is null or missing. Not to be written to."""
        column: Any = self.columns.get(name)
        if column is None:
            return np.full(self.num_rows, null, np.int64)
        if null == NULL:
            found: Int64s = column
            return found
        missing = column == NULL
        return np.where(missing, null, column) if missing.any() else column

    def reals(self, name: str) -> npt.NDArray[np.float64]:
        """A column of numbers, NaN where it is null or missing. Not to be written to."""
        column: Any = self.columns.get(name)
        if column is None:
            return np.full(self.num_rows, np.nan)
        if column.dtype == np.int64:
            return np.where(column == NULL, np.nan, column)
        found: npt.NDArray[np.float64] = column
        return found

    def slice(self, begin: int, rows: int | None = None) -> Codes:
        """`rows` rows from `begin` on, all that are left by default."""
        rows = max(0, min(self.num_rows - begin, self.num_rows if rows is None else rows))
        return self._each(slice(begin, begin + rows), rows)

    def take(self, at: Int64s) -> Codes:
        """The rows at these places."""
        return self._each(at, len(at))

    def filter(self, mask: npt.NDArray[np.bool_]) -> Codes:
        """The rows for which this holds."""
        return self.take(np.flatnonzero(mask))

    def select(self, names: Sequence[str]) -> Codes:
        """The same rows with these columns alone, as far as they are there."""
        kept = {name: self.columns[name] for name in names if name in self.columns}
        return Codes(kept, self.num_rows, self._matrix, {n: at for n, at in self._places.items() if n in kept})

    def with_columns(self, columns: Mapping[str, Column]) -> Codes:
        """The same rows, with these columns in place of those of their names."""
        places = {name: at for name, at in self._places.items() if name not in columns}
        return Codes({**self.columns, **columns}, self.num_rows, self._matrix, places)

    def recoded(self, name: str, values: Sequence[str | None], lasting: LastingCodes) -> Codes:
        """The same rows with other texts in a column of texts, one in place of each, by the codes that they have among
        `lasting`. A column that shares memory with a column of a matrix is not to be used any more."""
        column = self.columns[name]
        assert isinstance(column, Texts)
        codes = lasting.taken_over(values)
        if name not in self._places:
            return self.with_columns({name: Texts(codes[column.codes], lasting.texts)})
        codes.take(column.codes, out=column.codes, mode="wrap")
        columns = {**self.columns, name: Texts(column.codes, lasting.texts)}
        return Codes(columns, self.num_rows, self._matrix, self._places)

    def behind(self, before: Codes) -> Codes:
        """These rows behind others that have the same columns."""
        return Codes.together([before, self])

    @classmethod
    def together(cls, parts: Sequence[Codes]) -> Codes:
        """Rows behind one another, at least one part; those without rows need no columns."""
        parts = [part for part in parts if part.num_rows] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        if any(part.columns.keys() != parts[0].columns.keys() for part in parts):
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
        rows = sum(part.num_rows for part in parts)
        return cls(made, rows) if matrix is None else cls(made, rows, matrix, places)

    def _each(self, at: builtins.slice | Int64s, rows: int) -> Codes:
        columns: dict[str, Column] = {}
        matrix = self._matrix
        if matrix is not None and self._places:
            matrix = matrix[:, at] if isinstance(at, builtins.slice) else matrix.take(at, axis=1)
        for name, column in self.columns.items():
            if matrix is not None and name in self._places:
                columns[name] = _like(column, matrix[self._places[name]])
            else:
                columns[name] = Texts(column.codes[at], column.values) if isinstance(column, Texts) else column[at]
        return Codes(columns, rows, matrix, self._places)


def _like(column: Column, row: Int64s) -> Column:
    """A row of a matrix as a column such as another one."""
    if isinstance(column, Texts):
        return Texts(row, column.values)
    return row.view(np.float64) if column.dtype == np.float64 else row
