"""Quantiles of latency by columns of `exchanges`, part by part: exact while they are few, then right to half a percent,
as the first screen's are."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import key_names
from kdissect.analysis.latency import DIMENSIONS, latency
from kdissect.analysis.latency_counts import LatencyCounts
from kdissect.arrays.arrow import with_columns
from kdissect.arrays.dictionaries import join_tables
from kdissect.report.counted import OTHERS
from kdissect.summary.quantiles import EXACT_LATENCIES
from kdissect.tables.declaration import SCHEMAS

GROUPS = 3000
"""Groups with histograms of their own, the first ones; the last column of later ones is OTHERS."""
EXCHANGES = ("api", "client_id", "error_code", "request_first_at", "response_first_at", "latency_ms", "broker_ms",
             "throttle_ms", "request_bytes", "response_bytes")  # fmt: skip
"""Columns of `exchanges` that are read."""


class QuantileLines:
    """`latency` by these dimensions of more exchanges than memory holds."""

    def __init__(self, by: Sequence[str], exact: int = EXACT_LATENCIES) -> None:
        self._by = list(by)
        self._columns = [DIMENSIONS[name] for name in by]
        self._exact = exact
        self._held: list[tuple[pa.Table, pa.Table]] = []
        self._rows = 0
        self._counts: LatencyCounts | None = None
        self._known: set[tuple[object, ...]] = set()

    def add_rows(self, exchanges: pa.Table, fetches: pa.Table) -> None:
        """Rows of exchanges, and those of fetches that are about them."""
        mine = exchanges.select([*EXCHANGES, *key_names(exchanges)])
        theirs = fetches.select(["excess_ms", *key_names(fetches)])
        self._rows += mine.num_rows
        if self._counts is None and self._rows <= self._exact:
            self._held.append((mine, theirs))
            return
        if self._counts is None:
            self._counts = LatencyCounts(self._columns)
            for held in self._held:
                self._counts.feed(self._bounded(held[0]), held[1])
            self._held.clear()
        self._counts.feed(self._bounded(mine), theirs)

    def _bounded(self, exchanges: pa.Table) -> pa.Table:
        names = exchanges.select(self._columns)
        names = pa.table({name: names[name].cast(pa.string()) for name in self._columns})
        there = names.group_by(self._columns, use_threads=False).aggregate([]).to_pylist()
        there_keys = [tuple(row[name] for name in self._columns) for row in there]
        self._known.update([key for key in there_keys if key not in self._known][: max(0, GROUPS - len(self._known))])
        unknown = {key[-1] for key in there_keys if key not in self._known}
        last = self._columns[-1]
        if unknown:
            other = pc.is_in(names[last], pa.array(list(unknown), pa.string()))
            names = with_columns(names, {last: pc.if_else(other, OTHERS, names[last]).combine_chunks()})
        return with_columns(exchanges, {name: names[name] for name in self._columns})

    def table(self) -> pa.Table:
        """Columns as `latency` has them."""
        if self._counts is not None:
            return self._counts.table()
        held = self._held or [(SCHEMAS["exchanges"].empty_table(), SCHEMAS["fetches"].empty_table())]
        exchanges, fetches = (join_tables([pair[side] for pair in held]) for side in (0, 1))
        return latency(exchanges, None, self._by, None, fetches)
