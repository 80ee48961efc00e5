"""The port with metrics: few connections, short ones, and no answers for web pages of others."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kdissect.live import metrics_server
from kdissect.live.metrics import Server
from kdissect.live.metrics_server import open_port
from kdissect.live.running_figures import Figures
from kdissect.problems import UsageError

HOST = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    server = Server(open_port(f"{HOST}:0", ["scraped.example"]), Figures(10.0))
    yield int(server.url.rpartition(":")[2].partition("/")[0])
    server.close()


def get(port: int, host: str | None) -> tuple[int, bytes]:
    """The status and the body of a request with this `Host` header, None for no such header."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    with contextlib.closing(connection):
        connection.putrequest("GET", "/metrics", skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()


def opened(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection((HOST, port), timeout=30) for _ in range(count)]


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize(
    "host",
    [f"{HOST}:9464", HOST, "localhost:1", "LOCALHOST.", "[::1]:9464", "192.0.2.7", "scraped.example:80", None,
     socket.gethostname()],
)  # fmt: skip
def test_this_host(host: str | None, port: int) -> None:
    status, body = get(port, host)
    assert status == 200
    assert b"kdissect_packets" in body


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9464", "", "localhost.evil.example", "127.0.0.1.evil.example", "[evil]"]
)
def test_another_name_is_refused(host: str, port: int) -> None:
    """As a browser asks whose page is of a name that leads here now."""
    status, body = get(port, host)
    assert status == 403
    assert b"kdissect_packets" not in body


def test_two_hosts_are_refused_if_one_is_another(port: int) -> None:
    with contextlib.closing(socket.create_connection((HOST, port), timeout=30)) as asking:
        asking.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 403 " in asking.recv(100)


def test_connections_are_few(port: int) -> None:
    """Idle ones hold no more threads than there may be, and what comes too much is closed at once."""
    idle = opened(port, 40)
    closed = sum(_is_closed(one) for one in idle[metrics_server.CONNECTIONS :])
    assert closed == 40 - metrics_server.CONNECTIONS
    assert threads() <= metrics_server.CONNECTIONS
    for one in idle:
        one.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n"])
def test_a_connection_has_its_time(sent: bytes, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that sends a little again and again: the time is that of the connection."""
    monkeypatch.setattr(metrics_server, "CONNECTION_S", 0.5)  # the socket's own time limit stays
    (slow,) = opened(port, 1)
    with contextlib.closing(slow):
        slow.sendall(sent)
        slow.settimeout(0.1)
        until = time.monotonic() + 60
        while True:
            assert time.monotonic() < until, "it is still open"
            with contextlib.suppress(TimeoutError):
                if not slow.recv(1):
                    break
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                slow.sendall(b"X: y\r\n")
    assert get(port, None)[0] == 200


def test_room_comes_back(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "CONNECTION_S", 0.5)
    idle = opened(port, metrics_server.CONNECTIONS)
    until = time.monotonic() + 60
    while True:
        assert time.monotonic() < until
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            if get(port, HOST)[0] == 200:
                break
        time.sleep(0.1)
    assert all(_is_closed(one) for one in idle)
    for one in idle:
        one.close()


def _is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """A certificate of this host by itself, and its key: PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (tmp_path / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")


@pytest.mark.parametrize("of_clients", [False, True])
def test_tls(of_clients: bool, certificate: tuple[str, str]) -> None:
    """With an authority, only who has a certificate by it gets an answer; plain text never does."""
    own, key = certificate
    server = Server(open_port(f"{HOST}:0", [], own, key, own if of_clients else None), Figures(10.0))
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    assert server.url.startswith("https://")
    context = ssl.create_default_context(cafile=own)

    def ask() -> int:
        connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=context)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            return connection.getresponse().status

    try:
        if of_clients:
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                ask()
            context.load_cert_chain(own, key)
        assert ask() == 200
        idle = opened(port, metrics_server.CONNECTIONS)  # hands never shaken: they hold nobody else up for ever
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            get(port, HOST)
        for one in idle:
            one.close()
    finally:
        server.close()


def test_what_is_no_certificate_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(UsageError, match="no TLS with"):
        open_port(f"{HOST}:0", [], str(tmp_path / "text"))
    with pytest.raises(UsageError, match="No such file"):
        open_port(f"{HOST}:0", [], str(tmp_path / "none"))
