"""Keys from secrets, and records opened with them: AES-GCM, AES-CCM and ChaCha20-Poly1305 in TLS 1.2 and 1.3.

TLS 1.3: RFC 8446 sections 5.2, 5.3, 7.1-7.3. TLS 1.2: RFC 5246 sections 5 and 6.3; AES-GCM RFC 5288; ChaCha20-Poly1305
RFC 7905. One call of `cryptography` opens one record.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kdissect.tls.handshake import TLS13

TAG = 16
EXPLICIT = 8
"""Bytes of the nonce that an AES record of TLS 1.2 carries."""


class Aead(Protocol):
    """Authenticated encryption, as `cryptography` names its methods."""

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes:
        """The plaintext; raises InvalidTag."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A cipher suite: its AEAD, key size in bytes and hash."""

    make: Callable[[bytes], Aead]
    key: int
    hash: str
    explicit: bool
    """Whether records of TLS 1.2 carry part of the nonce."""
    tag: int = TAG


def _aead(kind: str, **options: int) -> Callable[[bytes], Aead]:
    """The class that makes an AEAD of a key. `cryptography` takes longer to load than most captures to read."""

    def make(key: bytes) -> Aead:
        from cryptography.hazmat.primitives.ciphers import aead

        made: Aead = getattr(aead, kind)(key, **options)
        return made

    return make


_AES128 = Suite(_aead("AESGCM"), 16, "sha256", True)
_AES256 = Suite(_aead("AESGCM"), 32, "sha384", True)
_CHACHA = Suite(_aead("ChaCha20Poly1305"), 32, "sha256", False)
SUITES = {
    **dict.fromkeys((0x1301, 0x009C, 0x009E, 0x00A2, 0x00A6, 0x00A8, 0x00AA, 0xC02B, 0xC02D, 0xC02F, 0xC031), _AES128),
    **dict.fromkeys((0x1302, 0x009D, 0x009F, 0x00A3, 0x00A7, 0x00A9, 0x00AB, 0xC02C, 0xC02E, 0xC030, 0xC032), _AES256),
    **dict.fromkeys((0x1303, 0xCCA8, 0xCCA9, 0xCCAA, 0xCCAB, 0xCCAC, 0xCCAD, 0xCCAE), _CHACHA),
    0x1304: Suite(_aead("AESCCM"), 16, "sha256", True),
    0x1305: Suite(_aead("AESCCM", tag_length=8), 16, "sha256", True, 8),
}
"""By IANA's number of the cipher suite."""


class Opener:
    """The key of one direction, and the number of its next record."""

    def __init__(self, suite: Suite, version: int, key: bytes, iv: bytes, secret: bytes = b"") -> None:
        self.suite = suite
        self.tls13 = version == TLS13
        self.number = 0
        self._secret = secret
        self._aead = suite.make(key)
        self._iv = iv

    @classmethod
    def from_secret(cls, suite: Suite, secret: bytes) -> Opener:
        """The key of TLS 1.3 that a traffic secret gives."""
        key = expand_label(suite.hash, secret, b"key", suite.key)
        return cls(suite, TLS13, key, expand_label(suite.hash, secret, b"iv", 12), secret)

    def updated(self) -> Opener:
        """The key after a key update (RFC 8446, 7.2)."""
        size = 48 if self.suite.hash == "sha384" else 32
        return Opener.from_secret(self.suite, expand_label(self.suite.hash, self._secret, b"traffic upd", size))

    def open(self, header: bytes, body: bytes) -> tuple[int, bytes] | None:
        """Type and plaintext of the next record, None when this is not its key."""
        from cryptography.exceptions import InvalidTag

        overhead = self.overhead
        if len(body) < overhead:
            return None
        number = self.number.to_bytes(8, "big")
        if not self.tls13 and self.suite.explicit:
            nonce, data = self._iv + body[:EXPLICIT], body[EXPLICIT:]
        else:
            nonce, data = self._iv[:4] + _xor(self._iv[4:], number), body
        aad = header if self.tls13 else number + header[:3] + (len(body) - overhead).to_bytes(2, "big")
        try:
            plain = self._aead.decrypt(nonce, data, aad)
        except InvalidTag:
            return None
        self.number += 1
        if not self.tls13:
            return header[0], plain
        plain = plain.rstrip(b"\0")
        return (plain[-1], plain[:-1]) if plain else None

    @property
    def overhead(self) -> int:
        """Bytes of a record's body that are no plaintext (in TLS 1.3 without padding)."""
        if self.tls13:
            return self.suite.tag + 1
        return self.suite.tag + (EXPLICIT if self.suite.explicit else 0)


def from_master(suite: Suite, version: int, master: bytes, client: bytes, server: bytes) -> tuple[Opener, Opener]:
    """The client's and the server's key of TLS 1.2, from the master secret and both randoms."""
    iv = 4 if suite.explicit else 12
    block = prf(suite.hash, master, b"key expansion", server + client, 2 * (suite.key + iv))
    k, i = suite.key, 2 * suite.key
    return Opener(suite, version, block[:k], block[i : i + iv]), Opener(suite, version, block[k:i], block[i + iv :])


def prf(name: str, secret: bytes, label: bytes, seed: bytes, size: int) -> bytes:
    """The pseudo-random function of TLS 1.2 (RFC 5246, section 5)."""
    seed = label + seed
    out, a = b"", seed
    while len(out) < size:
        a = hmac.digest(secret, a, name)
        out += hmac.digest(secret, a + seed, name)
    return out[:size]


def expand_label(name: str, secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label with an empty context (RFC 8446, 7.1; RFC 5869, 2.3)."""
    label = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    out, block, n = b"", b"", 1
    while len(out) < size:
        block = hmac.digest(secret, block + info + bytes([n]), name)
        out += block
        n += 1
    return out[:size]


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(len(a), "big")
