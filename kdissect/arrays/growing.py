"""Columns that grow with what was read, without the memory that growing usually costs."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

PRIVATE: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Memory of this process alone, as it is on Windows anyway."""


def lazy_zeros(size: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros that take memory only in the pages that are written to. An array of moderate size that numpy makes may lie
    in memory that was used before, and costs all of it."""
    kind = np.dtype(kind)
    return np.frombuffer(mmap.mmap(-1, max(size, 1) * kind.itemsize, **PRIVATE), kind, size)


def grown(column: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The column, or a larger one that begins with it, with room for `size` rows and as many zeros again."""
    if size <= len(column):
        return column
    out = lazy_zeros(2 * size, column.dtype)
    if column.view(np.uint8).any():  # of any type: numpy 1.26 has no truth of bytes
        out[: len(column)] = column
    return out


def read(column: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values of these rows, zero for those that the column does not reach to yet."""
    out = np.zeros(len(rows), column.dtype)
    held = rows < len(column)
    out[held] = column[rows[held]]
    return out


def runs(numbers: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Begin and end of each stretch of equal numbers, all of at least 0."""
    return pairwise(np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)).tolist())


def write(column: npt.NDArray[Any], rows: npt.NDArray[Any], values: Any) -> None:
    """Set distinct rows of a column, but for those that hold the value already: so zeros are not written."""
    changed = np.flatnonzero(column[rows] != values)
    if len(changed):
        column[rows[changed]] = values[changed] if isinstance(values, np.ndarray) else values
