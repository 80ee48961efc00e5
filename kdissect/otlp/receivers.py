"""Where spans and metrics go: an OTLP receiver over HTTP, or a file of JSON lines.

Rules: OTLP 1.x (opentelemetry.io/docs/specs/otlp), OTLP/HTTP with Protobuf bodies. The file has a line for each
request, as the specification's file exporter writes them. Headers, certificates, timeout and compression come
from the variables OTEL_EXPORTER_OTLP_* that all of OpenTelemetry's exporters read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Protocol
from urllib.parse import urlsplit

from kdissect.installed_copy import install_command
from kdissect.problems import JobFailed, UsageError

if TYPE_CHECKING:
    import requests
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.trace import ReadableSpan

PORTS = {"http": 80, "https": 443}
TRACES_PATH, METRICS_PATH = "/v1/traces", "/v1/metrics"
CONNECT_S = 10.0
PROVIDERS = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_"
"""How OpenTelemetry's variables that name a credential provider begin."""
LOGGER = "opentelemetry"
"""Exporters say here why they failed."""
PROTOBUF = "application/x-protobuf"


class Receiver(Protocol):
    """Takes spans and metrics. Its methods raise JobFailed if they did not arrive."""

    @property
    def rejected_spans(self) -> int:
        """The number of spans that arrived and that it rejected, so far."""

    @property
    def rejections(self) -> str:
        """How much it rejected so far and the first reason: `rejected 2 of 512 spans: too old`. Empty: nothing."""

    def take_spans(self, spans: Sequence[ReadableSpan]) -> None:
        """Delivers these spans, in one request."""

    def take_metrics(self, metrics: MetricsData) -> None:
        """Delivers these metrics, in one request."""

    def interrupt(self) -> None:
        """Nothing more is tried, by any thread: what is under way fails soon."""

    def close(self) -> None:
        """Nothing more comes."""


def ready() -> None:
    """Raises UsageError if OpenTelemetry's SDK and exporters are not installed."""
    try:
        import opentelemetry.exporter.otlp.json.file
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk  # noqa: F401
    except ImportError:
        raise UsageError(f"OTLP needs more packages: {install_command('otlp')}") from None


def receiver_port(url: str) -> int:
    """The TCP port of a receiver's URL. Raises UsageError for a URL that is none of OTLP over HTTP."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in PORTS or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is no OTLP receiver: say it like http://localhost:4318")
    return PORTS[parts.scheme] if port is None else port


class _Complaint(logging.Handler):
    """Keeps the first message of the exporters, which log why they failed and return no reason."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


class _Tally:
    """The number of spans or data points that arrived, and how many of them the receiver rejected. It keeps the others
    of their request, which must not be sent again (OTLP, "Partial Success")."""

    def __init__(self, noun: str, field: str) -> None:
        self.noun = noun
        self.field = field
        """The field of an answer that has the number of rejected ones."""
        self.arrived = self.rejected = 0
        self.answered = 0
        """The number of rejected ones in the answer to the latest request."""

    def add(self, count: int) -> None:
        """Counts a request of `count` spans or data points that arrived."""
        self.arrived += count
        self.rejected += min(self.answered, count)


class HttpReceiver:
    """An OTLP receiver, such as a collector, at a URL: `http://host:4318`. Raises UsageError for another kind of URL
    and if the extra `otlp` is not installed."""

    def __init__(self, url: str) -> None:
        ready()
        receiver_port(url)
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        self.url = url
        base = url.rstrip("/")
        self._complaint = _Complaint()
        self._logger = logging.getLogger(LOGGER)
        self._logger.addHandler(self._complaint)
        self._propagated, self._logger.propagate = self._logger.propagate, False
        self._tallies = _Tally("spans", "rejected_spans"), _Tally("data points", "rejected_data_points")
        self._reason = ""
        of_spans = self._session(ExportTraceServiceResponse, self._tallies[0])
        of_metrics = self._session(ExportMetricsServiceResponse, self._tallies[1])
        self._spans = OTLPSpanExporter(endpoint=base + TRACES_PATH, session=of_spans)
        self._metrics = OTLPMetricExporter(endpoint=base + METRICS_PATH, session=of_metrics)

    def _session(
        self, answers: type[ExportTraceServiceResponse | ExportMetricsServiceResponse], tally: _Tally
    ) -> requests.Session | None:
        """A session that fails on a redirect and reads `answers`: exporters take a redirect for success without
        following it, and read no answer. None where a credential provider is named, which makes the session."""
        if any(name.endswith("_CREDENTIAL_PROVIDER") and name.startswith(PROVIDERS) for name in os.environ):
            return None
        import requests

        session = requests.Session()
        session.hooks["response"] += [self._refuse_redirect, partial(self._note_rejected, answers, tally)]
        return session

    def _refuse_redirect(self, response: requests.Response, **_: object) -> None:
        if 300 <= response.status_code < 400:
            import requests

            response.close()
            place = response.headers.get("Location")
            self._complaint.text = f"it answers {response.status_code}" + (f", which leads to {place}" if place else "")
            raise requests.TooManyRedirects(self._complaint.text)

    def _note_rejected(
        self, answers: type[ExportTraceServiceResponse | ExportMetricsServiceResponse], tally: _Tally,
        response: requests.Response, **_: object,
    ) -> None:  # fmt: skip
        if response.status_code != 200 or not response.headers.get("Content-Type", "").startswith(PROTOBUF):
            return
        from google.protobuf.message import DecodeError

        try:
            answer = answers.FromString(response.content).partial_success
        except DecodeError:
            return
        tally.answered = max(0, getattr(answer, tally.field))
        if tally.answered:
            self._reason = self._reason or " ".join(answer.error_message.split())

    @property
    def rejected_spans(self) -> int:
        """See Receiver."""
        return self._tallies[0].rejected

    @property
    def rejections(self) -> str:
        """See Receiver."""
        counts = [f"{one.rejected:,} of {one.arrived:,} {one.noun}" for one in self._tallies if one.rejected]
        return f"rejected {' and '.join(counts)}: {self._reason or 'it gave no reason'}" if counts else ""

    def reach(self) -> None:
        """Raises JobFailed if nothing listens there, where no proxy stands between: the exporter would try for ten
        seconds."""
        import socket
        from urllib.request import getproxies

        parts = urlsplit(self.url)
        if parts.scheme in getproxies():
            return
        try:
            socket.create_connection((parts.hostname or "", receiver_port(self.url)), CONNECT_S).close()
        except OSError as error:
            raise JobFailed(f"no OTLP receiver at {self.url}: {error.strerror or error}") from None

    def take_spans(self, spans: Sequence[ReadableSpan]) -> None:
        """See Receiver."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._complaint.text = ""
        self._tallies[0].answered = 0
        if self._spans.export(spans) is not SpanExportResult.SUCCESS:
            raise self._failure()
        self._tallies[0].add(len(spans))

    def take_metrics(self, metrics: MetricsData) -> None:
        """See Receiver."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._complaint.text = ""
        self._tallies[1].answered = 0
        if self._metrics.export(metrics) is not MetricExportResult.SUCCESS:
            raise self._failure()
        self._tallies[1].add(_data_points(metrics))

    def _failure(self) -> JobFailed:
        why = " ".join(self._complaint.text.split()) or "it gave no reason"
        return JobFailed(f"the OTLP receiver at {self.url} did not take the data: {why}")

    def interrupt(self) -> None:
        """See Receiver."""
        self._spans.shutdown()  # type: ignore[no-untyped-call]
        self._metrics.shutdown()

    def close(self) -> None:
        """See Receiver."""
        self.interrupt()
        self._logger.removeHandler(self._complaint)
        self._logger.propagate = self._propagated


def _data_points(metrics: MetricsData) -> int:
    return sum(
        len(metric.data.data_points)
        for resource in metrics.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    )


class FileReceiver:
    """A binary file that gets a JSON line for each request. Raises UsageError if the extra `otlp` is not installed."""

    rejected_spans = 0
    rejections = ""

    def __init__(self, file: BinaryIO) -> None:
        ready()
        from opentelemetry.exporter.otlp.json.common.metrics_encoder import encode_metrics
        from opentelemetry.exporter.otlp.json.common.trace_encoder import encode_spans

        self._file = file
        self._encode_spans, self._encode_metrics = encode_spans, encode_metrics

    def take_spans(self, spans: Sequence[ReadableSpan]) -> None:
        """See Receiver. Raises OSError if the file cannot be written."""
        self._write(self._encode_spans(spans).to_dict())

    def take_metrics(self, metrics: MetricsData) -> None:
        """See Receiver. Raises OSError if the file cannot be written."""
        self._write(self._encode_metrics(metrics).to_dict())

    def _write(self, request: object) -> None:
        import json

        self._file.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")

    def interrupt(self) -> None:
        """See Receiver."""

    def close(self) -> None:
        """See Receiver."""
        self._file.flush()
