"""The followers that Produce requests waited for: `replication_ms`, `waited_for`, `hold` and `excess_ms` of `produces`.

With acks -1 a leader answers once every follower in sync has the records. A follower has them when its next fetch of
the partition asks for an offset behind them. So the wait is read off the followers' fetches, if they are in the
capture. A capture at the leader has them, for followers fetch from it.

- One replica (Metadata lists no more): the leader waited for no follower, 0.
- A follower passed the batch with its first fetch of a greater offset than the batch's first (batches travel whole).
- A follower that did not pass was waited for where its last fetch asked for the very offset at which a batch was
  appended afterwards. It stood at the log's end, so it was in sync. It was waited for until that batch was answered:
  then the leader had thrown it out (replica.lag.time.max.ms).
- The wait ended with the answer where the last pass lies within LAST_PASS_MS before it, or a follower never came. Else
  it ended with the last pass (the rest is the leader's own), if all other replicas passed. Anything else is null.
- It began when the first answer that carried the batch left for a follower. That holds where the follower's fetch lay
  open when the request's turn came, or where other requests of the connection stood before it. Else the wait began
  APPEND_MS after the request's turn.

Rows depend on the order of instants only, so any cut of the same rows gives the same results. Memory: rows held back
for the watermark, and fetches of followers since the earliest of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.holds.exchange_holds import throttled_times
from kdissect.analysis.holds.fetch_holds import turns
from kdissect.analysis.holds.hold_kernels import ERROR, HOLDS, IMMEDIATE, REPLICATION, THROTTLED, UNKNOWN
from kdissect.analysis.sessions.session_rules import MAX_WAITING
from kdissect.arrays.arrow import MILLI, NULL_TIME, Coder, Flags, Int64s, begins, distinct, words
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.rows import Rows
from kdissect.tables.declaration.model import CODE, CODES, MS, By
from kdissect.tables.fetch_rows import ORIGIN
from kdissect.tables.makers import fills

LAST_PASS_MS = 10.0
"""The answer leaves 1.5 ms (median) after the fetch that ends the wait, and hardly ever 10."""
APPEND_MS = 1.0
"""What a leader takes to append, where nothing shows it."""
LEAST_MS = 5.0
"""Less is measured and not named: a leader goes on with its own work for some milliseconds after the records left for a
follower (by brokers' logs 3.7 % of the waits of 2 ms and more were such, 1.5 % of those of 5)."""
LAG_US = 30_000_000
"""A follower that asks for nothing for so long is not in sync (replica.lag.time.max.ms)."""
NEXT_US = 1_000_000
"""Within so long a follower asks again (replica.fetch.wait.max.ms, and as long again)."""
BROKER = 46
"""Bits behind the broker's in the number of a partition."""
ALL = -1
NONE = np.iinfo(np.int64).max
MOST_EVENTS = 1 << 20
"""Fetches of partitions by followers that are remembered, 40 MB; then the older half is forgotten: null, not wrong."""
Reals = npt.NDArray[np.float64]


class _Events:
    """Events of followers, in order of (partition, follower, at): columns of equal length."""

    def __init__(self, partition: Int64s, follower: Int64s, at: Int64s, value: Int64s) -> None:
        self.partition = partition
        self.follower = follower
        self.at = at
        """µs: an asking's arrival, or when an answer with records left."""
        self.value = value
        """The offset asked for; of an answer the arrival of its request."""

    @classmethod
    def none(cls) -> _Events:
        """No rows."""
        return cls(*(np.zeros(0, np.int64) for _ in range(4)))

    def and_(self, other: _Events) -> _Events:
        """Both, in order."""
        rows = [
            np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("partition", "follower", "at", "value")
        ]
        order = np.lexsort((rows[3], rows[2], rows[1], rows[0]))
        return _Events(*(row[order] for row in rows))

    def pick_rows(self, selected: Flags | Int64s) -> _Events:
        """Some rows."""
        return _Events(self.partition[selected], self.follower[selected], self.at[selected], self.value[selected])

    def firsts(self) -> Int64s:
        """Where each follower of each partition begins, and the end."""
        n = len(self.at)
        if not n:
            return np.zeros(1, np.int64)
        new = (self.partition[1:] != self.partition[:-1]) | (self.follower[1:] != self.follower[:-1])
        return np.concatenate([[0], np.flatnonzero(new) + 1, [n]]).astype(np.int64)


CarriedReplication = tuple[Coder, Coder, _Events, _Events, Int64s, tuple[Rows, Rows] | None, int]
"""What a `ReplicationTracker` knows between two calls, as `carried` gives it."""


class ReplicationTracker:
    """Follows what followers fetch, and says of each Produce how long it waited for them, and for whom. `waiting`: rows
    that may wait for the watermark before half of them are worked on all the same. `hidden`: nobody is shown them."""

    def __init__(self, waiting: int = MAX_WAITING, hidden: bool = False) -> None:
        self._most_waiting = waiting
        self.brokers, self.topics = Coder(), Coder()
        self._asked, self._given = _Events.none(), _Events.none()
        self._appended: Int64s = np.zeros((0, 4), np.int64)
        """[n, 4]: partition, offset, turn and answer of batches."""
        self._waiting: tuple[Rows, Rows] | None = None
        self._hidden = hidden
        self._since = NULL_TIME
        """Since when (microseconds) everything of followers is remembered."""

    def feed(
        self,
        produces: Rows,
        partitions: Rows,
        fetches: Rows,
        fetched: Rows,
        throttled: Rows,
        watermark: int = NONE,
        complete: int = NONE,
    ) -> Rows:
        """The rows of `produces` whose instants lie before the watermark (microseconds), with what is filled in.

        `partitions`: their rows of `produce_partitions`; `fetches`, `fetched`: rows of `fetches` and
        `fetch_partitions`, all of an exchange together; `throttled`: exchanges whose throttle windows count.
        `watermark`: no row of a later call has its request's last byte, or its response's first one, before it, or
        else `complete` says less: then a follower may have asked for more than is known.
        """
        self._follow(fetches, fetched)
        if produces.num_rows:
            held = throttled_times(produces, keys_of(produces)[0], throttled)
            held = np.where(np.isnan(produces.reals("broker_ms")), np.nan, held)
            produces = produces.with_columns({"throttled_ms": held})
        if self._waiting is not None:
            produces = Rows.together([self._waiting[0], produces])
            partitions = Rows.together([self._waiting[1], partitions])
        elif self._hidden and not produces.num_rows:
            self._forget(watermark)
            return produces
        self._waiting = None
        return self._settle(produces, partitions, watermark, complete)

    def carried(self) -> CarriedReplication:
        """The state that another tracker goes on from. Where rows are hidden, that one has to `hide` them, too."""
        return self.brokers, self.topics, self._asked, self._given, self._appended, self._waiting, self._since

    def go_on(self, before: CarriedReplication) -> None:
        """Begins where another tracker ended. To be called first."""
        self.brokers, self.topics, self._asked, self._given, self._appended, waiting, self._since = before
        if waiting is not None:
            sent, partitions = waiting
            self._waiting = sent.with_columns({"throttled_ms": sent.reals("throttled_ms")}), partitions

    @property
    def waiting(self) -> int:
        """Rows held back for the watermark."""
        return 0 if self._waiting is None else self._waiting[0].num_rows

    def rename_broker(self, old: str, new: str) -> None:
        """A broker is called otherwise in rows that come from now on; see `SessionTracker.rename_broker`."""
        both = self.brokers.rename(old, new)
        if both is None:
            return
        left, kept = both
        for places in (self._asked.partition, self._given.partition, self._appended[:, 0]):
            places[places >> BROKER == left] += (kept - left) << BROKER
        self._asked, self._given = _Events.none().and_(self._asked), _Events.none().and_(self._given)

    def hide(self, vocabulary: Coder) -> Rows:
        """The rows of `produces` that are held back. They are integers with texts of the vocabulary from here on, as
        are all that are fed."""
        self._hidden = True
        if self._waiting is None:
            return Rows({}, 0)
        from kdissect.tables.coded_rows import as_codes

        produces, partitions = self._waiting
        besides = [name for name in ("throttled_ms", ORIGIN) if produces.has(name)]
        self._waiting = (
            as_codes("produces", produces, vocabulary, besides),
            as_codes("produce_partitions", partitions, vocabulary),
        )
        return produces

    def finish(self) -> Rows:
        """The rows that were held back."""
        last, self._waiting = self._waiting, None
        none = Rows({}, 0)
        return self._settle(*(last or (none, none)), NONE, NONE)

    def _settle(self, produces: Rows, partitions: Rows, watermark: int, complete: int) -> Rows:
        used, answered = produces.times("request_last_at"), produces.times("response_first_at")
        if watermark != NONE:
            if len(used) > self._most_waiting:
                watermark = max(watermark, int(np.median(used)))
            due = (used < watermark) & (answered < watermark)
            if not due.all():
                rest = produces.filter(~due)
                produces = produces.filter(due)
                mine = locate(keys_of(partitions), keys_of(rest)) >= 0
                self._waiting = rest, partitions.filter(mine)
                partitions = partitions.filter(~mine)
        found = self._waits(produces, partitions, complete)
        waiting = np.zeros(0, np.int64) if self._waiting is None else self._waiting[0].times("request_last_at")
        self._forget(int(waiting[waiting != NULL_TIME].min(initial=watermark)))
        return produces.with_arrays(_columns(produces, found))

    def _place(self, rows: Rows, broker: Int64s) -> Int64s:
        """Broker, topic and partition as one number; -1 where it has none."""
        names, ids = rows.codes("topic", self.topics), rows.codes("topic_id", self.topics)
        topic, partition = np.where(names >= 0, names, ids), rows.ints("partition")
        good = (broker >= 0) & (topic >= 0) & (topic < 1 << 22) & (partition >= 0) & (partition < 1 << 24)
        return np.where(good, broker << BROKER | topic << 24 | np.where(good, partition, 0), -1)

    def _follow(self, fetches: Rows, fetched: Rows) -> None:
        """Take down what followers asked for, and when they were answered with records."""
        mine = np.flatnonzero((fetches.ints("replica_id") >= 0) & (fetches.times("request_last_at") != NULL_TIME))
        if not len(mine) or not fetched.num_rows:
            return
        fetches = fetches.take(mine)
        at = locate(keys_of(fetched), keys_of(fetches))
        rows = np.flatnonzero(at >= 0)
        at, fetched = at[rows], fetched.take(rows)
        place = self._place(fetched, fetches.codes("broker", self.brokers)[at])
        follower, arrived = fetches.ints("replica_id")[at], fetches.times("request_last_at")[at]
        answered, offset = fetches.times("response_first_at")[at], fetched.ints("fetch_offset")
        asked = (place >= 0) & (offset >= 0)
        given = (place >= 0) & (fetched.ints("record_bytes", 0) > 0) & (answered != NULL_TIME)
        if asked.any():
            self._asked = self._asked.and_(_Events(place, follower, arrived, offset).pick_rows(asked))
        if given.any():
            self._given = self._given.and_(_Events(place, follower, answered, arrived).pick_rows(given))

    def _forget(self, since: int) -> None:
        """Drop what no row that is still to come can need: askings before `since` but the last ones, answers."""
        self._since = max(self._since, since)
        self._appended = self._appended[self._appended[:, 3] >= since]
        if len(self._asked.at):
            kept = self._asked.at >= since
            kept[:-1] |= kept[1:]  # the one before: where the follower stood
            kept[self._asked.firsts()[1:] - 1] = True
            self._asked = self._asked.pick_rows(_bounded(kept, self._asked.at))
        if len(self._given.at):
            self._given = self._given.pick_rows(_bounded(self._given.at >= since, self._given.at))

    def _waits(self, produces: Rows, partitions: Rows, complete: int) -> _Waits:
        """How long each Produce waited for followers. `complete`: see `feed`."""
        n = produces.num_rows
        out = _Waits(np.full(n, np.nan), np.zeros((0, 2), np.int64))
        broker_ms, answered = produces.reals("broker_ms"), produces.times("response_first_at")
        every = (produces.ints("acks", 0) == ALL) & ~np.isnan(broker_ms)
        every &= produces.times("request_last_at") >= self._since
        if not every.any() or not replicated(partitions):
            return out
        owner = locate(keys_of(partitions), keys_of(produces))
        good = (partitions.ints("error_code", -1) == 0) | (partitions.ints("replicas", 0) == 1)
        picked = np.flatnonzero((owner >= 0) & good)
        picked = picked[every[owner[picked]]]
        owner, partitions = owner[picked], partitions.take(picked)
        replicas = partitions.ints("replicas", 0)
        known = np.bincount(owner, minlength=n) > 0
        if not len(self._asked.at):  # what followers fetch later comes too late for these
            known[owner[replicas != 1]] = False
            out.ms[known] = 0.0
            return out
        base = partitions.ints("base_offset")
        place = self._place(partitions, produces.codes("broker", self.brokers)[owner])
        many = np.flatnonzero((replicas > 1) & (place >= 0) & (base >= 0))
        turn, done = turns(produces)[owner], answered[owner]
        pairs = self._passes(place[many], base[many], turn[many], done[many])
        pipelined = np.nan_to_num(produces.reals("queued_ms"))[owner[many]] > 0
        begun, ended = np.full(len(owner), NONE), np.full(len(owner), NONE)
        begun[many], ended[many] = pairs.waits(replicas[many], turn[many], done[many], pipelined)
        ended[many[(done[many] >= complete) & (np.bincount(pairs.batch[pairs.asking], minlength=len(many)) > 0)]] = NONE
        told = ended != NONE
        known[owner[(replicas != 1) & ~told]] = False
        first, last = np.full(n, NONE), np.full(n, NULL_TIME)
        np.minimum.at(first, owner[told], begun[told])
        np.maximum.at(last, owner[told], ended[told])
        measured = known & (last != NULL_TIME)
        out.ms[known] = 0.0
        out.ms[measured] = np.clip((last - first)[measured] / MILLI, 0, broker_ms[measured])
        row = owner[many[pairs.batch]]
        named = pairs.last & (out.ms[row] > 0) & (ended[many[pairs.batch]] == last[row])
        out.who = distinct(np.stack([row[named], pairs.follower[named]], axis=1))
        return out

    def _passes(self, place: Int64s, base: Int64s, turn: Int64s, done: Int64s) -> _Passes:
        """Whether and when each follower of a batch's partition passed the batch."""
        asked, given = self._asked, self._given
        firsts = asked.firsts()
        heads = asked.partition[firsts[:-1]]
        low, high = np.searchsorted(heads, place, "left"), np.searchsorted(heads, place, "right")
        count = high - low
        batch = np.repeat(np.arange(len(place)), count)
        group = np.repeat(low, count) + np.arange(len(batch)) - np.repeat(begins(count)[:-1], count)
        begin, end = firsts[group], firsts[np.minimum(group + 1, len(firsts) - 1)]
        self._appended = np.concatenate([self._appended, np.stack([place, base, turn, done], axis=1)])
        if not len(batch):
            none, never = np.zeros(0, np.int64), np.zeros(0, np.bool_)
            return _Passes(none, none, none, none, none, never, never, never)
        until = _bisect(asked.at, begin, end, done[batch] + 1)  # what comes later is known or not, as rows are cut
        at = _bisect(asked.value, _bisect(asked.at, begin, until, turn[batch]), until, base[batch] + 1)
        seen = np.minimum(at, len(asked.at) - 1)
        came = (at < until) & (asked.value[seen] > base[batch])
        soon = (until < end) & (asked.at[np.minimum(until, end - 1)] <= done[batch] + NEXT_US)
        asking = ~soon & (asked.at[np.maximum(until - 1, begin)] > done[batch] - LAG_US)
        passed, follower = np.where(came, asked.at[seen], NONE), asked.follower[begin]
        # A follower that did not come: where it stood, since when, and what was appended there.
        stood = until - 1
        heard = stood >= begin
        where, since = asked.value[np.maximum(stood, 0)], asked.at[np.maximum(stood, 0)]
        there, appended, answered = self._last_appended(place[batch], where, turn[batch])
        missed = ~came & heard & there & (since <= appended)
        missed &= (turn[batch] < answered) & (answered <= done[batch])  # later answers are known or not, as above
        # The answer that brought the records: the last one to this follower before it passed.
        left, wanted = np.full(len(batch), NONE), np.full(len(batch), NONE)
        if len(given.at):
            firsts = given.firsts()
            owner = given.partition[firsts[:-1]], given.follower[firsts[:-1]]
            group = locate((place[batch], follower), owner)
            begin, end = firsts[np.maximum(group, 0)], firsts[np.maximum(group, 0) + 1]
            at = _bisect(given.at, begin, end, np.where(came, passed + 1, NULL_TIME)) - 1
            good = (group >= 0) & (at >= begin)
            good &= given.at[np.maximum(at, 0)] >= turn[batch]  # earlier ones did not carry the batch
            left[good], wanted[good] = given.at[at[good]], given.value[at[good]]
        return _Passes(batch, follower, passed, left, wanted, came, missed, asking)

    def _last_appended(self, place: Int64s, offset: Int64s, by: Int64s) -> tuple[Flags, Int64s, Int64s]:
        """(whether there is one, its turn, its answer) of the last batch at an offset whose turn came by an instant.
        There are several where logs were cut back, and where clusters of the same names are looked at together."""
        known = self._appended
        known = known[np.lexsort((known[:, 3], known[:, 2], known[:, 1], known[:, 0]))]
        new = np.any(known[1:, :2] != known[:-1, :2], axis=1)
        firsts = np.concatenate([[0], np.flatnonzero(new) + 1, [len(known)]]).astype(np.int64)
        heads = known[firsts[:-1]]
        group = locate((place, offset), (heads[:, 0].copy(), heads[:, 1].copy()))
        begin, end = firsts[np.maximum(group, 0)], firsts[np.maximum(group, 0) + 1]
        at = _bisect(known[:, 2].copy(), begin, end, by + 1) - 1
        return (group >= 0) & (at >= begin), known[at, 2], known[at, 3]


def replicated(partitions: Rows) -> bool:
    """Whether of any of these partitions it is known how many replicas it has."""
    return bool((partitions.ints("replicas", 0) > 0).any())


def _bounded(selected: Flags, at: Int64s) -> Flags:
    """The same, without the older half where there are more than MOST_EVENTS."""
    return selected & (at >= np.median(at)) if int(selected.sum()) > MOST_EVENTS else selected


class _Passes:
    """When followers passed batches: a row for each pair of a batch and a follower."""

    def __init__(
        self, batch: Int64s, follower: Int64s, passed: Int64s, left: Int64s, asked: Int64s, came: Flags, missed: Flags,
        asking: Flags,
    ) -> None:  # fmt: skip
        self.batch = batch
        self.follower = follower
        self.passed = passed
        """When it asked for what comes behind the batch."""
        self.left = left
        """When the records left for it."""
        self.asked = asked
        """When it had asked for them."""
        self.came = came
        self.missed = missed
        """It was in sync, and never came."""
        self.asking = asking
        """It asked not long before the batch's answer, and not soon after, as far as is known: one asking may be
        open."""
        self.last: Flags = np.zeros(0, np.bool_)
        """It was waited for last; told by `waits`."""

    def waits(self, replicas: Int64s, turn: Int64s, done: Int64s, pipelined: Flags) -> tuple[Int64s, Int64s]:
        """Begin and end of the wait of each batch, µs; NONE where they cannot be told."""
        n = len(replicas)
        came, batch = self.came, self.batch
        count = np.bincount(batch[came], minlength=n)
        missed = np.bincount(batch[self.missed], minlength=n) > 0
        latest = np.full(n, NULL_TIME)
        np.maximum.at(latest, batch[came], self.passed[came])
        near = (count > 0) & (latest > done - int(LAST_PASS_MS * MILLI))
        every = (count > 0) & (count >= replicas - 1)
        end = np.where(missed | near, done, np.where(every, latest, NONE))
        left, asked = np.full(n, NONE), np.full(n, NONE)
        np.minimum.at(left, batch[came], self.left[came])
        first = came & (self.left == left[batch])
        np.minimum.at(asked, batch[first], self.asked[first])
        usable = (left != NONE) & (left >= turn) & (pipelined | (asked <= turn))
        begin = np.where(usable, left, turn + int(APPEND_MS * MILLI))
        self.last = np.where(missed[batch], self.missed, came & (self.passed == latest[batch]))
        return begin, np.where(end == NONE, NONE, end)


class _Waits:
    """Per Produce: milliseconds (NaN: unknown), and whom it waited for as (row, node id), in order."""

    def __init__(self, ms: Reals, who: Int64s) -> None:
        self.ms = ms
        self.who = who


def _bisect(values: Int64s, begin: Int64s, end: Int64s, thresholds: Int64s) -> Int64s:
    """For each row the first place of [begin, end) whose value is not below `thresholds`, `end` for none.

    Values rise within each stretch; offsets fall where a log was cut back: the caller looks at what was found."""
    low, high = begin.copy(), end.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        there = values[np.minimum(middle, len(values) - 1)] >= thresholds
        high = np.where(open_ & there, middle, high)
        low = np.where(open_ & ~there, middle + 1, low)
    return low


def _holds(produces: Rows, waits: _Waits) -> tuple[npt.NDArray[np.int8], Reals, Reals]:
    """Of each Produce its place in HOLDS (-1: null), `replication_ms` and `excess_ms` (NaN: null)."""
    broker_ms, acks = produces.reals("broker_ms"), produces.ints("acks", 0)
    held, error = produces.reals("throttled_ms") > 0, produces.ints("error_code", 0)
    every = (acks == ALL) & ~np.isnan(broker_ms)
    ms = np.where(every, waits.ms, np.nan)
    long = (ms >= LEAST_MS) & (ms > broker_ms / 2)
    hold = np.select(
        [~every, held, long, error != 0, ms == 0], [-1, THROTTLED, REPLICATION, ERROR, IMMEDIATE], UNKNOWN
    ).astype(np.int8)
    excess = np.where(every, broker_ms - ms, np.where(acks == 1, broker_ms, np.nan))
    return hold, ms, np.where(held, np.nan, excess)


def _columns(produces: Rows, waits: _Waits) -> dict[str, pa.Array]:
    """Columns of `produces` that are filled in."""
    hold, ms, excess = _holds(produces, waits)
    held = produces.reals("throttled_ms")
    sizes = np.bincount(waits.who[:, 0], minlength=len(ms))
    places = arrow_array(begins(sizes), pa.int32(), mask=np.append(sizes == 0, False))
    return {
        "replication_ms": arrow_array(ms, MS, mask=np.isnan(ms)),
        "waited_for": pa.ListArray.from_arrays(places, arrow_array(waits.who[:, 1], CODE)).cast(CODES),
        "hold": words(hold, HOLDS),
        "excess_ms": arrow_array(excess, MS, mask=np.isnan(excess)),
        "throttled_ms": arrow_array(held, MS, mask=np.isnan(held)),
    }


def _filled() -> Mapping[str, Mapping[str, pa.Array]]:
    """The columns that are filled, found out on no rows."""
    return {"produces": _columns(Rows({}, 0), _Waits(np.zeros(0), np.zeros((0, 2), np.int64)))}


fills(By.PRODUCE_HOLDS, _filled)
