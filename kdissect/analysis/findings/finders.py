"""Finders: each states at its definition the rows of tables that it looks at.

A finder sees these rows and no others, in a small capture as in a large one, so a rule that forgets to state its rows
finds nothing on the first recording that it is tried on. Where there is no room for all rows, the rows that any finder
looks at are kept (`select_evidence`): findings are the same.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings.evidence import CompleteTables, Finding, Tables, get
from kdissect.analysis.findings.limits import Limits
from kdissect.arrays.arrow import Flags
from kdissect.arrays.from_numpy import arrow_array
from kdissect.tables.declaration.model import DeclarationError
from kdissect.tables.declaration.readers import FINDINGS
from kdissect.tables.order import sort_columns

RowFilter = Callable[[pa.Table, Limits], Any]
"""(a table, thresholds) -> a boolean Arrow column: the rows that a finder looks at; null counts as false. It must not
depend on rows that it drops, for it is applied to parts of a table first, and then to what they kept."""
Filters = tuple[RowFilter, ...]
"""The rows of a table for which any of these holds; every row where there are none."""
EVERY_ROW: Filters = ()
LIFETIMES = frozenset({"connections", "fetch_sessions", "share_sessions", "capture_quality", "topics"})
"""Tables whose rows are not of one instant."""


class Finder(NamedTuple):
    """A rule for findings, and what it looks at."""

    name: str
    find: Callable[[Tables, Limits], list[Finding]]
    rows: Mapping[str, Filters]
    """Table -> which of its rows the rule looks at. Other tables it cannot read."""


def finder(**rows: RowFilter | Filters) -> Callable[[Callable[[Tables, Limits], list[Finding]]], Finder]:
    """Declares a function as a finder. `rows`: table -> a row filter, several of them (any), or EVERY_ROW. Raises
    DeclarationError for a table but findings read no column of it."""

    def declare(function: Callable[[Tables, Limits], list[Finding]]) -> Finder:
        for table in rows:
            if table not in FINDINGS.tables:
                raise DeclarationError(
                    f"{function.__name__} looks at table {table!r}, but findings read no column of it"
                )
        filters = {table: one if isinstance(one, tuple) else (one,) for table, one in rows.items()}
        return Finder(function.__name__, function, filters)

    return declare


class Seen:
    """Tables as finders see them. A filter that several finders state is applied once. `finders`: those that will look:
    rows that several of them see are kept until the last one has."""

    def __init__(self, tables: Tables, limits: Limits, finders: Iterable[Finder] = ()) -> None:
        self._limits = limits
        self._waiting = Counter(
            (name, frozenset(filters)) for finder in finders for name, filters in finder.rows.items()
        )
        self._tables = {name: _read_columns(name, tables) for name in tables if name in FINDINGS.tables}
        self._flags: dict[tuple[str, RowFilter], Flags] = {}
        self._selected: dict[tuple[str, frozenset[RowFilter]], pa.Table] = {}

    def find(self, finder: Finder) -> list[Finding]:
        """The findings in the rows that a finder looks at; tables that are missing count as empty."""
        return finder.find(_View(self, finder), self._limits)

    def select(self, name: str, filters: Filters) -> pa.Table:
        """The rows of a table for which any of the filters holds, with every column that findings read."""
        table = self._tables.get(name)
        if table is None:
            return get({}, name)
        key = name, frozenset(filters)
        found = self._selected.pop(key, None)
        if found is None:
            if filters and table.num_rows:
                table = _filtered(table, (self._holds(name, table, one) for one in filters))
            found = get({name: table}, name)
        self._waiting[key] -= 1
        if self._waiting[key] > 0:
            self._selected[key] = found
        return found

    def _holds(self, name: str, table: pa.Table, row_filter: RowFilter) -> Flags:
        key = name, row_filter
        if key not in self._flags:
            self._flags[key] = _flags(table, row_filter, self._limits)
        return self._flags[key]


class _View(CompleteTables):
    """The tables of `Seen` as one finder sees them."""

    def __init__(self, seen: Seen, finder: Finder) -> None:
        self._seen, self._finder = seen, finder
        self._tables: dict[str, pa.Table] = {}

    def __getitem__(self, name: str) -> pa.Table:
        if name not in self._finder.rows:
            raise DeclarationError(f"finder {self._finder.name} does not state which rows of {name!r} it looks at")
        if name not in self._tables:
            self._tables[name] = self._seen.select(name, self._finder.rows[name])
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._finder.rows)

    def __len__(self) -> int:
        return len(self._finder.rows)


def select_evidence(finders: tuple[Finder, ...], name: str, table: pa.Table, limits: Limits) -> pa.Table:
    """The rows of a table, or of a part of one, that any of the finders looks at; none of a table that none reads."""
    stated = [one.rows[name] for one in finders if name in one.rows]
    if not table.num_rows or any(not filters for filters in stated):
        return table
    if not stated:
        return table.slice(0, 0)
    filters = dict.fromkeys(one for filters in stated for one in filters)
    return _filtered(table, (_flags(table, one, limits) for one in filters))


def _read_columns(name: str, tables: Tables) -> pa.Table:
    """A table with the columns that findings read, and those that rows are ordered by where it has them."""
    table = get(tables, name)
    return table.select([one for one in table.schema.names if one in _columns(name)])


@cache
def _columns(name: str) -> frozenset[str]:
    return frozenset((*FINDINGS.tables[name], *sort_columns(name)))


def _flags(table: pa.Table, row_filter: RowFilter, limits: Limits) -> Flags:
    holds = row_filter(table, limits)
    return np.asarray(pc.fill_null(holds, False) if holds.null_count else holds)


def _filtered(table: pa.Table, flags: Iterable[Flags]) -> pa.Table:
    """The rows for which any of some flags is set; what comes once all rows are kept is not worked out."""
    kept = np.zeros(table.num_rows, np.bool_)
    for more in flags:
        kept |= more
        if kept.all():
            return table
    return table.filter(arrow_array(kept))


__all__ = ["EVERY_ROW", "Filters", "Finder", "RowFilter", "Seen", "finder", "select_evidence"]
