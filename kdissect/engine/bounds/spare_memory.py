"""Memory that is free, back to the system: what a busy second took, the next ones would keep.

Both allocators keep what was freed for whoever asks next, in places of many sizes, and those fill up over hours.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import pyarrow as pa

EVERY_S = 2.0
"""It takes some milliseconds."""


def _trimmer() -> Callable[[int], int] | None:
    """glibc's malloc_trim (its manual page), None with other C libraries."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found


class Spare:
    """Gives memory back now and then, every `seconds`."""

    def __init__(self, seconds: float = EVERY_S) -> None:
        self._seconds = seconds
        self._trim = _trimmer()
        self._due = 0.0

    def give_back(self) -> None:
        """To be called often; does something now and then."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._seconds
        pa.default_memory_pool().release_unused()
        if self._trim is not None:
            self._trim(0)
