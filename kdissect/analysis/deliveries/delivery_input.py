"""Rows of tables as the integer columns that deliveries are made of.

Instants are microseconds since the epoch, NULL_TIME where unknown. A request *arrives* at the broker when its last byte
is there, an answer *leaves* with its first byte: the capture's instants moved by the way between capture point and
broker (`network_up_ms` and `network_down_ms` where both ends were captured, else half of the round trip each).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import MILLI, NULL_TIME, Coder, Int64s, ints, reals, times, whole

PRODUCE, FETCH, SHARE_FETCH = 0, 1, 78
CONSUMER_THROTTLE, PRODUCER_THROTTLE = 8, 6
"""Versions of Fetch and Produce from which on a throttled answer leaves at once and the client waits (KIP-219)."""
UNKNOWN = -1


@dataclass(slots=True, eq=False, repr=False)
class Exchanges:
    """Produce, Fetch and ShareFetch exchanges; `table` has their texts, row by row."""

    table: pa.Table
    api: Int64s
    first: Int64s
    """First byte of the request."""
    arrived: Int64s
    left: Int64s
    last: Int64s
    """Last byte of the answer."""
    client: Int64s
    """Code of client id and address."""
    connection: Int64s
    error: Int64s
    mute: Int64s
    """Microseconds that the answer makes the client wait before its next request is read; 0 for none."""
    held: Int64s
    """Microseconds that a broker of old kept the throttled answer itself back."""


@dataclass(slots=True, eq=False, repr=False)
class Batches:
    """Record batches of Produce requests, or of answers: `exchange` is the row of `Exchanges`, `row` that of
    `record_batches`. Offsets are UNKNOWN where no answer told them."""

    row: Int64s
    exchange: Int64s
    place: Int64s
    """Code of topic and partition."""
    first: Int64s
    last: Int64s
    records: Int64s
    crc: Int64s
    producer: Int64s
    epoch: Int64s
    sequence: Int64s
    stamp: Int64s
    """First timestamp, where it is the producer's."""
    transactional: Int64s


@dataclass(slots=True, eq=False, repr=False)
class Positions:
    """Partitions of Fetch exchanges: what the reader asked for, and what the answer says of the log."""

    exchange: Int64s
    place: Int64s
    asked: Int64s
    high: Int64s
    stable: Int64s


@dataclass(slots=True, eq=False, repr=False)
class Reads:
    """What `fetches` says of the rows of `Exchanges`; UNKNOWN for others."""

    replica: Int64s
    """Node id of a follower, -1 for a consumer."""
    isolation: Int64s
    min_bytes: Int64s
    max_wait: Int64s
    """Milliseconds."""
    raft: npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False, repr=False)
class Input:
    """Everything that deliveries are made of."""

    exchanges: Exchanges
    sent: Batches
    given: Batches
    positions: Positions
    reads: Reads
    acks: Int64s
    """Of each exchange; -2 where it is no Produce."""
    replicas: Int64s
    """Of each topic and partition, the most that a message told; UNKNOWN for none."""
    places: Places
    """Codes of topics and partitions."""


def dense(*columns: Int64s) -> Int64s:
    """Equal rows have equal numbers, in the order of the columns."""
    size = len(columns[0])
    order = np.lexsort(columns[::-1])
    new = np.zeros(size, np.bool_)
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    found = np.empty(size, np.int64)
    found[order] = np.cumsum(new)
    return found


def read_input(tables: Mapping[str, pa.Table]) -> Input:
    """The columns of `readers.DELIVERIES` as integers. Rows of exchanges that no capture has whole are left out."""
    table = whole(tables["exchanges"])
    api = ints(table, "api_key")
    kept = np.isin(api, (PRODUCE, FETCH, SHARE_FETCH))
    table = table.filter(pa.array(kept))
    exchanges = _exchanges(table)
    among = keys_of(table)
    places = Places()
    batches = whole(tables["record_batches"])
    of = locate(keys_of(batches), among)
    place = places.of(batches)
    stamp = times(batches, "first_timestamp")
    log_time = _equal(batches, "timestamp_type", "log_append_time")
    columns = [
        of, place, ints(batches, "base_offset"), ints(batches, "last_offset"), ints(batches, "records"),
        ints(batches, "crc"), ints(batches, "producer_id"), ints(batches, "producer_epoch"),
        ints(batches, "base_sequence"), np.where(log_time, NULL_TIME, stamp),
        ints(batches, "is_transactional", 0),
    ]  # fmt: skip
    kind = np.append(exchanges.api, UNKNOWN)[of]
    readable = (of >= 0) & (place >= 0) & (ints(batches, "is_control", 0) != 1)
    reads = _reads(whole(tables["fetches"]), among)
    cut = ints(batches, "truncated", 0) == 1
    good = readable & ~cut & (kind != PRODUCE) & (columns[2] >= 0) & ~np.append(reads.raft, False)[of]
    sent = _batches(columns, np.flatnonzero(readable & (kind == PRODUCE)))
    replicas = _offsets(sent, whole(tables["produce_partitions"]), among, places)
    positions = _positions(whole(tables["fetch_partitions"]), among, places, reads)
    return Input(
        exchanges, sent, _batches(columns, np.flatnonzero(good)), positions, reads,
        _acks(whole(tables["produces"]), among), _by_place(replicas, len(places)), places,
    )  # fmt: skip


class Places:
    """Codes of topic and partition."""

    def __init__(self) -> None:
        self._topics = Coder()
        self._codes: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._codes)

    def of(self, table: pa.Table) -> Int64s:
        """Codes of rows with `topic`, `topic_id` and `partition`; -1 where there is neither name nor id. A topic id
        stands for a topic whose name no message told."""
        topic = self._topics.column(table, "topic")
        if (topic < 0).any():
            topic = np.where(topic >= 0, topic, self._topics.column(table, "topic_id"))
        partition = ints(table, "partition")
        local = dense(topic, partition)
        _, where = np.unique(local, return_index=True)
        pairs = zip(topic[where].tolist(), partition[where].tolist(), strict=True)
        lasting = [-1 if pair[0] < 0 else self._codes.setdefault(pair, len(self._codes)) for pair in pairs]
        return np.array(lasting, np.int64)[local] if lasting else local


def _equal(table: pa.Table, name: str, text: str) -> npt.NDArray[np.bool_]:
    coder = Coder()
    codes = coder.column(table, name)
    found: npt.NDArray[np.bool_] = codes == coder.codes.get(text, -2)
    return found


def _exchanges(table: pa.Table) -> Exchanges:
    api, version = ints(table, "api_key"), ints(table, "api_version")
    network, resent = reals(table, "network_ms"), np.nan_to_num(reals(table, "request_resent_ms"))
    up, down = reals(table, "network_up_ms"), reals(table, "network_down_ms")
    half = np.nan_to_num(np.maximum(network - resent, 0)) / 2
    up = np.where(np.isnan(up), half + np.where(np.isnan(network), 0, np.minimum(resent, network)), up)
    down = np.where(np.isnan(down), half, down)
    first, whole_there = times(table, "request_first_at"), times(table, "request_last_at")
    begun, last = times(table, "response_first_at"), times(table, "response_last_at")
    arrived, left = _moved(whole_there, up), _moved(begun, -down)
    # A request that was captured behind its answer arrived before it.
    both = (arrived != NULL_TIME) & (left != NULL_TIME)
    arrived = np.where(both & (arrived > left), np.where(whole_there <= begun, whole_there, begun), arrived)
    left = np.where(both & (left < arrived), arrived, left)
    coder = Coder()
    codes = [coder.column(table, name) for name in ("client_id", "client_ip")]
    throttle = (np.nan_to_num(np.clip(reals(table, "throttle_ms"), 0, 1e9)) * MILLI).astype(np.int64)
    since = np.where(api == PRODUCE, PRODUCER_THROTTLE, np.where(api == FETCH, CONSUMER_THROTTLE, 0))
    mutes = version >= since
    return Exchanges(
        table, api, first, arrived, left, last, dense(*codes), keys_of(table)[0], ints(table, "error_code", 0),
        np.where(mutes, throttle, 0), np.where(mutes, 0, throttle),
    )  # fmt: skip


def _moved(instants: Int64s, by: npt.NDArray[np.float64]) -> Int64s:
    moved = instants + np.where(instants == NULL_TIME, 0, by * MILLI).astype(np.int64)
    return np.where(instants == NULL_TIME, NULL_TIME, moved)


def _batches(columns: list[Int64s], rows: Int64s) -> Batches:
    return Batches(rows, *(column[rows] for column in columns))


def _offsets(sent: Batches, stored: pa.Table, among: tuple[Int64s, Int64s], places: Places) -> tuple[Int64s, Int64s]:
    """Give batches that were sent their offsets, as the answers tell them. Returns replicas by place."""
    at, place = locate(keys_of(stored), among), places.of(stored)
    base = np.where(ints(stored, "error_code") == 0, ints(stored, "base_offset"), UNKNOWN)
    known = np.flatnonzero((at >= 0) & (place >= 0))
    mine = dense(np.concatenate([sent.exchange, at[known]]), np.concatenate([sent.place, place[known]]))
    by_key = np.full(int(mine.max()) + 1 if len(mine) else 0, UNKNOWN, np.int64)
    by_key[mine[len(sent.exchange) :]] = base[known]
    key = mine[: len(sent.exchange)]
    # Several batches of a partition in one request (message sets of old) follow one another.
    order = np.argsort(key, kind="stable")
    begin = np.ones(len(key), np.bool_)
    begin[1:] = key[order][1:] != key[order][:-1]
    count = np.where(sent.records[order] > 0, sent.records[order], 0)
    before = np.cumsum(count) - count
    start = before[np.maximum.accumulate(np.where(begin, np.arange(len(key)), 0))]
    uncounted: Int64s = np.cumsum(sent.records[order] <= 0) - (sent.records[order] <= 0)
    lost = uncounted - uncounted[np.maximum.accumulate(np.where(begin, np.arange(len(key)), 0))] > 0
    found = np.where(by_key[key[order]] >= 0, by_key[key[order]] + before - start, UNKNOWN)
    sent.first[order] = np.where(lost, UNKNOWN, found)
    sent.last[:] = np.where((sent.first >= 0) & (sent.records > 0), sent.first + sent.records - 1, UNKNOWN)
    return place[known], ints(stored, "replicas")[known]


def _by_place(told: tuple[Int64s, Int64s], count: int) -> Int64s:
    found = np.full(count, UNKNOWN, np.int64)
    np.maximum.at(found, told[0], told[1])
    return found


def _reads(fetches: pa.Table, among: tuple[Int64s, Int64s]) -> Reads:
    at = locate(keys_of(fetches), among)
    known = at >= 0

    def spread(name: str) -> Int64s:
        column = np.full(len(among[0]), UNKNOWN, np.int64)
        column[at[known]] = ints(fetches, name)[known]
        return column

    follower = spread("is_follower") == 1
    return Reads(
        np.where(follower, spread("replica_id"), UNKNOWN), spread("isolation_level"), spread("min_bytes"),
        spread("max_wait_ms"), spread("is_raft") == 1,
    )  # fmt: skip


def _positions(parts: pa.Table, among: tuple[Int64s, Int64s], places: Places, reads: Reads) -> Positions:
    at, place = locate(keys_of(parts), among), places.of(parts)
    good = (at >= 0) & (place >= 0) & (ints(parts, "error_code", 0) == 0) & ~np.append(reads.raft, False)[at]
    rows = np.flatnonzero(good)
    columns = (ints(parts, name)[rows] for name in ("fetch_offset", "high_watermark", "last_stable_offset"))
    return Positions(at[rows], place[rows], *columns)


def _acks(produces: pa.Table, among: tuple[Int64s, Int64s]) -> Int64s:
    at = locate(keys_of(produces), among)
    found = np.full(len(among[0]), -2, np.int64)
    found[at[at >= 0]] = ints(produces, "acks", -2)[at >= 0]
    return found
