"""Why a broker answered a fetch when it did (`hold`), and what of its time was not agreed to (`excess_ms`).

A fetch may wait on purpose: until min_bytes are there, at most max_wait_ms. The first of these that applies names the
hold of an answered fetch:

- error: the response's top-level error is set (then nothing was waited for);
- throttled: the request came inside the throttle window that the connection's previous response announced (since
  KIP-219 a broker answers at once and mutes the channel, so the next request waits); or this response was throttled
  itself: emptied before the wait was over, or, by brokers before 2.0, delayed by the time that it tells;
- error: a partition's error (a broker answers as soon as it meets one);
- immediate: nothing to wait for: max_wait_ms or min_bytes are 0 (KRaft's own fetches say min_bytes 0 and wait all the
  same), no partitions, a preferred replica or a diverging epoch to tell, data known to be there when asked, or an
  answer with enough of it within PROMPT_MS, which is what reading the log takes (to KRaft's own fetches any answer);
- data: records came back before the time was over, min_bytes of them or what max_bytes let through; to KRaft's own
  fetches also a new high watermark;
- timeout: about max_wait_ms went by;
- unknown: none of these.

Data was there when a partition's offset lay below an earlier high watermark (read_committed: last stable offset) that
the same broker had told in a Fetch or ListOffsets answer by then. If the watermark has not moved since, all its bytes
were there; if it has, at least one. `excess_ms` is all of `broker_ms` for immediate holds and top-level errors, what
goes beyond max_wait_ms for timeouts, and for data where it does: no reason allows a broker to keep a fetch longer. It
is null otherwise: when data arrives, or a mute ends, cannot be seen. `broker_ms` is net of the network throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import key_names, keys_of, locate
from kdissect.analysis.holds.hold_kernels import H_WIDTH, refill, run
from kdissect.analysis.sessions.session_rules import MAX_WAITING
from kdissect.arrays.arrow import (
    MILLI,
    NULL_TIME,
    Coder,
    Flags,
    Int64s,
    begins,
    distinct,
    ints,
    joined,
    matrix,
    one,
    reals,
    times,
    whole,
    with_columns,
    words,
)
from kdissect.arrays.codes import Codes
from kdissect.tables.declaration.model import EXCHANGE_KEYS, By
from kdissect.tables.makers import fills

HOLDS = ("data", "timeout", "throttled", "error", "immediate", "unknown", "replication", "rebalance")
DATA, TIMEOUT, THROTTLED, ERROR, IMMEDIATE, UNKNOWN, REPLICATION, REBALANCE = range(8)

EARLY_MS = 2.0
"""A wait this much shorter than max_wait_ms is still a timeout: timers of brokers tick in milliseconds, and both ends
of the interval are read off packets."""
PROMPT_MS = 3.0
"""Brokers log less than that for 19 of 20 fetches that waited for nothing, and more for 19 of 20 that did wait."""
READ_COMMITTED = 1
MAX_KNOWN = 1 << 20
"""Partitions whose watermarks are remembered, 64 MB; then all are forgotten, which makes holds less certain, not
wrong."""
MAX_THROTTLED = 1 << 16
"""Connections whose throttle windows are remembered; then all are forgotten."""


FETCHES = (
    *EXCHANGE_KEYS, "broker", "request_last_at", "response_first_at", "isolation_level", "throttle_ms", "queued_ms",
    "broker_ms", "max_wait_ms", "min_bytes", "record_bytes", "error_code", "is_raft", "partitions_sent",
    "implied_partitions", "partitions_with_error",
)  # fmt: skip
PARTITIONS = (
    *EXCHANGE_KEYS, "topic", "topic_id", "partition", "fetch_offset", "_session_offset", "error_code", "high_watermark",
    "last_stable_offset", "record_bytes", "in_response", "preferred_read_replica", "diverging_epoch",
)  # fmt: skip
"""What is read here of rows that come as codes."""


@dataclass(slots=True)
class _Part:
    """Rows held back for the watermark."""

    fetches: pa.Table
    partitions: pa.Table
    firsts: Int64s | None
    """[n + 1]: where the partitions of each fetch begin; None where they are not known to be in order."""
    others: pa.Table
    offsets: pa.Table


class HoldTracker:
    """Follows watermarks and throttle windows, and says of each fetch why it was answered when it was. `waiting`: see
    MAX_WAITING."""

    def __init__(self, waiting: int = MAX_WAITING) -> None:
        self._most_waiting = waiting
        self.brokers, self.topics = Coder(), Coder()
        self.known = np.full((64, H_WIDTH), -1, np.int64)
        self.windows = np.full((64, 2), -1, np.int64)
        self.counts = np.zeros(2, np.int64)
        self._waiting: _Part | None = None

    def feed(
        self,
        fetches: pa.Table | pa.RecordBatch,
        partitions: pa.Table | pa.RecordBatch | None = None,
        throttles: pa.Table | pa.RecordBatch | None = None,
        list_offsets: pa.Table | pa.RecordBatch | None = None,
        watermark: int = 2**63 - 1,
        firsts: Int64s | None = None,
    ) -> pa.Table:
        """The fetches whose instants lie before the watermark (microseconds), with `hold` and `excess_ms`.

        `partitions`: their rows of `fetch_partitions`, best with the helper column `_session_offset` of `Tracked`.
        `throttles`: rows of `exchanges` (any API); only those with a throttle time matter. `list_offsets`: rows of that
        table with the helper columns `broker` and `response_first_at` (`with_instants` joins them). Fetches without a
        response have neither value. `firsts`: where the partitions of each fetch begin, when they stand in order
        (`Tracked.firsts`): saves a join.
        """
        if isinstance(fetches, Codes) and isinstance(partitions, Codes):
            fetches, partitions = fetches.select(FETCHES), partitions.select(PARTITIONS)
        new = _Part(whole(fetches), whole(partitions), firsts, _throttling(whole(throttles)), whole(list_offsets))
        if firsts is not None and (len(firsts) != new.fetches.num_rows + 1 or firsts[-1] != new.partitions.num_rows):
            new.firsts = None
        if self._waiting is not None:
            new = _joined(self._waiting, new)
        used = times(new.fetches, "request_last_at")
        if watermark != 2**63 - 1 and new.fetches.num_rows + new.partitions.num_rows > self._most_waiting:
            watermark = max(watermark, int(np.median(used)))
        self._waiting = None
        if watermark == 2**63 - 1:
            return self._settle(new)
        answered = times(new.fetches, "response_first_at")
        early = (used < watermark) & (answered < watermark)
        due, kept = _split(new, early, watermark)
        self._waiting = kept
        return self._settle(due)

    def finish(self) -> pa.Table:
        """The fetches that were held back."""
        last, self._waiting = self._waiting, None
        none = pa.table({})
        return self._settle(last or _Part(none, none, None, none, none))

    def _settle(self, part: _Part) -> pa.Table:
        fetches, named, firsts = part.fetches, part.partitions, part.firsts
        n = fetches.num_rows
        keys = keys_of(fetches) if n else (np.zeros(0, np.int64),) * 2
        rows = np.zeros((0, 9), np.int64)
        if firsts is not None:
            rows = self._partition_rows(named)
        elif named.num_rows and n:
            owner = locate(keys_of(named), keys)
            kept = np.flatnonzero(owner >= 0)
            kept = kept[np.argsort(owner[kept], kind="stable")]
            rows = self._partition_rows(named)[kept]
            firsts = np.searchsorted(owner[kept], np.arange(n + 1)).astype(np.int64)
        else:
            firsts = np.zeros(n + 1, np.int64)
        broker = self.brokers.column(fetches, "broker")
        used, answered = times(fetches, "request_last_at"), times(fetches, "response_first_at")
        isolation = ints(fetches, "isolation_level", 0)
        sighted = self._sightings(part.offsets)
        throttle = np.nan_to_num(reals(fetches, "throttle_ms"))
        windows = self._windows(part.others, keys, answered, throttle)
        begun = turns(fetches)
        order = _ordered(used, begun, answered, sighted, windows)
        sure, until = np.zeros(n, np.int64), np.full(n, NULL_TIME, np.int64)
        at = 0
        while at < len(order):
            at = run(
                order, broker, keys[0], used, isolation, firsts, rows, sighted, windows, sure, until, self.known,
                self.windows, self.counts, MAX_KNOWN, MAX_THROTTLED, at,
            )  # fmt: skip
            if at < len(order):
                kind, i = int(order[at]) & 7, int(order[at]) >> 3
                self._reserve(int(firsts[i + 1] - firsts[i]) if kind == 2 else 1)
        prompt = np.zeros(n, np.bool_)
        told = np.flatnonzero((rows[:, 7] >= 0) | (rows[:, 8] >= 0))
        prompt[np.searchsorted(firsts, told, side="right") - 1] = True
        hold, excess = _classify(fetches, sure, begun < until, prompt)
        if isinstance(fetches, Codes):
            return fetches.with_columns({"hold": hold.astype(np.int64)})
        return with_columns(fetches, _hold_columns(hold, excess))

    def _partition_rows(self, named: pa.Table) -> Int64s:
        """[m, 9]: topic, number, offset, high watermark, last stable offset, records, given, preferred, diverging."""
        return matrix(named, 9, self._partition_columns)

    def _partition_columns(self, named: pa.Table) -> list[Int64s]:
        names, ids = self.topics.column(named, "topic"), self.topics.column(named, "topic_id")
        offset = ints(named, "fetch_offset")
        good = ints(named, "error_code", 0) == 0
        return [
            np.where(names >= 0, names, ids),
            ints(named, "partition"),
            np.where(offset >= 0, offset, ints(named, "_session_offset")),
            np.where(good, ints(named, "high_watermark"), -1),
            np.where(good, ints(named, "last_stable_offset"), -1),
            ints(named, "record_bytes", 0),
            ints(named, "in_response", 0),
            ints(named, "preferred_read_replica"),
            ints(named, "diverging_epoch"),
        ]

    def _sightings(self, offsets: pa.Table) -> Int64s:
        """[k, 6]: time, broker, topic, partition, high watermark, last stable offset, out of ListOffsets answers."""
        if not offsets.num_rows:
            return np.zeros((0, 6), np.int64)
        latest = np.asarray(
            [word == "latest" for word in (one(offsets, "asked") or pa.nulls(offsets.num_rows)).to_pylist()]
        )
        found, isolation = ints(offsets, "offset"), ints(offsets, "isolation_level", 0)
        when = times(offsets, "response_first_at")
        good = latest & (found >= 0) & (when != NULL_TIME) & (ints(offsets, "error_code", 0) == 0)
        topic = self.topics.column(offsets, "topic")
        committed = isolation == READ_COMMITTED
        rows = np.stack(
            [
                when,
                self.brokers.column(offsets, "broker"),
                topic,
                ints(offsets, "partition"),
                np.where(committed, -1, found),
                np.where(committed, found, -1),
            ],
            axis=1,
        )
        picked: Int64s = rows[good & (topic >= 0)]
        return picked

    def _windows(
        self, others: pa.Table, keys: tuple[Int64s, Int64s], answered: Int64s, throttle: npt.NDArray[np.float64]
    ) -> Int64s:
        """[k, 3]: time, connection, end of the throttle window."""
        own = np.flatnonzero((throttle > 0) & (answered != NULL_TIME))
        rows = [np.stack([answered[own], keys[0][own], answered[own] + (throttle[own] * MILLI).astype(np.int64)], 1)]
        if others.num_rows:
            when = times(others, "response_first_at")
            length = (np.nan_to_num(reals(others, "throttle_ms")) * MILLI).astype(np.int64)
            rows.append(np.stack([when, keys_of(others)[0], when + length], 1)[when != NULL_TIME])
        found: Int64s = distinct(np.concatenate(rows))
        return found

    def _reserve(self, partitions: int) -> None:
        """Make room for so many partitions and one throttled connection: tables are at most half full."""
        need = 2 * (min(MAX_KNOWN, int(self.counts[0]) + partitions) + 1)
        if len(self.known) < need:
            old, self.known = self.known, np.full((2 * need, H_WIDTH), -1, np.int64)
            refill(old, self.known, 3)
        need = 2 * (int(self.counts[1]) + 2)
        if len(self.windows) < need:
            old, self.windows = self.windows, np.full((2 * need, 2), -1, np.int64)
            refill(old, self.windows, 1)


def turns(rows: pa.Table) -> Int64s:
    """When it was each request's turn at the broker, in microseconds of the capture point's clock, never before the
    previous response was seen: the response less the broker's part; without one, the request's end and its queueing."""
    used, answered = times(rows, "request_last_at"), times(rows, "response_first_at")
    broker = reals(rows, "broker_ms")
    waited = used + np.nan_to_num(reals(rows, "queued_ms") * MILLI).astype(np.int64)
    spent = np.nan_to_num(broker * MILLI).astype(np.int64)
    known = (answered != NULL_TIME) & ~np.isnan(broker)
    found: Int64s = np.maximum(waited, np.where(known, answered - spent, waited))
    return found


def _ordered(used: Int64s, begun: Int64s, answered: Int64s, sighted: Int64s, windows: Int64s) -> Int64s:
    """Events in order of time, what is told before what is asked.

    index * 8 + kind: 0 throttle window, 1 offset, 2 answer, 3 request, 4 request that is next in its connection.
    """
    requests = np.flatnonzero(used != NULL_TIME)
    answers = np.flatnonzero(answered != NULL_TIME)
    when = np.concatenate([windows[:, 0], sighted[:, 0], answered[answers], used[requests], begun[requests]])
    codes = np.concatenate(
        [
            np.arange(len(windows)) * 8,
            np.arange(len(sighted)) * 8 + 1,
            answers * 8 + 2,
            requests * 8 + 3,
            requests * 8 + 4,
        ]
    ).astype(np.int64)
    found: Int64s = codes[np.argsort(when, kind="stable")]
    return found


def _classify(fetches: pa.Table, sure: Int64s, muted: Flags, prompt: Flags) -> tuple[npt.NDArray[np.int8], pa.Array]:
    """Hold codes (-1: no response) and `excess_ms`, by the rules of the module's head."""
    broker_ms = reals(fetches, "broker_ms")
    wait = ints(fetches, "max_wait_ms")
    least = ints(fetches, "min_bytes", 1)
    records = ints(fetches, "record_bytes", 0)
    error = ints(fetches, "error_code", 0)
    throttle = np.nan_to_num(reals(fetches, "throttle_ms"))
    raft = ints(fetches, "is_raft", 0) > 0
    sent, implied = ints(fetches, "partitions_sent"), ints(fetches, "implied_partitions")
    late = (wait > 0) & (broker_ms >= wait - EARLY_MS)
    unread = ints(fetches, "error_code", -(2**40)) == -(2**40)
    enough = records >= np.maximum(least, 1)
    there = enough & (sure >= np.maximum(least, 1))
    delayed = (throttle > 0) & (records > 0) & (broker_ms >= throttle - EARLY_MS)
    nothing = (wait == 0) | ((least == 0) & ~raft) | ((sent == 0) & (implied == 0)) | prompt
    hold = np.select(
        [
            np.isnan(broker_ms),
            unread,
            error != 0,
            muted,
            (throttle > 0) & (records == 0) & ~late,
            delayed,
            ints(fetches, "partitions_with_error", 0) > 0,
            nothing & (wait >= 0),
            (there & ~raft) | ((enough | raft) & (broker_ms < PROMPT_MS)),
            enough,
            late,
            (records > 0) | raft,
        ],
        [-1, UNKNOWN, ERROR, THROTTLED, THROTTLED, THROTTLED, ERROR, IMMEDIATE, IMMEDIATE, DATA, TIMEOUT, DATA],
        UNKNOWN,
    ).astype(np.int8)
    beyond = np.where(
        (hold == IMMEDIATE) | ((hold == ERROR) & (error != 0)),
        broker_ms,
        np.where(
            (hold == TIMEOUT) | ((hold == DATA) & (broker_ms > wait) & (wait >= 0)),
            np.maximum(broker_ms - wait, 0),
            np.nan,
        ),
    )
    return hold, pa.array(beyond, pa.float64(), mask=np.isnan(beyond))


def _throttling(exchanges: pa.Table) -> pa.Table:
    """The exchanges with a throttle time, and of them what matters."""
    if "throttle_ms" not in exchanges.column_names or not exchanges.num_rows:
        return pa.table({})
    names = [*key_names(exchanges), "response_first_at", "throttle_ms"]
    kept = np.flatnonzero(reals(exchanges, "throttle_ms") > 0)  # NaN is not
    if not len(kept):
        return pa.table({})
    return exchanges.select(names).take(pa.array(kept))


def _joined(before: _Part, after: _Part) -> _Part:
    firsts = None
    if before.firsts is not None and after.firsts is not None:
        firsts = np.concatenate([before.firsts, after.firsts[1:] + before.firsts[-1]])
    return _Part(
        joined(before.fetches, after.fetches),
        joined(before.partitions, after.partitions),
        firsts,
        joined(before.others, after.others),
        joined(before.offsets, after.offsets),
    )


def _split(part: _Part, due: Flags, watermark: int) -> tuple[_Part, _Part]:
    """What is due, and what has to wait; watermarks that are told go by their own instants."""
    fetches = _parted(part.fetches, due)
    sizes = None if part.firsts is None else np.diff(part.firsts)
    if sizes is not None:
        mine = np.repeat(due, sizes)
    elif part.partitions.num_rows:
        mine = locate(keys_of(part.partitions), keys_of(fetches[0])) >= 0
    else:
        mine = np.zeros(0, np.bool_)

    def told(table: pa.Table) -> tuple[pa.Table, pa.Table]:
        if not table.num_rows:
            return table, table
        early = times(table, "response_first_at") < watermark
        return table.filter(pa.array(early)), table.filter(pa.array(~early))

    partitions = _parted(part.partitions, mine)
    others, offsets = told(part.others), told(part.offsets)
    here, rest = (
        _Part(fetches[i], partitions[i], sizes if sizes is None else begins(sizes[which]), others[i], offsets[i])
        for i, which in enumerate((due, ~due))
    )
    return here, rest


def _parted(table: pa.Table, due: Flags) -> tuple[pa.Table, pa.Table]:
    """The rows that are due and the others, each in their order; what stands together is a slice, which is free."""
    if isinstance(table, Codes):
        return (table, table.slice(0, 0)) if due.all() else (table.filter(due), table.filter(~due))
    first = len(due) if due.all() else int(np.argmin(due))
    later = first + np.flatnonzero(due[first:])
    here = table.slice(0, first)
    if not len(later):
        return here, table.slice(first)
    rest = table.take(pa.array(first + np.flatnonzero(~due[first:])))
    if first < len(due) // 2:
        return table.filter(pa.array(due)), rest
    return pa.concat_tables([here, table.take(pa.array(later))]), rest


def with_instants(rows: pa.Table, exchanges: pa.Table) -> pa.Table:
    """Rows of a table of exchanges (`list_offsets`) with `broker` and `response_first_at` of their exchange."""
    at = locate(keys_of(rows), keys_of(exchanges))
    where = pa.array(at, mask=at < 0)
    more = {name: exchanges[name].take(where) for name in ("broker", "response_first_at")}
    return with_columns(rows, more)


def _hold_columns(hold: npt.NDArray[np.int8], excess: pa.Array) -> dict[str, pa.Array]:
    """What is filled in of `fetches`."""
    return {"hold": words(hold, HOLDS), "excess_ms": excess}


fills(By.FETCH_HOLDS, {"fetches": _hold_columns(np.zeros(0, np.int8), pa.array([], pa.float64()))})
