"""An OTLP receiver on loopback: takes requests by OpenTelemetry's own Protobuf messages and keeps what came."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Taken:
    """What came to a receiver."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []
        self.sizes: list[int] = []
        """Spans of each request."""
        self.metrics: list[Any] = []
        self.services: set[str] = set()
        self.refused = 0
        """Status that requests get from now on; 0: they are taken."""
        self.rejected: dict[str, int] = {}
        """The number of spans or data points that each answer rejects, by path."""
        self.reason = ""

    def answer(self, path: str) -> bytes:
        """The answer to a request that was taken."""
        rejected = self.rejected.get(path, 0)
        if path == "/v1/traces":
            answer = ExportTraceServiceResponse()
            answer.partial_success.rejected_spans = rejected
        else:
            answer = ExportMetricsServiceResponse()
            answer.partial_success.rejected_data_points = rejected
        answer.partial_success.error_message = self.reason
        return answer.SerializeToString()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            request = ExportTraceServiceRequest.FromString(body)
            spans = [
                span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
            ]
            self.services |= {
                one.value.string_value for resource in request.resource_spans for one in resource.resource.attributes
                if one.key == "service.name"
            }  # fmt: skip
            self.spans += spans
            self.sizes.append(len(spans))
        elif path == "/v1/metrics":
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
        else:
            raise ValueError(path)


@contextmanager
def receiving() -> Iterator[Taken]:
    """A receiver that runs until the block ends."""
    taken = Taken()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            answer = b"" if taken.refused else taken.answer(self.path)
            if not taken.refused:
                taken.take(self.path, body)
            self.send_response(taken.refused or 200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    taken.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
