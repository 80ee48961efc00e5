"""When a batch could be read: when the high watermark, or the last stable offset, passed it.

No message says so. An answer that shows a watermark beyond the batch came later than that; one that shows an earlier
watermark came before. The instant is known where
- the answer belongs to a fetch that was waiting at the broker, which is answered as soon as there is something to read,
- or the last answer before it, or the batch's own arrival, is so near that it does not matter (NEAR). Else it is
  unknown. There is further evidence of the high watermark: the answer to a Produce with acks=all, and the followers'
  fetches, if all followers of the partition were captured. The last follower to ask for what follows the batch moves
  the watermark.

A follower that serves a reader (KIP-392) has the batch before it may give it away: the leader tells it the high
watermark with the answer to its next fetch.
"""

from typing import NamedTuple

import numpy as np

from kdissect.analysis.deliveries.delivery_columns import UNKNOWN, Exchanges, Positions
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, distinct

NEAR = 10 * MILLI
"""Microseconds between two bounds that are called one instant: less than what anybody waits for."""
WAITED = 2 * MILLI
"""A fetch that the broker kept for so long was waiting for something to read: answering takes less."""
MOST_FOLLOWERS = 16
"""Followers of a topic that are looked at: nobody has more replicas."""
NEVER = 2**63 - 1


class Passing(NamedTuple):
    """When a watermark passed each offset that was asked for. `at`: the least instant at which it was seen to be passed
    (NEVER: it was not). `exchange`: the fetch that showed it (row of `Exchanges`). `before`: the last instant before at
    which it was not passed yet (NULL_TIME: none)."""

    at: Int64s
    exchange: Int64s
    before: Int64s
    row: Int64s
    """Row of `Positions` that showed it, UNKNOWN for none."""


class Watermarks:
    """The values of a watermark in answers, by topic and partition. `instants`: when each exchange's answer left;
    `values`: a column of `positions`, below 0 for none."""

    def __init__(self, instants: Int64s, positions: Positions, values: Int64s) -> None:
        left = instants[positions.exchange]
        rows = np.flatnonzero((values >= 0) & (left != NULL_TIME))
        rows = rows[np.lexsort([values[rows], left[rows], positions.place[rows]])]
        self._values = distinct(values[rows])
        self._wide = len(self._values) + 1
        self._place, self._left = positions.place[rows], left[rows]
        self._exchange, self._row = positions.exchange[rows], rows
        key = self._place * self._wide + np.searchsorted(self._values, values[rows])
        self._highest = np.maximum.accumulate(key)

    def passed(self, place: Int64s, need: Int64s) -> Passing:
        """When the watermark was `need` or higher."""
        if not len(self._place):
            none = np.full(len(place), UNKNOWN, np.int64)
            return Passing(np.full(len(place), NEVER, np.int64), none, np.full(len(place), NULL_TIME, np.int64), none)
        at = np.searchsorted(self._highest, place * self._wide + np.searchsorted(self._values, need), "left")
        row = np.minimum(at, len(self._place) - 1)
        there = (at < len(self._place)) & (self._place[row] == place)
        earlier = np.maximum(at - 1, 0)
        below = (at > 0) & (self._place[earlier] == place)
        return Passing(
            np.where(there, self._left[row], NEVER),
            np.where(there, self._exchange[row], UNKNOWN),
            np.where(below, self._left[earlier], NULL_TIME),
            np.where(there, self._row[row], UNKNOWN),
        )


def behind_transactions(passing: Passing, positions: Positions, last: Int64s) -> Flags:
    """Whether the answer that showed a high watermark beyond `last` showed that the last stable offset was not."""
    stable = np.append(positions.stable, UNKNOWN)[passing.row]
    found: Flags = (stable >= 0) & (stable <= last)
    return found


def known_instant(passing: Passing, since: Int64s, exchanges: Exchanges) -> Int64s:
    """The instants, not before `since`; NULL_TIME where the bounds are too far apart."""
    asked = exchanges.arrived[np.maximum(passing.exchange, 0)] if len(exchanges.first) else passing.exchange
    at_once = exchanges.min_bytes[np.maximum(passing.exchange, 0)] <= 1 if len(exchanges.first) else asked < 0
    waited = (asked != NULL_TIME) & (passing.at - np.maximum(asked, since) > WAITED) & at_once
    waited |= (asked != NULL_TIME) & (asked <= since) & at_once
    known = (passing.at != NEVER) & (waited | (passing.at - np.maximum(passing.before, since) <= NEAR))
    return np.where(known, np.maximum(passing.at, since), NULL_TIME)


def followers_told(
    exchanges: Exchanges, positions: Positions, fetch: Int64s, nodes: Int64s, place: Int64s, need: Int64s
) -> Int64s:
    """When the follower that served a consumer learned that the high watermark was `need` or higher, while the
    consumer's fetch waited there; NEVER for all other rows.

    `fetch`: the consumers' fetches, rows of `exchanges`; `nodes`: node ids of the brokers that served them, UNKNOWN
    where they are not known. A leader's node has no answers as a follower in the time between a fetch and its answer.
    """
    found = np.full(len(place), NEVER, np.int64)
    replica = exchanges.replica[positions.exchange]
    consumers = np.flatnonzero((exchanges.replica[fetch] < 0) & np.isin(nodes, replica[replica >= 0]))
    for node in distinct(nodes[consumers]).tolist():
        rows = consumers[nodes[consumers] == node]
        of_node = (replica == node) & np.isin(positions.place, place[rows])
        told = Watermarks(exchanges.last, positions, np.where(of_node, positions.high, UNKNOWN))
        at = told.passed(place[rows], need[rows]).at
        asked, left = exchanges.arrived[fetch[rows]], exchanges.left[fetch[rows]]
        waited = (asked != NULL_TIME) & (asked <= at) & (at <= left)
        found[rows[waited]] = at[waited]
    return found


def followers_passed(
    exchanges: Exchanges, positions: Positions, replicas: Int64s, place: Int64s, need: Int64s
) -> Int64s:
    """When the last follower asked for `need` or what follows; NEVER where that is not known for all followers."""
    found = np.full(len(place), NEVER, np.int64)
    arrived, replica = exchanges.arrived[positions.exchange], exchanges.replica[positions.exchange]
    rows = np.flatnonzero((replica >= 0) & (positions.asked >= 0) & (arrived != NULL_TIME))
    nodes, counts = np.unique(replica[rows], return_counts=True)
    nodes = nodes[np.argsort(-counts, kind="stable")[:MOST_FOLLOWERS]]
    last, seen = np.full(len(place), NULL_TIME, np.int64), np.zeros(len(place), np.int64)
    for node in nodes.tolist():
        mine = rows[replica[rows] == node]
        mine = mine[np.lexsort([positions.asked[mine], arrived[mine], positions.place[mine]])]
        values = distinct(positions.asked[mine])
        wide = len(values) + 1
        highest = np.maximum.accumulate(positions.place[mine] * wide + np.searchsorted(values, positions.asked[mine]))
        at = np.searchsorted(highest, place * wide + np.searchsorted(values, need), "left")
        row = mine[np.minimum(at, len(mine) - 1)]
        there = (at < len(mine)) & (positions.place[row] == place)
        seen += there
        last = np.where(there, np.maximum(last, arrived[row]), last)
    wanted = replicas[place] if len(replicas) else np.full(len(place), UNKNOWN, np.int64)
    enough = (wanted > 1) & (seen >= wanted - 1)
    found[enough] = last[enough]
    return found
