"""The attributes of exchanges for OpenTelemetry: their operation, destination and error.

Rules: semantic conventions for messaging (operation names and types), for Kafka (`error.type` is Kafka's name of the
error). A destination stands only where an exchange is about one topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import Coder, Int64s, ints
from kdissect.schema.apikeys import ApiKey

SYSTEM = "kafka"
OPERATIONS: Mapping[int, tuple[str, str]] = {
    ApiKey.PRODUCE: ("send", "send"),
    ApiKey.FETCH: ("poll", "receive"),
    ApiKey.SHARE_FETCH: ("poll", "receive"),
    ApiKey.OFFSET_COMMIT: ("commit", "settle"),
    ApiKey.TXN_OFFSET_COMMIT: ("commit", "settle"),
    ApiKey.SHARE_ACKNOWLEDGE: ("acknowledge", "settle"),
}
"""By API key operation name and type."""
PLACES = ("fetch_partitions", "produce_partitions")
UNKNOWN, SEVERAL = -1, -2
UNANSWERED = ("unanswered", "no_response")
"""Statuses of requests whose response should have come."""


class Operations(NamedTuple):
    """Operations of exchanges, row by row; None where there is none, or no single one."""

    names: list[str]
    kinds: list[str | None]
    topics: list[str | None]
    partitions: list[int | None]
    errors: list[str | None]
    servers: list[tuple[str | None, int | None]]
    """Address or name of the broker, and its port."""
    messages: list[int | None]
    """Records of requests to produce."""

    def measured(self, row: int) -> dict[str, Any]:
        """The attributes that a metric of the operation has, too."""
        host, port = self.servers[row]
        made = {
            "messaging.system": SYSTEM, "messaging.operation.name": self.names[row],
            "messaging.operation.type": self.kinds[row], "messaging.destination.name": self.topics[row],
            "error.type": self.errors[row], "server.address": host, "server.port": port,
        }  # fmt: skip
        return {name: value for name, value in made.items() if value is not None}

    def attributes(self, row: int) -> dict[str, Any]:
        """The attributes of a span."""
        made = self.measured(row)
        if (partition := self.partitions[row]) is not None:
            made["messaging.destination.partition.id"] = str(partition)
        if (messages := self.messages[row]) is not None:
            made["messaging.batch.message_count"] = messages
        return made

    def span_name(self, row: int) -> str:
        """Operation and destination: the topic, else the broker's address."""
        host, port = self.servers[row]
        place = self.topics[row] or (None if host is None else f"{host}:{port}")
        return self.names[row] if place is None else f"{self.names[row]} {place}"


def operations(tables: Mapping[str, pa.Table]) -> Operations:
    """Operations of rows of `exchanges`. `tables`: `sending.READ`, rows of an exchange together."""
    exchanges, fetches = tables["exchanges"], tables["fetches"]
    keys, size = keys_of(exchanges), exchanges.num_rows
    follower = np.zeros(size, np.bool_)
    at = locate(keys_of(fetches), keys)
    follower[at[at >= 0]] = ints(fetches, "is_follower", 0)[at >= 0] == 1
    coder = Coder()
    topic, partition = _places(tables, keys, size, coder)
    columns = {name: _column_values(exchanges, name) for name in ("api_key", "api", "error", "status", "broker_name",
                                                            "broker_ip", "broker_port", "broker")}  # fmt: skip
    made = Operations([], [], [], [], [], [], _messages(tables, keys, size))
    for row in range(size):
        known = None if follower[row] else OPERATIONS.get(columns["api_key"][row])
        name = columns["api"][row] or "unknown"
        made.names.append(name if known is None else known[0])
        made.kinds.append(None if known is None else known[1])
        made.topics.append(coder.texts[topic[row]] if topic[row] >= 0 else None)
        made.partitions.append(int(partition[row]) if topic[row] >= 0 and partition[row] >= 0 else None)
        status = columns["status"][row]
        made.errors.append(columns["error"][row] or (status if status in UNANSWERED else None))
        host = columns["broker_name"][row] or columns["broker_ip"][row] or columns["broker"][row]
        made.servers.append((host, columns["broker_port"][row]))
    return made


def _column_values(table: pa.Table, name: str) -> list[Any]:
    """A column's values; None for all where there is no such column."""
    return table[name].to_pylist() if name in table.column_names else [None] * table.num_rows


def _places(
    tables: Mapping[str, pa.Table], keys: tuple[Int64s, Int64s], size: int, coder: Coder
) -> tuple[Int64s, Int64s]:
    """The topic and the partition of each exchange; UNKNOWN for none, SEVERAL for several."""
    topic, partition = np.full(size, UNKNOWN, np.int64), np.full(size, UNKNOWN, np.int64)
    for name in PLACES:
        rows = tables.get(name)
        if rows is None or not rows.num_rows:
            continue
        at = locate(keys_of(rows), keys)
        mine = np.flatnonzero(at >= 0)
        for found, values in ((topic, coder.column(rows, "topic")), (partition, ints(rows, "partition"))):
            least, most = np.full(size, np.iinfo(np.int64).max), np.full(size, UNKNOWN, np.int64)
            np.minimum.at(least, at[mine], values[mine])
            np.maximum.at(most, at[mine], values[mine])
            there = np.zeros(size, np.bool_)
            there[at[mine]] = True
            found[:] = np.where(there, np.where(least == most, most, SEVERAL), found)
    return topic, partition


def _messages(tables: Mapping[str, pa.Table], keys: tuple[Int64s, Int64s], size: int) -> list[int | None]:
    """Records of each request to produce."""
    found: list[int | None] = [None] * size
    if (produces := tables.get("produces")) is not None and "records" in produces.column_names:
        at = locate(keys_of(produces), keys)
        for row, records in zip(at.tolist(), produces["records"].to_pylist(), strict=True):
            if row >= 0:
                found[row] = records
    return found
