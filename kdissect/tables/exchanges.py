"""The `exchanges` table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.arrays.arrow import numbers
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.rows import NULL
from kdissect.kafka.completed import NETWORK_KINDS, NO_CODE, NULL_TIME, Ints
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.apinames import api_column, error_column
from kdissect.tables.declaration.model import ACKS_KEY, CODE, FLAG, MS
from kdissect.tables.identity import dictionary, unresolved_host
from kdissect.tables.makers import makes
from kdissect.tables.nest import Int64s, optional
from kdissect.tables.table_block import (
    Block,
    Column,
    Rows,
    code,
    count,
    flag,
    instant,
    milliseconds,
    packet_file,
    packet_number,
)


@makes("exchanges")
def exchanges(block: Block) -> Rows:
    """The columns of `exchanges`, one row per row of the block, in its order. `broker` is not resolved yet."""
    done, directory = block.done, block.directory
    errors, known = error_codes(block)
    columns: dict[str, Column] = {
        "exchange_id": lambda: block.exchange_id,
        "connection_id": lambda: directory.connection_id(done.conn),
        "capture": lambda: directory.capture(done.conn),
        "client_ip": lambda: directory.client_ip(done.conn),
        "client_port": lambda: code(directory.client_port(done.conn)),
        "broker_ip": lambda: directory.broker_ip(done.conn),
        "broker_port": lambda: code(directory.broker_port(done.conn)),
        "broker": lambda: directory.broker(done.conn),
        "client_name": lambda: unresolved_host(directory.client_ip(done.conn)),
        "broker_name": lambda: unresolved_host(directory.broker_ip(done.conn)),
        "community_id": lambda: directory.community_id(done.conn),
        "api_key": lambda: code(done.api_key),
        "api": lambda: api_column(done.api_key),
        "api_version": lambda: code(done.api_version),
        "correlation_id": lambda: arrow_array(done.correlation_id, CODE),
        "client_id": lambda: block.client_id,
        "status": lambda: block.status,
        "error_code": lambda: optional(errors, known, CODE),
        "error": lambda: error_column(errors, known),
        "error_count": lambda: optional(np.asarray(done.error_count), known, CODE),
        "request_first_at": lambda: instant(done.request_first),
        "request_last_at": lambda: instant(done.request_last),
        "response_first_at": lambda: instant(done.response_first),
        "response_last_at": lambda: instant(done.response_last),
        "latency_ms": block.latency_ms,
        "request_transfer_ms": lambda: milliseconds(block.parts.request, block.parts.sent),
        "network_ms": lambda: milliseconds(block.parts.network, block.parts.told),
        "queued_ms": lambda: milliseconds(block.parts.queued, block.parts.split),
        "broker_ms": lambda: milliseconds(block.parts.broker, block.parts.split),
        "response_transfer_ms": lambda: milliseconds(block.parts.response, block.parts.received),
        "request_resent_ms": lambda: milliseconds(done.request_resent, done.request_resent >= 0),
        "response_resent_ms": lambda: milliseconds(done.response_resent, done.response_resent >= 0),
        "think_ms": lambda: milliseconds(done.think, done.think >= 0),
        "network_kind": lambda: dictionary(np.where(block.parts.told, done.network_kind, -1), NETWORK_KINDS),
        "network_up_ms": lambda: between_sights(done.network_up, len(block)),
        "network_down_ms": lambda: between_sights(done.network_down, len(block)),
        "abandoned": lambda: optional(done.abandoned > 0, done.abandoned >= 0, FLAG),
        "throttle_ms": lambda: optional(np.asarray(done.throttle_ms), done.throttle_ms >= 0, MS),
        "request_bytes": lambda: count(done.request_bytes),
        "response_bytes": lambda: count(done.response_bytes),
        "in_flight": lambda: code(done.in_flight),
        "request_file": lambda: packet_file(block, done.request_packet),
        "request_frame": lambda: packet_number(done.request_packet),
        "response_file": lambda: packet_file(block, done.response_packet),
        "response_frame": lambda: packet_number(done.response_packet),
        "api_inferred": lambda: flag(done.api_inferred),
        "decoded": lambda: flag(done.decoded),
        **block.time_columns(),
        ACKS_KEY: lambda: arrow_array(acks(block)),
        "cluster": lambda: block.cluster(),
        **block.key_columns(),
    }
    return columns, len(block)


def acks(block: Block) -> Int64s:
    """acks of each exchange to produce, NULL for others and where it was not read."""
    aside, told = block.done.aside, block.nest(ApiKey.PRODUCE, 0).get("acks")
    found = np.full(len(block), NULL) if aside is None or aside.acks is None else aside.acks
    if told is not None:
        found[block.bodies(ApiKey.PRODUCE, 0)] = numbers(told, NULL)
    return found


def between_sights(ns: Ints | None, rows: int) -> pa.Array:
    """Milliseconds between two capture points, null where not known."""
    return pa.nulls(rows, MS) if ns is None else milliseconds(ns, ns != NULL_TIME)


def error_codes(block: Block) -> tuple[Int64s, np.ndarray]:
    """Error code of each exchange, and where it is known.

    The response's top-level code where that is set, else its first in wire order, else 0. Known where the response was
    decoded.
    """
    done = block.done
    top = np.asarray(done.error_code, np.int64)
    codes = np.where((top != NO_CODE) & (top != 0), top, done.error_first)
    return codes, np.asarray(done.error_count) >= 0
