"""Share sessions (KIP-932): the table `share_sessions` out of ShareFetch and ShareAcknowledge messages.

A broker keeps one share session per (group, member). ShareFetch and ShareAcknowledge count one epoch together:

    0      (ShareFetch only) a new session; one that the member still had is gone (`replaced`)
    n      the next request of the session; after 2^31-1 comes 1
    -1     the last one: open acknowledgements are taken, then the session is closed

Responses carry no session id. Error 122 (SHARE_SESSION_NOT_FOUND) says that the broker has no such session any more
(`evicted`), 123 that the epoch is wrong, 133 that there was no room for a new one. A session ends with its connection
(`disconnected`): seen here when the member goes on over another one.

Uses take effect when the request's last byte arrived. A session whose beginning was not captured starts with its first
accepted use (first_epoch then is not 0). An answer is accepted when its top-level error is 0. Acknowledgements are
those that accepted requests sent, by type: 1 accept, 2 release, 3 reject, 4 renew; a batch with a single type has it
for all its offsets (gaps, type 0, are not records). An acknowledgement that the broker did not take (an error of the
answer or of the partition in it, mostly INVALID_RECORD_STATE after the lock ran out) is `refused` and nothing else.
Acquired are the records that answers handed out, each delivery of a record counts; `redelivered` are those with a
delivery count above 1. `lock_ms` is how long the broker last said that it keeps them (KIP-932; null before ShareFetch
v1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import DIGITS, exchange_keys, keys_of, locate
from kdissect.arrays.arrow import (
    NULL_TIME,
    Coder,
    Flags,
    Int64s,
    Scalar,
    instants,
    ints,
    numbers,
    optional,
    times,
    with_columns,
    words,
)
from kdissect.arrays.dictionaries import join_tables
from kdissect.kernels.kernel import kernel
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import By
from kdissect.tables.makers import fills
from kdissect.tables.nest import Level

SCHEMA = SCHEMAS["share_sessions"]
APIS = ("ShareFetch", "ShareAcknowledge")
END_REASONS = ("closed", "replaced", "disconnected", "evicted", "open")
CLOSED, REPLACED, DISCONNECTED, EVICTED, OPEN = range(5)
SESSION_NOT_FOUND = 122
UNANSWERED = -(2**31)
ACKNOWLEDGEMENTS = ("accepted", "released", "rejected", "renewed")
"""Columns for acknowledge types 1 to 4."""
ACQUIRED, REFUSED, REDELIVERED, LOCK = "records_acquired", "refused", "redelivered", "lock_ms"
TOTALS = (*ACKNOWLEDGEMENTS, ACQUIRED, REFUSED, REDELIVERED)
ACKNOWLEDGE_ERROR = {"ShareFetch": "acknowledge_error_code", "ShareAcknowledge": "error_code"}
"""Field of a partition in the answer that says whether its acknowledgements were taken."""


@kernel("i8[:] i8[:] i8[:] i8[:] b1[:] i8[:] i8[:] -> i8")
def _follow(
    key: Int64s, connection: Int64s, epoch: Int64s, error: Int64s, is_fetch: Flags, session: Int64s, end: Int64s
) -> Scalar:
    """Session of each use (rows by key, then time), -1 for none; end[session] its reason << 32 | row that ended it."""
    count = 0
    live = -1
    on = np.int64(0)
    for i in range(len(key)):
        if i == 0 or key[i] != key[i - 1]:
            live = -1
        session[i] = -1
        accepted = error[i] == 0
        if live >= 0 and connection[i] != on:
            end[live] = np.int64(DISCONNECTED) << 32 | i
            live = -1
        if epoch[i] == 0 and is_fetch[i]:
            if live >= 0:
                session[i] = live
                end[live] = np.int64(REPLACED) << 32 | i
                live = -1
            if accepted:
                live = count
                count += 1
                session[i], on = live, connection[i]
            continue
        if live < 0 and accepted:
            live = count
            count += 1
            on = connection[i]
        session[i] = live
        if live < 0:
            continue
        if epoch[i] == -1:
            end[live] = np.int64(CLOSED) << 32 | i
            live = -1
        elif error[i] == SESSION_NOT_FOUND:
            end[live] = np.int64(EVICTED) << 32 | i
            live = -1
    return count


def uses(exchanges: pa.Table, messages: Mapping[tuple[str, str], pa.Table]) -> pa.Table:
    """What `sessions_of` needs of some exchanges with all of their messages.

    `exchanges`: exchange_id or its keys, broker, request_last_at. `messages`: nested messages of ShareFetch and
    ShareAcknowledge by API and "request"/"response", as `Capture.messages` returns them; what is missing counts as not
    captured.
    """
    requests = [_requests(messages.get((api, "request")), messages.get((api, "response")), api) for api in APIS]
    found = pa.concat_tables([part for part in requests if part.num_rows] or requests[:1])
    if not found.num_rows:
        return found
    keys = exchange_keys(found["exchange_id"])
    at = locate(keys, keys_of(exchanges))
    where = pa.array(at, mask=at < 0)
    found = with_columns(found, {name: exchanges[name].take(where) for name in ("broker", "request_last_at")})
    error = np.full(len(at), UNANSWERED, np.int64)
    acquired, again, lock = (np.full(len(at), none, np.int64) for none in (0, 0, -1))
    for api in APIS:
        table = messages.get((api, "response"))
        if table is not None and table.num_rows:
            at = locate(keys, exchange_keys(table["exchange_id"]))
            here = at >= 0
            error[here] = ints(table, "error_code", UNANSWERED)[at[here]]
            handed = _acquired(table)
            acquired[here], again[here] = handed[0][at[here]], handed[1][at[here]]
            lock[here] = ints(table, "acquisition_lock_timeout_ms", -1)[at[here]]
    made = {"error": error, ACQUIRED: acquired, REDELIVERED: again, LOCK: lock}
    return with_columns(found, {name: pa.array(values) for name, values in made.items()})


def sessions_of(parts: Sequence[pa.Table]) -> pa.Table:
    """The table `share_sessions` of what `uses` gave: a row per share session, ordered by opened_at and session_key."""
    parts = [part for part in parts if part.num_rows]
    if not parts:
        return SCHEMA.empty_table()
    uses = join_tables(parts)
    keys = exchange_keys(uses["exchange_id"])
    error = ints(uses, "error")
    coder = Coder()
    owner = np.stack([coder.column(uses, name) for name in ("broker", "group_id", "member_id")], axis=1)
    _, key = np.unique(owner, axis=0, return_inverse=True)
    when = times(uses, "request_last_at")
    order = np.lexsort((keys[1], keys[0], when, key))
    order = order[when[order] != NULL_TIME]
    epoch, is_fetch = ints(uses, "epoch"), ints(uses, "is_fetch") > 0
    session = np.full(len(order), -1, np.int64)
    ends = np.full(len(order) + 1, np.int64(OPEN) << 32, np.int64)
    count = _follow(
        key[order].astype(np.int64), keys[0][order], epoch[order], error[order], is_fetch[order], session, ends
    )
    return _table(uses, owner, coder, when, epoch, error, order, session, ends[:count])


def _table(
    uses: pa.Table, owner: Int64s, coder: Coder, when: Int64s, epoch: Int64s, error: Int64s, order: Int64s,
    session: Int64s, ends: Int64s,
) -> pa.Table:  # fmt: skip
    count = len(ends)
    if not count:
        return SCHEMA.empty_table()
    kept = np.flatnonzero(session >= 0)
    row, of = order[kept], session[kept]
    accepted = error[row] == 0
    opening = np.full(count, -1, np.int64)
    last = np.zeros(count, np.int64)
    requests = np.bincount(of, minlength=count)
    # A request that replaces a session belongs to the new one in `session`; the old one counts it too.
    replaced = np.flatnonzero((ends >> 32) == REPLACED)
    requests[replaced] += session[ends[replaced] & 0xFFFFFFFF] != replaced
    good = np.flatnonzero(accepted)
    opening[of[good][::-1]] = row[good][::-1]
    used = good[epoch[row[good]] >= 0]
    last[of[used]] = epoch[row[used]]
    totals = {}
    for name in TOTALS:
        some = np.flatnonzero(error[row] != UNANSWERED) if name == REFUSED else good
        totals[name] = np.bincount(of[some], weights=ints(uses, name)[row[some]], minlength=count).astype(np.int64)
    totals[LOCK] = np.full(count, -1, np.int64)
    told = good[ints(uses, LOCK)[row[good]] > 0]
    totals[LOCK][of[told]] = ints(uses, LOCK)[row[told]]
    names = owner[opening]
    _, which = np.unique(names, axis=0, return_inverse=True)
    incarnation = np.empty(count, np.int64)
    seen: dict[int, int] = {}
    for i, one in enumerate(which.tolist()):
        incarnation[i] = seen[one] = seen.get(one, 0) + 1
    texts = [[coder.texts[code] if code >= 0 else None for code in names[:, column].tolist()] for column in range(3)]
    labels = [
        f"{broker or ''}/{group or ''}/{member or ''}/{n}"
        for broker, group, member, n in zip(*texts, incarnation.tolist(), strict=True)
    ]
    closed = np.where(ends >> 32 == OPEN, NULL_TIME, when[order[np.minimum(ends & 0xFFFFFFFF, len(order) - 1)]])
    ids = uses["exchange_id"].take(pa.array(opening))
    columns = _columns(labels, texts, ids, (when[opening], closed), (epoch[opening], last), requests, totals, ends)
    table = pa.table({name: columns[name] for name in SCHEMA.names}, SCHEMA)
    return table.sort_by([("opened_at", "ascending"), ("session_key", "ascending")])


def _columns(
    labels: Sequence[str], names: Sequence[Sequence[str | None]], exchange_ids: pa.ChunkedArray,
    times: tuple[Int64s, Int64s], epochs: tuple[Int64s, Int64s], requests: Int64s, totals: Mapping[str, Int64s],
    ends: Int64s,
) -> dict[str, pa.Array]:  # fmt: skip
    """The columns of `share_sessions`; `exchange_ids` are first uses, `times` and `epochs` first and last ones."""
    return {
        "session_key": pa.array(labels, pa.string()),
        "broker": pa.array(names[0], pa.string()),
        "group_id": pa.array(names[1], pa.string()),
        "member_id": pa.array(names[2], pa.string()),
        "connection_id": pc.utf8_slice_codeunits(exchange_ids.cast(pa.string()), 0, DIGITS),
        "opened_at": instants(times[0]),
        "closed_at": instants(times[1]),
        "first_epoch": pa.array(epochs[0], pa.int32()),
        "last_epoch": pa.array(epochs[1], pa.int32()),
        "requests": pa.array(requests.astype(np.int64)),
        **{name: pa.array(values) for name, values in totals.items() if name != LOCK},
        LOCK: optional(totals[LOCK], pa.float64()),
        "end_reason": words(ends >> 32, END_REASONS).cast(pa.string()),
        "cluster": pa.nulls(len(labels), pa.string()),
    }


def _requests(table: pa.Table | None, answers: pa.Table | None, api: str) -> pa.Table:
    """exchange_id, group_id, member_id, epoch, is_fetch, how many records each acknowledges, by type, and how many
    acknowledgements were refused."""
    columns = ("exchange_id", "group_id", "member_id")
    if table is None:
        table = pa.table({name: pa.array([], pa.string()) for name in columns})
    n = table.num_rows
    out = {name: table[name] for name in columns}
    out["epoch"] = pa.array(ints(table, "share_session_epoch", -(2**31)))
    out["is_fetch"] = pa.array(np.full(n, api == "ShareFetch"))
    counts = _acknowledged(table, answers, api) if n else np.zeros((0, 6), np.int64)
    for column, name in enumerate((*ACKNOWLEDGEMENTS, REFUSED), start=1):
        out[name] = pa.array(counts[:, column])
    return pa.table(out)


def _root(table: pa.Table) -> Level:
    return Level.root(table.combine_chunks().to_batches()[0])


def _acknowledged(table: pa.Table, answers: pa.Table | None, api: str) -> Int64s:
    """[n, 6]: records by acknowledge type, and those of types 1 to 4 that were refused."""
    found = np.zeros((table.num_rows, 6), np.int64)
    topics = _root(table).each("topics")
    partitions = topics.each("partitions")
    batches = partitions.each("acknowledgement_batches")
    types = batches.get("acknowledge_types")
    if types is None or not len(batches):
        return found
    sizes = batches.ints("last_offset", -1) - batches.ints("first_offset", 0) + 1
    each = numbers(types.value_lengths(), 0)
    owner = np.repeat(np.arange(len(batches)), each)
    kind = numbers(types.flatten(), 0).clip(0, 4)
    refused = _refused(table, answers, topics, partitions, ACKNOWLEDGE_ERROR[api])[batches.parent]
    kind = np.where(refused[owner] & (kind > 0), 5, kind)
    weight = np.where(each[owner] == 1, np.maximum(sizes[owner], 1), 1)
    np.add.at(found, (batches.body[owner], kind), weight)
    return found


def _refused(table: pa.Table, answers: pa.Table | None, topics: Level, partitions: Level, field: str) -> Flags:
    """For each partition of the requests whether its answer refuses what it acknowledges."""
    none = np.zeros(len(partitions), np.bool_)
    if answers is None or not answers.num_rows:
        return none
    root = _root(answers)
    given_topics = root.each("responses")
    given = given_topics.each("partitions")
    ours, theirs = exchange_keys(table["exchange_id"]), exchange_keys(answers["exchange_id"])
    at = locate(ours, theirs)
    whole = np.append(root.ints("error_code", 0) != 0, False)[at][partitions.body]
    wrong = np.flatnonzero(given.ints(field, 0) != 0)
    if not len(wrong):
        return whole
    text = pa.concat_arrays(
        [given.up(given_topics.column("topic_id", pa.string())).take(pa.array(wrong)),
         partitions.up(topics.column("topic_id", pa.string()))]
    ).dictionary_encode()  # fmt: skip
    body = np.concatenate([given.body[wrong], at[partitions.body]])
    number = np.concatenate([given.ints("partition_index")[wrong], partitions.ints("partition_index")])
    _, key = np.unique(np.stack([body, numbers(text.indices), number], axis=1), axis=0, return_inverse=True)
    refused: Flags = whole | np.isin(key[len(wrong) :], key[: len(wrong)])
    return refused


def _acquired(table: pa.Table) -> tuple[Int64s, Int64s]:
    """Records handed out by each response, and those among them that were handed out before."""
    level = _root(table).each("responses").each("partitions").each("acquired_records")
    sizes = np.maximum(level.ints("last_offset", -1) - level.ints("first_offset", 0) + 1, 0)
    again = np.where(level.ints("delivery_count", 1) > 1, sizes, 0)
    handed, twice = (np.bincount(level.body, weights=of, minlength=table.num_rows) for of in (sizes, again))
    return handed.astype(np.int64), twice.astype(np.int64)


def _filled() -> Mapping[str, Mapping[str, pa.Array]]:
    """The columns that are filled, found out on no rows."""
    none = np.zeros(0, np.int64)
    totals = dict.fromkeys((*TOTALS, LOCK), none)
    return {
        "share_sessions": _columns(
            (), ((), (), ()), pa.chunked_array([], pa.string()), (none, none), (none, none), none, totals, none
        )
    }


fills(By.SHARES, _filled)
