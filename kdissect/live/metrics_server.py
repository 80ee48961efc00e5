"""Serves metrics over HTTP to a few clients that ask quickly, and to no web page.

- A connection has `CONNECTION_S` seconds, even if it sends meanwhile, and there are at most `CONNECTIONS` of them. Each
  holds a thread and a descriptor, and the watching thread needs descriptors too.
- The `Host` header has to be an address or a name of this host. The owner of a web page can let its name lead to
  127.0.0.1 (DNS rebinding); its script, in a browser on this host, could then read the metrics. That browser sends the
  name of the page.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from kdissect.installed_copy import install_command
from kdissect.problems import UsageError

if TYPE_CHECKING:
    import ssl

CONNECTION_S = 5.0
"""A scrape takes some milliseconds; Prometheus itself waits ten seconds by default."""
CONNECTIONS = 8
LOOK_S = 0.25
"""How often connections are looked at that are open for too long."""
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def ready() -> None:
    """Raise UsageError where prometheus-client is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise UsageError(f"--metrics needs more packages: {install_command('top')}") from None


def address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, or `:PORT` and `PORT` for localhost. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise UsageError(f"{text!r} is no place to serve metrics: say it like 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


def open_port(
    text: str, names: Collection[str] = (), certificate: str | None = None, key: str | None = None,
    authority: str | None = None,
) -> MetricsServer:  # fmt: skip
    """A server that listens at `text`, `HOST:PORT`, and answers nothing yet. `names`: names of this host by which it
    may be asked. `certificate`, `key`: PEM files for TLS; with `authority` only clients with its certificates are
    answered.

    Raises UsageError where that cannot be.
    """
    ready()
    host, port = address(text)
    context = None
    if certificate is not None:
        context = _tls(certificate, key, authority)
    try:
        return MetricsServer(host, port, [host, socket.gethostname(), *names], context)
    except OSError as error:
        raise UsageError(f"metrics cannot be served at {host}:{port}: {error.strerror or error}") from None


def _tls(certificate: str, key: str | None, authority: str | None) -> ssl.SSLContext:
    """A context with a certificate, and with an authority for those of clients. Raises UsageError."""
    import ssl

    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        if authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        files = ", ".join(file for file in (certificate, key, authority) if file is not None)
        raise UsageError(f"no TLS with {files}: {getattr(error, 'strerror', None) or error}") from None
    return context


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Listens at `host` and `port`, and answers in threads of its own from `serve` until `close`.

    `names`: host names that a request may be for, besides addresses and `localhost`. `context`: of TLS, which is spoken
    then. Raises OSError where it cannot listen there.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, names: Collection[str], context: ssl.SSLContext | None = None) -> None:
        self.names = frozenset(name.lower().rstrip(".") for name in ("localhost", *names))
        self._since: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        super().__init__((str(address[0]), port), _Handler)
        self.url = f"{'http' if context is None else 'https'}://{host}:{self.server_port}/metrics"
        self._thread: threading.Thread | None = None
        if context is not None:  # hands are shaken by the thread of a connection, in its time
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def serve(self, application: Application) -> None:
        """Answers by `application` (WSGI)."""
        self.set_app(application)
        self._thread = threading.Thread(target=self.serve_forever, args=(LOOK_S,), name="kdissect-metrics", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        """As HTTPServer, but without asking the network for this host's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for another connection; if not, it is closed."""
        with self._lock:
            if len(self._since) >= CONNECTIONS:
                return False
            self._since[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        """Ends a connection."""
        with self._lock:
            self._since.pop(request, None)
            super().shutdown_request(request)

    def service_actions(self) -> None:
        """Ends connections that are open for too long; their threads see the end of the input."""
        before = time.monotonic() - CONNECTION_S
        with self._lock:  # or else their descriptors may be those of others by now
            for request, since in self._since.items():
                if since < before:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: who went away, or was sent away, is no news."""

    def close(self) -> None:
        """Serves no longer."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()

    def allows(self, hosts: Collection[str]) -> bool:
        """Whether a request with these `Host` headers may be answered. Browsers send one always."""
        return all(_is_address(name) or name in self.names for name in map(_host_name, hosts))


class _Handler(WSGIRequestHandler):
    """One request of a connection; its answer, or 403."""

    server: MetricsServer
    timeout = CONNECTION_S

    def parse_request(self) -> bool:
        """As always, and refuses hosts that are not this one."""
        if not super().parse_request():
            return False
        if self.server.allows(self.headers.get_all("Host", [])):
            return True
        self.send_error(403, explain="No name of this host: kdissect top --metrics-host NAME allows it.")
        return False

    def address_string(self) -> str:
        """The client's address."""
        return str(self.client_address[0])

    def get_stderr(self) -> Any:
        """Where errors are logged: nowhere. A client that goes away, or reads too slowly, is no news."""
        return io.StringIO()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


def _host_name(header: str) -> str:
    """The name or address in a `Host` header, without its port (RFC 9110, 7.2)."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
