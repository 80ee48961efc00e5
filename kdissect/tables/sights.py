"""Connections that two captures saw: one of their sights is kept, and has what both together measured.

`Sights` says of each exchange that more than one capture has which row stays, and what the network took between the
capture points. It is made before the tables are (`kdissect.analysis.both_ends`) and applied to every block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import NETWORK_KINDS, NULL_TIME, Completed, Connections
from kdissect.tables.selection import only

Int64s = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

BOTH_ENDS = NETWORK_KINDS.index("both_ends")
OFFSETS = (
    "first",
    "second",
    "connections",
    "exchanges",
    "offset_ms",
    "drift_ppm",
    "uncertainty_ms",
    "up_ms",
    "down_ms",
    "cluster",
)
"""Columns of `clock_offsets`."""
GONE = -1
"""Of `Sights.measure`: the row of another sight is kept."""
ORPHAN = np.int64(1) << 40
CONNECTION = 41
"""A key is the connection's place among `ids` from this bit on, ORPHAN or not, and the ordinal."""


def keys_of(places: Int64s, n: Int64s, orphan: Flags) -> Int64s:
    """Keys of exchanges by the places of their connections."""
    found: Int64s = (places << CONNECTION) | np.where(orphan, ORPHAN, 0) | (n & (ORPHAN - 1))
    return found


class Sights(NamedTuple):
    """Exchanges that several captures have, 16 bytes for each row of theirs and 32 for each that was measured."""

    ids: Ids
    """Connections that several captures have, ascending."""
    gone: Int64s
    """By connection, how many of its exchanges are not kept."""
    hidden: Flags
    """By connection, whether none of its exchanges is kept."""
    keys: Int64s
    """Exchanges that are measured or not kept, ascending (`keys_of`)."""
    measure: Int64s
    """By exchange, its row in the arrays below, or GONE."""
    network: Int64s
    """ns: what the network took between the kept sight and the broker, both ways."""
    queued: Int64s
    """ns: what the request lay behind its predecessor at the sight nearest the broker."""
    up: Int64s
    """ns: what the request took between the two sights, clocks aligned; NULL_TIME where that is not known."""
    down: Int64s
    """ns: the same of the response."""
    offsets: pa.Table
    """The table `clock_offsets`."""
    ways: pa.Table
    """What `kdissect.analysis.both_ends.WAYS` says, a row for each exchange that was measured."""
    others: pa.ListArray
    """By connection, the other places that hold it (`PLACES`), and no places behind them."""

    def of(self, done: Completed, connections: Connections) -> Completed:
        """A block's exchanges without those that are told by another sight, the others with what was measured."""
        ids = connections.id[done.conn]
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        rows = np.flatnonzero(self.ids[place] == ids)
        if not len(rows):
            return done
        keys = keys_of(place[rows].astype(np.int64), done.n[rows], done.is_orphan[rows])
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found = self.keys[at] == keys
        rows, measure = rows[found], self.measure[at[found]]
        keep = np.ones(len(done), np.bool_)
        keep[rows[measure == GONE]] = False
        rows, measure = rows[measure != GONE], measure[measure != GONE]
        done.network[rows] = self.network[measure]
        done.network_kind[rows] = BOTH_ENDS
        done.request_resent[rows] = np.minimum(done.request_resent[rows], self.network[measure])
        done.queued_from[rows] = done.request_last[rows] + self.network[measure] + self.queued[measure]
        done.network_up = np.full(len(done), NULL_TIME, np.int64)
        if done.network_down is None:
            done.network_down = np.full(len(done), NULL_TIME, np.int64)
        done.network_up[rows], done.network_down[rows] = self.up[measure], self.down[measure]
        return done if keep.all() else only(done, np.flatnonzero(keep))

    def connections(self, table: Connections) -> Flags:
        """The connections that are kept, or of which an exchange is; counts of exchanges become those of the kept. To
        be called once."""
        size = len(table)
        place = np.minimum(np.searchsorted(self.ids, table.id[:size]), len(self.ids) - 1)
        mine = self.ids[place] == table.id[:size]
        table.exchanges[:size] -= np.where(mine, self.gone[place], 0).astype(table.exchanges.dtype)
        kept: Flags = ~(mine & self.hidden[place])
        return kept

    def other_places(self, ids: Ids) -> pa.ListArray:
        """For each of these connections, the other places that hold it; an empty list for none."""
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return self.others.take(arrow_array(np.where(self.ids[place] == ids, place, len(self.ids))))
