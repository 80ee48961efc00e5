"""Rows of a table handed on in the contract's order while a capture is still read.

Rows come nearly in order, and the run says before which instant none will come any more: what lies before it is final.
Where that instant stands still, for a request waits for its answer, rows go to a file and are merged at the end
(`Merge`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.engine.analysed_run import LateNames
from kdissect.engine.bounds.spool import Spool, together
from kdissect.engine.saving.sorted_parts import Merge, compact
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
        table = self._with_held(order(self.name, part))
        if table is None:
            return None
        times = _times(table)
        if times[0] < self._final:
            raise LateNames
        self._final = max(self._final, min(before, NO_TIME))
        done = int(np.searchsorted(times, self._final))
        # A copy: a slice would keep all of it in memory.
        left = together(table.slice(done).to_batches())
        self._held = None if left is None else compact(left.take(pa.array(np.arange(left.num_rows))))
        if self._held is not None and self._held.num_rows > MOST_HELD:
            self.merge.add(self._held)
            self._held, self._merging = None, True
        return table.slice(0, done) if done else None

    def _with_held(self, new: pa.Table) -> pa.Table | None:
        """Rows in order behind those that are held, as far as they are later, and else among them; None for no rows.
        What need not be moved is not."""
        if self._held is None or not new.num_rows:
            return (new if new.num_rows else None) if self._held is None else self._held
        among = int(np.searchsorted(_times(new), _times(self._held)[-1], side="right"))
        first = together([self._held, new.slice(0, among)])
        assert first is not None
        return pa.concat_tables([order(self.name, first), new.slice(among)])

    def drain(self) -> Iterator[pa.Table]:
        """All that was not handed on, in order."""
        if self._held is not None:
            yield order(self.name, self._held)
        yield from self.merge.ordered()


def _times(table: pa.Table) -> npt.NDArray[np.int64]:
    """Requests' times, microseconds, those that are unknown as NO_TIME."""
    times: npt.NDArray[np.int64] = table[TIME_KEY].cast(pa.int64()).fill_null(NO_TIME).to_numpy()
    return times
