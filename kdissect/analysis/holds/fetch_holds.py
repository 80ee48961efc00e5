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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import key_names, keys_of, locate
from kdissect.analysis.holds.hold_kernels import (
    H_WIDTH,
    HOLDS,
    LATEST,
    classify,
    events,
    fetch_rows,
    find_turns,
    keep,
    partition_rows,
    refill,
    run,
)
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
    one,
    reals,
    times,
    whole,
    with_columns,
    words,
)
from kdissect.arrays.codes import NULL, Codes
from kdissect.arrays.lending import Lender
from kdissect.tables.declaration.model import EXCHANGE_KEYS, By
from kdissect.tables.hold_rows import (
    ANSWERED,
    CONNECTION,
    ORDINAL,
    P_WIDTH,
    THROTTLE,
    TIME,
    USED,
    WIDTH,
    HoldRows,
    put,
)
from kdissect.tables.makers import fills
from kdissect.tables.order import NEVER, by_request

KEYS = CONNECTION, ORDINAL
"""Where EXCHANGE_KEYS stand."""
READ_COMMITTED = 1
MAX_KNOWN = 1 << 20
"""Partitions whose watermarks are remembered, 64 MB; then all are forgotten, which makes holds less certain, not
wrong."""
MAX_THROTTLED = 1 << 16
"""Connections whose throttle windows are remembered; then all are forgotten."""


@dataclass(slots=True, eq=False, repr=False)
class _Part:
    """Rows to work on, of which some may have to wait for the watermark."""

    fetches: Int64s
    firsts: Int64s
    rows: Int64s
    """As `kdissect.tables.hold_rows` says."""
    shown: pa.Table | None
    """The fetches as they came, where they came as a table."""
    others: pa.Table
    """Exchanges with throttle windows."""
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
        self._begun = np.zeros((3, 0), np.int64)
        """Of the fetches that wait what happened to them already: bytes that were there, windows, marks."""
        self._memory = Lender()
        self._hidden = False
        """Fetches come as integers, for nobody is shown them."""

    def feed(
        self,
        fetches: pa.Table | pa.RecordBatch,
        partitions: pa.Table | pa.RecordBatch | None = None,
        throttles: pa.Table | pa.RecordBatch | None = None,
        list_offsets: pa.Table | pa.RecordBatch | None = None,
        watermark: int = 2**63 - 1,
        firsts: Int64s | None = None,
        alone: Sequence[HoldRows] = (),
    ) -> pa.Table:
        """The fetches whose instants lie before the watermark (microseconds), with `hold` and `excess_ms`.

        `partitions`: their rows of `fetch_partitions`, best with the helper column `_session_offset` of `Tracked`.
        `throttles`: rows of `exchanges` (any API); only those with a throttle time matter. `list_offsets`: rows of that
        table with the helper columns `broker` and `response_first_at` (`with_instants` joins them). Fetches without a
        response have neither value. `firsts`: where the partitions of each fetch begin, when they stand in order
        (`Tracked.firsts`): saves a join. `alone`: further fetches that came as integers, for a run whose fetches
        nobody is shown: then only which exchange each is, and its hold, come back.
        """
        table, named = whole(fetches), whole(partitions)
        self._hidden |= isinstance(table, Codes)
        part, before = self._behind(table, named, firsts, alone), self._waiting
        part.others, part.offsets = _throttling(whole(throttles)), whole(list_offsets)
        part.shown = None if self._hidden else table
        if before is not None:
            part.others, part.offsets = joined(before.others, part.others), joined(before.offsets, part.offsets)
            part.shown = None if before.shown is None else joined(before.shown, table)
        if watermark != LATEST and len(part.fetches) + len(part.rows) > self._most_waiting:
            watermark = max(watermark, int(np.median(part.fetches[:, USED])))
        return self._settle(part, watermark)

    def hide(self) -> pa.Table:
        """The fetches that are held back. From here on nobody is shown any: of them, too, only which exchange each is,
        and its hold, come back."""
        self._hidden, before = True, self._waiting
        if before is None or before.shown is None:
            return pa.table({})
        shown, before.shown = before.shown, None
        return shown

    def finish(self) -> pa.Table:
        """The fetches that were held back."""
        none = pa.table({})
        last = self._waiting or _Part(*self._room(0, 0), None if self._hidden else none, none, none)
        return self._settle(last, LATEST)

    def _room(self, fetches: int, rows: int) -> tuple[Int64s, Int64s, Int64s]:
        kind = np.int64
        wanted = [((fetches, WIDTH), kind), ((fetches + 1,), kind), ((rows, P_WIDTH), kind)]
        made = self._memory.arrays(wanted)
        made[1][0] = 0
        return made[0], made[1], made[2]

    def _behind(self, table: pa.Table, named: pa.Table, firsts: Int64s | None, alone: Sequence[HoldRows]) -> _Part:
        """Further rows behind those that wait; those that stand `alone` in the order of their requests."""
        none, same = pa.table({}), np.zeros(0, np.int64)
        pieces = [(piece, *piece.codes_of(self.brokers, self.topics)) for piece in alone]
        if table.num_rows:
            pieces.insert(0, (self._rows_of(table, named, firsts), same, same))
        if self._waiting is not None:
            waiting = HoldRows(self._waiting.fetches, self._waiting.firsts, self._waiting.rows, (), ())
            pieces.insert(0, (waiting, same, same))
        sizes = sum(len(p.fetches) for p, _, _ in pieces), sum(len(p.partitions) for p, _, _ in pieces)
        room, at, first = self._room(*sizes), 0, 0
        for left, (piece, brokers, topics) in zip(range(len(pieces), 0, -1), pieces, strict=True):
            if left == len(alone):
                first = at
            put(piece.fetches, piece.firsts, piece.partitions, same, brokers, topics, *room, at)
            at += len(piece.fetches)
        if alone:
            times_, high, n = (room[0][first:, column].copy() for column in (TIME, *KEYS))
            order = by_request(np.where(times_ == NULL_TIME, NEVER, times_), high, n)
            if order is not None:
                mixed, room = room, self._room(*sizes)
                fetches, places, rows = mixed
                put(fetches[:first], places[: first + 1], rows, same, same, same, *room, 0)
                put(fetches[first:], places[first:], rows, order, same, same, *room, first)
        return _Part(*room, None, none, none)

    def _settle(self, part: _Part, watermark: int) -> pa.Table:
        fetches, rows, firsts = part.fetches, part.rows, part.firsts
        n = len(fetches)
        others, late_others = _told(part.others, watermark)
        offsets, late_offsets = _told(part.offsets, watermark)
        due, when, codes = np.empty(n, np.int64), np.empty(3 * n, np.int64), np.empty(3 * n, np.int64)
        sure, until, marks = begun = np.zeros((3, n), np.int64)
        until[:] = NULL_TIME
        begun[:, : self._begun.shape[1]] = self._begun
        real, muted = fetches.view(np.float64), others.num_rows > 0 or int(self.counts[1]) > 0
        count, throttled, happened = events(fetches, real, watermark, muted, marks, due, when, codes)
        due, when, codes = due[:count], when[:happened], codes[:happened]
        sighted, windows = self._sightings(offsets), np.zeros((0, 3), np.int64)
        if throttled or others.num_rows:
            windows = self._windows(others, fetches, due)
        if len(sighted) or len(windows):
            when = np.concatenate([windows[:, 0], sighted[:, 0], when])
            codes = np.concatenate([np.arange(len(windows)) * 8, np.arange(len(sighted)) * 8 + 1, codes])
        order = codes[np.argsort(when, kind="stable")]
        at = 0
        while at < len(order):
            at = run(
                order, fetches, firsts, rows, sighted, windows, sure, until, self.known, self.windows, self.counts,
                MAX_KNOWN, MAX_THROTTLED, at,
            )  # fmt: skip
            if at < len(order):
                kind, i = int(order[at]) & 7, int(order[at]) >> 3
                self._reserve(int(firsts[i + 1] - firsts[i]) if kind == 2 else 1)
        hold, excess = np.empty(count, np.int8), np.empty(count)
        classify(due, fetches, real, sure, until, hold, excess)
        shown = part.shown
        if shown is None:
            keys = {name: fetches[due, column] for name, column in zip(EXCHANGE_KEYS, KEYS, strict=True)}
            found: pa.Table = Codes({**keys, "hold": hold.astype(np.int64)}, count)
        else:
            early = np.zeros(n, np.bool_)
            early[due] = True
            shown, later = _parted(shown, early)
            found = with_columns(shown, _hold_columns(hold, excess))
        self._waiting = None
        self._begun = np.delete(begun, due, axis=1)
        if watermark != LATEST:
            left = keep(fetches, firsts, rows, due)
            rest = fetches[:left], firsts[: left + 1], rows[: firsts[left]]
            self._waiting = _Part(*rest, None if part.shown is None else later, late_others, late_offsets)
        return found

    def _rows_of(self, fetches: pa.Table, named: pa.Table, firsts: Int64s | None) -> HoldRows:
        """Fetches and their partitions as integers, brokers and topics with the codes that they have here."""
        n, order, keys = fetches.num_rows, np.zeros(0, np.int64), keys_of(fetches)
        if firsts is None or len(firsts) != n + 1 or firsts[-1] != named.num_rows:
            owner = locate(keys_of(named), keys) if named.num_rows else np.zeros(0, np.int64)
            order = np.flatnonzero(owner >= 0)
            order = order[np.argsort(owner[order], kind="stable")]
            firsts = begins(np.bincount(owner[order], minlength=n))
        made = np.empty((n, WIDTH), np.int64)
        fetch_rows(
            *keys, self.brokers.column(fetches, "broker"), times(fetches, "request_last_at"),
            times(fetches, "response_first_at"), reals(fetches, "queued_ms"), reals(fetches, "broker_ms"),
            ints(fetches, "max_wait_ms"), ints(fetches, "min_bytes", 1), ints(fetches, "record_bytes", 0),
            ints(fetches, "error_code", NULL), reals(fetches, "throttle_ms"), ints(fetches, "is_raft", 0),
            ints(fetches, "partitions_sent"), ints(fetches, "implied_partitions"),
            ints(fetches, "partitions_with_error", 0), ints(fetches, "isolation_level", 0), made,
            made.view(np.float64),
        )  # fmt: skip
        rows, places = np.empty((int(firsts[-1]), P_WIDTH), np.int64), np.empty(n + 1, np.int64)
        told = partition_rows(
            firsts, order, self.topics.column(named, "topic"), self.topics.column(named, "topic_id"),
            ints(named, "partition"), ints(named, "fetch_offset"), ints(named, "_session_offset"),
            ints(named, "error_code", 0), ints(named, "high_watermark"), ints(named, "last_stable_offset"),
            ints(named, "record_bytes", 0), ints(named, "in_response", 0), ints(named, "preferred_read_replica"),
            ints(named, "diverging_epoch"), made, rows, places,
        )  # fmt: skip
        return HoldRows(made, places, rows[:told], (), ())

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

    def _windows(self, others: pa.Table, fetches: Int64s, due: Int64s) -> Int64s:
        """[k, 3]: time, connection, end of the throttle window."""
        throttle = fetches.view(np.float64)[:, THROTTLE]
        own = due[(throttle[due] > 0) & (fetches[due, ANSWERED] != NULL_TIME)]
        answered, connection = fetches[own, ANSWERED], fetches[own, CONNECTION]
        rows = [np.stack([answered, connection, answered + (throttle[own] * MILLI).astype(np.int64)], 1)]
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
            old, self.known = self.known, np.full((1 << need.bit_length(), H_WIDTH), -1, np.int64)
            refill(old, self.known, 3)
        need = 2 * (int(self.counts[1]) + 2)
        if len(self.windows) < need:
            old, self.windows = self.windows, np.full((1 << need.bit_length(), 2), -1, np.int64)
            refill(old, self.windows, 1)


def turns(rows: pa.Table) -> Int64s:
    """When it was each request's turn at the broker, in microseconds of the capture point's clock, never before the
    previous response was seen: the response less the broker's part; without one, the request's end and its queueing."""
    used, answered = times(rows, "request_last_at"), times(rows, "response_first_at")
    found = np.empty(len(used), np.int64)
    find_turns(used, answered, reals(rows, "queued_ms"), reals(rows, "broker_ms"), found)
    return found


def _throttling(exchanges: pa.Table) -> pa.Table:
    """The exchanges with a throttle time, and of them what matters."""
    if "throttle_ms" not in exchanges.column_names or not exchanges.num_rows:
        return pa.table({})
    names = [*key_names(exchanges), "response_first_at", "throttle_ms"]
    kept = np.flatnonzero(reals(exchanges, "throttle_ms") > 0)  # NaN is not
    if not len(kept):
        return pa.table({})
    return exchanges.select(names).take(pa.array(kept))


def _told(table: pa.Table, watermark: int) -> tuple[pa.Table, pa.Table]:
    """What was told before the watermark, and later: it goes by its own instants."""
    if not table.num_rows or watermark == LATEST:
        return table, table.slice(0, 0)
    early = times(table, "response_first_at") < watermark
    return table.filter(pa.array(early)), table.filter(pa.array(~early))


def _parted(table: pa.Table, due: Flags) -> tuple[pa.Table, pa.Table]:
    """The rows that are due and the others, each in their order; what stands together is a slice, which is free."""
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


def _hold_columns(hold: npt.NDArray[np.int8], excess: npt.NDArray[np.float64]) -> dict[str, pa.Array]:
    """What is filled in of `fetches`."""
    return {"hold": words(hold, HOLDS), "excess_ms": pa.array(excess, pa.float64(), mask=np.isnan(excess))}


fills(By.FETCH_HOLDS, lambda: {"fetches": _hold_columns(np.zeros(0, np.int8), np.zeros(0))})
