"""When client processes stood still: they sent neither Fetch, Produce nor heartbeats, which have their own thread."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.analysis.ledger.exchange_spans import TimedExchanges
from kdissect.arrays.arrow import MILLI, Int64s
from kdissect.schema.apikeys import ApiKey

SILENT_MS = 1000
"""Silence of a process that is felt."""
SILENT_TIMES = 3
"""Times as long as usual that a process must be silent for."""
REGULAR = 5
"""Requests of a lane that tell how often it comes."""
HEARTBEATS = (ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT)
"""Heartbeat, ConsumerGroupHeartbeat, ShareGroupHeartbeat."""


def silent_spans(rows: TimedExchanges, process: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Process, begin and end (µs) of times in which a process was silent, from its last answer to its next request. Its
    data lane and its heartbeats were silent then for SILENT_TIMES as long as they usually are.

    `process`: the code of each exchange's process, -1 for none; [rows].
    """
    mine = np.flatnonzero(rows.known & (process >= 0))
    regular = mine[~rows.background[mine] | np.isin(rows.key[mine], HEARTBEATS)]
    lanes = 2 * process[regular] + rows.background[regular]
    order = np.lexsort((rows.asked[regular], lanes))
    usual = _usual(lanes[order], rows.asked[regular][order], 2 * int(process.max(initial=-1)) + 2)
    longest = usual.reshape(-1, 2).max(axis=1, initial=0)
    mine = mine[np.lexsort((rows.asked[mine], process[mine]))]
    if len(mine) < 2:
        none = np.zeros(0, np.int64)
        return none, none, none
    since = int(rows.asked[mine].min())
    apart = int(rows.last[mine].max()) - since + 1
    base = process[mine] * apart
    ended = np.maximum.accumulate(rows.last[mine] - since + base) - base + since
    gap = rows.asked[mine][1:] - ended[:-1]
    least = np.maximum(SILENT_TIMES * longest[process[mine[1:]]], SILENT_MS * MILLI)
    found = np.flatnonzero((process[mine[1:]] == process[mine[:-1]]) & (gap >= least))
    return process[mine[found]], ended[found], rows.asked[mine[found + 1]]


def _usual(lane: Int64s, at: Int64s, size: int) -> npt.NDArray[np.float64]:
    """The median time between two rows of each lane, which are in order of (lane, at); endless where they are fewer
    than REGULAR."""
    usual = np.full(size, np.inf)
    same = lane[1:] == lane[:-1]
    between, of = np.diff(at)[same], lane[1:][same]
    order = np.lexsort((between, of))
    lanes, begin, count = np.unique(of[order], return_index=True, return_counts=True)
    enough = count + 1 >= REGULAR
    usual[lanes[enough]] = between[order][(begin + count // 2)[enough]]
    return usual
