"""Replays the sessions that were seen in a session cache with another number of slots.

The rules are those of FetchSessionCache (KIP-227). A new session takes a free slot. Without one it takes the slot of
the session used longest ago, if that was not used for EVICTION_MS. Else it takes the slot of the least worthy session
that it may push out, if it is worth as much. Followers are worth more than consumers, then more partitions more than
fewer. Of sessions younger than EVICTION_MS, consumers' ones are not pushed out by consumers, and followers' ones not at
all. A client without a slot fetches with full requests, and each of them asks for a session again. A client that lost
its session learns so at its next fetch, and asks again.

The demand is replayed as it was seen: sessions from their creation to the end that their client or its next session
gave them, and their uses. A session that was evicted in truth ends where it did. Requests that were refused in truth
ask for nothing. So the demand on a cache that was too small is at least this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kdissect.analysis.cluster_split import each_cluster
from kdissect.arrays.arrow import NULL_TIME, Coder, Int64s, ints, times

EVICTION_MS = 120_000
"""FetchSession's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS; no setting changes it."""
NEVER = 2**63 - 1
END, BIRTH, USE = range(3)
"""What happens to a session; at one instant ends make room first."""
SCHEMA = pa.schema(
    [("broker", pa.string()), ("client_id", pa.string()), ("sessions", pa.int64()), ("evicted", pa.int64()),
     ("refused", pa.int64()), ("full_fetches", pa.int64()), ("request_bytes_more", pa.int64())]
)  # fmt: skip


@dataclass(slots=True)
class _Session:
    """A session of the demand."""

    client: str | None
    privileged: bool
    size: int
    cost: int
    """Bytes that a full request costs more than an incremental one."""


class _Cache:
    """Slots: who has each, and when it was created and used."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.place: dict[int, int] = {}
        self._free: list[int] = []
        self._owner, self._created, self._used, self._size, self._privileged = np.zeros((5, 0), np.int64)

    def assign_slot(self, number: int, session: _Session, now: int) -> tuple[bool, int | None]:
        """Whether a new session gets a slot, and who loses it."""
        if len(self.place) < self.slots:
            at = self._free.pop() if self._free else len(self.place)
            if at == len(self._owner):
                more = np.zeros(max(16, at), np.int64)
                for name in ("_owner", "_created", "_used", "_size", "_privileged"):
                    setattr(self, name, np.concatenate([getattr(self, name), more]))
            self._place_session(at, number, session, now)
            return True, None
        if not self.slots:
            return False, None
        full = slice(0, self.slots)  # all are taken
        at = int(np.lexsort((self._owner[full], self._used[full]))[0])
        if now - self._used[at] <= EVICTION_MS * 1000:
            ripe = self._used[full] - self._created[full] > EVICTION_MS * 1000
            if session.privileged:
                ripe |= self._privileged[full] == 0
            those = np.flatnonzero(ripe)
            if not len(those):
                return False, None
            worth = (self._owner[those], self._size[those], self._privileged[those])
            at = int(those[np.lexsort(worth)[0]])
            if (session.privileged, session.size, 0) < (self._privileged[at], self._size[at], self._owner[at]):
                return False, None
        loser = int(self._owner[at])
        del self.place[loser]
        self._place_session(at, number, session, now)
        return True, loser

    def _place_session(self, at: int, number: int, session: _Session, now: int) -> None:
        self.place[number] = at
        self._owner[at], self._created[at], self._used[at] = number, now, now
        self._size[at], self._privileged[at] = session.size, session.privileged

    def use(self, number: int, now: int) -> None:
        """A session was used."""
        self._used[self.place[number]] = now

    def end(self, number: int) -> None:
        """A session has ended, if it is there."""
        at = self.place.pop(number, None)
        if at is not None:
            self._free.append(at)


def with_slots(fetches: pa.Table, fetch_sessions: pa.Table, slots: int) -> pa.Table:
    """The outcome with `slots` slots on each broker, a row for each broker and client of a cluster, those who lose most
    first.

    Reads session_key, request_last_at and is_follower of fetches; of fetch_sessions broker, session_key, client_ids,
    opened_at, closed_at, end_reason, max_partitions, requests and full_request_bytes_avoided. Columns: broker,
    client_id, sessions (asked for, again ones included), evicted, refused (requests for a session that got none),
    full_fetches, request_bytes_more and cluster. Of these, full_fetches counts those that were incremental in truth,
    and request_bytes_more is what naming their partitions costs.
    """
    tables = {"fetches": fetches, "fetch_sessions": fetch_sessions}
    made = each_cluster(tables, lambda part: _with_slots(part["fetches"], part["fetch_sessions"], slots))
    most = [(name, "descending") for name in ("request_bytes_more", "full_fetches")]
    return made.sort_by([*most, *((name, "ascending") for name in ("broker", "client_id", "cluster"))])


def _with_slots(fetches: pa.Table, fetch_sessions: pa.Table, slots: int) -> pa.Table:
    """The outcome in one cluster, in no order."""
    brokers: dict[str | None, list[int]] = {}
    for row, name in enumerate(fetch_sessions["broker"].to_pylist()):
        brokers.setdefault(name, []).append(row)
    uses, followers = _uses(fetches, fetch_sessions)
    rows: list[tuple[object, ...]] = []
    for broker, mine in brokers.items():
        counts = _replayed(fetch_sessions, mine, uses, followers, slots)
        rows += [(broker, client, *figures) for client, figures in counts.items()]
    return pa.table({name: [row[at] for row in rows] for at, name in enumerate(SCHEMA.names)}, SCHEMA)


def _uses(fetches: pa.Table, fetch_sessions: pa.Table) -> tuple[list[list[int]], set[int]]:
    """Instants at which each session was used, in order, and which sessions are followers'."""
    keys = Coder()
    for key in fetch_sessions["session_key"].to_pylist():
        keys.code(key)
    known = len(keys.texts)
    owner = keys.column(fetches, "session_key")
    at = times(fetches, "request_last_at")
    rows = np.flatnonzero((owner >= 0) & (owner < known) & (at != NULL_TIME))
    rows = rows[np.lexsort((at[rows], owner[rows]))]
    found: list[list[int]] = [[] for _ in range(known)]
    edges: Int64s = np.searchsorted(owner[rows], np.arange(known + 1))
    for session in range(known):
        found[session] = at[rows[edges[session] : edges[session + 1]]].tolist()
    followers = np.unique(owner[rows][ints(fetches, "is_follower", 0)[rows] > 0])
    return found, set(followers.tolist())


def _replayed(
    sessions: pa.Table, mine: list[int], uses: list[list[int]], followers: set[int], slots: int
) -> dict[str | None, list[int]]:
    """client -> [sessions, evicted, refused, full fetches, bytes more] of one broker."""
    opened, closed = times(sessions, "opened_at"), times(sessions, "closed_at")
    reasons, clients = sessions["end_reason"].to_pylist(), sessions["client_ids"].to_pylist()
    size, requests = ints(sessions, "max_partitions", 0), ints(sessions, "requests", 1)
    avoided = ints(sessions, "full_request_bytes_avoided", 0)
    cache = _Cache(slots)
    counts: dict[str | None, list[int]] = {}
    todo: list[tuple[int, int, int]] = []
    made: dict[int, _Session] = {}
    for n in mine:
        cost = int(avoided[n]) // max(1, int(requests[n]) - 1)
        client = clients[n][0] if clients[n] else None
        made[n] = _Session(client, n in followers, int(size[n]), cost)
        todo.append((int(opened[n]), BIRTH, n))
        ends = int(closed[n]) if reasons[n] != "open" and closed[n] != NULL_TIME else NEVER
        todo += [(at, USE, n) for at in uses[n] if opened[n] < at < ends]
        if ends != NEVER:
            todo.append((ends, END, n))
    for now, what, n in sorted(todo):
        one = made[n]
        count = counts.setdefault(one.client, [0, 0, 0, 0, 0])
        if what == END:
            cache.end(n)
            continue
        if what == USE and n in cache.place:
            cache.use(n, now)
            continue
        count[0] += 1
        if what == USE:  # a full fetch, where an incremental one was sent in truth
            count[3] += 1
            count[4] += one.cost
        free, loser = cache.assign_slot(n, one, now)
        if loser is not None:
            counts[made[loser].client][1] += 1
        count[2] += not free
    return counts
