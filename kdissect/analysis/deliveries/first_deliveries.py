"""The deliveries of a capture's first record batches, which findings and the first screen look at.

Rows of what they are made of are gathered part by part, until there are FIRST_BATCHES batches. Later deliveries are in
the table `deliveries` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.deliveries.delivery_rows import deliveries
from kdissect.arrays.arrow import ints
from kdissect.tables.declaration.model import TIME_KEY
from kdissect.tables.declaration.readers import DELIVERIES, FIRST_BATCHES
from kdissect.tables.order import order_parts, sort_columns

READ = {name: frozenset((*columns, *sort_columns(name))) for name, columns in DELIVERIES.tables.items()}
BATCHES = "record_batches"


def join_parts(parts: Mapping[str, Sequence[pa.Table]]) -> pa.Table:
    """Rows of `deliveries`, in order. `parts`: of tables of READ, those of some exchanges each; a table that is not
    there has no rows."""
    return deliveries(order_parts(parts, READ))


class FirstRows:
    """Room for the rows of about `most` record batches, and of what belongs to them."""

    def __init__(self, most: int = FIRST_BATCHES) -> None:
        self.most = most
        self.batches = 0
        """Record batches that were kept."""
        self.whole = True
        """Nothing was left out."""
        self._ended = False
        self._parts: dict[str, list[pa.Table]] = {}

    @property
    def full(self) -> bool:
        """Nothing is kept any more."""
        return self._ended or self.batches >= self.most

    def end(self) -> None:
        """Declares that nothing more is read of a capture that goes on."""
        self._ended = True
        self.whole = False

    def add_rows(self, part: Mapping[str, pa.Table]) -> None:
        """Keep rows of tables of READ, as long as there is room. Of a part with more batches than that, rows are kept
        up to the request of the last batch that has room."""
        if self.full:
            self.whole &= BATCHES not in part or not part[BATCHES].num_rows
            return
        until = self._find_end(part.get(BATCHES))
        self.whole &= until is None
        for name, columns in READ.items():
            if name in part and name != "connections" and part[name].num_rows:
                table = part[name].select([one for one in part[name].schema.names if one in columns])
                if until is not None and TIME_KEY in table.schema.names:
                    table = table.filter(pc.less_equal(table[TIME_KEY], until))
                self._parts.setdefault(name, []).append(table)
                self.batches += table.num_rows if name == BATCHES else 0

    def add(self, name: str, table: pa.Table) -> None:
        """Keep what is read of a piece of `connections`, which is made at the end; of other tables nothing."""
        if name == "connections" and table.num_rows:
            columns = [one for one in table.schema.names if one in READ[name]]
            self._parts.setdefault(name, []).append(table.select(columns))

    def deliveries(self) -> pa.Table:
        """Rows of `deliveries`, in order. The rows that they are made of are let go."""
        parts, self._parts = self._parts, {}
        return join_parts(parts)

    def _find_end(self, batches: pa.Table | None) -> int | None:
        """Microseconds of the last request whose rows are kept; None for all."""
        room = self.most - self.batches
        if batches is None or batches.num_rows <= room or TIME_KEY not in batches.schema.names:
            return None
        return int(np.partition(ints(batches, TIME_KEY), room - 1)[room - 1])
