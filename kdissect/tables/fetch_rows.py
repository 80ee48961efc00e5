"""Rows of fetches and of their partitions as structs: what sessions, holds and sums of topics read of Fetch.

Each source writes these rows: `kdissect.tables.fetch_bodies` straight from bodies, and
`kdissect.analysis.sessions.session_input` from rows of `fetches` and `fetch_partitions`. The session tracker fills in
what a session adds, and hands the rows on to the hold tracker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import MILLI, Scalar
from kdissect.arrays.codes import NULL
from kdissect.kafka.exchanges.completed import NO_CODE, NULL_TIME
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.structs import Records, rows_of, struct, view, width
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.table_block import Block

Int64s = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

FIRST_SESSION_VERSION = 7
"""The first version of Fetch with a session (KIP-227)."""
RAFT, REDIRECTED, FAILED, COMMITTED = 1, 2, 4, 8
"""Bits of `FetchRow.marks`: the request names KRaft's log; the answer names a preferred replica or a diverging epoch; a
partition of the answer has an error; the request reads committed records only."""
ASKED, GIVEN, FORGOTTEN = 1, 2, 4
"""Bits of `PartitionRow.flags`: the request names the partition; the answer has it; the request names it as
forgotten."""


@struct
class FetchRow:
    """A fetch. Instants are microseconds since the epoch, NULL_TIME where unknown."""

    exchange: int
    """Row of the exchange in its block."""
    connection: int
    """First part of EXCHANGE_KEYS."""
    ordinal: int
    """Second part of EXCHANGE_KEYS; below 0 for orphans."""
    time: int
    """First byte of the request."""
    broker: int
    """Code of the broker, -1 unknown."""
    client: int
    """Code of the client id, -1 null."""
    version: int
    """API version, -1 unknown."""
    size: int
    """Bytes of the request, -1 unknown."""
    used: int
    """Last byte of the request."""
    answered: int
    """First byte of the response."""
    turn: int
    """When the broker began with the request, see `fetch_holds.turns`."""
    spent: float
    """Milliseconds at the broker, NaN unknown."""
    throttle: float
    """Milliseconds of throttling that the answer tells, NaN unknown."""
    error: int
    """Error code of the answer as a whole; NULL where the answer was not read."""
    wait: int
    """max_wait_ms, -1 unknown."""
    least: int
    """min_bytes, 1 where unknown."""
    sent: int
    """Partitions that the request names, -1 unknown."""
    returned: int
    """Partitions of the answer, 0 where unknown."""
    records: int
    """Bytes of records of the answer, 0 where unknown."""
    marks: int
    """Bits: RAFT, REDIRECTED, FAILED, COMMITTED."""
    session: int
    """Session id of the request, NULL unknown."""
    epoch: int
    """Session epoch of the request, NULL unknown."""
    given_session: int
    """Session id of the answer, 0 where unknown."""
    implied: int
    """Partitions of the session that the request leaves unnamed, -1 unknown."""
    kind: int
    """What the request does with a session: a place in `session_rules.KINDS`, -1 where it was not read."""
    outcome: int
    """What the answer says of the session: a place in `session_rules.OUTCOMES`, or NO_OUTCOME."""
    partitions: int
    """How many rows of partitions it has."""


@struct
class PartitionRow:
    """A partition that a fetch asks for, forgets or returns."""

    topic: int
    """Code of the topic as it stands on the wire: by its id where the version has ids, else by its name."""
    log: int
    """Code of the topic's name where it is known, else `topic`."""
    partition: int
    """Number of the partition."""
    flags: int
    """Bits: ASKED, GIVEN, FORGOTTEN."""
    offset: int
    """Offset asked for, -1 unknown."""
    error: int
    """Error code: of the answer as a whole where that is set, else the partition's own; 0 where unknown."""
    high: int
    """High watermark, -1 unknown or with an error."""
    stable: int
    """Last stable offset, -1 unknown or with an error."""
    start: int
    """First offset of the log, -1 unknown."""
    records: int
    """Bytes of records, 0 unknown."""
    preferred: int
    """Preferred read replica, -1 none."""
    diverging: int
    """Epoch at which the fetcher's log diverges, -1 none."""
    reason: int
    """Why an answer has it: a place in `session_rules.REASONS`, -1 where no answer has it."""
    session_offset: int
    """Offset that the session has for it, -1 unknown."""


fetch_at, partition_at = view(FetchRow), view(PartitionRow)
FETCH_WIDTH, PARTITION_WIDTH = width(FetchRow), width(PartitionRow)


def fetches_of(matrix: Int64s) -> Records:
    """Rows of fetches by the names of their fields: a view."""
    return rows_of(FetchRow, matrix)


def partitions_of(matrix: Int64s) -> Records:
    """Rows of partitions by the names of their fields: a view."""
    return rows_of(PartitionRow, matrix)


@dataclass(slots=True, eq=False)
class FetchRows:
    """Fetches, and their partitions behind one another in the order of fetches."""

    fetches: Int64s
    """[n, FETCH_WIDTH]"""
    partitions: Int64s
    """[m, PARTITION_WIDTH]"""

    @property
    def num_rows(self) -> int:
        """Rows of both."""
        return len(self.fetches) + len(self.partitions)


@dataclass(slots=True, eq=False)
class NamedFetches:
    """Rows of a block whose brokers, clients and topics are codes of these texts: `FetchRow.broker`, `.client`, and
    `PartitionRow.topic`, a (name, id)."""

    rows: FetchRows
    brokers: Sequence[str | None]
    clients: Sequence[str]
    topics: Sequence[tuple[str | None, str | None]]

    @property
    def num_rows(self) -> int:
        """Rows of fetches and of partitions."""
        return self.rows.num_rows

    def resolved(self, brokers: Mapping[str, str], topics: Mapping[str, str]) -> NamedFetches:
        """The rows with the names of `brokers`, and of `topics` by id, that are known now."""
        named = [text and brokers.get(text, text.rpartition(SEPARATOR)[2]) for text in self.brokers]
        called = [(topics.get(known or "") if name is None else name, known) for name, known in self.topics]
        return NamedFetches(self.rows, named, self.clients, called)


@part
def micros(ns: Scalar) -> Scalar:
    """Nanoseconds since the epoch as microseconds, rounded down."""
    return NULL if ns == NULL_TIME else ns // 1000


@part
def micros_of(ms: Scalar) -> Scalar:
    """Milliseconds as whole microseconds, 0 for NaN."""
    return np.int64(0) if np.isnan(ms) else np.int64(ms * MILLI)


@part
def turn_of(used: Scalar, answered: Scalar, queued: Scalar, spent: Scalar) -> Scalar:
    """See `fetch_holds.turns`."""
    turn = used + micros_of(queued)
    if answered != NULL_TIME and not np.isnan(spent):
        turn = max(turn, answered - micros_of(spent))
    return turn


def complete_read(block: Block, read: FetchRows) -> NamedFetches:
    """Rows that `fetch_bodies` read of a block's bodies, with what their exchanges tell. Works in place."""
    done, parts, found = block.done, block.parts, fetches_of(read.fetches)
    rows = found["exchange"]
    (found["connection"], found["ordinal"]), split = (key[rows] for key in block.keys), parts.split[rows]
    found["time"], found["used"], found["answered"] = (
        column[rows] for column in (done.request_first, done.request_last, done.response_first)
    )
    found["broker"] = block.directory.broker_codes(done.conn)[rows]
    found["client"], found["version"], found["size"] = (
        column[rows] for column in (done.client, done.api_version, done.request_bytes)
    )
    found["turn"], found["spent"] = parts.queued[rows], np.where(split, parts.broker[rows] / 1e6, np.nan)
    throttle, error = done.throttle_ms[rows], done.error_code[rows]
    found["throttle"] = np.where(throttle >= 0, throttle, np.nan)
    found["error"] = np.where(done.error_count[rows] >= 0, np.where(error == NO_CODE, 0, error), NULL)
    finish(read.fetches, read.partitions)
    return NamedFetches(read, block.directory.brokers.texts, done.client_ids, block.done.aside.topics)


@kernel("i8[:,:] i8[:,:]")
def finish(fetches: Int64s, partitions: Int64s) -> None:
    """Turn instants from nanoseconds into microseconds, and `turn`, which is nanoseconds of queueing, into an instant.
    The error of an answer as a whole stands before those of its partitions."""
    q = np.int64(0)
    for i in range(len(fetches)):
        row = fetch_at(fetches, i)
        queued: Scalar = np.nan
        if not np.isnan(row.spent):
            queued = row.turn / 1e6
        row.time, row.used, row.answered = micros(row.time), micros(row.used), micros(row.answered)
        row.turn = turn_of(row.used, row.answered, queued, row.spent)
        for at in range(q, q + row.partitions):
            named = partition_at(partitions, at)
            if row.error != 0 and row.error != NULL:
                named.error, named.high, named.stable = row.error, -1, -1
        q += row.partitions


@kernel("const i8[:] const i8[:] const f8[:] const f8[:] i8[:]")
def find_turns(used: Int64s, answered: Int64s, queued: Reals, spent: Reals, found: Int64s) -> None:
    """See `fetch_holds.turns`."""
    for i in range(used.size):
        found[i] = turn_of(used[i], answered[i], queued[i], spent[i])
