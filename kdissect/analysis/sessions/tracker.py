"""Fetch sessions out of fetches: `SessionTracker`, fed with batches of rows in any cut, and what it finds.

    tracker = SessionTracker()
    for each block:
        found = tracker.feed(fetches, partitions, watermark)
    found = tracker.finish()

Each `found` is a `Tracked`: fetches and partitions with their session columns, as soon as nothing earlier can come any
more, and the sessions and stays that have ended. The rules stand in `session_rules`. Rows depend on the order of
instants only, so that any cut of the same rows gives the same results, but for the order in which they come.
Memory: rows held back for the watermark, live sessions and their partitions; the bounds stand in `session_rules`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.sessions import session_kernels as kernels
from kdissect.analysis.sessions import session_layout as c
from kdissect.analysis.sessions import session_pools as pools
from kdissect.analysis.sessions import session_rules as r
from kdissect.analysis.sessions.session_input import Reading, Waiting
from kdissect.analysis.sessions.session_output import Ended, fetch_columns, partition_columns
from kdissect.analysis.sessions.topic_codes import Names, Topics
from kdissect.arrays.arrow import NULL_TIME, Coder, Int64s, distinct
from kdissect.arrays.rows import Rows
from kdissect.kernels.structs import rows_of
from kdissect.tables.declaration.model import By
from kdissect.tables.fetch_rows import FETCH_WIDTH, PARTITION_WIDTH, FetchRows, NamedFetches, fetches_of
from kdissect.tables.makers import fills

NO_WATERMARK = 2**63 - 1
"""Everything may be worked on: nothing more will come."""
EVENTS_AT_ONCE = 1 << 14
"""Events per kernel call: what a call may need is reserved before it, so this bounds the slack of the pools."""
PARTITIONS_AT_ONCE = 1 << 15
"""Rows of partitions per kernel call, likewise (a single request may have more)."""


class Tracked(NamedTuple):
    """The rows that a call has settled. `fetches` and `partitions` have the columns that they came with, session
    columns filled in; none where they are hidden. `sessions` and `stays` are rows of `fetch_sessions` and
    `session_partitions`."""

    fetches: Rows
    partitions: Rows
    sessions: Rows
    stays: Rows
    watermark: int
    """Microseconds: no row of a later call has its request's last byte before it."""
    rows: FetchRows
    """The same fetches as structs, in their order, with what the tracker fills in, behind those that were kept; valid
    until the next call."""


class CarriedSessions(NamedTuple):
    """The state of a `SessionTracker` between two calls."""

    names: Names
    pools: c.Pools
    sharded: dict[str, bool]
    waiting: Waiting | None
    partitions_known: bool


class SessionTracker:
    """Follows the fetch sessions of all brokers.

    `sharded`: whether a broker's session cache has shards (Kafka 3.8 and later) by broker, where that is known, as
    `sharded_brokers` tells it from `api_versions`. `stays`: whether rows of `session_partitions` are wanted.
    `waiting`: see MAX_WAITING. `prompt`: each row comes back as soon as it is settled, not with those before it.
    `hidden`: no caller is given rows of fetches and partitions back.
    """

    def __init__(
        self, sharded: Mapping[str, bool] | None = None, stays: bool = True, waiting: int = r.MAX_WAITING,
        prompt: bool = False, hidden: bool = False,
    ) -> None:  # fmt: skip
        self._most_waiting = waiting
        self._prompt = prompt
        self.state = c.State()
        self.names = Names()
        self._reading = Reading(self.names, hidden)
        self._ended = Ended(self.names.brokers, self.names.clients, self.names.topics, dict(sharded or {}), stays)
        self._waiting: Waiting | None = None
        self._partitions_known = True

    def carried(self) -> CarriedSessions:
        """The state that another tracker goes on from; this one is not to be used any more."""
        return CarriedSessions(self.names, self.state.pools, self._ended.sharded, self._waiting, self._partitions_known)

    def go_on(self, before: CarriedSessions) -> None:
        """Begins where another tracker ended. To be called first."""
        self.state.go_on(before.pools)
        self.names = before.names
        self._reading = Reading(self.names, self._reading.hidden)
        self._ended.take_over(self.names, before.sharded)
        self._waiting, self._partitions_known = before.waiting, before.partitions_known

    def learn(self, sharded: Mapping[str, bool]) -> None:
        """Learns which brokers' session caches have shards; sessions that end from now on get their shards by it."""
        self._ended.sharded.update(sharded)

    def feed(
        self, fetches: Rows, partitions: Rows | None,
        watermark: int = NO_WATERMARK, direct_fetches: Sequence[NamedFetches] = (),
        settled_rows: FetchRows | None = None,
    ) -> Tracked:  # fmt: skip
        """Rows of `fetches` and of `fetch_partitions`, those of an exchange in the same call; brokers resolved.

        `watermark`: microseconds since the epoch; no row that comes later has a request's last byte, or a response's
        first one, before it. Without `partitions` the sets of sessions are unknown throughout. `direct_fetches`:
        further fetches, where rows are hidden. `settled_rows`: those of `Tracked.rows` that the next part of the
        analysis keeps, the last ones; they come first in the next ones.

        Read of fetches: exchange_id, broker, client_id, api_version, request_last_at, response_first_at,
        request_session_id, session_epoch, response_session_id, error_code, throttle_ms, partitions_returned,
        request_bytes. Of fetch_partitions: exchange_id, topic, topic_id, partition, in_request, in_response, forgotten,
        fetch_offset, error_code, high_watermark, broker_log_start_offset, record_bytes, preferred_read_replica,
        diverging_epoch. Missing columns count as null; rows are structs for the next part of the analysis, so what that
        reads of fetches is taken over, too.
        """
        if partitions is None:
            self._partitions_known = False
        return self._work(
            self._reading.read(fetches, partitions, direct_fetches, self._waiting, settled_rows), watermark
        )

    def rename_broker(self, old: str, new: str) -> None:
        """A broker is called otherwise in rows that come from now on. If another address had that name already, its
        sessions are those of one broker from here on."""
        both = self.names.brokers.rename(old, new)
        if both is None:
            return
        (left, kept), s = both, self.state
        of_sessions = rows_of(c.Session, s.sessions)["broker"]
        for places in (of_sessions, *([] if self._waiting is None else [self._waiting.brokers])):
            places[places == left] = kept
        moved = _buckets(len(s.by_id) - 1)
        pools.rehash_sessions(s.sessions, s.by_id, moved)
        s.by_id = moved

    def hide(self) -> dict[str, Rows]:
        """The rows of `fetches` and `fetch_partitions` that are held back. From here on no caller is given any back."""
        waiting, self._reading.hidden = self._waiting, True
        if waiting is None or waiting.shown is None:
            return {}
        shown, waiting.shown = waiting.shown, None
        return {"fetches": shown.fetches, "fetch_partitions": shown.partitions}

    def finish(self) -> Tracked:
        """The rest: rows held back, and sessions that are still open."""
        last = self._waiting or self._reading.read(Rows({}, 0), Rows({}, 0))
        found = self._work(last, NO_WATERMARK)
        s = self.state
        kernels.end_all(s.pools, self.names.topics.name_bytes)
        self._collect()
        sessions, stays = self._ended.tables()
        return Tracked(
            found.fetches,
            found.partitions,
            Rows.together([found.sessions, Rows.of(sessions)]),
            Rows.together([found.stays, Rows.of(stays)]),
            NO_WATERMARK,
            found.rows,
        )

    @property
    def waiting(self) -> int:
        """Rows of fetches and partitions held back for the watermark."""
        return 0 if self._waiting is None else self._waiting.size

    def alive(self) -> dict[str, int]:
        """How many sessions are alive, by broker."""
        alive = rows_of(c.Session, self.state.sessions)[self._alive_rows()]
        codes, counts = np.unique(alive["broker"], return_counts=True)
        return {
            self.names.brokers.texts[code]: count for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
        }

    def session_connections(self) -> Int64s:
        """A connection (id as int64) of each session that is alive."""
        first = rows_of(c.Session, self.state.sessions)["connections"][self._alive_rows()]
        found: Int64s = rows_of(c.Listed, self.state.listed)["value"][first[first >= 0]]
        return found

    def _alive_rows(self) -> Int64s:
        """Rows of the sessions that are alive."""
        rows = distinct(self.state.by_id[self.state.by_id >= 0]).astype(np.int64)
        found = [rows]
        while len(rows):
            rows = rows_of(c.Session, self.state.sessions)["chain"][rows]
            rows = rows[rows >= 0]
            found.append(rows)
        return np.concatenate(found)

    def _work(self, waiting: Waiting, watermark: int) -> Tracked:
        if waiting.size > self._most_waiting and watermark != NO_WATERMARK:
            # Half of what waits is worked on, so that this does not happen at every call.
            watermark = max(watermark, int(np.median(fetches_of(waiting.rows)["used"])))
        events = waiting.due(watermark)
        for part in _parts(events, waiting.firsts):
            self._run(part, waiting)
        done, self._waiting = waiting.split(self._prompt)
        sessions, stays = self._ended.tables()
        return Tracked(
            *self._filled_in(done),
            Rows.of(sessions),
            Rows.of(stays),
            watermark if self._waiting is None else min(watermark, self._waiting.earliest()),
            done.settled(),
        )

    def _filled_in(self, done: Waiting) -> tuple[Rows, Rows]:
        """The rows that fetches and partitions came from, with what was found."""
        if (shown := done.shown) is None:
            return Rows({}, 0), Rows({}, 0)
        keys = self._ended.keys(done.rows, done.uses)
        partitions = partition_columns(done.partitions, shown.order, shown.partitions.num_rows)
        return (
            shown.fetches.with_arrays(fetch_columns(done.rows, done.uses, keys)),
            shown.partitions.with_arrays(partitions),
        )

    def _run(self, events: Int64s, w: Waiting) -> None:
        s, rows, topics = self.state, events >> 1, self.names.topics
        partitions = int((w.firsts[rows + 1] - w.firsts[rows]).sum())
        s.reserve(len(events), 2 * partitions, 2 * len(events))
        self._rehash(len(events), partitions)
        names = kernels.TopicNames(topics.names, topics.name_bytes)
        kernels.run(events, w.rows, w.firsts, w.partitions, w.uses, s.pools, names, self._partitions_known)
        self._collect()

    def _rehash(self, events: int, partitions: int) -> None:
        """Make hash tables as long as their pools, and those with open addressing at most half full."""
        s = self.state
        if len(s.by_id) < len(s.sessions):
            new = _buckets(len(s.sessions))
            pools.rehash_sessions(s.sessions, s.by_id, new)
            s.by_id = new
        if len(s.by_partition) < len(s.stays):
            new = _buckets(len(s.stays))
            pools.rehash_stays(s.stays, s.by_partition, new)
            s.by_partition = new
        if len(s.by_topic) < len(s.topics):
            new = _buckets(len(s.topics))
            pools.rehash_topics(s.topics, s.by_topic, new)
            s.by_topic = new
        most = min(r.MAX_REMEMBERED, s.count.remembered + s.count.live_sessions + events)
        if len(s.remembered) < 2 * most:
            remembered = c.empty_table(c.Remembered, 1 << int(2 * most).bit_length())
            pools.rehash_remembered(s.remembered, remembered)
            s.remembered = remembered
        if len(s.forgotten) < 2 * partitions:
            s.forgotten = c.empty_table(c.Forgotten, 4 * partitions)

    def _collect(self) -> None:
        """Take down sessions and stays that have ended."""
        s = self.state
        if s.count.ended_sessions or s.count.ended_stays:
            self._ended.drain_ended(s)
            pools.free_ended(s.pools)


def _buckets(rows: int) -> npt.NDArray[np.int32]:
    """An empty hash table for a pool of so many rows; its length is a power of two."""
    return np.full(1 << rows.bit_length(), -1, np.int32)


def _parts(events: Int64s, firsts: Int64s) -> list[Int64s]:
    """Events cut so that no call has too many, or too many partitions."""
    if not len(events):
        return []
    rows = events >> 1
    sizes = np.cumsum(firsts[rows + 1] - firsts[rows])
    parts = []
    at = 0
    while at < len(events):
        before = int(sizes[at - 1]) if at else 0
        end = int(np.searchsorted(sizes, before + PARTITIONS_AT_ONCE, side="right"))
        end = min(max(end, at + 1), at + EVENTS_AT_ONCE)
        parts.append(events[at:end])
        at = end
    return parts


__all__ = ["NO_WATERMARK", "NULL_TIME", "SessionTracker", "Tracked"]


def _filled() -> dict[str, Collection[str]]:
    """The columns that are filled, by table, found out on no rows. `request_kind` is not among them: the tracker only
    refines it."""
    state, none = c.State(), np.zeros(0, np.int64)
    ended = Ended(Coder(), Coder(), Topics(), {}, with_stays=True)
    rows, uses, partitions = (np.zeros((0, width), np.int64) for width in (FETCH_WIDTH, c.USE_WIDTH, PARTITION_WIDTH))
    return {
        "fetches": fetch_columns(rows, uses, pa.array([], pa.string())).keys() - {"request_kind"},
        "fetch_partitions": partition_columns(partitions, None, 0),
        "fetch_sessions": ended.session_columns(state, none),
        "session_partitions": ended.stay_columns(state, none),
    }


fills(By.SESSIONS, _filled)
