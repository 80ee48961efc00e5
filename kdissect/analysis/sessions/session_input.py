"""Rows of fetches and their partitions as the tracker's kernel reads them, held back until nothing earlier can come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.sessions import session_layout as c
from kdissect.analysis.sessions import session_rules as r
from kdissect.arrays.arrow import (
    NULL_TIME,
    Coder,
    Flags,
    Int64s,
    Room,
    begins,
    ints,
    joined,
    matrix,
    reals,
    times,
    whole,
)
from kdissect.arrays.codes import Codes

if TYPE_CHECKING:
    from kdissect.analysis.sessions.topic_codes import Topics

NO_NUMBER = -(2**40)
"""Null, of numbers that are 32 bits wide."""


@dataclass(slots=True, eq=False, repr=False)
class Waiting:
    """Fetches that are not settled yet, with their partitions behind one another."""

    fetches: pa.Table
    partitions: pa.Table
    rows: Int64s
    """[n, R_WIDTH]"""
    ordinals: Int64s
    """[n] of the request in its connection."""
    firsts: Int64s
    """[n + 1] rows of `partition_rows`."""
    partition_rows: Int64s
    """[m, Q_WIDTH], in the order of fetches."""
    order: Int64s | None
    """[m] row of `partitions` for each of `partition_rows`; None where they are the same."""
    out: Int64s
    """[n, O_WIDTH]"""
    reasons: npt.NDArray[np.int8]
    offsets: Int64s
    """[m] the session's offset for the partition, -1."""
    used: Flags
    created: Flags
    """[n] whether the use, and the creation, have been worked on (or there is none)."""

    @property
    def size(self) -> int:
        """Rows of fetches and of partitions."""
        return len(self.rows) + len(self.partition_rows)

    def joined(self, new: Waiting, partition_rows: Int64s) -> Waiting:
        """These and new ones behind them. `partition_rows`: those of both."""
        shift = self.partitions.num_rows
        orders = None
        if self.order is not None or new.order is not None:
            orders = np.concatenate([_order(self), _order(new) + shift])
        return Waiting(
            joined(self.fetches, new.fetches),
            joined(self.partitions, new.partitions),
            np.concatenate([self.rows, new.rows]),
            np.concatenate([self.ordinals, new.ordinals]),
            np.concatenate([self.firsts, new.firsts[1:] + self.firsts[-1]]),
            partition_rows,
            orders,
            np.concatenate([self.out, new.out]),
            np.concatenate([self.reasons, new.reasons]),
            np.concatenate([self.offsets, new.offsets]),
            np.concatenate([self.used, new.used]),
            np.concatenate([self.created, new.created]),
        )

    def due(self, watermark: int) -> Int64s:
        """Events before the watermark, in order: 2 * row for uses, 2 * row + 1 for creations; they count as done."""
        uses = np.flatnonzero(~self.used & (self.rows[:, c.R_USED] < watermark))
        creations = np.flatnonzero(~self.created & (self.rows[:, c.R_CREATED] < watermark))
        self.used[uses] = True
        self.created[creations] = True
        row = np.concatenate([creations, uses])
        when = np.concatenate([self.rows[creations, c.R_CREATED], self.rows[uses, c.R_USED]])
        is_creation = np.arange(len(row)) < len(creations)
        found = np.argsort(when, kind="stable")
        ordered = when[found]
        tied = np.zeros(len(found), np.bool_)
        same = ordered[1:] == ordered[:-1]
        tied[1:] |= same
        tied[:-1] |= same
        if tied.any():
            places = np.flatnonzero(tied)
            at = found[places]
            keys = (self.ordinals[row[at]], self.rows[row[at], c.R_CONN], ~is_creation[at], when[at])
            found[places] = at[np.lexsort(keys)]
        return (2 * row + is_creation)[found]

    def earliest(self) -> int:
        """First among the instants at which these requests were complete."""
        used = self.rows[:, c.R_USED]
        return int(used[used != NULL_TIME].min(initial=2**63 - 1))

    def split(self) -> tuple[Waiting, Waiting | None]:
        """Those that are settled, up to the first that is not, and the others.

        A slice costs nothing, while picking rows copies all their columns: that is done only when most of what waits
        is settled behind one that is not, or partitions are out of order.
        """
        done = self.used & self.created
        if done.all():
            return self, None
        first = int(np.argmin(done))
        if self.order is not None or int(done.sum()) - first > len(done) // 2:
            return self._part(done), self._part(~done)
        return self._slice(0, first), self._slice(first, len(done))

    def _slice(self, begin: int, end: int) -> Waiting:
        inner, outer = int(self.firsts[begin]), int(self.firsts[end])
        return Waiting(
            self.fetches.slice(begin, end - begin),
            self.partitions.slice(inner, outer - inner),
            self.rows[begin:end],
            self.ordinals[begin:end],
            self.firsts[begin : end + 1] - inner,
            self.partition_rows[inner:outer],
            None,
            self.out[begin:end],
            self.reasons[inner:outer],
            self.offsets[inner:outer],
            self.used[begin:end],
            self.created[begin:end],
        )

    def _part(self, wanted: Flags) -> Waiting:
        at = np.flatnonzero(wanted)
        sizes = np.diff(self.firsts)
        members = np.flatnonzero(np.repeat(wanted, sizes))
        partitions = self.partitions.take(_order(self)[members])
        return replace(
            self,
            fetches=self.fetches.take(at),
            partitions=partitions,
            rows=self.rows[at],
            ordinals=self.ordinals[at],
            firsts=begins(sizes[at]),
            partition_rows=self.partition_rows[members],
            order=None,
            out=self.out[at],
            reasons=self.reasons[members],
            offsets=self.offsets[members],
            used=self.used[at],
            created=self.created[at],
        )


def _order(waiting: Waiting) -> Int64s:
    if waiting.order is not None:
        return waiting.order
    return np.arange(waiting.partitions.num_rows, dtype=np.int64)


def read(
    fetches: pa.Table | pa.RecordBatch,
    partitions: pa.Table | pa.RecordBatch | None,
    brokers: Coder,
    clients: Coder,
    topics: Topics,
    room: Room,
    before: Waiting | None = None,
) -> Waiting:
    """Rows as the kernel reads them, behind those that wait already. Partitions of exchanges that are not among the
    fetches are left out. `room` is for the rows of partitions."""
    asked, named = whole(fetches), whole(partitions)
    n = asked.num_rows
    if not n:
        asked, named = asked.slice(0, 0), named.slice(0, 0)
    if n:
        keys = keys_of(asked)
    else:
        keys = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    rows = fetch_rows(asked, keys[0], brokers, clients)
    order: Int64s | None = None
    if named.num_rows:
        owner = locate(keys_of(named), keys)
        if (owner < 0).any() or (owner[1:] < owner[:-1]).any():
            kept = np.flatnonzero(owner >= 0)
            order = kept[np.argsort(owner[kept], kind="stable")]
            owner = owner[order]
        firsts = begins(np.bincount(owner, minlength=n))
    else:
        firsts = np.zeros(n + 1, np.int64)
    waiting = np.zeros((0, c.Q_WIDTH), np.int64) if before is None else before.partition_rows
    both = room.behind(waiting, named.num_rows)
    body = both[len(waiting) :]
    matrix(named, c.Q_WIDTH, lambda part: _partition_columns(part, topics), body)
    if order is not None:
        body[: len(order)] = body[order]
        both = both[: len(waiting) + len(order)]
        body = both[len(waiting) :]
    kind, outcome = rows[:, c.R_KIND], rows[:, c.R_OUTCOME]
    out = np.full((n, c.O_WIDTH), -1, np.int64)
    settled = (kind >= 0) & (kind != r.INCREMENTAL)
    out[settled, c.O_IMPLIED] = 0
    unchanged = settled & ((kind == r.SESSIONLESS) | ((outcome != r.NO_OUTCOME) & (outcome != r.CREATED)))
    for column in (c.O_ADDED, c.O_ALTERED, c.O_REPLACED):
        out[unchanged, column] = 0
    given = (body[:, c.Q_FLAGS] & c.GIVEN) > 0
    owner_kind = np.repeat(kind, np.diff(firsts))
    reasons = np.where(given, np.where(owner_kind < 0, r.UNKNOWN_REASON, r.FULL), -1).astype(np.int8)
    reasons[given & (owner_kind == r.INCREMENTAL)] = r.UNKNOWN_REASON
    new = Waiting(
        asked,
        named,
        rows,
        keys[1],
        firsts,
        body,
        order,
        out,
        reasons,
        np.full(len(body), -1, np.int64),
        (kind < r.REPLACE) | (rows[:, c.R_USED] == NULL_TIME),
        (outcome != r.CREATED) | (rows[:, c.R_CREATED] == NULL_TIME),
    )
    return new if before is None else before.joined(new, both)


def kinds(version: Int64s, session: Int64s, epoch: Int64s, used: Int64s) -> Int64s:
    """What requests do with a session, as in `session_rules`; -1 where the request was not read. `session` and `epoch`
    are NO_NUMBER where null."""
    old = (version >= 0) & (version < r.FIRST_SESSION_VERSION)
    found: Int64s = np.select(
        [
            old & (used != NULL_TIME),
            (session == NO_NUMBER) | (epoch == NO_NUMBER),
            (session == 0) & (epoch == -1),
            (session == 0) & (epoch == 0),
            epoch == 0,
            epoch == -1,
        ],
        [r.SESSIONLESS, -1, r.SESSIONLESS, r.CREATE, r.REPLACE, r.CLOSE],
        r.INCREMENTAL,
    )
    return found


def aside(fetches: Codes, named: Codes) -> tuple[Codes, Codes, Int64s | None] | None:
    """Fetches without a session and their partitions, with what a tracker would fill in of them, and where the
    partitions of each begin (None where they do not stand in order); None where any belongs to a session."""
    if not fetches.num_rows and not named.num_rows:
        return fetches, named, None
    session, epoch = (ints(fetches, name, NO_NUMBER) for name in ("request_session_id", "session_epoch"))
    kind = kinds(ints(fetches, "api_version"), session, epoch, times(fetches, "request_last_at"))
    if (kind > r.SESSIONLESS).any():
        return None
    filled = fetches.with_columns({"implied_partitions": np.where(kind == r.SESSIONLESS, 0, -1)})
    named = named.with_columns({"_session_offset": np.full(named.num_rows, -1, np.int64)})
    owner = locate(keys_of(named), keys_of(fetches))
    if (owner < 0).any() or (owner[1:] < owner[:-1]).any():
        return filled, named, None
    return filled, named, begins(np.bincount(owner, minlength=fetches.num_rows))


def fetch_rows(fetches: pa.Table, connections: Int64s, brokers: Coder, clients: Coder) -> Int64s:
    """[n, R_WIDTH]. Kinds and outcomes as in `session_rules`; kind -1 where the request was not read."""
    rows = np.empty((fetches.num_rows, c.R_WIDTH), np.int64)
    rows[:, c.R_BROKER] = brokers.column(fetches, "broker")
    rows[:, c.R_CONN] = connections
    rows[:, c.R_CLIENT] = clients.column(fetches, "client_id")
    rows[:, c.R_VERSION] = version = ints(fetches, "api_version")
    rows[:, c.R_ID] = session = ints(fetches, "request_session_id", NO_NUMBER)
    rows[:, c.R_EPOCH] = epoch = ints(fetches, "session_epoch", NO_NUMBER)
    rows[:, c.R_RESPONSE_ID] = answered = ints(fetches, "response_session_id", 0)
    rows[:, c.R_BYTES] = ints(fetches, "request_bytes")
    rows[:, c.R_USED] = used = times(fetches, "request_last_at")
    rows[:, c.R_CREATED] = times(fetches, "response_first_at")
    rows[:, c.R_RETURNED] = returned = ints(fetches, "partitions_returned", 0)
    error = ints(fetches, "error_code", NO_NUMBER)
    throttled = np.nan_to_num(reals(fetches, "throttle_ms")) > 0
    rows[:, c.R_KIND] = kind = kinds(version, session, epoch, used)
    full = (kind == r.CREATE) | (kind == r.REPLACE)
    rows[:, c.R_OUTCOME] = np.select(
        [
            (error == NO_NUMBER) | (kind <= r.SESSIONLESS),
            error == r.SESSION_ID_NOT_FOUND,
            error == r.INVALID_SESSION_EPOCH,
            error == r.SESSION_TOPIC_ID_ERROR,
            error != 0,
            full & (answered != 0),
            full & (returned == 0) & throttled,
            full,
            (kind == r.CLOSE) | (answered == 0),
        ],
        [
            r.NO_OUTCOME,
            r.EVICTED_OR_UNKNOWN,
            r.EPOCH_ERROR,
            r.TOPIC_ID_ERROR,
            r.ERROR,
            r.CREATED,
            r.THROTTLED,
            r.REFUSED,
            r.CLOSED,
        ],
        r.CONTINUED,
    )
    return rows


def _partition_columns(partitions: pa.Table, topics: Topics) -> list[Int64s]:
    """The columns Q_*, in their order."""
    names, ids = topics.by_name.column(partitions, "topic"), topics.by_id.column(partitions, "topic_id")
    flags = (
        (ints(partitions, "in_request") > 0) * np.int64(c.ASKED)
        + (ints(partitions, "in_response") > 0) * np.int64(c.GIVEN)
        + (ints(partitions, "forgotten") > 0) * np.int64(c.FORGOTTEN)
    )
    return [
        topics.codes(names, ids),
        ints(partitions, "partition"),
        flags,
        ints(partitions, "fetch_offset"),
        ints(partitions, "error_code", 0),
        ints(partitions, "high_watermark", c.NOT_SENT),
        ints(partitions, "broker_log_start_offset", c.NOT_SENT),
        ints(partitions, "record_bytes", 0),
        ints(partitions, "preferred_read_replica"),
        ints(partitions, "diverging_epoch"),
    ]
