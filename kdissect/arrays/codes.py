"""Rows as numpy columns: what analyses work on where nobody looks at the rows themselves.

Whoever reads columns with `kdissect.arrays.arrow` (`ints`, `times`, `reals`, `Coder.column`) may be given these instead
of an Arrow table, and takes the columns as they are. Integers, flags and microseconds are int64 with NULL where null,
numbers float64 with NaN, texts `Texts`.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
NULL = -(2**63)
"""Nothing, in a column of integers."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of texts: codes into values; -1, or the code of a None, is null. Rows that are put behind one another
    have the same list of values, which may grow."""

    codes: Int64s
    values: Sequence[str | None]


Column = Int64s | npt.NDArray[np.float64] | Texts


class Codes:
    """Rows: columns of equal length by name. Slices share memory with what they are cut from."""

    __slots__ = ("columns", "num_rows")

    def __init__(self, columns: Mapping[str, Column], rows: int) -> None:
        self.columns = columns
        self.num_rows = rows

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

    def filter(self, kept: npt.NDArray[np.bool_]) -> Codes:
        """The rows for which this holds."""
        return self.take(np.flatnonzero(kept))

    def select(self, names: Sequence[str]) -> Codes:
        """The same rows with these columns alone, as far as they are there."""
        return Codes({name: self.columns[name] for name in names if name in self.columns}, self.num_rows)

    def with_columns(self, columns: Mapping[str, Column]) -> Codes:
        """The same rows, with these columns in place of those of their names."""
        return Codes({**self.columns, **columns}, self.num_rows)

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
        for name, first in parts[0].columns.items():
            columns: list[Any] = [part.columns[name] for part in parts]
            if isinstance(first, Texts):
                if any(column.values is not first.values for column in columns):
                    raise ValueError(f"{name}: codes into two lists of values cannot stand in one column")
                made[name] = Texts(np.concatenate([column.codes for column in columns]), first.values)
            else:
                made[name] = np.concatenate(columns)
        return cls(made, sum(part.num_rows for part in parts))

    def _each(self, at: builtins.slice | Int64s, rows: int) -> Codes:
        return Codes(
            {
                name: Texts(column.codes[at], column.values) if isinstance(column, Texts) else column[at]
                for name, column in self.columns.items()
            },
            rows,
        )
