"""How much memory the rows of whole tables may take, and what is left out beyond that.

The reader's memory is bounded by its own constants (window, streams, half-open connections, decompression). Rows that
an analysis needs all at once are not: here they are counted as they come. Once they would take more than there is room
for, later ones are left out. That is reported in `problems`, where that is made in the same pass, and by commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from numbers import Real

import pyarrow as pa

from kdissect.problems import UsageError

READING = 190_000_000
"""Bytes that Python, its libraries and the layers below the tables take."""
COPIES = 5
"""How many times over rows lie in memory at the worst moment of an analysis: as they came, resolved, in order, as
arrays, and as rows of a result."""
LEAST = 256_000_000
"""The smallest budget: below, nothing would be left for rows."""
MOST = 2**63
"""What a budget stays below: Arrow counts bytes as int64."""
AT_THE_END = 0.25
"""Share of the room that is kept for tables made at the end: connections and problems."""


def memory_text(memory: int | None) -> str:
    """The memory allowed, for sentences about what did not fit."""
    return f"{(memory or 0) // 1_000_000:,} MB of memory"


class Limited:
    """The rows that analyses of a capture left out, in words for people; one line each."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.problems: dict[tuple[str, str], None] = {}
        """Rows of `problems` (`where`, `detail`) for what later passes over the same captures do not see, each once."""

    def note(self, text: str) -> None:
        """Once each."""
        if text not in self.notes:
            self.notes.append(text)

    def note_problem(self, where: str, detail: str) -> None:
        """A row of `problems`, in every table of problems that is made from now on."""
        self.problems[where, detail] = None


def checked(memory: int | None) -> int | None:
    """A budget in bytes, None for none. Raises UsageError for one that is no number, or too small."""
    if memory is not None and not (isinstance(memory, Real) and memory < MOST):
        raise UsageError(f"memory is a number of bytes, not {memory!r}")
    if memory is not None and memory < LEAST:
        raise UsageError(f"memory must be at least {LEAST // 1_000_000} MB, not {memory:,} bytes")
    return memory


class Room:
    """Room for rows within `memory` bytes (None: no end)."""

    def __init__(self, memory: int | None) -> None:
        whole = None if memory is None else (memory - READING) // COPIES
        self._left = None if whole is None else int(whole * (1 - AT_THE_END))
        self._later = 0 if whole is None else int(whole * AT_THE_END)
        self.kept: Counter[str] = Counter()
        """Rows that were taken, by table."""
        self.left_out: Counter[str] = Counter()
        """Rows that were not."""
        self._full = False

    def admit(self, tables: Mapping[str, pa.RecordBatch | pa.Table], beside: int = 0) -> bool:
        """Whether there is room for these rows of some exchanges; once there is none, there is never any again.
        `beside`: bytes of what comes with them."""
        if self._left is not None and not self._full:
            self._left -= beside + sum(size(table) for table in tables.values())
            self._full = self._left < 0
        counts = self.left_out if self._full else self.kept
        counts.update({name: table.num_rows for name, table in tables.items()})
        return not self._full

    def at_the_end(self) -> None:
        """Tables that are made at the end come from here on: what was kept for them is theirs."""
        if self._left is not None:
            self._left = max(self._left, 0) + self._later
            self._full = False

    @property
    def full(self) -> bool:
        """Whether rows were left out since the last of the beginnings."""
        return self._full


def size(table: pa.RecordBatch | pa.Table) -> int:
    """Bytes that the rows take; a dictionary that is larger than its column is others' too, and does not count."""
    total = 0
    for column in table.columns:
        if not pa.types.is_dictionary(column.type):
            total += column.nbytes
            continue
        for part in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            total += part.indices.nbytes
            if len(part.dictionary) <= 2 * len(part):
                total += part.dictionary.nbytes
    return total
