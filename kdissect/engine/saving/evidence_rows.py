"""The rows that findings are looked for in, gathered part by part, as many as there is room for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kdissect.analysis.deliveries.first_deliveries import FirstRows
from kdissect.analysis.findings import limits, of_topics, select_evidence
from kdissect.arrays.dictionaries import join_tables
from kdissect.arrays.from_numpy import arrow_array
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.readers import FINDINGS
from kdissect.tables.order import order, sort_columns

READ = {name: frozenset(columns) for name, columns in FINDINGS.tables.items()}
FEW = 1 / 32
"""Of the room. The first rows, up to so many, are kept as they are: looking at all of them costs less than telling
which say something."""


def read_columns(name: str, table: pa.Table) -> pa.Table:
    """A table with the columns that findings read, and those that rows are ordered by."""
    wanted = READ[name].union(sort_columns(name))
    return table.select([column for column in table.schema.names if column in wanted])


class Evidence:
    """Room for about `most` rows of what findings read, and for as many connections. Once it is full, nothing is added
    but fetch sessions."""

    def __init__(self, most: int, slow: float | None = None) -> None:
        self.limits = limits(slow)
        self.most = most
        self.whole = True
        """Nothing was left out."""
        self.exchanges = 0
        """Exchanges among which evidence was looked for."""
        self.first = FirstRows()
        """Rows that deliveries are made of."""
        self._rows = 0
        self._parts: dict[str, list[pa.Table]] = {}

    @property
    def full(self) -> bool:
        """Nothing is kept any more of what is read, but fetch sessions."""
        return self._rows >= self.most

    def take(self, part: dict[str, pa.Table]) -> None:
        """Keep the rows and columns that findings read, as long as there is room.

        Tables that rows are kept of are taken out of `part`: each is let go of before the next one is copied."""
        self.first.add_rows(part)
        there = [name for name in READ if name in part and part[name].num_rows]
        names = [name for name in there if not TABLES[name].made.analysis]
        if not self.full:
            few = self._rows + sum(part[name].num_rows for name in names) <= FEW * self.most
            for name in names:
                read = read_columns(name, part.pop(name))
                table = read if few else select_evidence(name, read, self.limits)
                if not few and table.num_rows == read.num_rows:  # a copy: these lie among columns that nobody keeps
                    table = table.take(arrow_array(np.arange(table.num_rows)))
                if name == "exchanges":
                    self.exchanges += read.num_rows
                self._parts.setdefault(name, []).append(table)
                self._rows += table.num_rows
        elif names:
            self.whole = False
        for name in there:
            if TABLES[name].made.analysis:
                self._parts.setdefault(name, []).append(part[name])

    def add(self, name: str, table: pa.Table) -> None:
        """Keep what findings read of a piece of a table that is made at the end; of connections as many, too."""
        self.first.add(name, table)
        if name in READ and table.num_rows:
            parts = self._parts.setdefault(name, [])
            if name != "connections" or sum(part.num_rows for part in parts) < self.most:
                parts.append(table.select([column for column in table.schema.names if column in READ[name]]))
            else:
                self.whole = False

    def tables(self, topics: Sequence[str] = ()) -> dict[str, pa.Table]:
        """What was kept, by table, in order, and the deliveries of the first record batches; of tables that name
        topics, rows of these topics. To be called once."""
        out = {}
        for name, parts in self._parts.items():
            out[name] = join_in_order(name, parts, topics)
        out["deliveries"] = of_topics(self.first.deliveries(), topics)
        return out


def join_in_order(name: str, parts: Sequence[pa.Table], topics: Sequence[str]) -> pa.Table:
    """The parts of a table as one, in order; rows of these topics where it names any."""
    return of_topics(order(name, join_tables(parts)), topics)
