"""When quotas muted connections: from an answer with throttle_time_ms on, the broker reads nothing of a connection. For
exchanges, the ledger, findings and deliveries alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, distinct, reals, times

EARLY = 0.1
"""Share of a window before whose end the next answer may come: the window is the broker's, its instants are ours."""
EARLY_MS = 20.0
"""At least: brokers unmute connections by a timer, and the answer that opened the window was on its way."""


class Windows(NamedTuple):
    """Throttle windows as columns of the same length, ordered by connection and time; instants in microseconds."""

    row: Int64s
    """The exchange whose answer opened the window."""
    begin: Int64s
    end: Int64s


def window_ends(begin: Int64s, length: npt.NDArray[np.float64]) -> tuple[Int64s, Int64s]:
    """The ends of windows that begin at these instants and last so many milliseconds; and the earliest instant at which
    a broker that muted the connection answers its next request. Both in microseconds.

    An earlier answer says that the broker did not mute it: before 2.0 brokers kept the answer back instead."""
    end = begin + (length * MILLI).astype(np.int64)
    return end, end - (np.maximum(EARLY * length, EARLY_MS) * MILLI).astype(np.int64)


def throttle_windows(exchanges: pa.Table, connection: Int64s) -> tuple[Windows, Int64s]:
    """The windows in which connections were muted (KIP-219), and the window before each exchange, -1 for none; [rows].

    `exchanges`: response_first_at and throttle_ms; `connection`: the code of each one's connection. A window begins
    with the answer's first byte and lasts throttle_time_ms (`find_windows`).
    """
    return find_windows(
        times(exchanges, "response_first_at"), np.nan_to_num(reals(exchanges, "throttle_ms")), connection
    )


def find_windows(answered: Int64s, length: npt.NDArray[np.float64], connection: Int64s) -> tuple[Windows, Int64s]:
    """The windows that begin with answers at these instants and last so many milliseconds, 0 for none, and the window
    before each answer, -1 for none; [rows]. There is none where a later answer of the connection says that the broker
    did not mute it (`window_ends`)."""
    window_before = np.full(len(answered), -1, np.int64)
    order = np.flatnonzero(answered != NULL_TIME)
    if not (length[order] > 0).any():
        none = np.zeros(0, np.int64)
        return Windows(none, none, none), window_before
    order = order[np.lexsort((answered[order], connection[order]))]
    begin = answered[order]
    end, least = window_ends(begin, length[order])
    follows = np.append(connection[order][1:] == connection[order][:-1], False)
    after = np.where(follows, np.append(begin[1:], 0), np.iinfo(np.int64).max)
    muted = (length[order] > 0) & (after >= least)
    end = np.minimum(end, after)
    number = np.cumsum(muted) - 1
    window_before[order[1:]] = np.where(follows[:-1] & muted[:-1], number[:-1], -1)
    return Windows(order[muted], begin[muted], end[muted]), window_before


class Answers:
    """Answers that mute their connection, and those behind them, gathered part by part: windows are found by them."""

    def __init__(self) -> None:
        self._parts: list[tuple[Int64s, Int64s, npt.NDArray[np.float64]]] = []

    def add(self, connection: Int64s, answered: Int64s, length: npt.NDArray[np.float64]) -> None:
        """Keep those of these answers: the code of their connection, when they left, and milliseconds, 0 for none."""
        rows = np.flatnonzero((answered != NULL_TIME) & np.isin(connection, connection[length > 0]))
        rows = rows[np.lexsort((answered[rows], connection[rows]))]
        behind = np.append(False, (length[rows][:-1] > 0) & (connection[rows][1:] == connection[rows][:-1]))
        rows = rows[behind | (length[rows] > 0)]
        if len(rows):
            self._parts.append((connection[rows], answered[rows], length[rows]))

    def muted(self) -> Muted:
        """The windows of all of them."""
        if not self._parts:
            none = np.zeros(0, np.int64)
            return Muted(Windows(none, none, none), none)
        connection, answered, length = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        windows, _ = find_windows(answered, length, connection)
        return Muted(windows, connection)


class Muted:
    """How much of a stretch of time connections were muted. `connection`: the code of each exchange's, as
    `find_windows` took it."""

    def __init__(self, windows: Windows, connection: Int64s) -> None:
        self._connections, codes = np.unique(connection[windows.row], return_inverse=True)
        self._codes, self._begin, self._end = codes.reshape(-1).astype(np.int64), windows.begin, windows.end
        self._total = np.concatenate([[0], np.cumsum(windows.end - windows.begin)]).astype(np.int64)

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
        values = distinct(np.concatenate([self._begin, instant]))
        wide = len(values) + 1
        key = self._codes * wide + np.searchsorted(values, self._begin)
        at = np.searchsorted(key, place * wide + np.searchsorted(values, instant), "right")
        last = np.maximum(at - 1, 0)
        inside = (at > 0) & (self._codes[last] == place)
        over = np.where(inside, np.maximum(self._end[last] - instant, 0), 0)
        return self._total[at] - over
