"""Quantiles of a growing set of durations, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

EXACT_LATENCIES = 1 << 16
"""Latencies kept one by one (512 KB); beyond, a histogram with `RATIO` between bucket edges takes over."""
RATIO = 1.01
"""Bucket edges are this far apart, so a quantile from the histogram is right to half a percent."""
SMALLEST_MS = 1e-4
"""Lower edge of the histogram; shorter latencies (below the clock's resolution) count as this."""
BUCKETS = 2600
"""Enough edges at RATIO to reach half a year in milliseconds."""


class Latencies:
    """Quantiles of a growing set of durations in milliseconds: exact while small, to half a percent when large."""

    def __init__(self) -> None:
        self.count = 0
        self.largest = -1.0
        self._parts: list[npt.NDArray[np.float64]] = []
        self._histogram: npt.NDArray[np.int64] | None = None

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Add durations (float64 array, no NaN)."""
        if not len(values):
            return
        self.count += len(values)
        self.largest = max(self.largest, float(values.max()))
        self._parts.append(values)
        if self._histogram is not None or self.count > EXACT_LATENCIES:
            joined = np.maximum(np.concatenate(self._parts), SMALLEST_MS)
            bucket = np.minimum(np.log(joined / SMALLEST_MS) / np.log(RATIO), BUCKETS - 1).astype(np.int64)
            counts = np.bincount(bucket, minlength=BUCKETS)
            self._histogram = counts if self._histogram is None else self._histogram + counts
            self._parts.clear()

    def quantiles(self, shares: Iterable[float]) -> list[float | None]:
        """The durations below which the given shares (0 to 1) lie; None each when there are no durations."""
        wanted = list(shares)
        if not self.count:
            return [None] * len(wanted)
        if self._histogram is None:
            return quantiles_of(np.concatenate(self._parts), wanted)
        ranks = np.ceil(np.array(wanted) * self.count).clip(1)
        buckets = np.searchsorted(np.cumsum(self._histogram), ranks)
        middles = SMALLEST_MS * RATIO ** (buckets + 0.5)
        return [min(float(middle), self.largest) for middle in middles]


def quantiles_of(values: npt.NDArray[np.float64], shares: Sequence[float]) -> list[float | None]:
    """Quantiles of at least one value (no NaN), between neighbours in proportion: what `np.quantile` returns, which
    loads numpy's masked arrays, and takes longer than to read a small capture."""
    ordered = np.sort(values)
    place = np.array(shares) * (len(values) - 1)
    below = np.floor(place).astype(np.int64)
    above, part = np.minimum(below + 1, len(values) - 1), place - below
    low, high = ordered[below], ordered[above]
    # The nearer neighbour is what the distance is added to: rounding does not pass it.
    between = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return list(between.tolist())
