"""The rules of fetch sessions (KIP-227) that one fetch alone decides: what its request does, and what its answer says.

`enter` applies them to rows from every source, see `kdissect.tables.fetch_rows`.
"""

from __future__ import annotations

import numpy as np

from kdissect.analysis.sessions import session_rules as r
from kdissect.analysis.sessions.session_layout import use_at
from kdissect.arrays.arrow import NULL_TIME, Int64s, Scalar
from kdissect.arrays.rows import NULL
from kdissect.kernels.kernel import kernel, part
from kdissect.tables import fetch_rows as h
from kdissect.tables.fetch_rows import (
    FIRST_SESSION_VERSION,
    FetchRow,
    fetch_at,
    partition_at,
)
from kdissect.tables.order import NEVER, stands_behind


@part
def request_kind(row: FetchRow) -> Scalar:
    """What a request does with a session: a place in KINDS, -1 where the request was not read."""
    if 0 <= row.version < FIRST_SESSION_VERSION and row.used != NULL_TIME:
        return np.int64(r.SESSIONLESS)
    if row.session == NULL or row.epoch == NULL:
        return np.int64(-1)
    if row.session == 0:
        if row.epoch == -1:
            return np.int64(r.SESSIONLESS)
        if row.epoch == 0:
            return np.int64(r.CREATE)
    if row.epoch == 0:
        return np.int64(r.REPLACE)
    return np.int64(r.CLOSE) if row.epoch == -1 else np.int64(r.INCREMENTAL)


@part
def answer_outcome(row: FetchRow, kind: Scalar) -> Scalar:
    """What an answer says of the session: a place in OUTCOMES, NO_OUTCOME where none was read or none is meant."""
    if row.error == NULL or kind <= r.SESSIONLESS:
        return np.int64(r.NO_OUTCOME)
    if row.error == r.SESSION_ID_NOT_FOUND:
        return np.int64(r.EVICTED_OR_UNKNOWN)
    if row.error == r.INVALID_SESSION_EPOCH:
        return np.int64(r.EPOCH_ERROR)
    if row.error == r.SESSION_TOPIC_ID_ERROR:
        return np.int64(r.TOPIC_ID_ERROR)
    if row.error != 0:
        return np.int64(r.ERROR)
    if kind == r.CREATE or kind == r.REPLACE:
        if row.given_session != 0:
            return np.int64(r.CREATED)
        throttled = row.returned == 0 and row.throttle > 0  # NaN is not
        return np.int64(r.THROTTLED) if throttled else np.int64(r.REFUSED)
    return np.int64(r.CLOSED) if kind == r.CLOSE or row.given_session == 0 else np.int64(r.CONTINUED)


@part
def renamed(code: Scalar, codes: Int64s) -> Scalar:
    """The code that stands for another one; the code itself where none are given."""
    if codes.size == 0:
        return code
    return codes[code] if code >= 0 else np.int64(-1)


@kernel(
    "const i8[:,:] const i8[:,:] const i8[:] const i8[:] const i8[:] const i8[:] i8[:,:] i8[:,:] i8[:] i8[:,:] i8[:] "
    "i8[:] -> b1"
)
def enter(
    fetches: Int64s, partitions: Int64s, brokers: Int64s, clients: Int64s, topics: Int64s, logs: Int64s,
    out_fetches: Int64s, out_partitions: Int64s, firsts: Int64s, uses: Int64s, used: Int64s, created: Int64s,
) -> Scalar:  # fmt: skip
    """Copy rows to `out_fetches` and `out_partitions` with what they say of sessions, and other codes. Returns whether
    they stand in the order of their requests.

    `brokers`, `clients`, `topics` and `logs` have at each code the one that stands for it (the last two: for the
    topic's). Where these are empty, codes stay. `firsts` begins with where the first one's partitions begin, and gets
    where they end. `uses`: SessionUse of each. `used`, `created`: when the tracker has a use, or a creation, of a
    session to work on; NEVER for none.
    """
    p, q, in_order = np.int64(0), firsts[0], True
    shift = q
    for i in range(len(fetches)):
        for column in range(h.FETCH_WIDTH):
            out_fetches[i, column] = fetches[i, column]
        row = fetch_at(out_fetches, i)
        row.broker, row.client = renamed(row.broker, brokers), renamed(row.client, clients)
        row.kind = request_kind(row)
        row.outcome = answer_outcome(row, row.kind)
        settled = row.kind >= 0 and row.kind != r.INCREMENTAL
        row.implied = 0 if settled else -1
        use = use_at(uses, i)
        use.expected, use.status, use.serial, use.id, use.incarnation, use.hidden = -1, -1, -1, -1, -1, -1
        unchanged = row.kind == r.SESSIONLESS or (row.outcome != r.NO_OUTCOME and row.outcome != r.CREATED)
        use.added = use.altered = use.replaced = 0 if settled and unchanged else -1
        used[i] = NEVER if row.kind < r.REPLACE or row.used == NULL_TIME else row.used
        created[i] = NEVER if row.outcome != r.CREATED or row.answered == NULL_TIME else row.answered
        reason = r.FULL if settled else r.UNKNOWN_REASON
        for _ in range(row.partitions):
            for column in range(h.PARTITION_WIDTH):
                out_partitions[q - shift, column] = partitions[p, column]
            named = partition_at(out_partitions, q - shift)
            if topics.size:
                named.log = logs[named.topic]
                named.topic = topics[named.topic]
            named.reason = reason if named.flags & h.GIVEN else -1
            named.session_offset = -1
            p += 1
            q += 1
        firsts[i + 1] = q
        if i > 0 and in_order:
            last = fetch_at(out_fetches, i - 1)
            in_order = stands_behind(
                asked_at(last), last.connection, last.ordinal, asked_at(row), row.connection, row.ordinal
            )
    return in_order


@part
def asked_at(row: FetchRow) -> Scalar:
    """When a request began, for the order of rows: those without a time stand last."""
    return NEVER if row.time == NULL_TIME else row.time
