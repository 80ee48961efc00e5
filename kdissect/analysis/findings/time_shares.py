"""Whose a subject's time was in a span, as the ledger of the evidence has it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kdissect.analysis.findings import evidence as ev
from kdissect.arrays.arrow import MILLI

if TYPE_CHECKING:
    from kdissect.analysis.ledger.interval_sweep import Intervals
    from kdissect.analysis.ledger.subjects import Subjects
    from kdissect.analysis.ledger.time_ledger import Ledger


class TimeShares:
    """The ledger of the exchanges that a finder sees, made when it is first asked. It has the long exchanges of a large
    capture, so it is right for spans as long as these."""

    def __init__(self, tables: ev.Tables) -> None:
        self._tables = tables
        self._found: dict[tuple[str, str], tuple[Subjects, Intervals]] = {}

    @cached_property
    def _ledger(self) -> Ledger:
        from kdissect.analysis.ledger.time_ledger import Ledger

        return Ledger({name: ev.get(self._tables, name) for name in ("exchanges", "fetches", "connections")})

    def spent(self, kind: str, name: str, begin: int, end: int) -> dict[str, float]:
        """Milliseconds of each owner of a subject between two instants (µs)."""
        from kdissect.analysis.ledger.time_owners import LABELS

        if (kind, name) not in self._found:
            subjects = self._ledger.subjects(kind, [name])
            self._found[kind, name] = subjects, self._ledger.intervals(kind, subjects)
        _, found = self._found[kind, name]
        took = np.minimum(found.end, end) - np.maximum(found.begin, begin)
        spent: dict[str, float] = {}
        for at in np.flatnonzero(took > 0).tolist():
            owner = LABELS[int(found.label[at])].owner
            spent[owner] = spent.get(owner, 0.0) + int(took[at]) / MILLI
        return spent
