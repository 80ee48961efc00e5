"""Where the payloads of recent segments went in the output: the host of the place kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kdissect.arrays.growing import lazy_zeros
from kdissect.net.segment import SEGMENT
from kdissect.rewriting.place_kernels import INDEX_COLUMNS, enter

Words = NDArray[np.int64]

MOST = 1_000_000
"""Segments with payload that are remembered, in 56 MB: more than the window holds."""


class Places:
    """An index of segments; see `kdissect.rewriting.place_kernels`."""

    def __init__(self) -> None:
        self.index: Words = lazy_zeros(MOST * INDEX_COLUMNS, np.int64).reshape(MOST, INDEX_COLUMNS)
        self.count = 0
        self.base = 0
        self.last: Words = np.full(1 << 10, -1, np.int64)

    def add(self, segments: Words, place: Words) -> None:
        """Add the segments of a block, whose payloads went to `place` (-1: nowhere)."""
        if not len(segments):
            return
        flows = int(segments[:, SEGMENT.flow].max()) | 1
        if flows >= len(self.last):
            self.last = np.concatenate([self.last, np.full(max(flows, len(self.last)), -1, np.int64)])
        if self.count + len(segments) > MOST:
            gone = min(max(self.count + len(segments) - MOST, MOST // 4), self.count)
            self.index[: self.count - gone] = self.index[gone : self.count].copy()
            self.count -= gone
            self.base += gone
        if self.count + len(segments) > len(self.index):  # of one block
            wider = np.empty((self.count + len(segments), INDEX_COLUMNS), np.int64)
            wider[: self.count] = self.index[: self.count]
            self.index = wider
        self.count = int(enter(segments, place, self.index, self.count, self.base, self.last))
