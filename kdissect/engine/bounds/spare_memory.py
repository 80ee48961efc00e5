"""Memory that is free, back to the system: what a busy second took, the next ones would keep.

Both allocators keep freed memory for the next request, in places of many sizes, and those fill up over hours.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable

import pyarrow as pa

EVERY_S = 2.0
"""It takes some milliseconds."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of glibc's mallopt(3): up to how much free memory is kept, from what size on a block is given back by
itself, and how many areas threads have for theirs, of 64 MB of addresses each."""
LARGE = 2 << 20
"""Below that are most columns of a block: those that are taken anew from the system for each cost more than their work,
with two threads above all. Twice as much takes 10 MB more, and 27 where there are millions of connections."""

DECAY_MS = 30
"""After so long jemalloc gives back what is free, a second by itself: 26 of 599 MB less of a first screen for 1 % more
CPU; at once would be 36 MB less for 7 %."""


def frugal() -> None:
    """Give back memory that is free: block after block of rows comes and goes. Arrow's default allocator keeps up to 60
    MB more of freed memory than jemalloc, where its build has that. Glibc's, which learns to keep blocks that are freed
    often, keeps some 20 MB."""
    with contextlib.suppress(NotImplementedError):
        pa.set_memory_pool(pa.jemalloc_memory_pool())
        pa.jemalloc_set_decay_ms(DECAY_MS)
    with contextlib.suppress(AttributeError, OSError, TypeError):  # other C libraries
        adjust = ctypes.CDLL(None).mallopt
        adjust(M_MMAP_THRESHOLD, LARGE)
        adjust(M_TRIM_THRESHOLD, 4 * LARGE)
        adjust(M_ARENA_MAX, 2)


def few_collections() -> None:
    """Imported objects stay, and are not looked through for garbage; others are, but not so often."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


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
