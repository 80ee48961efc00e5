"""Brokers that stood still: they answered no client though requests were due."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, Flags, Int64s

STALL_MS = 1000
"""A broker that answered nobody for so long, with requests due, stood still."""
TOGETHER_MS = 200
"""What was due while a broker stood still is answered within so long of the first answer."""
LEAST_STALLED = 2
"""Connections that must have been due."""


def stalls(
    exchanges: pa.Table, arrived_at: Int64s, done: Int64s, wait: Int64s, counted: Flags
) -> tuple[Int64s, list[tuple[int, int, int]]]:
    """Brokers of the exchanges as codes; code, begin and end (µs) of each time in which a broker answered no client
    though requests were due.

    `arrived_at`, `done`: when each request reached its broker and left it; `wait`: what it had agreed to (µs).
    """
    found = []
    brokers = group(exchanges, ["broker"])
    connection = keys_of(exchanges)[0] if exchanges.num_rows else np.zeros(0, np.int64)
    for code in range(len(brokers)):
        mine = np.flatnonzero((brokers.code == code) & counted)
        answers = np.sort(done[mine])
        for i in np.flatnonzero(np.diff(answers) >= STALL_MS * MILLI).tolist():
            low, high = int(answers[i]), int(answers[i + 1])
            together = (done[mine] >= high) & (done[mine] <= high + TOGETHER_MS * MILLI)
            due = mine[together & (arrived_at[mine] + wait[mine] < high - STALL_MS * MILLI)]
            if len(np.unique(connection[due])) >= LEAST_STALLED:
                found.append((code, max(low, int(arrived_at[due].min())), high))
    return brokers.code, found
