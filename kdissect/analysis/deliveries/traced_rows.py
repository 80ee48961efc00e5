"""Rows of `traced`: records with a trace context, joined with the exchanges that carried them and their deliveries.

A Produce request counts its records from 0, an answer has their offsets in the log. Both lead to the row of
`deliveries` of their batch: the request by the batch that was sent, the answer by topic, partition and offset. Where
the capture has both sides of a record, it is one row. An answer that gave a batch to its reader a second time adds
none, and neither does a request that carries it again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from kdissect.analysis.cluster_split import each_cluster
from kdissect.analysis.deliveries.batch_matching import group_writes
from kdissect.analysis.deliveries.delivery_columns import UNKNOWN, Input, dense
from kdissect.analysis.deliveries.delivery_rows import Delivered, batch_offsets, find_deliveries, id_column
from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import NULL_TIME, Int64s, begins, instants, ints, optional, whole, words
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import COUNT, TEXT, By
from kdissect.tables.makers import fills

SCHEMA = SCHEMAS["traced"]
OF_RECORDS = ("trace_id", "span_id", "topic", "topic_id", "partition", "timestamp")
OF_DELIVERIES = (
    "fetch_exchange_id", "base_offset", "client_id", "group_id", "is_follower", "delivered_at", "delivery_ms",
    "waited_for",
)  # fmt: skip
ORDER = ("produced_at", "topic", "partition", "offset", "delivered_at", "fetch_exchange_id")
Pairs = tuple[Int64s, Int64s, Int64s]
"""Rows of the records, of the deliveries (-1 for none), and offsets in the log (UNKNOWN where not told)."""


def traced(tables: Mapping[str, pa.Table]) -> pa.Table:
    """All rows of `traced`, cluster by cluster, by the time of the Produce request. `tables`: those of
    `readers.TRACED`, resolved."""
    return each_cluster(tables, _traced)


def _traced(tables: Mapping[str, pa.Table]) -> pa.Table:
    """The traced records of one cluster."""
    records = whole(tables["records"])
    records = records.filter(records["trace_id"].is_valid())
    if not records.num_rows:
        return SCHEMA.empty_table()
    delivered = find_deliveries(tables)
    data = delivered.data
    exchange = locate(keys_of(records), (data.exchanges.connection, data.exchanges.ordinal))
    place = data.names.places_of(records)
    known = (exchange >= 0) & (place >= 0)
    written = known & (np.append(data.exchanges.api, UNKNOWN)[exchange] == ApiKey.PRODUCE)
    offset = ints(records, "offset", UNKNOWN)
    sent, writes = _sent_records(delivered, whole(tables["record_batches"]), exchange, place, offset, written)
    given = _given_records(delivered, exchange, place, offset, known & ~written)
    row, delivery, at = (np.concatenate(pair) for pair in zip(sent, given, strict=True))
    write = np.concatenate([writes, np.full(len(given[0]), -1, np.int64)])
    # The record of a request and the same record of the answer; rows without a reader are one each.
    alone = np.where(delivery < 0, np.arange(len(row)), -1)
    _, kept = np.unique(dense(delivery, at, alone), return_index=True)
    return _rows(records, delivered, row[kept], delivery[kept], at[kept], write[kept])


def _sent_records(
    delivered: Delivered, batches: pa.Table, exchange: Int64s, place: Int64s, offset: Int64s, written: Int64s
) -> tuple[Pairs, Int64s]:
    """Records of Produce requests with their deliveries, and the row of `sent` that wrote each (-1 for none)."""
    data, firsts = delivered.data, delivered.firsts
    sent = data.sent
    row = np.flatnonzero(written)
    batch = _only_batches(data, exchange[row], place[row])
    lone = np.full(int((batch < 0).sum()), -1, np.int64)
    unmatched: Pairs = row[batch < 0], lone, np.full(len(lone), UNKNOWN, np.int64)
    row, batch = row[batch >= 0], batch[batch >= 0]
    within = offset[row] - ints(batches, "base_offset", 0)[sent.row[batch]]
    first_try = group_writes(sent, data.exchanges).first_try
    write = np.where(sent.producer[batch] >= 0, first_try[batch], batch)
    told = np.full(len(sent.row), UNKNOWN, np.int64)
    np.maximum.at(told, np.where(sent.producer >= 0, first_try, np.arange(len(first_try))), sent.first)
    _, once = np.unique(dense(write, within), return_index=True)  # a batch that was sent again
    row, write, within = row[once], write[once], within[once]
    order = np.argsort(firsts.sent, kind="stable")
    low = np.searchsorted(firsts.sent[order], write, "left")
    readers = np.searchsorted(firsts.sent[order], write, "right") - low
    which = np.repeat(np.arange(len(row)), np.maximum(readers, 1))
    count = np.arange(len(which)) - np.repeat(begins(np.maximum(readers, 1))[:-1], np.maximum(readers, 1))
    delivery = np.where(readers[which] > 0, np.append(order, -1)[np.minimum(low[which] + count, len(order))], -1)
    begin = np.where(delivery >= 0, np.append(batch_offsets(data, firsts)[0], UNKNOWN)[delivery], told[write[which]])
    at = np.where(begin >= 0, begin + within[which], UNKNOWN)
    pairs = tuple(np.concatenate(pair) for pair in zip((row[which], delivery, at), unmatched, strict=True))
    return (pairs[0], pairs[1], pairs[2]), np.concatenate([write[which], lone])


def _only_batches(data: Input, exchange: Int64s, place: Int64s) -> Int64s:
    """The row of `sent` with the batch of each (exchange, place), -1 where there is none or several."""
    sent = data.sent
    code = dense(np.concatenate([sent.exchange, exchange]), np.concatenate([sent.place, place]))
    size = int(code.max()) + 1 if len(code) else 0
    batch, count = np.full(size, -1, np.int64), np.bincount(code[: len(sent.row)], minlength=size)
    batch[code[: len(sent.row)]] = np.arange(len(sent.row))
    found: Int64s = np.where(count == 1, batch, -1)[code[len(sent.row) :]]
    return found


def _given_records(delivered: Delivered, exchange: Int64s, place: Int64s, offset: Int64s, delivers: Int64s) -> Pairs:
    """Records of answers with the delivery that each belongs to; others are left out."""
    data, firsts = delivered.data, delivered.firsts
    row = np.flatnonzero(delivers)
    first, last = batch_offsets(data, firsts)
    size = len(first)
    if not size or not len(row):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    code = dense(
        np.concatenate([firsts.fetch, exchange[row]]), np.concatenate([data.given.place[firsts.given], place[row]])
    )
    values = np.unique(np.concatenate([first, offset[row]]))
    rank = code * (len(values) + 1) + np.searchsorted(values, np.concatenate([first, offset[row]]))
    order = np.argsort(rank[:size], kind="stable")
    at = order[np.maximum(np.searchsorted(rank[order], rank[size:], "right") - 1, 0)]
    covers = (code[at] == code[size:]) & (first[at] <= offset[row]) & (offset[row] <= last[at])
    return row[covers], at[covers], offset[row][covers]


def _rows(
    records: pa.Table, delivered: Delivered, row: Int64s, delivery: Int64s, at: Int64s, write: Int64s
) -> pa.Table:
    """The table, in order."""
    data, firsts = delivered.data, delivered.firsts
    exchanges = data.exchanges
    produce = np.where(delivery >= 0, np.append(firsts.produce, -1)[delivery], np.append(data.sent.exchange, -1)[write])
    made = {name: _pick_rows(records, name, row) for name in OF_RECORDS}
    made |= {name: _pick_rows(delivered.table, name, delivery) for name in OF_DELIVERIES}
    made["offset"] = optional(at, COUNT)
    made["produce_exchange_id"] = id_column(exchanges, produce)
    made["producer_client_id"] = words(np.append(exchanges.client_id, -1)[produce], data.names.clients.texts)
    made["produced_at"] = instants(np.append(exchanges.first, NULL_TIME)[produce])
    made["cluster"] = pa.nulls(len(row), pa.string())
    table = pa.table({name: made[name] for name in SCHEMA.names}).cast(SCHEMA)
    return table.sort_by([(name, "ascending") for name in ORDER])


def _pick_rows(table: pa.Table, name: str, rows: Int64s) -> pa.Array:
    """A column's values in these rows; null for -1."""
    column = table[name].take(pa.array(rows, mask=rows < 0)).combine_chunks()
    return column.cast(TEXT) if pa.types.is_dictionary(column.type) else column


fills(By.TRACED, lambda: {"traced": SCHEMA.names})
