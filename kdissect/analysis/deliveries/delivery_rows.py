"""Rows of `deliveries`: a record batch's way from its producer to each reader that was given it.

The way of a batch, by the broker's side of the network (`delivery_input`):

    producer's first byte .. arrived .. visible .. stable .. the reader's fetch arrives .. answer leaves .. last byte
    |------ produce_ms ------|- commit -|- transaction |------ absent_ms ------|--- served_ms ---|-- transfer --|

A part whose end comes before its beginning (the reader's fetch was there first) is zero, so that the parts add up.
Followers read what is not committed yet: their batches are visible when they arrived. Where it is not known when a
batch became visible (`visibility`), `commit_ms` is null and the reader counts as absent from the batch's arrival on.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.cluster_split import with_cluster
from kdissect.analysis.deliveries.batch_matching import (
    BY_CRC,
    BY_OFFSET,
    first_writes,
    group_writes,
    match_batches,
    unit_numbers,
)  # fmt: skip
from kdissect.analysis.deliveries.delivery_columns import NO_PRODUCE, UNKNOWN, Exchanges, Input, dense
from kdissect.analysis.deliveries.delivery_input import InputReader
from kdissect.analysis.deliveries.readers_of_batches import Groups, Readers
from kdissect.analysis.deliveries.visibility import (
    NEVER,
    Watermarks,
    behind_transactions,
    followers_passed,
    followers_told,
    known_instant,
)  # fmt: skip
from kdissect.analysis.holds.throttle_windows import Answers, Muted
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, distinct, instants, optional, whole, words
from kdissect.arrays.dictionaries import join_tables
from kdissect.arrays.from_numpy import arrow_array
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import CODE, COUNT, FLAG, By
from kdissect.tables.fetch_rows import READ_COMMITTED
from kdissect.tables.identity import exchange_ids
from kdissect.tables.makers import fills
from kdissect.tables.order import order

SCHEMA_NAME = "deliveries"
SCHEMA = SCHEMAS[SCHEMA_NAME]
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


class Firsts(NamedTuple):
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


class _Way(NamedTuple):
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
    replicas: Int64s
    """Of the batch's partition; UNKNOWN where no message told."""
    seen: Flags
    appended: Int64s
    """Until when at most the leader took to store the batch; NULL_TIME where unknown."""


class Delivered(NamedTuple):
    """Deliveries of one cluster; row i of `table` is the i-th of `firsts`."""

    data: Input
    firsts: Firsts
    table: pa.Table


def deliveries(tables: Mapping[str, pa.Table]) -> pa.Table:
    """All rows of `deliveries`, by the time of delivery. `tables`: those of `readers.DELIVERIES`, resolved."""
    maker, data = _take_whole(tables)
    return maker.deliveries(data).cast(SCHEMA)


def find_deliveries(tables: Mapping[str, pa.Table]) -> Delivered:
    """The deliveries of one cluster, with what they are made of. `tables`: as for `deliveries`."""
    maker, data = _take_whole(tables)
    return maker.make_deliveries(data)


def _take_whole(tables: Mapping[str, pa.Table]) -> "tuple[DeliveryMaker, Input]":
    """A maker that has taken whole tables, and what it read."""
    maker = DeliveryMaker()
    data = Input.join_pieces([maker.read_tables(tables)], maker.reader.names)  # puts the exchanges in order
    maker.groups.take_connections(whole(tables["connections"]))
    return maker, data


class DeliveryMaker:
    """Makes deliveries of rows that are read part by part. The deliveries of a topic's partition are made together, of
    the pieces of input that `read_tables` returned. Groups and throttling are kept here."""

    def __init__(self) -> None:
        self.reader = InputReader()
        self.groups = Groups(self.reader.names)
        self._answers = Answers()
        self._muted: Muted | None = None

    def read_tables(self, tables: Mapping[str, pa.Table]) -> Input:
        """Read the tables of some exchanges into the input of deliveries: all rows of an exchange together, without
        `connections`."""
        data, exchanges = self.reader.read(tables)
        self._answers.add(exchanges.connection, exchanges.left, exchanges.mute / MILLI)
        self._muted = None
        self.groups.take_events(whole(tables["groups"]))
        return data

    def deliveries(self, data: Input) -> pa.Table:
        """Rows of `deliveries`, in order. `data`: everything about some topics' partitions; everything was taken."""
        texts = self.reader.names.clusters.texts
        if len(texts) <= 1:
            # What no message joins to the only known cluster belongs to it.
            made = [with_cluster(self.make_deliveries(data).table, next(iter(texts), None))]
        else:
            codes = distinct(data.exchanges.cluster).tolist()
            made = [
                with_cluster(self.make_deliveries(data.of_cluster(code)).table, None if code < 0 else texts[code])
                for code in codes
            ]
        made = [table for table in made if table.num_rows]
        table = join_tables(made) if made else SCHEMA.empty_table()
        return order(SCHEMA_NAME, table)

    def make_deliveries(self, data: Input) -> Delivered:
        """The deliveries of one cluster, with what they are made of."""
        readers = self.groups.readers(data.exchanges)
        rows = _first_deliveries(data, readers)
        if not len(rows.given):
            return Delivered(data, rows, SCHEMA.empty_table())
        self._muted = self._muted or self._answers.muted()
        made = _columns(data, rows, _way(data, rows), readers, self._muted)
        several = len(self.reader.names.clusters.texts) > 1
        made["member_id"] = self.groups.member_column(data.exchanges, readers, rows.fetch, several)
        made["cluster"] = pa.nulls(len(rows.given), pa.string())
        return Delivered(data, rows, pa.table({name: made[name] for name in SCHEMA.names}))


def _first_deliveries(data: Input, readers: Readers) -> Firsts:
    sent, given, exchanges = data.sent, data.given, data.exchanges
    writes = group_writes(sent, exchanges)
    rows, matched, how = match_batches(sent, given, exchanges)
    written = first_writes(sent, writes, matched)
    unit = unit_numbers(given, rows, written)
    fetch = given.exchange[rows]
    who, at = readers.reader[fetch], exchanges.last[fetch]
    pair = dense(unit, who)
    order = np.lexsort([rows, fetch, np.where(at == NULL_TIME, NEVER, at), pair])
    head = np.ones(len(rows), np.bool_)
    head[1:] = pair[order][1:] != pair[order][:-1]
    fresh = head.copy()
    fresh[1:] |= fetch[order][1:] != fetch[order][:-1]
    count = np.add.reduceat(fresh, np.flatnonzero(head), dtype=np.int64) if len(rows) else np.zeros(0, np.int64)
    first = order[head]
    write = written[first]
    produce = np.where(write >= 0, np.append(sent.exchange, -1)[write], -1)
    times = np.where(write >= 0, np.append(writes.times, 0)[write], 0)
    return Firsts(rows[first], write, how[first], count, times, fetch[first], produce)


def batch_offsets(data: Input, rows: Firsts) -> tuple[Int64s, Int64s]:
    """First and last offset of each row's batch: the producer's where an answer told it, else the log's."""
    sent, given = data.sent, data.given
    first, last = np.append(sent.first, -1)[rows.sent], np.append(sent.last, -1)[rows.sent]
    told = (first >= 0) & (last >= 0)
    return np.where(told, first, given.first[rows.given]), np.where(told, last, given.last[rows.given])


def _way(data: Input, rows: Firsts) -> _Way:
    exchanges, every = data.exchanges, data.replicas()
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
    acks, stored = (
        np.append(exchanges.acks, NO_PRODUCE)[rows.produce],
        np.append(exchanges.error, -1)[rows.produce] == 0,
    )
    answered = np.where(stored & (answered != NULL_TIME), answered, NEVER)
    replicas = every[place]
    # The high watermark.
    high = Watermarks(exchanges.left, data.positions, data.positions.high)
    passing = high.passed(place, need)
    visible = known_instant(passing, arrived, exchanges)
    others = np.where(acks == EVERY_REPLICA, answered, NEVER)
    followed = followers_passed(exchanges, data.positions, every, place, need)
    others = np.minimum(others, np.where(followed == NEVER, NEVER, np.maximum(followed, arrived)))
    others = np.where((replicas == 1) | (exchanges.replica[rows.fetch] >= 0), arrived, others)
    visible = np.where(others != NEVER, np.where(visible == NULL_TIME, others, np.minimum(visible, others)), visible)
    nodes = np.append(_node_ids(data.names.brokers.texts), UNKNOWN)[exchanges.broker[rows.fetch]]
    told = followers_told(exchanges, data.positions, rows.fetch, nodes, place, need)
    visible = np.where(told != NEVER, np.maximum(visible, told), visible)
    seen = visible != NULL_TIME
    at = np.where(seen, np.clip(visible, arrived, np.maximum(left, arrived)), arrived)
    # The last stable offset.
    open_then = behind_transactions(passing, data.positions, need - 1) | (data.given.transactional[rows.given] == 1)
    committed = (exchanges.isolation[rows.fetch] == READ_COMMITTED) & open_then
    stable_marks = Watermarks(exchanges.left, data.positions, data.positions.stable)
    stable = known_instant(stable_marks.passed(place, need), at, exchanges)
    stable = np.where(committed & (stable != NULL_TIME), np.clip(stable, at, np.maximum(left, at)), at)
    appended = np.where(acks == LEADER, answered, NEVER)
    appended = np.minimum(appended, _first_copies(data, rows, arrived))
    return _Way(
        produced, arrived, at, stable, np.clip(asked, stable, np.maximum(left, stable)), left, delivered, known,
        replicas, seen, appended,
    )  # fmt: skip


def _node_ids(brokers: list[str]) -> Int64s:
    """The node id of each broker's name, UNKNOWN for a name that is an address."""
    return np.array([int(name) if name.isdecimal() else UNKNOWN for name in brokers], np.int64)


def _first_copies(data: Input, rows: Firsts, arrived: Int64s) -> Int64s:
    """When the first follower was given the batch, of those whose fetch was waiting for it; NEVER for none."""
    exchanges = data.exchanges
    mine = np.flatnonzero(exchanges.replica[rows.fetch] >= 0)
    found = np.full(len(arrived), NEVER, np.int64)
    mine = mine[(exchanges.arrived[rows.fetch[mine]] <= arrived[mine]) & (rows.sent[mine] >= 0)]
    if not len(mine):
        return found
    by_write = np.full(len(data.sent.row), NEVER, np.int64)
    np.minimum.at(by_write, rows.sent[mine], exchanges.left[rows.fetch[mine]])
    return np.append(by_write, NEVER)[rows.sent]


def _columns(data: Input, rows: Firsts, way: _Way, readers: Readers, muted: Muted) -> dict[str, pa.Array]:
    exchanges, sent, given, names = data.exchanges, data.sent, data.given, data.names
    wrote = rows.sent >= 0

    def source(name: str) -> Int64s:
        of_log = getattr(given, name)[rows.given]
        return np.where(wrote, np.append(getattr(sent, name), NULL_TIME)[rows.sent], of_log)

    topics = names.topics.texts
    follower = exchanges.replica[rows.fetch] >= 0
    created, buffered = _buffered(data, rows, way)
    first, last = batch_offsets(data, rows)
    parts = _parts(way)
    return {
        "produce_exchange_id": id_column(exchanges, rows.produce),
        "fetch_exchange_id": id_column(exchanges, rows.fetch),
        "topic": words(given.topic[rows.given], topics),
        "topic_id": words(given.topic_id[rows.given], topics),
        "partition": optional(given.partition[rows.given], CODE, NULL_TIME),
        "base_offset": arrow_array(first),
        "last_offset": arrow_array(last),
        "records": optional(source("records"), COUNT, NULL_TIME),
        "record_bytes": optional(source("size"), COUNT, NULL_TIME),
        "codec": words(source("codec"), names.codecs.texts),
        "producer_client_id": words(np.append(exchanges.client_id, -1)[rows.produce], names.clients.texts),
        "producer_id": optional(source("producer"), COUNT, NULL_TIME),
        "is_transactional": optional(source("transactional"), FLAG, NULL_TIME),
        "client_id": words(exchanges.client_id[rows.fetch], names.clients.texts),
        "group_id": words(readers.group[rows.fetch], names.groups.texts),
        "is_follower": arrow_array(follower),
        "broker": words(exchanges.broker[rows.fetch], names.brokers.texts),
        "isolation_level": optional(exchanges.isolation[rows.fetch], CODE),
        "created_at": instants(created),
        "produced_at": instants(way.produced),
        "visible_at": instants(np.where(way.seen & way.known, way.visible, NULL_TIME)),
        "delivered_at": instants(way.delivered),
        "buffered_ms": _ms(buffered, buffered >= 0),
        **{name: _ms(part, way.known) for name, part in parts.items()},
        "commit_ms": _ms(parts["commit_ms"], way.known & way.seen),
        "delivery_ms": _ms(way.delivered - way.produced, way.known),
        "waited_for": words(_waited_for(data, rows, way, parts, created, buffered, muted), CAUSES),
        "times": arrow_array(rows.times),
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
    ahead = distinct(clock[there & (found < -CLOCK_STEP)])
    told = there & ~np.isin(clock, ahead) & (found <= LONGEST_BUFFERED)
    return stamp, np.where(told, np.maximum(found, 0), -1)


def _waited_for(
    data: Input, rows: Firsts, way: _Way, parts: Mapping[str, Int64s], created: Int64s, buffered: Int64s, muted: Muted
) -> npt.NDArray[np.int64]:
    """The code in CAUSES of the largest part; -1 where the parts are unknown."""
    exchanges = data.exchanges
    of_reader, of_producer = exchanges.connection[rows.fetch], np.append(exchanges.connection, 0)[rows.produce]
    held = np.minimum(exchanges.held[rows.fetch], parts["served_ms"])
    away = muted.within(of_reader, way.stable, way.asked)
    kept = np.maximum(muted.within(of_reader, way.asked, way.left), held)
    late = np.where(buffered >= 0, muted.within(of_producer, created, way.arrived), 0)
    served = np.maximum(parts["served_ms"] - kept, 0)
    place = data.given.place[rows.given]
    replicated = (way.replicas > 1) | _followed(data)[place]
    stored = np.clip(way.appended, way.arrived, way.visible) - way.arrived
    stored = np.where(way.appended == NEVER, np.where(replicated, 0, parts["commit_ms"]), stored)
    # A fetch that may wait for more than there is waits because its own settings say so.
    patient = (exchanges.min_bytes[rows.fetch] > 1) & (parts["served_ms"] <= exchanges.max_wait[rows.fetch] * MILLI)
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
    found = np.zeros(data.names.places, np.bool_)
    found[data.positions.place[data.exchanges.replica[data.positions.exchange] >= 0]] = True
    return found


def _ms(microseconds: Int64s, is_known: Flags) -> pa.Array:
    return arrow_array(microseconds / MILLI, mask=~is_known)


def id_column(exchanges: Exchanges, rows: Int64s) -> pa.Array:
    """The ids of exchanges in these rows; null for -1."""
    known = rows >= 0
    ordinal = exchanges.ordinal[rows[known]]
    orphan = ordinal < 0
    ids = exchange_ids(
        exchanges.connection[rows[known]].view(np.uint64), np.where(orphan, -1 - ordinal, ordinal), orphan
    )
    return ids if known.all() else ids.take(arrow_array(np.cumsum(known) - 1, mask=~known))


fills(By.DELIVERIES, lambda: {"deliveries": SCHEMA.names})
