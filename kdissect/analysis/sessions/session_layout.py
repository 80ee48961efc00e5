"""State of the session tracker: pools of structs, linked by their rows, which its kernels work on.

Rows of a pool are free, live or ended; a row's `next` links it in its list, -1 ends a list. Hash tables are arrays of
first rows, rows of one bucket linked by `chain`; their lengths are powers of two. Kernels never grow anything:
`reserve` sees to it that what a call can need at most is free.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.analysis.sessions import session_rules as rules
from kdissect.arrays.arrow import Int64s
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import Half, Records, rows_of, struct, view, width

Int32s = npt.NDArray[np.int32]


@struct
class SessionUse:
    """What the tracker found of a fetch, -1 null."""

    expected: int
    """The epoch that was expected."""
    status: int
    """What the epoch is to that: a place in EPOCH_STATUS."""
    serial: int
    """Serial number of the session."""
    id: int
    """Its id."""
    incarnation: int
    """Which of several sessions with that id it is."""
    added: int
    """Partitions that the request added."""
    altered: int
    """Partitions that it named and that were there."""
    replaced: int
    """Partitions that it added in place of others of the same name, under another topic id."""
    hidden: int
    """Partitions of the session that the answer does not have."""


use_at = view(SessionUse)
USE_WIDTH = width(SessionUse)


def uses_of(matrix: Int64s) -> Records:
    """What was found of fetches by the names of fields: a view."""
    return rows_of(SessionUse, matrix)


@struct
class Session:
    """A session; times in microseconds, NULL_TIME unknown."""

    broker: int
    """Code of its broker."""
    id: int
    """The id that the broker drew."""
    incarnation: int
    """Which of several sessions with that id it is."""
    serial: int
    """Serial number among all sessions."""
    opened: int
    """When the answer that made it left."""
    closed: int
    """When it ended."""
    first_epoch: int
    """The first epoch that was seen."""
    last_epoch: int
    """The last one that was accepted."""
    expected: int
    """The epoch that the broker expects next."""
    unknown: int
    """1: more partitions may be in its set than are known."""
    censored: int
    """1: its begin was not captured."""
    requests: int
    """Requests that named or made it."""
    gaps: int
    """Epochs beyond the expected one, where everything was captured."""
    not_captured: int
    """Epochs beyond the expected one, where requests may be missing."""
    repeats: int
    """Epochs before the expected one."""
    wraps: int
    """How often 1 came after the last epoch."""
    most: int
    """Most partitions that it had at a time."""
    churn: int
    """Partitions that entered or left after its begin."""
    longest_idle: int
    """Longest time between two uses, microseconds, -1 none."""
    used: int
    """When it was used last."""
    returned: int
    """Partitions in answers to incremental requests."""
    held: int
    """Partitions that it had then, added up."""
    end: int
    """Why it ended: a place in END_REASONS, -1 not yet."""
    old_id: int
    """Id of the session that it took the place of, -1 none."""
    old_incarnation: int
    """That one's incarnation."""
    bytes: int
    """Bytes of its requests."""
    avoided: int
    """Bytes that full requests would have had besides."""
    size: int
    """Partitions in its set."""
    topics: int
    """Topics of these. With the next three it says how long a full request would be."""
    plain: int
    """Bytes of their names."""
    compact: int
    """Bytes of the names in compact form."""
    counts: int
    """Bytes of their counts of partitions as varints."""
    first_stay: int
    """Row of the partition that entered last, -1 none."""
    clients: int
    """First row of the list of its clients, -1 none."""
    connections: int
    """First row of the list of its connections, -1 none."""
    version: int
    """Newest version of its requests."""
    older: int
    """Row of the session that was used before it, -1 none."""
    newer: int
    """Row of the session that was used after it, -1 none."""
    chain: int
    """The next row of its bucket, -1 none."""
    next: int
    """The next free or ended row, -1 none."""


@struct
class Stay:
    """A partition in the set of a session; rows and codes are -1 where there is none."""

    session: Half
    """Row of its session."""
    topic: Half
    """Code of its topic."""
    partition: Half
    """Its number."""
    chain: Half
    """The next row of its bucket."""
    stamp: Half
    """The update of a set that named it last."""
    of_topic: Half
    """Row of its topic in the session."""
    from_epoch: Half
    """Epoch of the request that brought it, -1 unknown."""
    to_epoch: Half
    """Epoch of the request that forgot it, -1 none did."""
    previous: Half
    """The partition that entered after it."""
    next: Half
    """The partition of its session that entered before it; the next free or ended row."""
    offset: int
    """The offset that was asked for last."""
    high: int
    """The high watermark that was sent last: NOT_SENT, NOT_KNOWN."""
    start: int
    """The log's begin that was sent last, likewise."""


NOT_SENT = -1
"""Nothing was sent yet, or an error was."""
NOT_KNOWN = -2
"""What was sent last is not known: the session's beginning was not captured."""


@struct
class SessionTopic:
    """A topic of a session; rows are -1 where there is none."""

    session: Half
    """Row of the session."""
    topic: Half
    """Code of the topic."""
    count: Half
    """Its partitions in the set."""
    stamp: Half
    """The update of a set that named it last."""
    named: Half
    """Partitions of it that this one named."""
    chain: Half
    """The next row of its bucket."""
    next: Half
    """The next free row."""


@struct
class Listed:
    """A member of a session's list of clients or of connections."""

    value: int
    """Code of a client, or a connection's id."""
    next: int
    """The next row of the list, or of the free ones, -1 none."""


@struct
class Remembered:
    """An ended session, in a table with open addressing."""

    key: int
    """Broker and id, packed; -1 free."""
    incarnations: int
    """How many of them there were so far."""


@struct
class Forgotten:
    """A partition that a request forgets, in a table with open addressing."""

    name: int
    """Code of its topic's name, -1 free."""
    partition: int
    """Its number."""
    topic: int
    """Code of its topic."""


@struct
class Counts:
    """Counts of the pools, and first and last rows of lists, -1 none."""

    free_session: int
    """First free row of sessions, and of the other pools."""
    free_stay: int
    """See there."""
    free_topic: int
    """See there."""
    free_listed: int
    """See there."""
    sessions_left: int
    """Free rows of sessions, and of the other pools."""
    stays_left: int
    """See there."""
    topics_left: int
    """See there."""
    listed_left: int
    """See there."""
    live_sessions: int
    """Sessions that are alive."""
    live_stays: int
    """Partitions in their sets."""
    most_sessions: int
    """How many sessions may be."""
    most_stays: int
    """How many partitions may be."""
    oldest: int
    """The session unused for longest."""
    newest: int
    """The session that was used last."""
    ended_sessions: int
    """Sessions that ended and were not collected."""
    ended_session: int
    """The first of them."""
    last_ended_session: int
    """The last of them."""
    ended_stays: int
    """Partitions that left and were not collected."""
    ended_stay: int
    """The first of them."""
    last_ended_stay: int
    """The last of them."""
    serial: int
    """Sessions so far."""
    remembered: int
    """Ids of ended sessions that are known."""
    stamp: int
    """Updates of sets so far, of 31 bits."""
    dropped_sets: int
    """Sets that were given up for want of room."""
    dropped_sessions: int
    """Sessions that were let go for want of room."""


session_at, stay_at, session_topic_at, listed_at = view(Session), view(Stay), view(SessionTopic), view(Listed)
remembered_at, forgotten_at, counts_of = view(Remembered), view(Forgotten), view(Counts)


def _pool(kind: type, rows: int) -> Int64s:
    pool = np.full((rows, width(kind)), -1, np.int64)
    rows_of(kind, pool)["next"][:-1] = np.arange(1, rows)
    return pool


FIRST_ROWS = 256
"""Rows of a new pool, and of hash tables; it doubles when full."""


class Pools(NamedTuple):
    """The pools, hash tables and counts of a `State`, as kernels take them."""

    sessions: Int64s
    """Rows of `Session`."""
    stays: Int64s
    """Rows of `Stay`."""
    topics: Int64s
    """Rows of `SessionTopic`."""
    listed: Int64s
    """Rows of `Listed`."""
    by_id: Int32s
    """Rows of sessions by broker and id: the first of each bucket, -1 none."""
    by_partition: Int32s
    """Rows of stays by session, topic and partition, likewise."""
    by_topic: Int32s
    """Rows of topics by session and topic, likewise."""
    remembered: Int64s
    """Rows of `Remembered`."""
    forgotten: Int64s
    """Rows of `Forgotten`, of one request."""
    counts: Int64s
    """One row of `Counts`."""


POOLS = fields(Pools, "i8[:,:] i8[:,:] i8[:,:] i8[:,:] i4[:] i4[:] i4[:] i8[:,:] i8[:,:] i8[:,:]")
"""What kernels that take them declare."""


class State:
    """Everything that the tracker carries from one call to the next, but for fetches held back."""

    def __init__(self) -> None:
        none = np.full(FIRST_ROWS, -1, np.int32)
        self.sessions, self.stays = _pool(Session, FIRST_ROWS), _pool(Stay, FIRST_ROWS)
        self.topics, self.listed = _pool(SessionTopic, FIRST_ROWS), _pool(Listed, FIRST_ROWS)
        self.by_id, self.by_partition, self.by_topic = none, none.copy(), none.copy()
        self.remembered, self.forgotten = empty_table(Remembered, FIRST_ROWS), empty_table(Forgotten, FIRST_ROWS)
        self.counts = _first_counts()

    def go_on(self, pools: Pools) -> None:
        """Begins with what another state's pools were."""
        self.sessions, self.stays, self.topics, self.listed = pools[:4]
        self.by_id, self.by_partition, self.by_topic, self.remembered, self.forgotten, self.counts = pools[4:]

    @property
    def pools(self) -> Pools:
        """All of it, valid until a pool or table grows."""
        return Pools(
            self.sessions, self.stays, self.topics, self.listed, self.by_id, self.by_partition, self.by_topic,
            self.remembered, self.forgotten, self.counts,
        )  # fmt: skip

    @property
    def count(self) -> Counts:
        """The counts: a view."""
        return counts_of(self.counts, 0)

    def reserve(self, sessions: int, stays: int, members: int) -> None:
        """See to it that so many rows are free; hash tables stay at most as full as they are long."""
        count = self.count
        self.sessions, count.free_session, count.sessions_left = _grown(
            Session, self.sessions, count.free_session, count.sessions_left, sessions
        )
        self.stays, count.free_stay, count.stays_left = _grown(
            Stay, self.stays, count.free_stay, count.stays_left, stays
        )
        self.topics, count.free_topic, count.topics_left = _grown(
            SessionTopic, self.topics, count.free_topic, count.topics_left, stays
        )
        self.listed, count.free_listed, count.listed_left = _grown(
            Listed, self.listed, count.free_listed, count.listed_left, members
        )


def empty_table(kind: type, rows: int) -> Int64s:
    """A table of structs with open addressing, of so many rows, all of them free."""
    return np.full((rows, width(kind)), -1, np.int64)


def _first_counts() -> Int64s:
    counts = np.zeros((1, width(Counts)), np.int64)
    count = counts_of(counts, 0)
    count.sessions_left = count.stays_left = count.topics_left = count.listed_left = FIRST_ROWS
    count.most_sessions, count.most_stays = rules.MAX_LIVE_SESSIONS, rules.MAX_LIVE_PARTITIONS
    count.oldest = count.newest = count.ended_session = count.last_ended_session = -1
    count.ended_stay = count.last_ended_stay = -1
    return counts


def _grown(kind: type, pool: Int64s, free_row: int, free_rows: int, need: int) -> tuple[Int64s, int, int]:
    """The pool with so many free rows at least, its first free row, and how many are free."""
    missing = need - int(free_rows)
    if missing <= 0:
        return pool, free_row, free_rows
    old = len(pool)
    new = max(2 * old, old + missing)
    more = np.full((new - old, pool.shape[1]), -1, np.int64)
    following = rows_of(kind, more)["next"]
    following[:-1] = np.arange(old + 1, new)
    following[-1] = free_row
    return np.concatenate([pool, more]), old, free_rows + new - old
