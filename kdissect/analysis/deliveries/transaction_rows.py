"""Rows of `transactions`: what a producer wrote between two ends, and how it ended.

A transaction is ended by the producer's EndTxn, or by an InitProducerId for its transactional id, which aborts what is
open. A new instance of the producer, or an administrator, fences the old one with it; a producer that names its own id
recovers from an error. Else the coordinator ends it: it writes abort markers by itself when the timeout is over.
Markers of an administrator (KIP-664) do not come from a coordinator's marker sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kdissect.analysis.cluster_split import each_cluster
from kdissect.analysis.deliveries.delivery_columns import UNKNOWN, dense
from kdissect.analysis.deliveries.transaction_events import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    BATCH,
    COMMIT_OFFSETS,
    END,
    MARKERS,
    NEVER,
    NamedTexts,
    TransactionEvents,
    least_by,
    most_by,
    number_transactions,
    read_events,
)  # fmt: skip
from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import (
    MILLI,
    NULL_TIME,
    Coder,
    Flags,
    Int64s,
    instants,
    ints,
    optional,
    times,
    whole,
    words,
)  # fmt: skip
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import CODE, COUNT, TEXT, By
from kdissect.tables.makers import fills

SCHEMA = SCHEMAS["transactions"]
OUTCOMES = ("committed", "aborted", "timed_out", "fenced", "open")
COMMITTED, ABORTED, TIMED_OUT, FENCED, OPEN = range(len(OUTCOMES))
FENCING = (47, 90)
"""INVALID_PRODUCER_EPOCH, PRODUCER_FENCED: the coordinator, or somebody else, has ended the producer's transaction."""
ENDED_ALREADY = 48
"""INVALID_TXN_STATE: there is no transaction to end any more."""
UNDER_WAY = 51
"""CONCURRENT_TRANSACTIONS: the coordinator is still ending the transaction; the request comes again."""
MARKER_SENDER = "-txn-marker-sender"
"""How brokers call the client by which they send markers (TransactionMarkerChannelManager)."""
OFFSETS = "__consumer_offsets"
"""Where groups' offsets lie: no topic that the producer writes to, though its partitions are added (see `groups`)."""


def transactions(tables: Mapping[str, pa.Table]) -> pa.Table:
    """All rows of `transactions`, cluster by cluster, in order of time. `tables`: those of `readers.TRANSACTIONS`,
    resolved."""
    return each_cluster(tables, _transactions)


def _transactions(tables: Mapping[str, pa.Table]) -> pa.Table:
    """The transactions of one cluster."""
    exchanges, texts = whole(tables["exchanges"]), NamedTexts()
    events = read_events(tables, exchanges, texts)
    if not len(events.kind):
        return SCHEMA.empty_table()
    of, count = number_transactions(events)
    if not count:
        return SCHEMA.empty_table()
    inits = _inits(tables, exchanges, texts)
    return _rows(events, of, count, inits, exchanges, texts)


@dataclass(slots=True, eq=False, repr=False)
class _Inits:
    """InitProducerId requests with a transactional id that were not refused, in order of time."""

    id: Int64s
    at: Int64s
    asked: Int64s
    """Producer id that the request names, UNKNOWN for none: that of a producer that goes on."""
    timeout: Int64s
    """Milliseconds."""


def _inits(tables: Mapping[str, pa.Table], exchanges: pa.Table, texts: NamedTexts) -> _Inits:
    told = whole(tables["producer_ids"])
    row = locate(keys_of(told), keys_of(exchanges))
    at = np.append(times(exchanges, "request_first_at"), NULL_TIME)[row]
    error, named = ints(told, "error_code"), texts.ids.column(told, "transactional_id")
    good = np.flatnonzero((named >= 0) & (at != NULL_TIME) & ((error <= 0) | (error == UNDER_WAY)))
    good = good[np.argsort(at[good], kind="stable")]
    timeout = ints(told, "transaction_timeout_ms")
    return _Inits(named[good], at[good], ints(told, "producer_id_asked")[good], timeout[good])


def _rows(
    events: TransactionEvents, of: Int64s, count: int, inits: _Inits, exchanges: pa.Table, texts: NamedTexts
) -> pa.Table:
    mine = of >= 0
    place = np.arange(len(of))
    kind, error = events.kind, events.error
    inside = mine & (kind != END) & (kind != MARKERS) & (error <= 0)
    ends, marks = mine & (kind == END), mine & (kind == MARKERS)
    done = ends & (error == 0)
    first = least_by(place, of, inside, count)
    head = least_by(place, of, mine, count)
    began = np.where(first != NEVER, np.append(events.begin, NULL_TIME)[np.minimum(first, len(of))], NULL_TIME)
    last_end, last_done = (np.maximum(most_by(place, of, rows, count), -1) for rows in (ends, done))
    first_end = least_by(place, of, ends, count)
    first_mark = least_by(place, of, marks, count)
    marked = least_by(events.begin, of, marks, count)
    named = most_by(events.id, of, mine, count)
    producer, epoch = events.producer[head], events.epoch[head]
    named = np.where(named == NULL_TIME, UNKNOWN, named)
    init = _taken_over(inits, named, np.where(began == NULL_TIME, events.begin[head], began))
    evidence = least_by(events.begin, of, mine & np.isin(error, (*FENCING, ENDED_ALREADY)), count)
    fenced = least_by(events.begin, of, mine & np.isin(error, FENCING), count) != NEVER
    latest = _latest(exchanges)
    timeout = _timeouts(inits, named, events.begin[head])
    outcome = _outcomes(
        events, began, producer, last_done, first_end, last_end, first_mark, inits, init, evidence, fenced, timeout,
        _by_brokers(exchanges, events, first_mark), _followed(named, events.begin[head]),
    )  # fmt: skip
    at = np.append(events.begin, NULL_TIME)
    asked = np.where(first_end != NEVER, at[np.minimum(first_end, len(of))], NULL_TIME)
    by_init = np.where(init >= 0, np.append(inits.at, NULL_TIME)[init], NULL_TIME)
    until = np.where(asked != NULL_TIME, asked, np.where(marked != NEVER, marked, by_init))
    by_itself = np.isin(outcome, (TIMED_OUT, FENCED))  # its own EndTxn came too late
    stopped = np.where(marked != NEVER, marked, np.where(by_init != NULL_TIME, by_init, until))
    until = np.where(
        by_itself & (stopped != NULL_TIME), np.minimum(stopped, np.where(asked == NULL_TIME, NEVER, asked)), until
    )
    until = np.where(outcome == OPEN, latest, until)
    finished = (last_done >= 0) & ~by_itself
    answered = np.append(events.end, NULL_TIME)[np.where(finished, last_done, len(of))]
    ended = np.where(finished, answered, np.where(marked != NEVER, marked, NULL_TIME))
    spans = began != NULL_TIME
    spans &= until != NULL_TIME
    last_answer = most_by(events.end, of, ends, count)
    last_mark = most_by(events.end, of, marks & (events.end != NULL_TIME), count)
    since = np.where(asked != NULL_TIME, np.minimum(asked, np.where(marked == NEVER, asked, marked)), marked)
    since = np.where(by_itself & (marked != NEVER), marked, since)
    written = inside & (events.topic >= 0) & (events.topic != texts.topics.codes.get(OFFSETS, UNKNOWN))
    figures = _figures(events, of, written, count)
    idle = _idle(events, of, inside, began, until, count)
    order = np.lexsort([epoch, producer, events.begin[head]])
    row = np.where(first != NEVER, first, -1)
    client = most_by(place, of, mine & np.isin(kind, (BATCH, END, COMMIT_OFFSETS, ADD_OFFSETS)), count)
    adder = most_by(place, of, mine & np.isin(kind, (ADD_PARTITIONS, ADD_OFFSETS)), count)
    asked_broker = np.where(last_end >= 0, last_end, adder)
    made = {
        "transactional_id": words(named, texts.ids.texts),
        "producer_id": pa.array(producer),
        "producer_epoch": pa.array(epoch).cast(CODE),
        "client_id": _text(exchanges, "client_id", events, client),
        "coordinator": _text(exchanges, "broker", events, asked_broker),
        "began_at": instants(began),
        "ended_at": instants(ended),
        "outcome": words(outcome, OUTCOMES),
        **figures,
        "topics": _lists(of, events.topic, written, texts.topics, count),
        "groups": _lists(of, events.group, inside & (events.group >= 0), texts.groups, count),
        "open_ms": _ms(until - began, spans),
        "idle_ms": _ms(idle, spans),
        "end_ms": _ms(last_answer - asked, (asked != NULL_TIME) & (last_answer != NULL_TIME)),
        "markers_ms": _ms(last_mark - since, (last_mark != NULL_TIME) & (since != NULL_TIME)),
        "timeout_ms": optional(timeout, CODE),
        "first_exchange_id": _text(exchanges, "exchange_id", events, row),
        "end_exchange_id": _text(exchanges, "exchange_id", events, last_end),
    }
    made["cluster"] = pa.nulls(len(order), TEXT)
    return pa.table({name: made[name] for name in SCHEMA.names}).take(pa.array(order)).cast(SCHEMA)


def _outcomes(
    events: TransactionEvents, began: Int64s, producer: Int64s, last_done: Int64s, first_end: Int64s, last_end: Int64s,
    first_mark: Int64s, inits: _Inits, init: Int64s, evidence: Int64s, fenced: Flags, timeout: Int64s,
    by_brokers: Flags, followed: Flags,
) -> Int64s:  # fmt: skip
    """The code in OUTCOMES of each transaction, UNKNOWN where the capture does not tell; as the module says."""
    says = np.append(events.committed, UNKNOWN)
    marked = first_mark != NEVER
    commits = says[np.where(last_done >= 0, last_done, len(says) - 1)]
    mark = says[np.where(marked, first_mark, len(says) - 1)]
    marked_at = np.append(events.begin, NEVER)[np.where(marked, first_mark, len(events.begin))]
    taken = np.where(init >= 0, np.append(inits.at, NEVER)[init], NEVER)
    recovers = (init >= 0) & (np.append(inits.asked, UNKNOWN)[init] == producer)
    ended_by_init = (init >= 0) & (taken <= marked_at)
    by_init = np.where(recovers, ABORTED, FENCED)
    unanswered = (last_end >= 0) & (last_done < 0) & (np.append(events.error, 1)[last_end] < 0)
    # What the coordinator aborted already is not ended by an EndTxn that comes later. Without one the time must be up.
    asked = np.append(events.begin, NEVER)[np.minimum(first_end, len(events.begin))]
    expired = marked & (mark == 0) & by_brokers & ~ended_by_init & (asked > marked_at)
    up = (timeout >= 0) & (began != NULL_TIME) & (marked_at - began >= timeout * MILLI)
    expired &= up | ((asked != NEVER) & (timeout < 0))
    by_marker = np.where(mark == 1, COMMITTED, np.where(ended_by_init, by_init, np.where(expired, TIMED_OUT, ABORTED)))
    in_time = (timeout < 0) | (began == NULL_TIME) | (evidence - began < timeout * MILLI)
    by_error = np.where(
        (init < 0) & ~in_time, TIMED_OUT, np.where(init >= 0, by_init, np.where(fenced, FENCED, UNKNOWN))
    )
    rest = np.where(init >= 0, by_init, np.where(unanswered | followed, UNKNOWN, OPEN))
    rest = np.where(evidence != NEVER, by_error, rest)
    found = np.where(marked, by_marker, rest)
    return np.where((last_done >= 0) & ~expired, np.where(commits == 1, COMMITTED, ABORTED), found)


def _places(inits: _Inits, transactional_ids: Int64s, since: Int64s) -> tuple[Int64s, Int64s]:
    """Rows of `inits` by id and time, and where among them each transaction's instant lies: behind those up to it."""
    order = np.lexsort([inits.at, inits.id])
    values = np.unique(np.concatenate([inits.at, since]))
    wide = len(values) + 1
    key = inits.id[order] * wide + np.searchsorted(values, inits.at[order])
    return order, np.searchsorted(key, transactional_ids * wide + np.searchsorted(values, since), "right")


def _taken_over(inits: _Inits, transactional_ids: Int64s, since: Int64s) -> Int64s:
    """The first InitProducerId for the same transactional id after these instants, UNKNOWN for none."""
    if not len(inits.id):
        return np.full(len(transactional_ids), UNKNOWN, np.int64)
    order, place = _places(inits, transactional_ids, since)
    row = order[np.minimum(place, len(order) - 1)]
    return np.where(
        (transactional_ids >= 0) & (place < len(order)) & (inits.id[row] == transactional_ids), row, UNKNOWN
    )


def _timeouts(inits: _Inits, transactional_ids: Int64s, since: Int64s) -> Int64s:
    """TransactionTimeoutMs that the producers of these transactions had asked for last."""
    if not len(inits.id):
        return np.full(len(transactional_ids), UNKNOWN, np.int64)
    order, place = _places(inits, transactional_ids, since)
    row = order[np.maximum(place - 1, 0)]
    return np.where(
        (transactional_ids >= 0) & (place > 0) & (inits.id[row] == transactional_ids), inits.timeout[row], UNKNOWN
    )


def _followed(transactional_ids: Int64s, at: Int64s) -> Flags:
    """Whether another transaction of the same transactional id came later."""
    last = np.full(int(transactional_ids.max()) + 2 if len(transactional_ids) else 1, NULL_TIME, np.int64)
    np.maximum.at(last, transactional_ids + 1, at)
    found: Flags = (transactional_ids >= 0) & (at < last[transactional_ids + 1])
    return found


def _by_brokers(exchanges: pa.Table, events: TransactionEvents, first_mark: Int64s) -> Flags:
    """Whether a coordinator sent the first marker."""
    clients = Coder()
    codes = clients.column(exchanges, "client_id")
    senders = np.array([*(text.endswith(MARKER_SENDER) for text in clients.texts), False], np.bool_)
    flags = np.append(senders[codes], True)
    row = np.append(events.exchange, len(flags) - 1)[np.where(first_mark == NEVER, len(events.exchange), first_mark)]
    found: Flags = flags[row]
    return found


def _latest(exchanges: pa.Table) -> int:
    return int(max(times(exchanges, name).max() for name in ("request_first_at", "response_last_at")))


def _figures(events: TransactionEvents, of: Int64s, written: Flags, count: int) -> dict[str, pa.Array]:
    rows = np.flatnonzero(written)
    places = dense(of[rows], events.topic[rows], events.partition[rows])
    _, first = np.unique(places, return_index=True)
    batches = np.flatnonzero(written & (events.kind == BATCH))
    alike = dense(of[batches], events.topic[batches], events.partition[batches], events.sequence[batches])
    _, once = np.unique(alike, return_index=True)
    batches = batches[once]
    sums = {
        "partitions": np.bincount(of[rows[first]], minlength=count),
        "batches": np.bincount(of[batches], minlength=count),
    }
    for name, column in (("records", events.records), ("record_bytes", events.size)):
        total = np.zeros(count, np.int64)
        np.add.at(total, of[batches], column[batches])
        sums[name] = total
    return {name: pa.array(column).cast(COUNT) for name, column in sums.items()}


def _idle(events: TransactionEvents, of: Int64s, inside: Flags, began: Int64s, until: Int64s, count: int) -> Int64s:
    """Microseconds from the beginning to the end in which no request of the transaction was under way."""
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(of[rows], kind="stable")]
    mine = of[rows]
    begin, end = events.begin[rows], events.end[rows]
    stop = np.where(end == NULL_TIME, begin, end)
    values = np.unique(stop)
    wide = len(values) + 1
    busy = np.maximum.accumulate(mine * wide + np.searchsorted(values, stop))
    reached = values[busy % wide] if len(values) else stop
    gap = np.zeros(len(rows), np.int64)
    same = mine[1:] == mine[:-1]
    gap[1:] = np.where(same, np.maximum(begin[1:] - reached[:-1], 0), 0)
    total = np.zeros(count, np.int64)
    np.add.at(total, mine, gap)
    last = np.full(count, NULL_TIME, np.int64)
    np.maximum.at(last, mine, stop)
    known = (began != NULL_TIME) & (until != NULL_TIME)
    rest = np.where(known, np.maximum(until - np.where(known, last, 0), 0), 0)
    return np.where(known, np.minimum(total + rest, np.where(known, until - began, 0)), 0)


def _lists(of: Int64s, codes: Int64s, rows: Flags, names: Coder, count: int) -> pa.Array:
    """Distinct texts of each transaction, in order."""
    some = np.flatnonzero(rows)
    order = sorted(range(len(names.texts)), key=names.texts.__getitem__)
    rank = np.argsort(np.array(order, np.int64)) if order else np.zeros(1, np.int64)
    pair = dense(of[some], rank[codes[some]])
    _, once = np.unique(pair, return_index=True)
    mine = some[once]
    sizes = np.bincount(of[mine], minlength=count)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), words(codes[mine], names.texts).cast(TEXT))


def _text(exchanges: pa.Table, name: str, events: TransactionEvents, rows: Int64s) -> pa.Array:
    """A column of these events' exchanges; null where a row is negative, or none."""
    none = (rows < 0) | (rows == NEVER)
    row = np.append(events.exchange, 0)[np.where(none, len(events.exchange), rows)]
    column = exchanges[name].take(pa.array(row, mask=none)).combine_chunks()
    return column.cast(TEXT)


def _ms(microseconds: Int64s, is_known: Flags) -> pa.Array:
    return pa.array(np.where(is_known, microseconds, 0) / MILLI, mask=~is_known)


fills(By.TRANSACTIONS, lambda: {"transactions": SCHEMA.names})
