"""Why a broker answered a fetch when it did (`hold`), and what of its time was agreed to (`agreed_ms`), a quota's
(`throttled_ms`), or neither (`excess_ms`).

A fetch may wait on purpose: until min_bytes are there, at most max_wait_ms. The first of these that applies names the
hold of an answered fetch:

- error: the response's top-level error is set (then nothing was waited for);
- throttled: the request came inside the throttle window that the connection's previous response announced. Since
  KIP-219 a broker answers at once and mutes the channel, so the next request waits. Or this response was throttled
  itself: emptied before the wait was over, or, by brokers before 2.0, delayed by its throttle time;
- error: a partition's error (a broker answers as soon as it meets one);
- immediate: there was nothing to wait for. This is so with max_wait_ms or min_bytes 0 (KRaft's own fetches say
  min_bytes 0 and wait all the same). It is so without partitions, with a preferred replica or a diverging epoch to
  answer with, or with data known to be there when asked. It is also so with an answer that has enough data within
  PROMPT_MS, which is what reading the log takes (to KRaft's own fetches any answer);
- data: records came back before the time was over, min_bytes of them or what max_bytes let through; to KRaft's own
  fetches also a new high watermark;
- timeout: about max_wait_ms went by;
- unknown: none of these.

Data was there when a partition's offset lay below an earlier high watermark (read_committed: last stable offset). That
watermark stood in a Fetch or ListOffsets answer of the same broker by then. If the watermark has not moved since, all
its bytes were there; if it has, at least one. `excess_ms` is all of `broker_ms` for immediate holds and top-level
errors. For timeouts, and for data that came later than max_wait_ms, it is what goes beyond max_wait_ms: no reason
allows a broker to keep a fetch longer. It is null otherwise: when data arrives, or a mute ends, cannot be seen.
`throttled_ms` lasts from the fetch's turn to the end of the window, `agreed_ms` from there at most max_wait_ms long; it
is 0 where there was nothing to wait for. `broker_ms` is net of the network throughout.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import key_names, keys_of, locate
from kdissect.analysis.holds.hold_kernels import (
    ANSWER,
    ASKED,
    HOLDS,
    KINDS,
    LATEST,
    SIGHTING,
    WINDOW,
    HoldCounts,
    HoldEvents,
    HoldTables,
    HoldTimes,
    Muted,
    Sighting,
    Watermark,
    Window,
    classify,
    events,
    hold_counts_of,
    keep,
    refill_muted,
    refill_watermarks,
    run,
)
from kdissect.analysis.holds.throttle_windows import window_ends
from kdissect.analysis.sessions.session_rules import MAX_WAITING
from kdissect.analysis.sessions.topic_codes import Names
from kdissect.arrays.arrow import NULL_TIME, Coder, Flags, Int64s, distinct, words
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.rows import Rows, Texts
from kdissect.kernels.structs import rows_of, width
from kdissect.tables.declaration.model import EXCHANGE_KEYS, By
from kdissect.tables.fetch_rows import ORIGIN, READ_COMMITTED, FetchRows, fetches_of, find_turns, no_rows
from kdissect.tables.makers import fills

TIMES = ("excess_ms", "agreed_ms", "throttled_ms")
"""Columns of `fetches` in the order in which `classify` writes them."""
MAX_KNOWN = 1 << 20
"""Partitions whose watermarks are remembered, 64 MB; then all are forgotten, which makes holds less certain, not
wrong."""
MAX_THROTTLED = 1 << 16
"""Connections whose throttle windows are remembered; then all are forgotten."""


class _Part:
    """Rows to work on; some of them may have to wait for the watermark."""

    def __init__(self, rows: FetchRows, shown: Rows | None, others: Rows, offsets: Rows) -> None:
        self.rows = rows
        self.shown = shown
        """The fetches as they came, where somebody is shown them."""
        self.others = others
        """Exchanges with throttle windows."""
        self.offsets = offsets


CarriedHolds = tuple[Int64s, Int64s, Int64s, _Part | None, Int64s, int]
"""What a `HoldTracker` knows between two calls, as `carried` gives it."""


class HoldTracker:
    """Follows watermarks and throttle windows, and says of each fetch why it was answered when it was. `names`: the
    codes in rows of fetches; `waiting`: see MAX_WAITING. `hidden`: no caller is shown the fetches."""

    def __init__(self, names: Names, waiting: int = MAX_WAITING, hidden: bool = False) -> None:
        self._most_waiting = waiting
        self._names = names
        self.known = np.full((64, width(Watermark)), -1, np.int64)
        self.windows = np.full((64, width(Muted)), -1, np.int64)
        self.counts = np.zeros(width(HoldCounts), np.int64)
        self._waiting: _Part | None = None
        self._begun = np.zeros((3, 0), np.int64)
        """Of the fetches that wait what happened to them already: bytes that were there, windows, marks."""
        self._passed = NULL_TIME
        """Up to when (microseconds) watermarks were taken down: nobody knows what was there when a fetch asked that
        comes later than that."""
        self._hidden = hidden

    def feed(
        self,
        fetches: FetchRows,
        new_rows: Rows,
        throttles: Rows | None = None,
        list_offsets: Rows | None = None,
        watermark: int = 2**63 - 1,
    ) -> Rows:
        """The fetches whose instants lie before the watermark (microseconds), with `hold` and TIMES.

        `fetches`: fetches and their partitions, as the session tracker gives them, behind those of `kept`;
        `new_rows`: the fetches that are new. Where they are hidden, only the keys of exchanges, their holds, TIMES and
        ORIGIN come back. `throttles`: rows of `exchanges` (any API); only those with a throttle time
        matter. `list_offsets`: rows of that table with the helper columns `broker` and `response_first_at`
        (`with_instants` joins them). Fetches without a response have none of these."""
        before, shown = self._waiting, None if self._hidden else new_rows
        part = _Part(fetches, shown, _throttling(Rows.of(throttles)), Rows.of(list_offsets))
        if before is not None:
            part.others = Rows.together([before.others, part.others])
            part.offsets = Rows.together([before.offsets, part.offsets])
            if part.shown is not None and before.shown is not None:
                part.shown = Rows.together([before.shown, part.shown])
        if watermark != LATEST and fetches.num_rows > self._most_waiting:
            watermark = max(watermark, int(np.median(fetches_of(fetches.fetches)["used"])))
        return self._settle(part, watermark)

    def carried(self) -> CarriedHolds:
        """The state that another tracker, with the same names, goes on from."""
        return self.known, self.windows, self.counts, self._waiting, self._begun, self._passed

    def go_on(self, before: CarriedHolds) -> None:
        """Begins where another tracker ended. To be called first."""
        self.known, self.windows, self.counts, self._waiting, self._begun, self._passed = before

    def hide(self) -> Rows:
        """The fetches that are held back. From here on only the exchange of each fetch and its hold come back."""
        self._hidden, before = True, self._waiting
        if before is None or before.shown is None:
            return Rows({}, 0)
        shown, before.shown = before.shown, None
        return shown

    def finish(self) -> Rows:
        """The fetches that were held back."""
        none = Rows({}, 0)
        last = self._waiting or _Part(no_rows(), None if self._hidden else none, none, none)
        return self._settle(last, LATEST)

    @property
    def held_back(self) -> FetchRows | None:
        """The fetches that are held back, the last ones of those that were given."""
        return None if self._waiting is None else self._waiting.rows

    def _settle(self, part: _Part, watermark: int) -> Rows:
        fetches, rows = part.rows.fetches, part.rows.partitions
        n = len(fetches)
        others, late_others = _split_by_time(part.others, watermark)
        offsets, late_offsets = _split_by_time(part.offsets, watermark)
        firsts, due = np.empty(n + 1, np.int64), np.empty(n, np.int64)
        when, codes = np.empty((2, 3 * n), np.int64)
        sure, until, marks = begun = np.zeros((3, n), np.int64)
        until[:] = NULL_TIME
        before = self._begun.shape[1]
        begun[:, :before] = self._begun
        marks[before:] = np.where(fetches_of(fetches)["used"][before:] < self._passed, ASKED, 0)
        muted = others.num_rows > 0 or hold_counts_of(self.counts, 0).muted > 0
        count, throttled, happened = events(fetches, watermark, muted, marks, firsts, due, when, codes)
        due, when, codes = due[:count], when[:happened], codes[:happened]
        sighted, windows = self._sightings(offsets), np.zeros((0, width(Window)), np.int64)
        if throttled or others.num_rows:
            windows = self._windows(others, fetches, due)
        if len(sighted) or len(windows):
            announced, seen = rows_of(Window, windows)["at"], rows_of(Sighting, sighted)["at"]
            when = np.concatenate([announced * KINDS + WINDOW, seen * KINDS + SIGHTING, when])
            codes = np.concatenate(
                [np.arange(len(windows)) * KINDS + WINDOW, np.arange(len(sighted)) * KINDS + SIGHTING, codes]
            )
        order = codes[np.argsort(when, kind="stable")]
        happening = HoldEvents(order, fetches, firsts, rows, sighted, windows)
        at = 0
        while at < len(order):
            tables = HoldTables(self.known, self.windows, self.counts, MAX_KNOWN, MAX_THROTTLED)
            at = run(happening, tables, sure, until, at)
            if at < len(order):
                i, kind = divmod(int(order[at]), KINDS)
                self._reserve(int(firsts[i + 1] - firsts[i]) if kind == ANSWER else 1)
        keys, hold, spent = np.empty((2, count), np.int64), np.empty(count, np.int64), np.empty((len(TIMES), count))
        classify(due, fetches, sure, until, keys, hold, HoldTimes(*spent))
        shown = part.shown
        if shown is None:
            told = dict(zip(TIMES, spent, strict=True))
            told[ORIGIN] = fetches_of(fetches)["exchange"][due]
            found = Rows({**dict(zip(EXCHANGE_KEYS, keys, strict=True)), "hold": Texts(hold, HOLDS), **told}, count)
        else:
            early = np.zeros(n, np.bool_)
            early[due] = True
            shown, later = _split_by_due(shown, early)
            found = shown.with_arrays(_hold_columns(hold, spent))
        self._waiting, self._begun = None, begun[:, :0]
        if watermark != LATEST:
            self._passed = max(self._passed, watermark)
            left, inner = keep(fetches, rows, begun, due)
            self._begun = begun[:, n - left :].copy()
            rest = FetchRows(fetches[n - left :], rows[len(rows) - inner :])
            self._waiting = _Part(rest, None if part.shown is None else later, late_others, late_offsets)
        return found

    def _sightings(self, offsets: Rows) -> Int64s:
        """Rows of `Sighting`, out of ListOffsets answers."""
        if not offsets.num_rows:
            return np.zeros((0, width(Sighting)), np.int64)
        asked = Coder()
        latest = offsets.codes("asked", asked) == asked.code("latest")
        found, isolation = offsets.ints("offset"), offsets.ints("isolation_level", 0)
        when = offsets.times("response_first_at")
        good = latest & (found >= 0) & (when != NULL_TIME) & (offsets.ints("error_code", 0) == 0)
        names = offsets.codes("topic", self._names.topics.by_name)
        topic = self._names.topics.logs(names, np.full(len(names), -1))
        committed = isolation == READ_COMMITTED
        rows = np.stack(
            [
                when,
                offsets.codes("broker", self._names.brokers),
                topic,
                offsets.ints("partition"),
                np.where(committed, -1, found),
                np.where(committed, found, -1),
            ],
            axis=1,
        )
        picked: Int64s = rows[good & (topic >= 0)]
        return picked

    def _windows(self, exchanges: Rows, fetches: Int64s, due: Int64s) -> Int64s:
        """Rows of `Window`."""
        row = fetches_of(fetches)
        throttle = row["throttle"]
        own = due[(throttle[due] > 0) & (row["answered"][due] != NULL_TIME)]
        answered, connection = row["answered"][own], row["connection"][own]
        rows = [np.stack([answered, connection, *window_ends(answered, throttle[own])], 1)]
        if exchanges.num_rows:
            when, length = exchanges.times("response_first_at"), np.nan_to_num(exchanges.reals("throttle_ms"))
            rows.append(np.stack([when, keys_of(exchanges)[0], *window_ends(when, length)], 1)[when != NULL_TIME])
        found: Int64s = distinct(np.concatenate(rows))
        return found

    def _reserve(self, partitions: int) -> None:
        """Make room for so many partitions and one throttled connection: tables are at most half full."""
        count = hold_counts_of(self.counts, 0)
        need = 2 * (min(MAX_KNOWN, int(count.watermarks) + partitions) + 1)
        if len(self.known) < need:
            old, self.known = self.known, np.full((1 << need.bit_length(), width(Watermark)), -1, np.int64)
            refill_watermarks(old, self.known)
        need = 2 * (int(count.muted) + 2)
        if len(self.windows) < need:
            old, self.windows = self.windows, np.full((1 << need.bit_length(), width(Muted)), -1, np.int64)
            refill_muted(old, self.windows)


def turns(rows: Rows) -> Int64s:
    """When it was each request's turn at the broker, in microseconds of the capture point's clock, never before the
    previous response was seen. It is the response less the broker's part; without a response, the request's end and its
    queueing."""
    used, answered = rows.times("request_last_at"), rows.times("response_first_at")
    found = np.empty(len(used), np.int64)
    find_turns(used, answered, rows.reals("queued_ms"), rows.reals("broker_ms"), found)
    return found


def _throttling(exchanges: Rows) -> Rows:
    """The exchanges with a throttle time, and of them what matters."""
    kept = np.flatnonzero(exchanges.reals("throttle_ms") > 0)  # NaN is not
    if not len(kept):
        return Rows({}, 0)
    return exchanges.select([*key_names(exchanges), "response_first_at", "throttle_ms"]).take(kept)


def _split_by_time(rows: Rows, watermark: int) -> tuple[Rows, Rows]:
    """The rows whose answers came before the watermark, and the later ones."""
    if not rows.num_rows or watermark == LATEST:
        return rows, rows.slice(0, 0)
    early = rows.times("response_first_at") < watermark
    return rows.filter(early), rows.filter(~early)


def _split_by_due(rows: Rows, due: Flags) -> tuple[Rows, Rows]:
    """The rows that are due and the others, each in their order; what stands together is a slice, which is free."""
    first = len(due) if due.all() else int(np.argmin(due))
    later = first + np.flatnonzero(due[first:])
    here = rows.slice(0, first)
    if not len(later):
        return here, rows.slice(first)
    rest = rows.take(first + np.flatnonzero(~due[first:]))
    if first < len(due) // 2:
        return rows.filter(due), rest
    return Rows.together([here, rows.take(later)]), rest


def with_instants(rows: Rows, exchanges: Rows) -> Rows:
    """Rows about exchanges (`list_offsets`) with `broker` and `response_first_at` of their exchange."""
    at = locate(keys_of(rows), keys_of(exchanges))
    where = arrow_array(at, mask=at < 0)
    return rows.with_arrays({name: exchanges.array(name).take(where) for name in ("broker", "response_first_at")})


def _hold_columns(hold: Int64s, spent: npt.NDArray[np.float64]) -> dict[str, pa.Array]:
    """Columns of `fetches` that holds fill in; `spent`: a row for each of TIMES."""
    told = {name: arrow_array(ms, pa.float64(), mask=np.isnan(ms)) for name, ms in zip(TIMES, spent, strict=True)}
    return {"hold": words(hold, HOLDS), **told}


fills(By.FETCH_HOLDS, lambda: {"fetches": _hold_columns(np.zeros(0, np.int64), np.zeros((len(TIMES), 0)))})
