"""Rows of tables as the integer columns that deliveries are made of.

Instants are microseconds since the epoch, NULL_TIME where unknown. A request *arrives* at the broker when its last byte
is there, an answer *leaves* with its first byte. These are the capture's instants moved by the way between capture
point and broker. The way is `network_up_ms` and `network_down_ms` where both ends were captured, else half of the round
trip each.

`InputReader` reads the tables of some exchanges at a time, so that a capture of any size can be read in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.deliveries.delivery_columns import (
    NO_PRODUCE,
    UNKNOWN,
    Batches,
    Exchanges,
    Input,
    Names,
    Positions,
    dense,
    with_their_exchanges,
)  # fmt: skip
from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import MILLI, NULL_TIME, Coder, Flags, Int64s, ints, reals, times, whole
from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import CLUSTER, TIME_KEY
from kdissect.tables.order import NEVER as LAST

CONSUMER_THROTTLE, PRODUCER_THROTTLE = 8, 6
"""Versions of Fetch and Produce from which on a throttled answer leaves at once and the client waits (KIP-219)."""


class InputReader:
    """Reads tables into `Input`. `names`: the codes, which last from table to table."""

    def __init__(self) -> None:
        self.names = Names()
        self._batches = 0
        """Rows of `record_batches` that were read."""

    def read(self, tables: Mapping[str, pa.Table]) -> tuple[Input, Exchanges]:
        """The columns of `readers.DELIVERIES` as integers, all rows of an exchange together, and all of these
        exchanges. The input has only exchanges with rows in other tables. Rows of exchanges that no capture has whole
        are left out."""
        names = self.names
        table = whole(tables["exchanges"])
        clusters = names.clusters.column(table, CLUSTER.name)
        kept = np.isin(ints(table, "api_key"), (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH))
        table = table.filter(arrow_array(kept))
        among = keys_of(table)
        raft = _spread(whole(tables["fetches"]), "is_raft", among) == 1
        exchanges = self._exchanges(table, tables, among, clusters[kept])
        batches = whole(tables["record_batches"])
        topic, topic_id = names.topics_of(batches)
        of, place = locate(keys_of(batches), among), names.places_at(topic, topic_id, ints(batches, "partition"))
        log_time = _equal(batches, "timestamp_type", "log_append_time")
        every = Batches(
            np.arange(len(of)) + self._batches, of, place, ints(batches, "base_offset"), ints(batches, "last_offset"),
            ints(batches, "records", NULL_TIME), ints(batches, "crc"), ints(batches, "producer_id", NULL_TIME),
            ints(batches, "producer_epoch"), ints(batches, "base_sequence"),
            np.where(log_time, NULL_TIME, times(batches, "first_timestamp")),
            ints(batches, "is_transactional", NULL_TIME), ints(batches, "compressed_bytes", NULL_TIME),
            names.codecs.column(batches, "codec"), topic, topic_id, ints(batches, "partition", NULL_TIME),
            np.full(len(of), UNKNOWN, np.int64),
        )  # fmt: skip
        self._batches += len(of)
        kind = np.append(exchanges.api, UNKNOWN)[of]
        readable = (of >= 0) & (place >= 0) & (ints(batches, "is_control", 0) != 1)
        cut = ints(batches, "truncated", 0) == 1
        good = readable & ~cut & (kind != ApiKey.PRODUCE) & (every.first >= 0) & ~np.append(raft, False)[of]
        sent = every.rows(np.flatnonzero(readable & (kind == ApiKey.PRODUCE)))
        stored = whole(tables["produce_partitions"])
        _tell_offsets(sent, stored, locate(keys_of(stored), among), names.places_of(stored))
        positions = self._positions(whole(tables["fetch_partitions"]), among, raft)
        given = every.rows(np.flatnonzero(good))
        return with_their_exchanges(exchanges, sent, given, positions, names), exchanges

    def _exchanges(
        self, table: pa.Table, tables: Mapping[str, pa.Table], among: tuple[Int64s, Int64s], clusters: Int64s
    ) -> Exchanges:
        names = self.names
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
        client_id, address = names.clients.column(table, "client_id"), names.addresses.column(table, "client_ip")
        throttle = (np.nan_to_num(np.clip(reals(table, "throttle_ms"), 0, 1e9)) * MILLI).astype(np.int64)
        since = np.where(api == ApiKey.PRODUCE, PRODUCER_THROTTLE, np.where(api == ApiKey.FETCH, CONSUMER_THROTTLE, 0))
        mutes = version >= since
        ordered = TIME_KEY if TIME_KEY in table.schema.names else "request_first_at"
        fetches = whole(tables["fetches"])
        follower = _spread(fetches, "is_follower", among) == 1
        return Exchanges(
            *among, ints(table, ordered, LAST), api, first, arrived, left, last, client_id,
            (client_id + 1) * (1 << 32) + address + 1, names.brokers.column(table, "broker"),
            clusters, ints(table, "error_code", 0),
            np.where(mutes, throttle, 0), np.where(mutes, 0, throttle),
            _spread(whole(tables["produces"]), "acks", among, NO_PRODUCE),
            np.where(follower, _spread(fetches, "replica_id", among), UNKNOWN),
            *(_spread(fetches, name, among) for name in ("isolation_level", "min_bytes", "max_wait_ms")),
        )  # fmt: skip

    def _positions(self, parts: pa.Table, among: tuple[Int64s, Int64s], raft: Flags) -> Positions:
        at, place = locate(keys_of(parts), among), self.names.places_of(parts)
        good = (at >= 0) & (place >= 0) & (ints(parts, "error_code", 0) == 0) & ~np.append(raft, False)[at]
        rows = np.flatnonzero(good)
        columns = (ints(parts, name)[rows] for name in ("fetch_offset", "high_watermark", "last_stable_offset"))
        return Positions(at[rows], place[rows], *columns)


def _equal(table: pa.Table, name: str, text: str) -> Flags:
    coder = Coder()
    codes = coder.column(table, name)
    found: Flags = codes == coder.codes.get(text, -2)
    return found


def _moved(instants: Int64s, by: npt.NDArray[np.float64]) -> Int64s:
    moved = instants + np.where(instants == NULL_TIME, 0, by * MILLI).astype(np.int64)
    return np.where(instants == NULL_TIME, NULL_TIME, moved)


def _tell_offsets(sent: Batches, stored: pa.Table, at: Int64s, place: Int64s) -> None:
    """Give batches that were sent their offsets and replicas, as the answers tell them. `at`, `place`: of rows of
    `stored` (`produce_partitions`)."""
    base = np.where(ints(stored, "error_code") == 0, ints(stored, "base_offset"), UNKNOWN)
    known = np.flatnonzero((at >= 0) & (place >= 0))
    mine = dense(np.concatenate([sent.exchange, at[known]]), np.concatenate([sent.place, place[known]]))
    by_key = np.full(int(mine.max()) + 1 if len(mine) else 0, UNKNOWN, np.int64)
    replicas = by_key.copy()
    by_key[mine[len(sent.exchange) :]] = base[known]
    replicas[mine[len(sent.exchange) :]] = ints(stored, "replicas")[known]
    key = mine[: len(sent.exchange)]
    sent.replicas[:] = replicas[key]
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


def _spread(table: pa.Table, name: str, among: tuple[Int64s, Int64s], none: int = UNKNOWN) -> Int64s:
    """A column of `fetches` or `produces` by row of exchanges, `none` where there is none."""
    at = locate(keys_of(table), among)
    column = np.full(len(among[0]), none, np.int64)
    column[at[at >= 0]] = ints(table, name, none)[at >= 0]
    return column
