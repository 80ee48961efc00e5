"""The rules of fetch sessions (KIP-227) that one fetch alone decides: what its request does, and what its answer says.

`enter` applies them to rows from every source, see `kdissect.tables.fetch_rows`.
"""

from __future__ import annotations

import numpy as np

from kdissect.analysis.sessions import session_rules as r
from kdissect.arrays.arrow import NULL_TIME, Int64s, Scalar
from kdissect.arrays.codes import NULL
from kdissect.kernels.kernel import kernel, part
from kdissect.tables import fetch_rows as h
from kdissect.tables.fetch_rows import (
    FIRST_SESSION_VERSION,
    FetchRow,
    fetch_at,
    partition_at,
)


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


@kernel("i8[:,:] i8[:,:] const i8[:] const i8[:] const i8[:] const i8[:]")
def enter(fetches: Int64s, partitions: Int64s, brokers: Int64s, clients: Int64s, topics: Int64s, logs: Int64s) -> None:
    """Write what rows say of sessions, and other codes: `brokers`, `clients`, `topics` and `logs` have at each code the
    one that stands for it (the last two: for the topic's). Where these are empty, codes stay."""
    q = np.int64(0)
    for i in range(len(fetches)):
        row = fetch_at(fetches, i)
        if brokers.size:
            row.broker = brokers[row.broker] if row.broker >= 0 else -1
            row.client = clients[row.client] if row.client >= 0 else -1
        row.kind = request_kind(row)
        row.outcome = answer_outcome(row, row.kind)
        settled = row.kind >= 0 and row.kind != r.INCREMENTAL
        row.implied = 0 if settled else -1
        reason = r.FULL if settled else r.UNKNOWN_REASON
        for at in range(q, q + row.partitions):
            named = partition_at(partitions, at)
            if topics.size:
                named.log = logs[named.topic]
                named.topic = topics[named.topic]
            named.reason = reason if named.flags & h.GIVEN else -1
            named.session_offset = -1
        q += row.partitions
