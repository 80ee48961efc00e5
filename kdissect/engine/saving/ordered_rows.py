"""Rows of a table handed on in the contract's order while a capture is still read.

Rows come nearly in order, and the run says before which instant none will come any more: what lies before it is final.
Where that instant stands still, for a request waits for its answer, rows go to a file and are merged at the end
(`Merge`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from kdissect.engine.analysed_run import LateNames
from kdissect.engine.saving.sorted_parts import Merge, compact
from kdissect.engine.saving.spool import Spool, together
from kdissect.tables.declaration.model import BY_REQUEST, TIME_KEY
from kdissect.tables.order import order, sort_columns

MOST_HELD = 1 << 16
"""Rows that wait in memory; with all columns of exchanges some 30 MB."""
NO_TIME = 2**63 - 1


class Ordered:
    """The rows of one table. Where they are ordered by something else than their requests' times all wait for the
    end."""

    def __init__(self, name: str, spool: Spool) -> None:
        self.name = name
        self.merge = Merge(name, spool)
        self._merging = sort_columns(name) != BY_REQUEST
        self._held: pa.Table | None = None
        self._final = -(2**63)
        """Rows before this instant have been handed on."""

    def add(self, part: pa.Table, before: int) -> pa.Table | None:
        """Take rows, of which none that comes later has a request's time before `before` (microseconds): those that are
        final by now, in order. Raises LateNames for rows that belong before others that were handed on."""
        if self._merging:
            self.merge.add(part)
            return None
        table = together([one for one in (self._held, part) if one is not None])
        if table is None:
            return None
        table = order(self.name, table)
        times = table[TIME_KEY].cast(pa.int64()).fill_null(NO_TIME).to_numpy()
        if times[0] < self._final:
            raise LateNames
        self._final = max(self._final, min(before, NO_TIME))
        done = int(np.searchsorted(times, self._final))
        # A copy: a slice would keep all of it in memory.
        self._held = compact(table.take(pa.array(np.arange(done, len(times))))) if done else table
        if len(times) - done > MOST_HELD:
            self.merge.add(self._held)
            self._held, self._merging = None, True
        return table.slice(0, done) if done else None

    def rest(self) -> Iterator[pa.Table]:
        """All that was not handed on, in order."""
        if self._held is not None:
            yield order(self.name, self._held)
        yield from self.merge.ordered()
