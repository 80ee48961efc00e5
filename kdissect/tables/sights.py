"""Connections that two captures saw: one of their sights is kept, and has what both together measured.

`Sights` says of each exchange that more than one capture has which row stays, and what the network took between the
capture points. It is made before the tables are (`kdissect.analysis.sights.both_ends`) and applied to every block.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import NETWORK_KINDS, NULL_TIME, Completed, Connections
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import PLACES
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


class Copies(NamedTuple):
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

    def find_exchanges(self, ids: Ids, n: Int64s, orphan: Flags) -> tuple[Int64s, Int64s]:
        """Of exchanges, by their connections' ids and their numbers: those that are measured or not kept, and where
        they stand in `keys`."""
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        rows = np.flatnonzero(self.ids[place] == ids)
        keys = keys_of(place[rows].astype(np.int64), n[rows], orphan[rows])
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found = np.flatnonzero(self.keys[at] == keys) if len(self.keys) else rows[:0]
        return rows[found], at[found]

    def part(self, ids: Ids, n: Int64s, orphan: Flags) -> "Copies":
        """The copies of these exchanges and their connections alone."""
        own = np.flatnonzero(np.isin(self.ids, ids))
        at = np.unique(self.find_exchanges(ids, n, orphan)[1])
        place = np.searchsorted(own, self.keys[at] >> CONNECTION)
        rest = self.keys[at] & (np.int64(1) << CONNECTION) - 1
        measure = self.measure[at]
        kept = measure[measure != GONE]
        measure[measure != GONE] = np.arange(len(kept))
        columns = (column[kept] for column in (self.network, self.queued, self.up, self.down))
        return Copies(
            self.ids[own], self.gone[own], self.hidden[own], place << CONNECTION | rest, measure, *columns
        )  # fmt: skip


class Sights(NamedTuple):
    """Exchanges and connections that several captures saw."""

    copies: Copies
    offsets: pa.Table
    """The table `clock_offsets`."""
    ways: pa.Table
    """What `kdissect.analysis.sights.both_ends.WAYS` says, a row for each exchange that was measured."""
    others: pa.ListArray
    """By connection of `copies`, the other places that hold it (`PLACES`), and no places behind them."""

    def of(self, done: Completed, connections: Connections) -> Completed:
        """A block's exchanges without those that another sight keeps; the others have the measured times."""
        copies = self.copies
        rows, at = copies.find_exchanges(connections.id[done.conn], done.n, done.is_orphan)
        if not len(rows):
            return done
        measure = copies.measure[at]
        keep = np.ones(len(done), np.bool_)
        keep[rows[measure == GONE]] = False
        rows, measure = rows[measure != GONE], measure[measure != GONE]
        done.network[rows] = copies.network[measure]
        done.network_kind[rows] = BOTH_ENDS
        done.request_resent[rows] = np.minimum(done.request_resent[rows], copies.network[measure])
        done.queued_from[rows] = done.request_last[rows] + copies.network[measure] + copies.queued[measure]
        done.network_up = np.full(len(done), NULL_TIME, np.int64)
        if done.network_down is None:
            done.network_down = np.full(len(done), NULL_TIME, np.int64)
        done.network_up[rows], done.network_down[rows] = copies.up[measure], copies.down[measure]
        return done if keep.all() else only(done, np.flatnonzero(keep))

    def connections(self, table: Connections) -> Flags:
        """Whether each connection is kept: all are but those in `copies` without a kept exchange. Counts of exchanges
        become those of the kept ones. To be called once."""
        size, copies = len(table), self.copies
        place = np.minimum(np.searchsorted(copies.ids, table.id[:size]), len(copies.ids) - 1)
        mine = copies.ids[place] == table.id[:size]
        table.exchanges[:size] -= np.where(mine, copies.gone[place], 0).astype(table.exchanges.dtype)
        kept: Flags = ~(mine & copies.hidden[place])
        return kept

    def other_places(self, ids: Ids) -> pa.ListArray:
        """For each of these connections, the other places that hold it; an empty list for none."""
        own = self.copies.ids
        place = np.minimum(np.searchsorted(own, ids), len(own) - 1)
        return self.others.take(arrow_array(np.where(own[place] == ids, place, len(own))))


def sights_of_part(copies: Copies) -> Sights:
    """Sights of some exchanges alone; clocks and connections are known elsewhere."""
    nothing = pa.array([[]] * (len(copies.ids) + 1), PLACES)
    return Sights(copies, SCHEMAS["clock_offsets"].empty_table(), pa.table({}), nothing)


def hidden_connections(ids: Ids) -> Sights:
    """Sights without exchanges that keep none of these connections (ids ascending)."""
    nothing = np.zeros(0, np.int64)
    return sights_of_part(Copies(ids, np.zeros(len(ids), np.int64), np.ones(len(ids), np.bool_), *[nothing] * 6))
