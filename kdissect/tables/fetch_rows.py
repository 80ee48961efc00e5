"""Rows of fetches and of their partitions as structs: what sessions, holds and sums of topics read of Fetch.

Each source writes these rows: `kdissect.tables.fetch_bodies` straight from bodies, and
`kdissect.analysis.sessions.session_input` from rows of `fetches` and `fetch_partitions`. The session tracker fills in
what a session adds, and hands the rows on to the hold tracker.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import MILLI, Scalar, begins, stretches
from kdissect.arrays.rows import NULL
from kdissect.kafka.completed import NO_CODE, NULL_TIME
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.structs import Records, rows_of, struct, view, width
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.table_block import Block

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int16s = npt.NDArray[np.int16]
Flags = npt.NDArray[np.bool_]
Reals = npt.NDArray[np.float64]

FIRST_SESSION_VERSION = 7
"""The first version of Fetch with a session (KIP-227)."""
RAFT, REDIRECTED, FAILED, COMMITTED = 1, 2, 4, 8
"""Bits of `FetchRow.marks`: the request names KRaft's log; the answer names a preferred replica or a diverging epoch; a
partition of the answer has an error; the request reads committed records only."""
READ_COMMITTED = 1
"""The value of isolation_level with which a consumer reads committed records only (KIP-98)."""
ASKED, GIVEN, FORGOTTEN = 1, 2, 4
"""Bits of `PartitionRow.flags`: the request names the partition; the answer has it; the request names it as
forgotten."""
ORIGIN = "_origin"
"""Helper column of rows that tasks decoded: the number of the task."""


@struct
class FetchRow:
    """A fetch. Instants are microseconds since the epoch, NULL_TIME where unknown. What is read together stands
    together: rows are more than a cache takes."""

    exchange: int
    """Row of the exchange in its block; in rows that left the task which decoded them, that task's number (ORIGIN)."""
    version: int
    """API version, -1 unknown."""
    size: int
    """Bytes of the request, -1 unknown."""
    client: int
    """Code of the client id, -1 null."""
    session: int
    """Session id of the request, NULL unknown."""
    epoch: int
    """Session epoch of the request, NULL unknown."""
    given_session: int
    """Session id of the answer, 0 where unknown."""
    returned: int
    """Partitions of the answer, 0 where unknown."""
    kind: int
    """What the request does with a session: a place in `session_rules.KINDS`, -1 where it was not read."""
    outcome: int
    """What the answer says of the session: a place in `session_rules.OUTCOMES`, or NO_OUTCOME."""
    time: int
    """First byte of the request."""
    connection: int
    """First part of EXCHANGE_KEYS."""
    ordinal: int
    """Second part of EXCHANGE_KEYS; below 0 for orphans."""
    used: int
    """Last byte of the request."""
    answered: int
    """First byte of the response."""
    turn: int
    """When the broker began with the request, see `fetch_holds.turns`."""
    throttle: float
    """Milliseconds of throttling that the answer tells, NaN unknown."""
    partitions: int
    """How many rows of partitions it has."""
    broker: int
    """Code of the broker, -1 unknown."""
    marks: int
    """Bits: RAFT, REDIRECTED, FAILED, COMMITTED."""
    spent: float
    """Milliseconds at the broker, NaN unknown."""
    error: int
    """Error code of the answer as a whole; NULL where the answer was not read."""
    wait: int
    """max_wait_ms, -1 unknown."""
    least: int
    """min_bytes, 1 where unknown."""
    sent: int
    """Partitions that the request names, -1 unknown."""
    records: int
    """Bytes of records of the answer, 0 where unknown."""
    implied: int
    """Partitions of the session that the request leaves unnamed, -1 unknown."""
    unseen: int
    """Up to when requests before it on its connection may not have been captured, NULL: all of them were."""


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
OF_SESSIONS = ("kind", "outcome", "implied"), ("reason", "session_offset")
"""The fields of fetches and of partitions that the session tracker fills in: before that they may have any value."""
FETCH_WIDTH, PARTITION_WIDTH = width(FetchRow), width(PartitionRow)


def fetches_of(matrix: Int64s) -> Records:
    """Rows of fetches by the names of their fields: a view."""
    return rows_of(FetchRow, matrix)


def partitions_of(matrix: Int64s) -> Records:
    """Rows of partitions by the names of their fields: a view."""
    return rows_of(PartitionRow, matrix)


class FetchRows(NamedTuple):
    """Fetches, and their partitions behind one another in the order of fetches."""

    fetches: Int64s
    """[n, FETCH_WIDTH]"""
    partitions: Int64s
    """[m, PARTITION_WIDTH]"""

    @property
    def num_rows(self) -> int:
        """Rows of both."""
        return len(self.fetches) + len(self.partitions)


def no_rows() -> FetchRows:
    """No fetches."""
    return FetchRows(np.zeros((0, FETCH_WIDTH), np.int64), np.zeros((0, PARTITION_WIDTH), np.int64))


class NamedFetches(NamedTuple):
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

    @property
    def keys(self) -> tuple[Int64s, Int64s]:
        """The key of each fetch's exchange, as `exchange_keys` gives it."""
        found = fetches_of(self.rows.fetches)
        return np.ascontiguousarray(found["connection"]), np.ascontiguousarray(found["ordinal"])

    def take(self, at: Int64s) -> "NamedFetches":
        """The fetches at these places, with their partitions."""
        fetches, partitions = self.rows
        sizes = fetches_of(fetches)["partitions"]
        members = stretches(begins(sizes)[:-1][at], sizes[at])[1]
        return self._replace(rows=FetchRows(fetches[at], partitions[members]))

    def cut(self, ends: Sequence[tuple[int, int]]) -> "list[NamedFetches]":
        """Stretches of fetches, each from a place to another one, with their partitions."""
        fetches, partitions = self.rows
        first = begins(fetches_of(fetches)["partitions"])
        return [self._replace(rows=FetchRows(fetches[at:end], partitions[first[at] : first[end]])) for at, end in ends]

    def resolved(self, brokers: Mapping[str, str], topics: Mapping[str, str]) -> "NamedFetches":
        """The rows with the names of `brokers`, and of `topics` by id, that are known now."""
        named = [text and brokers.get(text, text.rpartition(SEPARATOR)[2]) for text in self.brokers]
        called = [pair if pair[0] is not None else (topics.get(pair[1] or ""), pair[1]) for pair in self.topics]
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


def plain(column: npt.NDArray[Any], kind: type) -> npt.NDArray[Any]:
    """A column in one piece, of this type, as kernels take it."""
    return np.require(column, kind, ["C", "A"])


def complete_read(block: Block, read: FetchRows) -> NamedFetches:
    """Rows that `fetch_bodies` read of a block's bodies, with what their exchanges tell. Works in place."""
    done, parts = block.done, block.parts
    fetches, partitions = read.fetches, read.partitions
    add_instants(
        fetches, *block.keys, plain(done.request_first, np.int64), plain(done.request_last, np.int64),
        plain(done.response_first, np.int64), plain(done.unseen_until, np.int64), parts.queued, parts.broker,
        parts.split,
    )  # fmt: skip
    add_answers(
        fetches, partitions, plain(done.throttle_ms, np.int32), plain(done.error_code, np.int32),
        plain(done.error_count, np.int32), plain(done.api_version, np.int16),
        plain(block.directory.broker_codes(done.conn), np.int32), plain(done.client, np.int32),
        plain(done.request_bytes, np.int64),
    )  # fmt: skip
    return NamedFetches(read, block.directory.brokers.texts, done.client_ids, block.done.aside.topics)


@kernel(
    "i8[:,:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] "
    "const b1[:]"
)
def add_instants(
    fetches: Int64s, high: Int64s, n: Int64s, first: Int64s, last: Int64s, answer: Int64s, unseen: Int64s,
    queued: Int64s, spent: Int64s, split: Flags,
) -> None:  # fmt: skip
    """Keys and instants of exchanges, in nanoseconds, into the rows of their fetches. `queued`, `spent`: nanoseconds,
    where `split`."""
    for i in range(len(fetches)):
        row = fetch_at(fetches, i)
        at = row.exchange
        row.connection, row.ordinal = high[at], n[at]
        row.time, row.used, row.answered = micros(first[at]), micros(last[at]), micros(answer[at])
        row.unseen = micros(unseen[at])
        waited: Scalar = np.nan
        row.spent = np.nan
        if split[at]:
            waited, row.spent = queued[at] / 1e6, spent[at] / 1e6
        row.turn = turn_of(row.used, row.answered, waited, row.spent)


@kernel("i8[:,:] i8[:,:] const i4[:] const i4[:] const i4[:] const i2[:] const i4[:] const i4[:] const i8[:]")
def add_answers(
    fetches: Int64s, partitions: Int64s, throttle: Int32s, error: Int32s, errors: Int32s, version: Int16s,
    broker: Int32s, client: Int32s, sizes: Int64s,
) -> None:  # fmt: skip
    """What exchanges tell besides, into the rows of their fetches. `errors`: below 0 where an answer was not read. The
    error of an answer as a whole stands before those of its partitions."""
    q = np.int64(0)
    for i in range(len(fetches)):
        row = fetch_at(fetches, i)
        at = row.exchange
        row.version, row.broker, row.client, row.size = version[at], broker[at], client[at], sizes[at]
        row.throttle = np.float64(throttle[at]) if throttle[at] >= 0 else np.nan
        top: Scalar = np.int64(0) if error[at] == NO_CODE else np.int64(error[at])
        row.error = top if errors[at] >= 0 else NULL
        for p in range(q, q + row.partitions):
            named = partition_at(partitions, p)
            if top != 0:
                named.error, named.high, named.stable = top, -1, -1
        q += row.partitions


@kernel("const i8[:] const i8[:] const f8[:] const f8[:] i8[:]")
def find_turns(used: Int64s, answered: Int64s, queued: Reals, spent: Reals, turns: Int64s) -> None:
    """See `fetch_holds.turns`."""
    for i in range(used.size):
        turns[i] = turn_of(used[i], answered[i], queued[i], spent[i])
