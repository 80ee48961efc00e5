"""How much of a stretch of time a client's connection was muted by a quota (KIP-219)."""

from __future__ import annotations

import numpy as np

from kdissect.analysis.deliveries.delivery_columns import Exchanges
from kdissect.arrays.arrow import NULL_TIME, Int64s


class Windows:
    """The answers that muted a connection, gathered part by part."""

    def __init__(self) -> None:
        self._parts: list[tuple[Int64s, ...]] = []

    def add_exchanges(self, exchanges: Exchanges) -> None:
        """Keep those of these exchanges."""
        rows = np.flatnonzero((exchanges.mute > 0) & (exchanges.left != NULL_TIME))
        if len(rows):
            columns = (exchanges.connection, exchanges.left, exchanges.mute)
            self._parts.append(tuple(column[rows] for column in columns))

    def muted(self) -> Muted:
        """The windows of all of them."""
        none = np.zeros(0, np.int64)
        return Muted(*(np.concatenate([none, *(part[at] for part in self._parts)]) for at in range(3)))


class Muted:
    """The windows in which brokers read no request of a connection: from a throttled answer on. By row: the connection,
    when the answer left, and for how many microseconds it mutes."""

    def __init__(self, connection: Int64s, left: Int64s, mute: Int64s) -> None:
        rows = np.lexsort([left, connection])
        self._connections, codes = np.unique(connection[rows], return_inverse=True)
        begin = left[rows]
        end = begin + mute[rows]
        # Where windows overlap the later one goes on where the earlier ends.
        same = np.zeros(len(rows), np.bool_)
        same[1:] = codes[1:] == codes[:-1]
        begin[1:] = np.where(same[1:], np.maximum(begin[1:], end[:-1]), begin[1:])
        end = np.maximum(begin, end)
        self._codes, self._begin, self._end = codes.reshape(-1).astype(np.int64), begin, end
        self._total = np.concatenate([[0], np.cumsum(end - begin)]).astype(np.int64)

    def within(self, connection: Int64s, begin: Int64s, end: Int64s) -> Int64s:
        """Microseconds of [begin, end) that lie in windows of the connection."""
        if not len(self._begin):
            return np.zeros(len(connection), np.int64)
        place = np.minimum(np.searchsorted(self._connections, connection), len(self._connections) - 1)
        known = (self._connections[place] == connection) & (begin != NULL_TIME) & (end != NULL_TIME) & (end > begin)
        found = self._until(place, end) - self._until(place, begin)
        return np.where(known, np.maximum(found, 0), 0)

    def _until(self, place: Int64s, instant: Int64s) -> Int64s:
        """Muted microseconds of all windows before an instant, those of earlier connections too."""
        values = np.unique(np.concatenate([self._begin, instant]))
        wide = len(values) + 1
        key = self._codes * wide + np.searchsorted(values, self._begin)
        at = np.searchsorted(key, place * wide + np.searchsorted(values, instant), "right")
        last = np.maximum(at - 1, 0)
        inside = (at > 0) & (self._codes[last] == place)
        over = np.where(inside, np.maximum(self._end[last] - instant, 0), 0)
        return self._total[at] - over
