"""Kafka's own timestamps: milliseconds since the epoch that somebody else wrote, so anything may be in them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.tables.declaration.model import COUNT, TIME
from kdissect.tables.nest import Int64s, optional

FIRST_MS = -62_135_596_800_000
"""0001-01-01T00:00:00Z: what timestamps of most systems can hold begins here."""
LAST_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z."""
NO_TIMESTAMP = -1
"""Kafka's own "no timestamp" (RecordBatch.NO_TIMESTAMP)."""


class OddTimes:
    """Timestamps outside years 1-9999, for the `problems` table: (row of the block, column, milliseconds)."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, int]] = []


def kafka_time(
    ms: Int64s,
    present: npt.NDArray[np.bool_],
    column: str = "",
    rows: Int64s | None = None,
    odd: OddTimes | None = None,
) -> pa.Array:
    """Timestamps of milliseconds; null where not `present`, for -1, and outside years 1-9999 (these go into `odd`)."""
    present = present & (ms != NO_TIMESTAMP)
    inside = (ms >= FIRST_MS) & (ms <= LAST_MS)
    strange = present & ~inside
    if odd is not None and rows is not None and strange.any():
        places = np.flatnonzero(strange)
        odd.rows += [(int(rows[i]), column, int(ms[i])) for i in places]
    return optional(np.where(inside, ms, 0) * 1000, present & inside, COUNT).cast(TIME)
