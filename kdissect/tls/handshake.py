"""Handshake messages, as far as decryption and the reader need them: the two hellos, tickets, key updates.

Layouts: RFC 8446 section 4, RFC 5246 section 7.4, RFC 6066 (server name), RFC 5077 (tickets). Messages come in
records, several in one or one in several.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

CLIENT_HELLO, SERVER_HELLO, NEW_SESSION_TICKET, FINISHED, KEY_UPDATE = 1, 2, 4, 20, 24
MAX_MESSAGE = 1 << 16
"""Messages up to this size are kept to be read; longer ones (chains of certificates) are counted through."""
RETRY = hashlib.sha256(b"HelloRetryRequest").digest()
"""The random of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3)."""
TLS13 = 0x0304
VERSIONS = {0x0300: "SSL 3.0", 0x0301: "TLS 1.0", 0x0302: "TLS 1.1", 0x0303: "TLS 1.2", 0x0304: "TLS 1.3"}
UNREAD_SUITES = {
    0x000A: "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
    0x0033: "TLS_DHE_RSA_WITH_AES_128_CBC_SHA",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA",
    0x0039: "TLS_DHE_RSA_WITH_AES_256_CBC_SHA",
    0x003C: "TLS_RSA_WITH_AES_128_CBC_SHA256",
    0x003D: "TLS_RSA_WITH_AES_256_CBC_SHA256",
    0x0067: "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256",
    0x006B: "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256",
    0x1304: "TLS_AES_128_CCM_SHA256",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    0xC012: "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0xC023: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    0xC024: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
    0xC027: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    0xC028: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384",
}
"""Suites that brokers may still choose and that are not read, by their names in IANA's registry of TLS cipher
suites."""
_SERVER_NAME, _TICKET, _VERSIONS = 0, 35, 43
MAX_NAME = 255


class Messages:
    """Puts one direction's handshake messages together."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The messages that `data` completes, as (type, body); the body is empty where it was too long to keep."""
        buffer = self._buffer
        buffer += data
        while True:
            if self._skip:
                gone = min(self._skip, len(buffer))
                del buffer[:gone]
                self._skip -= gone
            if len(buffer) < 4:
                return
            kind, size = buffer[0], int.from_bytes(buffer[1:4], "big")
            if size > MAX_MESSAGE:
                self._skip = 4 + size
                yield kind, b""
                continue
            if len(buffer) < 4 + size:
                return
            body = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            yield kind, body

    def forget(self) -> None:
        """A record of the handshake was lost: start again with the next one."""
        self._buffer.clear()
        self._skip = 0


class Reader:
    """Reads fields one after the other; a field that runs past the end is empty."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read_bytes(self, size: int) -> bytes:
        """The next `size` bytes."""
        found = self.data[self.at : self.at + size]
        self.at += size
        return found if len(found) == size else b""

    def number(self, size: int) -> int:
        """The next big-endian number."""
        return int.from_bytes(self.read_bytes(size), "big")

    def vector(self, size: int) -> bytes:
        """The next vector, whose length takes `size` bytes."""
        return self.read_bytes(self.number(size))


@dataclass(frozen=True, slots=True)
class ClientHello:
    """The client's offer."""

    random: bytes
    session_id: bytes
    ticket: bytes
    sni: str | None


@dataclass(frozen=True, slots=True)
class ServerHello:
    """The server's choice. `retry`: it asks for another ClientHello."""

    random: bytes
    session_id: bytes
    version: int
    suite: int
    retry: bool


def client_hello(body: bytes) -> ClientHello | None:
    """A ClientHello, None when it cannot be read."""
    r = Reader(body)
    r.number(2)
    random, session_id = r.read_bytes(32), r.vector(1)
    suites, methods = r.vector(2), r.vector(1)
    if len(random) != 32 or not suites or not methods:
        return None
    found = _extensions(r.vector(2))
    return ClientHello(random, session_id, found.get(_TICKET, b""), _name(found.get(_SERVER_NAME, b"")))


def server_hello(body: bytes) -> ServerHello | None:
    """A ServerHello, None when it cannot be read."""
    r = Reader(body)
    version, random, session_id, suite = r.number(2), r.read_bytes(32), r.vector(1), r.number(2)
    if len(random) != 32 or not suite:
        return None
    r.number(1)
    chosen = _extensions(r.vector(2)).get(_VERSIONS, b"")
    if len(chosen) == 2:
        version = int.from_bytes(chosen, "big")
    return ServerHello(random, session_id, version, suite, random == RETRY)


def ticket(body: bytes) -> bytes:
    """The ticket of a NewSessionTicket of TLS 1.2."""
    r = Reader(body)
    r.number(4)
    return r.vector(2)


def _extensions(data: bytes) -> dict[int, bytes]:
    r = Reader(data)
    found: dict[int, bytes] = {}
    while r.at + 4 <= len(data):
        kind = r.number(2)
        found.setdefault(kind, r.vector(2))
    return found


def _name(data: bytes) -> str | None:
    """The host name of a server name extension (ASCII, RFC 6066 section 3); None for anything else."""
    r = Reader(Reader(data).vector(2))
    kind, name = r.number(1), r.vector(2)
    if kind != 0 or not 0 < len(name) <= MAX_NAME or not name.isascii():
        return None
    text = name.decode()
    return text if text.isprintable() else None
