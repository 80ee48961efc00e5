"""Holds and waits of exchanges, on their way from the analysis back to the rows.

Rows of `exchanges` are the widest, and the analysis reads few of them. So they stay with the task that decoded them.
The results for each (`hold` and WAITS) come to them by its key, a few bytes an exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.holds.exchange_holds import THROTTLED, TOLD_ELSEWHERE, WAITS, hold_columns, no_waits, told_holds
from kdissect.arrays.arrow import Int64s, reals, with_columns
from kdissect.arrays.growing import runs
from kdissect.arrays.mixing import mixed
from kdissect.arrays.rows import Rows
from kdissect.spark.cells.table_cells import Cell, cell, rows
from kdissect.tables.fetch_rows import ORIGIN

FOUND = "answers held"
"""Staged rows of it; in the order of their names they come before those of `exchanges`."""
TELLING = ("exchanges", "fetches", "produces")
"""Tables whose rows tell it."""
SCHEMA = pa.schema(
    [("high", pa.int64()), ("n", pa.int64()), ("hold", pa.int8()), *((name, pa.float64()) for name in WAITS)]
)
CELL_ROWS = 1 << 16
"""Rows that are passed on together, some 500 KB compressed: what waits for them takes 41 bytes each."""


class Telling:
    """Takes down what settled rows of the analysis tell, for each task that decoded them."""

    def __init__(self) -> None:
        self._kept: dict[int, list[pa.Table]] = {}

    def take(self, settled: Mapping[str, Rows]) -> Iterator[pa.RecordBatch]:
        """Settled rows by table; staged rows when there are enough."""
        for name in TELLING:
            mine = settled.get(name)
            if mine is not None and mine.num_rows and mine.has(ORIGIN):
                self._note(mine)
        for origin in [origin for origin, kept in self._kept.items() if _count(kept) >= CELL_ROWS]:
            yield self._out(origin)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Staged rows of everything that is left."""
        for origin in list(self._kept):
            yield self._out(origin)

    def _note(self, settled: Rows) -> None:
        codes, waits = told_holds(settled)
        kept = (codes >= 0) | (~np.isnan(waits[:THROTTLED])).any(axis=0) | (waits[THROTTLED] > 0)
        if settled.has("api_key"):  # of `exchanges`: those of Fetch and Produce are told by their own tables
            kept &= ~np.isin(settled.ints("api_key"), TOLD_ELSEWHERE)
        mine = np.flatnonzero(kept)
        origins = settled.ints(ORIGIN)[mine]
        mine = mine[np.argsort(origins, kind="stable")]
        origins = np.sort(origins)
        high, n = keys_of(settled)
        for begin, end in runs(origins):
            at = mine[begin:end]
            made = pa.table([high[at], n[at], codes[at], *waits[:, at]], schema=SCHEMA)
            self._kept.setdefault(int(origins[begin]), []).append(made)

    def _out(self, origin: int) -> pa.RecordBatch:
        return rows([Cell(FOUND, "", cell(pa.concat_tables(self._kept.pop(origin))), origin=origin)])


def _count(tables: list[pa.Table]) -> int:
    return sum(table.num_rows for table in tables)


class Found:
    """Holds and waits for the exchanges of one task: first all of them are added, then rows are filled."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self._told: tuple[Int64s, Int64s, npt.NDArray[np.int8], npt.NDArray[np.float64]] | None = None
        self._sorted: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._order: Int64s = np.zeros(0, np.int64)

    def add_rows(self, table: pa.Table) -> None:
        """Rows of FOUND."""
        self._parts.append(table)
        self._told = None

    def filled(self, exchanges: pa.Table) -> pa.Table:
        """Rows of `exchanges` with `hold` and WAITS."""
        if self._told is None:
            self._index()
        assert self._told is not None
        high, n, told, measured = self._told
        codes, waits = np.full(exchanges.num_rows, -1, np.int8), no_waits(reals(exchanges, "broker_ms"))
        if len(high):
            keys = keys_of(exchanges)
            numbers_of = mixed(*keys)
            place = np.minimum(np.searchsorted(self._sorted, numbers_of), len(high) - 1)
            at = self._order[place]
            same = (high[at] == keys[0]) & (n[at] == keys[1])
            others = np.flatnonzero((self._sorted[place] == numbers_of) & ~same)
            if len(others):  # two keys that mix alike: hardly ever
                at[others] = locate((keys[0][others], keys[1][others]), (high, n))
                same[others] = at[others] >= 0
            codes[same], waits[:, same] = told[at[same]], measured[:, at[same]]
        return with_columns(exchanges, hold_columns(codes, waits))

    def _index(self) -> None:
        whole = pa.concat_tables([SCHEMA.empty_table(), *self._parts])
        high, n, codes, *waits = (column.to_numpy() for column in whole.columns)
        self._told = high, n, codes, np.stack(waits)
        numbers_of = mixed(high, n)
        self._order = np.argsort(numbers_of)
        self._sorted = numbers_of[self._order]
