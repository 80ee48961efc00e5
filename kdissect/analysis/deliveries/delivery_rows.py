"""Rows of `deliveries`: a record batch's way from its producer to each reader that was given it.

The way of a batch, by the broker's side of the network (`delivery_input`):

    producer's first byte .. arrived .. visible .. stable .. the reader's fetch arrives .. answer leaves .. last byte
    |------ produce_ms ------|- commit -|- transaction |------ absent_ms ------|--- served_ms ---|-- transfer --|

A part whose end comes before its beginning (the reader's fetch was there first) is zero, so that the parts add up.
Followers read what is not committed yet: their batches are visible when they arrived. Where it is not known when a
batch became visible (`visibility`), `commit_ms` is null and the reader counts as absent from the batch's arrival on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.cluster_split import each_cluster
from kdissect.analysis.deliveries.batch_matching import (
    BY_CRC,
    BY_OFFSET,
    first_writes,
    group_writes,
    match_batches,
    unit_numbers,
)  # fmt: skip
from kdissect.analysis.deliveries.delivery_input import Input, dense, read_input
from kdissect.analysis.deliveries.readers_of_batches import Readers, find_readers, member_column
from kdissect.analysis.deliveries.throttling import Muted
from kdissect.analysis.deliveries.visibility import (
    NEVER,
    Watermarks,
    behind_transactions,
    followers_passed,
    known_instant,
)  # fmt: skip
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, instants, optional, whole, words
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import CODE, COUNT, TEXT, By
from kdissect.tables.fetch_rows import READ_COMMITTED
from kdissect.tables.makers import fills

SCHEMA = SCHEMAS["deliveries"]
CLOCK_STEP = 1 * MILLI
"""Record timestamps are whole milliseconds: a batch that seems younger than its request by more than this was stamped
by a clock that is ahead of the capture's."""
LONGEST_BUFFERED = 120_000 * MILLI
"""A producer gives up a record after so long by default (delivery.timeout.ms): an older timestamp is the application's
own, the time of an event, and says nothing of the producer."""
EVERY_REPLICA, LEADER = -1, 1
CAUSES = ("producer", "network", "replication", "transaction", "reader", "broker", "throttle")
PRODUCER, NETWORK, REPLICATION, TRANSACTION, READER, BROKER, THROTTLE = range(len(CAUSES))
MATCHED = ("offset", "crc")
assert (BY_OFFSET, BY_CRC) == (0, 1)


@dataclass(slots=True, eq=False, repr=False)
class Firsts:
    """A row for each batch and reader: rows of `given`, of `sent` (-1 for none), and how they were matched."""

    given: Int64s
    sent: Int64s
    matched: Int64s
    times: Int64s
    written: Int64s
    """How many requests carried the batch; 0 where none is known."""
    fetch: Int64s
    produce: Int64s
    """Row of `Exchanges`, -1 for none."""


@dataclass(slots=True, eq=False, repr=False)
class _Way:
    """Instants of each row, in order where all are known."""

    produced: Int64s
    arrived: Int64s
    visible: Int64s
    """NULL_TIME where unknown."""
    stable: Int64s
    asked: Int64s
    left: Int64s
    delivered: Int64s
    known: Flags
    """Whether all but `visible` are known."""
    seen: Flags
    appended: Int64s
    """Until when at most the leader took to store the batch; NULL_TIME where unknown."""


class Delivered(NamedTuple):
    """Deliveries of one cluster; row i of `table` is the i-th of `firsts`."""

    data: Input
    firsts: Firsts
    table: pa.Table


def deliveries(tables: Mapping[str, pa.Table]) -> pa.Table:
    """All rows of `deliveries`, cluster by cluster, by the time of delivery. `tables`: those of `readers.DELIVERIES`,
    resolved."""
    return each_cluster(tables, _deliveries)


def _deliveries(tables: Mapping[str, pa.Table]) -> pa.Table:
    """The deliveries of one cluster."""
    return find_deliveries(tables).table


def find_deliveries(tables: Mapping[str, pa.Table]) -> Delivered:
    """The deliveries of one cluster, with what they are made of. `tables`: as for `deliveries`."""
    data = read_input(tables)
    readers = find_readers(data.exchanges, data.reads, whole(tables["connections"]))
    rows = _first_deliveries(data, readers)
    if not len(rows.given):
        return Delivered(data, rows, SCHEMA.empty_table())
    way = _way(data, rows)
    made = _columns(data, rows, way, readers, whole(tables["record_batches"]))
    made["member_id"] = member_column(data.exchanges, readers, rows.fetch, whole(tables["groups"]))
    made["cluster"] = pa.nulls(len(made["member_id"]), TEXT)
    return Delivered(data, rows, pa.table({name: made[name] for name in SCHEMA.names}).cast(SCHEMA))


def _first_deliveries(data: Input, readers: Readers) -> Firsts:
    sent, given, exchanges = data.sent, data.given, data.exchanges
    writes = group_writes(sent, exchanges)
    rows, matched, how = match_batches(sent, given, exchanges)
    written = first_writes(sent, writes, matched)
    unit = unit_numbers(given, rows, written)
    fetch = given.exchange[rows]
    who, at = readers.reader[fetch], exchanges.last[fetch]
    pair = dense(unit, who)
    order = np.lexsort([given.row[rows], fetch, np.where(at == NULL_TIME, NEVER, at), pair])
    head = np.ones(len(rows), np.bool_)
    head[1:] = pair[order][1:] != pair[order][:-1]
    fresh = head.copy()
    fresh[1:] |= fetch[order][1:] != fetch[order][:-1]
    count = np.add.reduceat(fresh, np.flatnonzero(head), dtype=np.int64) if len(rows) else np.zeros(0, np.int64)
    first = order[head]
    write = written[first]
    produce = np.where(write >= 0, np.append(sent.exchange, -1)[write], -1)
    times = np.where(write >= 0, np.append(writes.times, 0)[write], 0)
    delivered, place = at[first], given.place[rows[first]]
    found = np.lexsort([given.first[rows[first]], place, fetch[first], delivered])
    return Firsts(
        rows[first][found], write[found], how[first][found], count[found], times[found],
        fetch[first][found], produce[found],
    )  # fmt: skip


def batch_offsets(data: Input, rows: Firsts) -> tuple[Int64s, Int64s]:
    """First and last offset of each row's batch: the producer's where an answer told it, else the log's."""
    sent, given = data.sent, data.given
    first, last = np.append(sent.first, -1)[rows.sent], np.append(sent.last, -1)[rows.sent]
    told = (first >= 0) & (last >= 0)
    return np.where(told, first, given.first[rows.given]), np.where(told, last, given.last[rows.given])


def _way(data: Input, rows: Firsts) -> _Way:
    exchanges, reads = data.exchanges, data.reads
    produced = np.append(exchanges.first, NULL_TIME)[rows.produce]
    arrived = np.append(exchanges.arrived, NULL_TIME)[rows.produce]
    asked, left, delivered = (column[rows.fetch] for column in (exchanges.arrived, exchanges.left, exchanges.last))
    known = np.ones(len(asked), np.bool_)
    for column in (produced, arrived, asked, left, delivered):
        known &= column != NULL_TIME
    known &= delivered >= produced
    known[known] &= (left >= arrived)[known] | (left[known] >= produced[known])
    place, need = data.given.place[rows.given], batch_offsets(data, rows)[1] + 1
    arrived = np.where(known, np.minimum(arrived, left), arrived)
    answered = np.append(exchanges.left, NULL_TIME)[rows.produce]
    acks, stored = np.append(data.acks, -2)[rows.produce], np.append(exchanges.error, -1)[rows.produce] == 0
    answered = np.where(stored & (answered != NULL_TIME), answered, NEVER)
    replicas = data.replicas[place]
    # The high watermark.
    high = Watermarks(exchanges, data.positions, data.positions.high)
    passing = high.passed(place, need)
    visible = known_instant(passing, arrived, exchanges, reads)
    others = np.where(acks == EVERY_REPLICA, answered, NEVER)
    followed = followers_passed(exchanges, data.positions, reads, data.replicas, place, need)
    others = np.minimum(others, np.where(followed == NEVER, NEVER, np.maximum(followed, arrived)))
    others = np.where((replicas == 1) | (reads.replica[rows.fetch] >= 0), arrived, others)
    visible = np.where(others != NEVER, np.where(visible == NULL_TIME, others, np.minimum(visible, others)), visible)
    seen = visible != NULL_TIME
    at = np.where(seen, np.clip(visible, arrived, np.maximum(left, arrived)), arrived)
    # The last stable offset.
    open_then = behind_transactions(passing, data.positions, need - 1) | (data.given.transactional[rows.given] == 1)
    committed = (reads.isolation[rows.fetch] == READ_COMMITTED) & open_then
    stable_marks = Watermarks(exchanges, data.positions, data.positions.stable)
    stable = known_instant(stable_marks.passed(place, need), at, exchanges, reads)
    stable = np.where(committed & (stable != NULL_TIME), np.clip(stable, at, np.maximum(left, at)), at)
    appended = np.where(acks == LEADER, answered, NEVER)
    appended = np.minimum(appended, _first_copies(data, rows, arrived))
    return _Way(
        produced, arrived, at, stable, np.clip(asked, stable, np.maximum(left, stable)), left, delivered, known, seen,
        appended,
    )  # fmt: skip


def _first_copies(data: Input, rows: Firsts, arrived: Int64s) -> Int64s:
    """When the first follower was given the batch, of those whose fetch was waiting for it; NEVER for none."""
    exchanges = data.exchanges
    mine = np.flatnonzero(data.reads.replica[rows.fetch] >= 0)
    found = np.full(len(arrived), NEVER, np.int64)
    mine = mine[(exchanges.arrived[rows.fetch[mine]] <= arrived[mine]) & (rows.sent[mine] >= 0)]
    if not len(mine):
        return found
    by_write = np.full(len(data.sent.row), NEVER, np.int64)
    np.minimum.at(by_write, rows.sent[mine], exchanges.left[rows.fetch[mine]])
    return np.append(by_write, NEVER)[rows.sent]


def _columns(data: Input, rows: Firsts, way: _Way, readers: Readers, batches: pa.Table) -> dict[str, pa.Array]:
    exchanges, reads, sent, given = data.exchanges, data.reads, data.sent, data.given
    wrote = rows.sent >= 0
    source = np.where(wrote, np.append(sent.row, -1)[rows.sent], given.row[rows.given])
    own = given.row[rows.given]
    follower = reads.replica[rows.fetch] >= 0
    created, buffered = _buffered(data, rows, way)
    first, last = batch_offsets(data, rows)
    parts = _parts(way)
    return {
        "produce_exchange_id": taken(exchanges.table, "exchange_id", rows.produce),
        "fetch_exchange_id": taken(exchanges.table, "exchange_id", rows.fetch),
        "topic": taken(batches, "topic", own),
        "topic_id": taken(batches, "topic_id", own),
        "partition": taken(batches, "partition", own),
        "base_offset": pa.array(first),
        "last_offset": pa.array(last),
        "records": taken(batches, "records", source),
        "record_bytes": taken(batches, "compressed_bytes", source),
        "codec": taken(batches, "codec", source),
        "producer_client_id": taken(exchanges.table, "client_id", rows.produce),
        "producer_id": taken(batches, "producer_id", source),
        "is_transactional": taken(batches, "is_transactional", source),
        "client_id": taken(exchanges.table, "client_id", rows.fetch),
        "group_id": readers.group_column(rows.fetch),
        "is_follower": pa.array(follower),
        "broker": taken(exchanges.table, "broker", rows.fetch),
        "isolation_level": optional(reads.isolation[rows.fetch], CODE),
        "created_at": instants(created),
        "produced_at": instants(way.produced),
        "visible_at": instants(np.where(way.seen & way.known, way.visible, NULL_TIME)),
        "delivered_at": instants(way.delivered),
        "buffered_ms": _ms(buffered, buffered >= 0),
        **{name: _ms(part, way.known) for name, part in parts.items()},
        "commit_ms": _ms(parts["commit_ms"], way.known & way.seen),
        "delivery_ms": _ms(way.delivered - way.produced, way.known),
        "waited_for": words(_waited_for(data, rows, way, parts, created, buffered), CAUSES),
        "times": pa.array(rows.times),
        "times_written": optional(rows.written, COUNT, 0),
        "matched_by": words(rows.matched, MATCHED),
    }


def _parts(way: _Way) -> dict[str, Int64s]:
    """Microseconds; of rows that are not `known` they mean nothing."""
    return {
        "produce_ms": way.arrived - way.produced,
        "commit_ms": way.visible - way.arrived,
        "transaction_ms": way.stable - way.visible,
        "absent_ms": way.asked - way.stable,
        "served_ms": np.maximum(way.left, way.asked) - way.asked,
        "transfer_ms": way.delivered - np.maximum(way.left, way.asked),
    }


def _buffered(data: Input, rows: Firsts, way: _Way) -> tuple[Int64s, Int64s]:
    """When the first record was made, and microseconds from then to the request; -1 where unknown."""
    wrote = rows.sent >= 0
    stamp = np.where(wrote, np.append(data.sent.stamp, NULL_TIME)[rows.sent], data.given.stamp[rows.given])
    there = (stamp != NULL_TIME) & (way.produced != NULL_TIME)
    found = np.where(there, way.produced - np.where(there, stamp, 0), -1)
    clock = dense(np.append(data.exchanges.client, -1)[rows.produce], data.given.place[rows.given])
    ahead = np.unique(clock[there & (found < -CLOCK_STEP)])
    told = there & ~np.isin(clock, ahead) & (found <= LONGEST_BUFFERED)
    return stamp, np.where(told, np.maximum(found, 0), -1)


def _waited_for(
    data: Input, rows: Firsts, way: _Way, parts: Mapping[str, Int64s], created: Int64s, buffered: Int64s
) -> npt.NDArray[np.int64]:
    """The code in CAUSES of the largest part; -1 where the parts are unknown."""
    exchanges, reads = data.exchanges, data.reads
    muted = Muted(exchanges)
    of_reader, of_producer = exchanges.connection[rows.fetch], np.append(exchanges.connection, 0)[rows.produce]
    held = np.minimum(exchanges.held[rows.fetch], parts["served_ms"])
    away = muted.within(of_reader, way.stable, way.asked)
    kept = np.maximum(muted.within(of_reader, way.asked, way.left), held)
    late = np.where(buffered >= 0, muted.within(of_producer, created, way.arrived), 0)
    served = np.maximum(parts["served_ms"] - kept, 0)
    place = data.given.place[rows.given]
    replicated = (data.replicas[place] > 1) | _followed(data)[place]
    stored = np.clip(way.appended, way.arrived, way.visible) - way.arrived
    stored = np.where(way.appended == NEVER, np.where(replicated, 0, parts["commit_ms"]), stored)
    # A fetch that may wait for more than there is waits because its own settings say so.
    patient = (reads.min_bytes[rows.fetch] > 1) & (parts["served_ms"] <= reads.max_wait[rows.fetch] * MILLI)
    costs = np.zeros((len(CAUSES), len(place)), np.int64)
    costs[PRODUCER] = np.maximum(buffered - late, 0)
    costs[NETWORK] = parts["produce_ms"] + parts["transfer_ms"]
    costs[REPLICATION] = np.where(replicated, parts["commit_ms"] - stored, 0)
    costs[TRANSACTION] = parts["transaction_ms"]
    costs[READER] = parts["absent_ms"] - away + np.where(patient, served, 0)
    costs[BROKER] = stored + np.where(patient, 0, served)
    costs[THROTTLE] = away + kept + late
    found: npt.NDArray[np.int64] = np.where(way.known, np.argmax(costs, axis=0), -1)
    return found


def _followed(data: Input) -> Flags:
    """By topic and partition, whether a follower was seen to read it."""
    found = np.zeros(len(data.replicas), np.bool_)
    found[data.positions.place[data.reads.replica[data.positions.exchange] >= 0]] = True
    return found


def _ms(microseconds: Int64s, known: Flags) -> pa.Array:
    return pa.array(microseconds / MILLI, mask=~known)


def taken(table: pa.Table, name: str, rows: Int64s) -> pa.Array:
    """A column's values in these rows; null for -1."""
    column = table[name].take(pa.array(rows, mask=rows < 0)).combine_chunks()
    return column.cast(TEXT) if pa.types.is_dictionary(column.type) else column


fills(By.DELIVERIES, lambda: {"deliveries": SCHEMA.names})
