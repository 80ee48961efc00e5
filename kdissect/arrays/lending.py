"""Arrays in memory that is used again once no caller holds any of it: fresh memory costs more than to write to it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LINE = 64
"""Arrays begin where a cache line does."""
SPARE = 2
"""Pieces of memory that are kept for later use: one to work with while another one is still looked at."""


class Lender:
    """Lends memory for several arrays at a time; each may be kept for as long as it is wanted."""

    def __init__(self) -> None:
        self._free: list[npt.NDArray[np.uint8]] = []

    def arrays(self, shapes: Sequence[tuple[tuple[int, ...], npt.DTypeLike]]) -> list[npt.NDArray[Any]]:
        """An array of each shape and type, not initialised, in one piece of memory."""
        sizes = [math.prod(shape) * np.dtype(kind).itemsize for shape, kind in shapes]
        starts, total = [], 0
        for size in sizes:
            starts.append(total)
            total += -(-size // LINE) * LINE
        memory = self._free.pop() if self._free else np.empty(0, np.uint8)
        if len(memory) < total:
            memory = np.empty(total + total // 8, np.uint8)
        lent = np.frombuffer(memoryview(memory), np.uint8)  # what all arrays refer to: it goes with the last of them
        weakref.finalize(lent, self._back, memory).atexit = False
        return [
            lent[start : start + size].view(kind).reshape(shape)
            for start, size, (shape, kind) in zip(starts, sizes, shapes, strict=True)
        ]

    def _back(self, memory: npt.NDArray[np.uint8]) -> None:
        if len(self._free) < SPARE:
            self._free.append(memory)
