"""The links between spans of different traces: contexts in record headers, and deliveries.

- A Produce request all of whose records have one context is a span of that trace, below the application's span. Else it
  links to the contexts of its records.
- A fetch links to the context of each record, and to the Produce request of each batch, that it gave its reader first.

Rules: OpenTelemetry's semantic conventions for messaging spans, "Context propagation": spans of batches have links.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys, keys_of, locate
from kdissect.arrays.arrow import Int64s
from kdissect.otlp.span_ids import span_id, trace_id

READ: Mapping[str, tuple[str, ...]] = {
    "traced": ("trace_id", "span_id", "topic", "topic_id", "partition", "offset", "produce_exchange_id",
               "fetch_exchange_id"),
    "deliveries": ("fetch_exchange_id", "produce_exchange_id", "topic", "partition", "base_offset", "records",
                   "delivery_ms", "waited_for"),
    "connections": ("connection_id", "group_id"),
    "produces": ("exchange_id", "records"),
}  # fmt: skip
"""The tables that links are made of, and their columns."""
CONTEXT = ("trace_id", "span_id")
NAMES = {"topic": "messaging.destination.name", "partition": "messaging.destination.partition.id",
         "offset": "messaging.kafka.offset", "base_offset": "messaging.kafka.offset",
         "records": "messaging.batch.message_count", "delivery_ms": "kdissect.delivery_ms",
         "waited_for": "kdissect.waited_for"}  # fmt: skip
"""Columns as attributes of links."""


class Context(NamedTuple):
    """A span of a trace."""

    trace: int
    span: int


class Joined(NamedTuple):
    """The links of one exchange."""

    parent: Context | None
    links: list[tuple[Context, dict[str, Any]]]


class SpanLinks:
    """Links and parents of exchanges. `tables`: those of READ; None: there are none."""

    def __init__(self, tables: Mapping[str, pa.Table] | None = None) -> None:
        empty = pa.table({name: pa.array([], pa.string()) for name in (*CONTEXT, "produce_exchange_id")})
        self._groups: dict[str, str] = {}
        self._contexts, self._fetched, self._delivered = empty, None, None
        self._alone: set[str] = set()
        """Produce requests whose records have one context."""
        if tables is None:
            return
        connections = tables["connections"]
        grouped = connections.filter(connections["group_id"].is_valid())
        self._groups.update(zip(grouped["connection_id"].to_pylist(), grouped["group_id"].to_pylist(), strict=True))
        traced = tables["traced"]
        sent = traced.filter(traced["produce_exchange_id"].is_valid())
        one_row = sent.group_by([*CONTEXT, "produce_exchange_id", "topic", "topic_id", "partition", "offset"])
        records = one_row.aggregate([])
        self._contexts = records.group_by([*CONTEXT, "produce_exchange_id"], use_threads=False).aggregate(
            [([], "count_all")]
        )
        self._find_alone(tables["produces"])
        self._fetched = traced.filter(traced["fetch_exchange_id"].is_valid())
        given = tables["deliveries"]
        self._delivered = given.filter(given["produce_exchange_id"].is_valid())
        self._adopted = {
            row["produce_exchange_id"]: _context(row)
            for row in self._contexts.to_pylist()
            if row["produce_exchange_id"] in self._alone
        }

    _adopted: Mapping[str, Context] = {}

    def _find_alone(self, produces: pa.Table) -> None:
        by_exchange = self._contexts.group_by("produce_exchange_id", use_threads=False)
        found = by_exchange.aggregate([([], "count_all"), ("count_all", "sum")])
        found = found.filter(pc.equal(found["count_all"], 1))
        at = locate(exchange_keys(found["produce_exchange_id"]), keys_of(produces))
        records = produces["records"].take(pa.array(at, mask=at < 0))
        same = pc.equal(found["count_all_sum"], records).fill_null(False)
        self._alone = set(found["produce_exchange_id"].filter(same).to_pylist())

    def group(self, connection_id: str) -> str | None:
        """The group of a connection's client; None where it is not known."""
        return self._groups.get(connection_id)

    def context(self, exchange_id: str) -> Context:
        """The context of an exchange's own span."""
        adopted = self._adopted.get(exchange_id)
        return Context(trace_id(exchange_id) if adopted is None else adopted.trace, span_id(exchange_id))

    def of(self, exchanges: pa.Table) -> dict[int, Joined]:
        """The links of rows of `exchanges`, by row; rows without any are left out."""
        found: dict[int, Joined] = {}
        keys = keys_of(exchanges)
        for row, one in _rows_of(self._contexts, "produce_exchange_id", keys):
            joined = found.setdefault(row, Joined(self._adopted.get(one["produce_exchange_id"]), []))
            if joined.parent is None:
                joined.links.append((_context(one), {}))
        for row, one in _rows_of(self._fetched, "fetch_exchange_id", keys):
            joined = found.setdefault(row, Joined(None, []))
            joined.links.append((_context(one), _attributes(one, ("topic", "partition", "offset"))))
        for row, one in _rows_of(self._delivered, "fetch_exchange_id", keys):
            joined = found.setdefault(row, Joined(None, []))
            told = ("topic", "partition", "base_offset", "records", "delivery_ms", "waited_for")
            joined.links.append((self.context(one["produce_exchange_id"]), _attributes(one, told)))
        return found


def _context(row: Mapping[str, Any]) -> Context:
    return Context(int(row["trace_id"], 16), int(row["span_id"], 16))


def _attributes(row: Mapping[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    """Attributes of a link; what is not known is left out."""
    made = {NAMES[name]: row[name] for name in columns if row[name] is not None}
    if (partition := made.get("messaging.destination.partition.id")) is not None:
        made["messaging.destination.partition.id"] = str(partition)
    return made


def _rows_of(table: pa.Table | None, name: str, keys: tuple[Int64s, Int64s]) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a table that name one of these exchanges in the column, each with the row of the exchange."""
    if table is None or not table.num_rows:
        return []
    at = locate(exchange_keys(table[name]), keys)
    mine = np.flatnonzero(at >= 0)
    return list(zip(at[mine].tolist(), table.take(pa.array(mine)).to_pylist(), strict=True))
