"""A whole capture to a receiver: spans in batches, then the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.dictionaries import unified
from kdissect.otlp.receivers import FileReceiver, HttpReceiver, Receiver, ready
from kdissect.otlp.span_links import READ as READ_FOR_LINKS
from kdissect.otlp.span_links import SpanLinks
from kdissect.output import whole_seekable
from kdissect.problems import JobFailed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from kdissect.engine.capture import Capture

BATCH = 512
"""Spans of a request, as OpenTelemetry's own processors send them: some 300 KB."""
ROWS = 2048
"""Exchanges whose spans are made at a time: some 10,000 Python objects."""
READ: Mapping[str, tuple[str, ...]] = {
    "exchanges": (
        "exchange_id", "connection_id", "api_key", "api", "api_version", "correlation_id", "client_id", "client_ip",
        "client_port", "broker", "broker_name", "broker_ip", "broker_port", "status", "error", "hold",
        "request_first_at", "request_last_at", "response_first_at", "response_last_at", "request_transfer_ms",
        "network_ms", "network_up_ms", "network_kind", "queued_ms", "broker_ms", "replication_ms", "agreed_ms",
        "throttled_ms", "response_transfer_ms", "request_bytes", "response_bytes", "request_frame", "response_frame",
        "cluster",
    ),
    "fetches": ("exchange_id", "record_bytes", "is_follower"),
    "fetch_partitions": ("exchange_id", "topic", "partition"),
    "produces": ("exchange_id", "records"),
    "produce_partitions": ("exchange_id", "topic", "partition"),
}  # fmt: skip
"""The tables that spans are made of, and their columns."""


NO_ROWS = pa.table({})


class Sent(NamedTuple):
    """The number of exchanges, spans and requests that a receiver accepted."""

    exchanges: int
    spans: int
    requests: int


def send(capture: Capture, url: str, *, where: str | None = None, links: bool = True) -> Sent:
    """Sends the exchanges of a capture to an OTLP receiver at `url`, such as `http://localhost:4318`.

    `where`: only exchanges for which this holds. `links`: spans are joined with the traces in record headers and with
    deliveries. That needs every record batch and memory for all deliveries (`memory` of `kdissect.open` bounds it).
    Raises UsageError for another URL and without the extra `otlp`, JobFailed if the receiver does not take them; if it
    rejects some, once all were sent.
    """
    receiver = HttpReceiver(url)
    try:
        receiver.reach()
        sent = send_to(capture, receiver, where=where, links=links)
        if receiver.rejections:
            raise JobFailed(f"the OTLP receiver at {url} {receiver.rejections}")
        return sent
    finally:
        receiver.close()


def write(capture: Capture, target: str | Path | BinaryIO, *, where: str | None = None, links: bool = True) -> Sent:
    """Writes what `send` would send as a file of JSON lines, a request a line. Raises UsageError, OutputError."""
    ready()
    capture.not_input(target)
    with whole_seekable(target) as file:
        receiver = FileReceiver(file)
        made = send_to(capture, receiver, where=where, links=links)
        receiver.close()
        return made


def send_to(capture: Capture, receiver: Receiver, *, where: str | None = None, links: bool = True) -> Sent:
    """`send` for any receiver."""
    ready()
    from kdissect.otlp.durations import DurationCounts
    from kdissect.otlp.span_builder import SpanBuilder

    parts, found = _read(capture, where, links)
    builder, durations = SpanBuilder(found), DurationCounts()
    waiting: list[ReadableSpan] = []
    exchanges = spans = requests = 0
    for tables in parts:
        made, operations, times = builder.spans(tables)
        durations.add(operations, times)
        exchanges += tables["exchanges"].num_rows
        waiting += made
        while len(waiting) >= BATCH:
            receiver.take_spans(waiting[:BATCH])
            del waiting[:BATCH]
            spans, requests = spans + BATCH, requests + 1
    if waiting:
        receiver.take_spans(waiting)
        spans, requests = spans + len(waiting), requests + 1
    if (metrics := durations.metrics(builder.resource)) is not None:
        receiver.take_metrics(metrics)
        requests += 1
    return Sent(exchanges, spans, requests)


def _read(capture: Capture, where: str | None, links: bool) -> tuple[Iterator[dict[str, pa.Table]], SpanLinks | None]:
    """Rows of READ, those of an exchange together, and what joins them. A pipe is read once: all are held."""
    conditions = {} if where is None else {"exchanges": where}
    if not links:
        return together(capture.parts(READ, conditions)), None
    if capture.size is not None:
        found = SpanLinks(capture.tables(READ_FOR_LINKS))
        return together(capture.parts(READ, conditions)), found
    both = {name: [*dict.fromkeys((*READ.get(name, ()), *READ_FOR_LINKS.get(name, ())))]
            for name in (*READ, *READ_FOR_LINKS)}  # fmt: skip
    tables = capture.tables(both, conditions)
    return together(iter([tables])), SpanLinks(tables)


def together(parts: Iterator[Mapping[str, pa.Table]]) -> Iterator[dict[str, pa.Table]]:
    """The tables again, ROWS of `exchanges` at most at a time, with the rows of the other tables that belong to them.
    Rows that belong to an exchange may come in an earlier part than the exchange, not in a later one."""
    held: dict[str, pa.Table] = {}
    for part in parts:
        for name in READ:
            if name != "exchanges" and name in part and part[name].num_rows:
                rows = part[name].select(READ[name])
                held[name] = unified(pa.concat_tables([held[name], rows])) if name in held else rows
        exchanges = part.get("exchanges", NO_ROWS)
        for begin in range(0, exchanges.num_rows, ROWS):
            mine = exchanges.slice(begin, ROWS)
            keys, found = keys_of(mine), {"exchanges": mine}
            for name in list(held):
                at = locate(keys_of(held[name]), keys)
                found[name] = held[name].filter(pa.array(at >= 0))
                held[name] = held[name].filter(pa.array(at < 0))
            for name in READ:
                if name not in found:
                    found[name] = pa.table({column: pa.array([], pa.string()) for column in READ[name]})
            yield found
