"""Exchanges over time, in bounded memory: how many began, and the slowest that did not wait because it was asked to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.summary.joint_codes import bucketed, joint
from kdissect.summary.model import Pace

FIRST_WIDTH = 10_000
"""Microseconds of the first buckets; they double when there are too many of them."""
BUCKETS = 4096
"""Most buckets: 64 kB, and several for each cell of a terminal's width."""


class Buckets:
    """Counts and largest durations by bucket of time. The result does not depend on the order of the rows."""

    def __init__(self) -> None:
        self.width = FIRST_WIDTH
        self._at: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._count: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._slowest: npt.NDArray[np.float64] = np.zeros(0, np.float64)

    def add(self, at: npt.NDArray[np.int64], slow_ms: npt.NDArray[np.float64]) -> None:
        """Take exchanges: when each began (us since the epoch) and its duration (ms, NaN where it does not count)."""
        self._merge(*self._summed(at, slow_ms))
        while len(self._at) > BUCKETS:
            self.width *= 2
            at, count, slowest = self._at // 2, self._count, self._slowest
            self._at, self._count, self._slowest = at[:0], count[:0], slowest[:0]
            self._merge(at, count, slowest)

    def _summed(
        self, at: npt.NDArray[np.int64], slow_ms: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Buckets with their counts and the slowest of them; one for each exchange where they are far apart."""
        first, last = (int(at.min()) // self.width, int(at.max()) // self.width) if len(at) else (0, -1)
        if first < 0 or not 0 <= last - first <= max(BUCKETS, 4 * len(at)):
            return at // self.width, np.ones(len(at), np.int64), np.nan_to_num(slow_ms)
        counts, most = np.zeros(last - first + 1, np.int64), np.zeros(last - first + 1)
        bucketed(at, slow_ms, first, self.width, counts, most)
        there = np.flatnonzero(counts)
        return there + first, counts[there], most[there]

    def _merge(self, at: npt.NDArray[np.int64], count: npt.NDArray[np.int64], slowest: npt.NDArray[np.float64]) -> None:
        if not len(at):
            return
        both = np.concatenate([self._at, at])
        place, rows = joint([both])
        keys = both[rows]
        counts, most = np.zeros(len(keys), np.int64), np.zeros(len(keys))
        np.add.at(counts, place, np.concatenate([self._count, count]))
        np.maximum.at(most, place, np.concatenate([self._slowest, slowest]))
        self._at, self._count, self._slowest = keys, counts, most

    def finish(self) -> Pace | None:
        """Every bucket from the first to the last, empty ones too where they are few; None without exchanges."""
        if not len(self._at):
            return None
        first, size = int(self._at[0]), int(self._at[-1] - self._at[0]) + 1
        step = -(-size // BUCKETS)
        place = (self._at - first) // step
        counts, most = np.zeros(int(place[-1]) + 1, np.int64), np.zeros(int(place[-1]) + 1)
        np.add.at(counts, place, self._count)
        np.maximum.at(most, place, self._slowest)
        return Pace(first * self.width, self.width * step / 1000, counts.tolist(), most.tolist())
