"""Rows of a table by the values of some columns: group codes, and figures per group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.arrow import Int64s, distinct, numbers, one
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.growing import runs

Float64s = npt.NDArray[np.float64]
TABLE = 4
"""Places for each row in a table of codes."""


class Groups:
    """`code[i]` is the group of row i; `keys` has a row per group with the columns grouped by, in their order."""

    def __init__(self, code: Int64s, keys: pa.Table) -> None:
        self.code = code
        self.keys = keys

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def count(self, rows: npt.NDArray[np.bool_] | None = None) -> Int64s:
        """Rows per group, of all or of those where the flag is set."""
        picked = self.code if rows is None else self.code[rows]
        return np.bincount(picked, minlength=len(self)).astype(np.int64)

    def rows(self) -> list[Int64s]:
        """The rows of each group, in their order."""
        return np.split(np.argsort(self.code, kind="stable"), np.cumsum(self.count())[:-1]) if len(self) else []

    def sort_rows(self, rows: Int64s, at: Int64s) -> Int64s:
        """These rows in order of their group, and within it of `at`, which has a value for each row of the table."""
        found: Int64s = rows[np.lexsort((at[rows], self.code[rows]))]
        return found

    def total(self, values: npt.NDArray[np.float64] | Int64s) -> Float64s:
        """Sum of values per group; NaN counts as nothing."""
        return np.bincount(self.code, weights=np.nan_to_num(values), minlength=len(self)).astype(np.float64)

    def first(self, rows: npt.NDArray[np.bool_]) -> Int64s:
        """First row per group where the flag is set, -1 for none."""
        found = np.full(len(self), -1, np.int64)
        places = np.flatnonzero(rows)[::-1]
        found[self.code[places]] = places
        return found

    def quantiles(self, values: Float64s, shares: Sequence[float]) -> list[Float64s]:
        """Exact quantiles per group by linear interpolation, NaN for groups without values; NaN values do not count.

        One array for each share.
        """
        known = np.flatnonzero(~np.isnan(values))
        code = self.code[known]
        order = known[np.lexsort((values[known], code))]
        counts = np.bincount(code, minlength=len(self))
        firsts = np.cumsum(counts) - counts
        ordered = np.append(values[order], np.nan)
        found = []
        for share in shares:
            at = firsts + share * np.maximum(counts - 1, 0)
            low = np.where(counts > 0, np.floor(at), len(order)).astype(np.int64)
            high = np.where(counts > 0, np.ceil(at), len(order)).astype(np.int64)
            found.append(ordered[low] + (ordered[high] - ordered[low]) * (at - np.floor(at)))
        return found


def most_first(figures: Int64s | Float64s, least: int = 1) -> list[int]:
    """The groups with at least so much, those with the most first, else in their order."""
    order = np.argsort(-figures, kind="stable")
    found: list[int] = order[figures[order] >= least].tolist()
    return found


def group(table: pa.Table, by: Sequence[str]) -> Groups:
    """Groups of rows with equal values (null is a value) of text or integer columns, ordered by those."""
    n = table.num_rows
    code = np.zeros(n, np.int64)
    size = 1
    for name in by:
        local, values = _coded(table, name)
        rank = np.empty(len(values) + 1, np.int64)
        rank[pc.array_sort_indices(values).to_numpy()] = np.arange(len(values))
        rank[-1] = len(values)
        code = code * (len(values) + 1) + rank[local]
        size *= len(values) + 1
        if size > 1 << 40:
            code = np.unique(code, return_inverse=True)[1]
            size = n
    first, code = _number_codes(code, size)
    rows = arrow_array(first)
    keys = {name: _plain(table, name, rows) for name in by}
    if not by:
        return Groups(code, pa.table({"_": pa.nulls(len(first))}).select([]) if n else pa.table({}))
    return Groups(code, pa.table(keys))


def _number_codes(code: Int64s, size: int) -> tuple[Int64s, Int64s]:
    """Codes below `size` as numbers without gaps, in their order: the first row of each number, and of each row its
    number. A table of all codes is much quicker than sorting, where there are not many more codes than rows."""
    if size > TABLE * len(code):
        _, first, number = np.unique(code, return_index=True, return_inverse=True)
        return first, number.astype(np.int64)
    first_of = np.full(size, -1, np.int64)
    first_of[code[::-1]] = np.arange(len(code) - 1, -1, -1)  # of equal codes the last one stays
    there = first_of >= 0
    return first_of[there], (np.cumsum(there) - 1)[code]


def _coded(table: pa.Table, name: str) -> tuple[Int64s, pa.Array]:
    """A column as codes into its distinct values, -1 where null, and these; all null if the table does not have it."""
    column = one(table, name)
    if column is None:
        return np.full(table.num_rows, -1, np.int64), pa.array([], pa.string())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
        return numbers(column.indices, -1), column.dictionary
    distinct = column.dictionary.dictionary_encode()
    return np.append(numbers(distinct.indices, -1), -1)[numbers(column.indices, -1)], distinct.dictionary


def _plain(table: pa.Table, name: str, rows: pa.Array) -> pa.Array:
    """These rows of a column without a dictionary; all null if the table does not have it."""
    column = one(table, name)
    if column is None:
        return pa.nulls(len(rows), pa.string())
    column = column.take(rows)
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def runs_with_gaps(code: Int64s, at: Int64s, least: float) -> list[tuple[int, int]]:
    """The runs of equal codes in which some value of `at` lies at least so far behind the one before: where each begins
    and ends."""
    behind = np.flatnonzero((np.diff(at) >= least) & (np.diff(code) == 0)) + 1
    found = list(runs(code)) if len(behind) else []
    which = distinct(np.searchsorted([begin for begin, _ in found], behind, "right") - 1)
    return [found[one] for one in which.tolist()]


def overlapping_spans(begin: Int64s, end: Int64s) -> tuple[Int64s, Int64s]:
    """The spans in order of their begin, and where in this order each stretch starts that spans cover without a gap."""
    order = np.argsort(begin, kind="stable")
    reach = np.maximum.accumulate(end[order])
    return order, np.flatnonzero(np.append(True, begin[order][1:] > reach[:-1])[: len(order)])


def merge_spans(begin: Int64s, end: Int64s) -> tuple[Int64s, Int64s]:
    """Begin and end of the stretches that spans, one at least, cover without a gap, by time."""
    order, first = overlapping_spans(begin, end)
    return begin[order][first], np.maximum.reduceat(end[order], first)


def figures(values: Float64s) -> pa.Array:
    """A float column, null where NaN."""
    return arrow_array(values, pa.float64(), mask=np.isnan(values))
