"""The `list_offsets` table: ListOffsets request and response joined per partition, in the response's order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import CODE, COUNT, OFFSETS
from kdissect.tables.identity import dictionary
from kdissect.tables.makers import makes
from kdissect.tables.nest import numbers, pick
from kdissect.tables.partitions import keys, locate, side
from kdissect.tables.table_block import Block, Column, Rows
from kdissect.tables.timestamps import kafka_time

SPECIAL = {
    -1: "latest",
    -2: "earliest",
    -3: "max_timestamp",
    -4: "earliest_local",
    -5: "latest_tiered",
    -6: "earliest_pending_upload",
}
"""Timestamps that mean something else (ListOffsetsRequest; KIP-734, KIP-405, KIP-1005, KIP-1023)."""


@makes("list_offsets")
def list_offsets(block: Block) -> Rows:
    """The columns of `list_offsets`. Partitions without an answer come behind those with one."""
    request, response = block.nest(ApiKey.LIST_OFFSETS, 0), block.nest(ApiKey.LIST_OFFSETS, 1)
    asked_topics, given_topics = request.each("topics"), response.each("topics")
    asked, given = asked_topics.each("partitions"), given_topics.each("partitions")
    sides = (
        side(asked, asked_topics, block.bodies(ApiKey.LIST_OFFSETS, 0), asked.ints("partition_index"), "name", ""),
        side(given, given_topics, block.bodies(ApiKey.LIST_OFFSETS, 1), given.ints("partition_index"), "name", ""),
    )
    asked_key, given_key = keys(*sides)
    in_asked = locate(given_key, asked_key)
    left = np.ones(len(asked), np.bool_)
    left[in_asked[in_asked >= 0]] = False
    only = np.flatnonzero(left)
    row = np.concatenate([sides[1].row, sides[0].row[only]])
    group = np.repeat([0, 1], [len(given), len(only)])
    order = np.argsort(row * 2 + group, kind="stable")
    row = row[order]
    asked_at = np.concatenate([in_asked, only])[order]
    given_at = np.concatenate([np.arange(len(given)), np.full(len(only), -1)])[order]
    source = np.where(asked_at >= 0, asked_at, given_at + len(asked))
    body = block.body_of(ApiKey.LIST_OFFSETS, 0)[row]

    def ask(path: str, kind: pa.DataType) -> pa.Array:
        return pick(asked.column(path, kind), asked_at)

    def give(path: str, kind: pa.DataType) -> pa.Array:
        return pick(given.column(path, kind), given_at)

    def time_asked() -> pa.Array:
        ms = numbers(ask("timestamp", COUNT), -1)
        return kafka_time(ms, ms >= 0, "timestamp_asked", row, block.odd)

    def time_given() -> pa.Array:
        found = give("timestamp", COUNT)
        return kafka_time(numbers(found, -1), np.asarray(found.is_valid()), "timestamp", row, block.odd)

    def asked_names() -> pa.Array:
        found = ask("timestamp", COUNT)
        ms = numbers(found, 0)
        distinct, inverse = np.unique(np.minimum(ms, 0), return_inverse=True)
        names = ["timestamp" if v == 0 else SPECIAL.get(v, f"special {v}") for v in distinct.tolist()]
        return dictionary(np.where(np.asarray(found.is_valid()), inverse, -1), names)

    columns: dict[str, Column] = {
        "exchange_id": lambda: block.exchange_id.take(arrow_array(row)),
        "connection_id": lambda: block.directory.connection_id(block.done.conn[row]),
        "client_id": lambda: dictionary(block.done.client[row], block.done.client_ids),
        "topic": lambda: pa.concat_arrays([item.topic for item in sides]).take(arrow_array(source)),
        "partition": lambda: arrow_array(np.concatenate([item.partition for item in sides])[source], CODE),
        "timestamp_asked": time_asked,
        "asked": asked_names,
        "offset": lambda: give("offset", COUNT),
        "offsets": lambda: give("old_style_offsets", OFFSETS),
        "timestamp": time_given,
        "leader_epoch": lambda: give("leader_epoch", CODE),
        "error_code": lambda: give("error_code", CODE),
        "isolation_level": lambda: pick(request.column("isolation_level", CODE), body),
        "replica_id": lambda: pick(request.column("replica_id", CODE), body),
        "current_leader_epoch": lambda: ask("current_leader_epoch", CODE),
        "latency_ms": lambda: block.latency_ms().take(arrow_array(row)),
        "cluster": lambda: block.cluster(row),
        **block.time_columns(row),
    }
    return columns, len(row)
