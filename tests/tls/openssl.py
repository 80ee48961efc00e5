"""Python's OpenSSL as both ends of TLS connections in memory, with a key log: somebody else's encoder."""

from __future__ import annotations

import _ssl
import ctypes
import datetime
import ssl
from functools import cache
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

TLS12 = ssl.TLSVersion.TLSv1_2
TLS13 = ssl.TLSVersion.TLSv1_3


@cache
def _certificate() -> bytes:
    """A key and a self-signed certificate for it, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker.test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


class Ends:
    """Contexts of a client and a server that share one key log at `folder / "keys.log"`."""

    def __init__(
        self,
        folder: Path,
        version: ssl.TLSVersion,
        ciphers: str | None = None,
        tickets: bool = True,
        suite: bytes | None = None,
    ) -> None:
        self.keys = folder / "keys.log"
        pem = folder / "server.pem"
        pem.write_bytes(_certificate())
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.check_hostname = False
        self.client.verify_mode = ssl.CERT_NONE
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(pem)
        for context in (self.client, self.server):
            context.minimum_version = context.maximum_version = version
            if ciphers is not None:
                context.set_ciphers(ciphers)
            if not tickets:
                context.options |= ssl.OP_NO_TICKET
        if suite is not None:
            self._only(suite)
        self.client.keylog_filename = str(self.keys)

    def _only(self, suite: bytes) -> None:
        """Offer one suite of TLS 1.3 (OpenSSL's SSL_CTX_set_ciphersuites, which Python does not offer yet)."""
        library = ctypes.CDLL(_ssl.__file__)
        library.SSL_CTX_set_ciphersuites.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        address = ctypes.c_void_p.from_address(id(self.client) + object.__basicsize__)
        assert library.SSL_CTX_set_ciphersuites(address, suite) == 1

    def connect(self, session: ssl.SSLSession | None = None) -> Connection:
        """A connection after its handshake."""
        return Connection(self, session)


class Connection:
    """Both ends of one connection. `wire` are the bytes that went over it: direction (0 from the client), bytes."""

    def __init__(self, ends: Ends, session: ssl.SSLSession | None = None) -> None:
        self._sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._arrived = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = ends.client.wrap_bio(
            self._arrived[1], self._sent[0], server_hostname="broker.test", session=session
        )
        self.server = ends.server.wrap_bio(self._arrived[0], self._sent[1], server_side=True)
        self.wire: list[tuple[int, bytes]] = []
        for _ in range(8):
            done = True
            for side, end in enumerate((self.client, self.server)):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    done = False
                self._move(side)
            if done:
                break
        for side in (0, 1):  # tickets of TLS 1.3 come behind the handshake
            self._read(side)

    def _end(self, side: int) -> ssl.SSLObject:
        return self.client if side == 0 else self.server

    def _move(self, side: int) -> bytes:
        data = self._sent[side].read()
        if data:
            self.wire.append((side, data))
            self._arrived[side].write(data)
        return data

    def _read(self, side: int) -> bytes:
        out = b""
        try:
            while True:
                out += self._end(side).read(1 << 16)
        except ssl.SSLWantReadError:
            return out

    def say(self, side: int, data: bytes) -> bytes:
        """Send plaintext from one end to the other; the bytes that went over the wire."""
        view = memoryview(data)
        while view:
            view = view[self._end(side).write(view) :]
        sent = self._move(side)
        assert self._read(1 - side) == data
        return sent

    def update_keys(self, side: int) -> None:
        """Send a KeyUpdate that asks for one in return (OpenSSL's SSL_key_update, which Python does not offer).

        The address of OpenSSL's object is the third word of Python's, behind its head and the socket's reference.
        """
        library = ctypes.CDLL(_ssl.__file__)
        inner = self._end(side)._sslobj  # type: ignore[attr-defined]
        address = ctypes.c_void_p.from_address(id(inner) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p))
        library.SSL_version.argtypes = [ctypes.c_void_p]
        if address.value is None or library.SSL_version(address) != 0x0304:
            pytest.skip("this Python keeps OpenSSL's object elsewhere")
        library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
        assert library.SSL_key_update(address, 1) == 1
