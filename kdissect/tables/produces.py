"""The `produces` and `produce_partitions` tables: what is on the wire; what was waited for comes from the analysis.

Rows of `produce_partitions` of an exchange come in the request's order, then partitions that only its response names
(acks 0 has no response at all). The topic is compared by id where the version uses ids, else by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import CODE, COUNT, MS, TEXT
from kdissect.tables.exchanges import error_codes
from kdissect.tables.identity import dictionary
from kdissect.tables.makers import makes
from kdissect.tables.nest import Int64s, numbers, optional, pick
from kdissect.tables.partitions import keys, locate, side
from kdissect.tables.table_block import Block, Column, Rows, code, count, elapsed, instant, milliseconds
from kdissect.tables.timestamps import kafka_time
from kdissect.tables.topic_lists import topic_lists


@makes("produces")
def produces(block: Block) -> Rows:
    """The columns of `produces`, one row per Produce exchange of the block. `broker` is not resolved yet."""
    rows = block.rows(ApiKey.PRODUCE)
    done, directory = block.done, block.directory
    conn = done.conn[rows]
    request, response = block.nest(ApiKey.PRODUCE, 0), block.nest(ApiKey.PRODUCE, 1)
    asked, given = block.body_of(ApiKey.PRODUCE, 0)[rows], block.body_of(ApiKey.PRODUCE, 1)[rows]

    def ask(path: str, kind: pa.DataType) -> Column:
        return lambda: pick(request.column(path, kind), asked)

    def summed(bodies: Int64s, values: Int64s, index: Int64s, unknown: Int64s | None = None) -> pa.Array:
        """Sums of values by body, for each row; null where it has no body, or one of the bodies `unknown`."""
        size = int(index.max(initial=-1)) + 1
        total = np.bincount(bodies, weights=values, minlength=size).astype(np.int64)
        known = index >= 0
        if unknown is not None and len(unknown):
            known = known & ~np.isin(index, unknown)
        return optional(total[index], known, COUNT) if len(total) else pa.nulls(len(index), COUNT)

    sent = request.each("topic_data").each("partition_data")
    told = response.each("responses").each("partition_responses")

    def counted(column: int) -> Column:
        def make() -> pa.Array:
            found = block.sent
            if found is None:
                return pa.nulls(len(rows), COUNT)
            values = found[:, column]
            return summed(sent.body, np.maximum(values, 0), asked, sent.body[values < 0])

        return make

    columns: dict[str, Column] = {
        "exchange_id": lambda: block.exchange_id.take(arrow_array(rows)),
        "connection_id": lambda: directory.connection_id(conn),
        "capture": lambda: directory.capture(conn),
        "broker": lambda: directory.broker(conn),
        "client_id": lambda: dictionary(done.client[rows], done.client_ids),
        "api_version": lambda: code(done.api_version[rows]),
        "status": lambda: block.status.take(arrow_array(rows)),
        "acks": ask("acks", CODE),
        "timeout_ms": ask("timeout_ms", CODE),
        "transactional_id": ask("transactional_id", TEXT),
        "requested_at": lambda: instant(done.request_first[rows]),
        "request_last_at": lambda: instant(done.request_last[rows]),
        "response_first_at": lambda: instant(done.response_first[rows]),
        "topics": lambda: topic_lists([request.each("topic_data"), response.each("responses")], [asked, given], "name"),
        "partitions": lambda: summed(sent.body, np.ones(len(sent), np.int64), asked),
        "partitions_with_error": lambda: summed(told.body, (told.ints("error_code", 0) != 0).astype(np.int64), given),
        "batches": counted(0),
        "records": counted(1),
        "record_bytes": lambda: summed(sent.body, np.maximum(sent.ints("records_bytes", 0), 0), asked),
        "latency_ms": lambda: elapsed(done.request_first[rows], done.response_last[rows]),
        "queued_ms": lambda: milliseconds(block.parts.queued[rows], block.parts.split[rows]),
        "broker_ms": lambda: milliseconds(block.parts.broker[rows], block.parts.split[rows]),
        "throttle_ms": lambda: optional(done.throttle_ms[rows], done.throttle_ms[rows] >= 0, MS),
        "error_code": lambda: _error(block, rows),
        "request_bytes": lambda: count(done.request_bytes[rows]),
        **block.time_columns(rows),
        "cluster": lambda: block.cluster(rows),
        **block.key_columns(rows),
    }
    return columns, len(rows)


def _error(block: Block, rows: Int64s) -> pa.Array:
    """First error code of the response, null where none was decoded."""
    codes, known = error_codes(block)
    return optional(codes[rows], known[rows], CODE)


def matched(rows: Sequence[Int64s], keys: Sequence[Int64s]) -> tuple[Int64s, Int64s, Int64s]:
    """Match partitions that are written to and answered, by their rows of the block and their keys. Returns the row of
    each, and its places in both lists (-1: not there), in the order of the table."""
    asked, given = keys
    in_given = locate(asked, given)
    left = np.ones(len(given), np.bool_)
    left[in_given[in_given >= 0]] = False
    only = np.flatnonzero(left)
    row = np.concatenate([rows[0], rows[1][only]])
    group = np.repeat([0, 1], [len(asked), len(only)])
    order = np.argsort(row * 2 + group, kind="stable")
    asked_at = np.concatenate([np.arange(len(asked)), np.full(len(only), -1)])
    return row[order], asked_at[order], np.concatenate([in_given, only])[order]


@makes("produce_partitions")
def produce_partitions(block: Block) -> Rows:
    """The columns of `produce_partitions`, exchanges in the block's order. Topics and `replicas` are not resolved."""
    request, response = block.nest(ApiKey.PRODUCE, 0), block.nest(ApiKey.PRODUCE, 1)
    asked_topics, given_topics = request.each("topic_data"), response.each("responses")
    asked, given = asked_topics.each("partition_data"), given_topics.each("partition_responses")
    sides = (
        side(asked, asked_topics, block.bodies(ApiKey.PRODUCE, 0), asked.ints("index"), "name"),
        side(given, given_topics, block.bodies(ApiKey.PRODUCE, 1), given.ints("index"), "name"),
    )
    row, asked_at, given_at = matched([item.row for item in sides], keys(*sides))
    source = np.where(asked_at >= 0, asked_at, given_at + len(asked))

    def gather_texts(attribute: str) -> pa.Array:
        return pa.concat_arrays([getattr(item, attribute) for item in sides]).take(arrow_array(source))

    def give(path: str, kind: pa.DataType) -> Column:
        return lambda: pick(given.column(path, kind), given_at)

    def counted(column: int) -> Column:
        def make() -> pa.Array:
            found = block.sent
            if found is None:
                return pa.nulls(len(row), COUNT)
            return pick(optional(found[:, column], found[:, column] >= 0, COUNT), asked_at)

        return make

    def append_time() -> pa.Array:
        ms = numbers(give("log_append_time_ms", COUNT)(), -1)
        return kafka_time(ms, ms != -1, "log_append_at", row, block.odd)

    columns: dict[str, Column] = {
        "exchange_id": lambda: block.exchange_id.take(arrow_array(row)),
        "topic": lambda: gather_texts("topic"),
        "topic_id": lambda: gather_texts("topic_id"),
        "partition": lambda: arrow_array(np.concatenate([item.partition for item in sides])[source], CODE),
        "batches": counted(0),
        "records": counted(1),
        "record_bytes": lambda: pick(arrow_array(np.maximum(asked.ints("records_bytes", 0), 0), COUNT), asked_at),
        "base_offset": give("base_offset", COUNT),
        "log_append_at": append_time,
        "log_start_offset": give("log_start_offset", COUNT),
        "error_code": give("error_code", CODE),
        "error_message": give("error_message", TEXT),
        "current_leader": give("current_leader.leader_id", CODE),
        "replicas": lambda: pa.nulls(len(row), CODE),
        **block.time_columns(row),
        "cluster": lambda: block.cluster(row),
        **block.key_columns(row),
    }
    return columns, len(row)
