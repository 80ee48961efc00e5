"""Exchanges as OpenTelemetry spans: a CLIENT span each, and a span below it for each part of its time.

Rules: semantic conventions for messaging spans and for Kafka (opentelemetry.io/docs/specs/semconv/messaging). Kafka's
other APIs have their own name as operation name and no operation type. Attributes of `kdissect` have that prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

import kdissect
from kdissect.arrays.arrow import NULL_TIME
from kdissect.otlp.operations import Operations, operations
from kdissect.otlp.span_ids import span_id
from kdissect.otlp.span_links import Context, Joined, SpanLinks
from kdissect.otlp.span_times import NAMES, SpanTimes, span_times

if TYPE_CHECKING:
    from opentelemetry.context import Context as OtelContext

SCOPE, SERVICE = "kdissect", "kdissect"
MOST_LINKS = 128
"""Links of a span, OpenTelemetry's own default; the span says how many more there were."""
NANO = 1000
"""Nanoseconds of a microsecond."""
OWN = ("exchange_id", "api", "api_version", "correlation_id", "status", "hold", "request_bytes", "response_bytes",
       "request_frame", "response_frame")  # fmt: skip
"""Columns that become attributes with the prefix `kdissect.`."""
COMMON = {"client_id": "messaging.client.id", "cluster": "messaging.kafka.cluster.id", "client_ip": "client.address",
          "client_port": "client.port", "broker_ip": "network.peer.address", "broker_port": "network.peer.port",
          "broker": "kdissect.broker"}  # fmt: skip
"""Columns that become attributes of OpenTelemetry's."""


class _NextIds(IdGenerator):
    """Gives the ids that were set for the next span."""

    trace = 1
    span = 1

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _Ended(SpanProcessor):
    """Collects the spans that ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class SpanBuilder:
    """Makes spans of rows. Resource attributes come from OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME. The service is
    `kdissect` if they name none, because kdissect observed these exchanges."""

    def __init__(self, links: SpanLinks | None = None) -> None:
        self._links = links or SpanLinks()
        self._ids, self._ended = _NextIds(), _Ended()
        self.resource = Resource.create({"service.version": kdissect.__version__})
        if str(self.resource.attributes.get("service.name", "")).startswith("unknown_service"):
            self.resource = self.resource.merge(Resource({"service.name": SERVICE}))
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=self.resource, shutdown_on_exit=False, id_generator=self._ids,
            span_limits=SpanLimits(max_links=MOST_LINKS),
        )  # fmt: skip
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(SCOPE, kdissect.__version__)

    def spans(self, tables: Mapping[str, pa.Table]) -> tuple[list[ReadableSpan], Operations, SpanTimes]:
        """The spans of all rows of `exchanges` that have a time, the parts of an exchange before it, with the
        operations and times that they were made of. `tables`: `sending.READ`, rows of an exchange together."""
        exchanges = tables["exchanges"]
        found = operations(tables)
        times = span_times(exchanges, tables["fetches"])
        joined = self._links.of(exchanges)
        begin, end, borders = times.begin.tolist(), times.end.tolist(), times.borders.T.tolist()
        for row, one in enumerate(exchanges.to_pylist()):
            if begin[row] != NULL_TIME:
                span = self._exchange(one, found, row, joined.get(row), begin[row])
                self._parts(one["exchange_id"], span, borders[row])
                span.end(end[row] * NANO)
        made, self._ended.spans = self._ended.spans, []
        return made, found, times

    def _exchange(
        self, exchange: Mapping[str, Any], operations: Operations, row: int, joins: Joined | None, begin: int
    ) -> trace.Span:
        own = self._links.context(exchange["exchange_id"])
        self._ids.trace, self._ids.span = own
        attributes: dict[str, Any] = operations.attributes(row)
        attributes |= {f"kdissect.{name}": exchange[name] for name in OWN if exchange.get(name) is not None}
        attributes |= {name: exchange[column] for column, name in COMMON.items() if exchange.get(column) is not None}
        if (group := self._links.group(exchange["connection_id"])) is not None:
            attributes["messaging.consumer.group.name"] = group
        span = self._tracer.start_span(
            operations.span_name(row), _below(None if joins is None else joins.parent), trace.SpanKind.CLIENT,
            attributes, links=[trace.Link(_remote(context), told) for context, told in joins.links] if joins else (),
            start_time=begin * NANO,
        )  # fmt: skip
        if (error := operations.errors[row]) is not None:
            span.set_status(trace.Status(trace.StatusCode.ERROR, error))
        return span

    def _parts(self, exchange_id: str, span: trace.Span, borders: Sequence[int]) -> None:
        """Spans of the parts that took any time."""
        context = trace.set_span_in_context(span)
        for place, name in enumerate(NAMES):
            if borders[place + 1] > borders[place]:
                self._ids.span = span_id(exchange_id, name)
                part = self._tracer.start_span(name, context, start_time=borders[place] * NANO)
                part.end(borders[place + 1] * NANO)


def _remote(context: Context) -> trace.SpanContext:
    """A span that others made, or that is in another request."""
    sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    return trace.SpanContext(context.trace, context.span, is_remote=True, trace_flags=sampled)


def _below(parent: Context | None) -> OtelContext:
    """Where a span with this parent is started; None: it is the first of its trace."""
    from opentelemetry.context import Context as Nothing

    if parent is None:
        return Nothing()
    return trace.set_span_in_context(trace.NonRecordingSpan(_remote(parent)), Nothing())
