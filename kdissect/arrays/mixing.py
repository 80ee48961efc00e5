"""Rows as single numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def mixed(*columns: npt.NDArray[np.int64], seed: int = 0) -> npt.NDArray[np.uint64]:
    """A number of 64 bits for each row, the same for the same values: splitmix64's step a column. In it every bit of
    the input reaches every bit of the result."""
    found = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        found = found + np.uint64(0x9E3779B97F4A7C15) + column.astype(np.int64, copy=False).view(np.uint64)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found = found ^ (found >> np.uint64(31))
    return found
