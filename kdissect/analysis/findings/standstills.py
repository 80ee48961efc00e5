"""Standstills of a whole capture: no client and no broker sent anything, though answers were due.

A suspended host, a capturing program that was stopped, and a clock that was set forward look alike. Findings about one
broker leave to a standstill what it explains.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, distinct, ints, reals, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey

STANDSTILL_MS = 1000.0
"""A standstill that is reported: so long a silence of a broker is felt by everybody."""
OVERDUE_MS = 200.0
"""An answer was due for so long before the end of a standstill: brokers answer sooner, whatever they do."""
BROKERS = 2
"""Brokers that owed answers: a single one may be the reason why no client had anything to send."""
MOSTLY = 0.7
"""Share of a silence that lies within a standstill, for one reason to explain both."""


class Standstill(NamedTuple):
    """A span without any message; microseconds."""

    begin: int
    """The last message before it."""
    end: int
    """The first message after it."""
    rows: Int64s
    """The exchanges whose answers were due within it and came after it."""
    brokers: tuple[str, ...]
    """The brokers of these exchanges."""

    @property
    def is_of_no_single_broker(self) -> bool:
        """Whether so many brokers owed answers that no single one is the reason."""
        return len(self.brokers) >= BROKERS

    def share(self, begin: Int64s, end: Int64s) -> npt.NDArray[np.float64]:
        """The part of each span that lies within it, 0 to 1; [spans]."""
        shared = np.minimum(end, self.end) - np.maximum(begin, self.begin)
        shares: npt.NDArray[np.float64] = np.maximum(shared, 0) / np.maximum(end - begin, 1)
        return shares


def standstills(exchanges: pa.Table) -> list[Standstill]:
    """The standstills of each capture. Reads the first and the last messages of clients in each slot of time, and
    exchanges that took as long as a standstill."""
    asked, sent = times(exchanges, "request_first_at"), times(exchanges, "request_last_at")
    answered, ended = times(exchanges, "response_first_at"), times(exchanges, "response_last_at")
    due = np.where(sent == NULL_TIME, asked, sent)
    for part in ("agreed_ms", "queued_ms"):  # what it lies behind may be a long poll
        due = due + (np.nan_to_num(reals(exchanges, part)) * MILLI).astype(np.int64)
    owed = (asked != NULL_TIME) & (answered != NULL_TIME)
    owed &= answered - due >= OVERDUE_MS * MILLI
    owed &= answered - asked >= STANDSTILL_MS * MILLI
    for hold in ("throttled", "rebalance"):
        owed &= ~ev.equal(exchanges, "hold", hold)
    polls = np.isin(ints(exchanges, "api_key"), (ApiKey.FETCH, ApiKey.SHARE_FETCH))
    owed &= ~(polls & np.isnan(reals(exchanges, "agreed_ms")))
    if not owed.any():
        return []
    found = []
    captures = group(exchanges, ["capture"]).code
    for capture in distinct(captures[owed]).tolist():
        mine = np.flatnonzero(captures == capture)
        begin = np.concatenate([asked[mine], answered[mine]])
        end = np.maximum(begin, np.concatenate([sent[mine], ended[mine]]))
        order = np.argsort(begin, kind="stable")
        order = order[begin[order] != NULL_TIME]
        begin, until = begin[order], np.maximum.accumulate(end[order])
        gaps = np.flatnonzero(begin[1:] - until[:-1] >= STANDSTILL_MS * MILLI)
        last, following = until[gaps], begin[gaps + 1]
        late = mine[owed[mine]]
        late = late[np.searchsorted(last, asked[late]) < np.searchsorted(following, answered[late], "right")]
        for one, other in zip(last.tolist(), following.tolist(), strict=True) if len(late) else ():
            rows = late[(asked[late] <= one) & (answered[late] >= other) & (due[late] <= other - OVERDUE_MS * MILLI)]
            if len(rows):
                brokers = ev.names(exchanges["broker"].take(arrow_array(rows)))
                found.append(Standstill(one, other, rows, tuple(brokers)))
    return found


def common_standstills(exchanges: pa.Table) -> list[Standstill]:
    """The standstills that no single broker is the reason of."""
    return [one for one in standstills(exchanges) if one.is_of_no_single_broker]


def within_standstills(stretches: list[Standstill], begin: Int64s, end: Int64s, share: float) -> Flags:
    """Whether each span lies within one of these standstills for this share of its time or more; bool [spans]."""
    flags: Flags = np.zeros(len(begin), np.bool_)
    for one in stretches:
        flags |= one.share(begin, end) >= share
    return flags


def stands_still(stretches: list[Standstill], begin: int, end: int) -> bool:
    """Whether a span, in microseconds, lies mostly within one of these standstills."""
    return bool(within_standstills(stretches, np.array([begin]), np.array([end]), MOSTLY)[0])
