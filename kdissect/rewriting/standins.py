"""Stand-ins for names: what somebody called a thing of theirs becomes another word of as many bytes, always the same.

Rules. A stand-in is made of the name and of a secret (HMAC-SHA256, RFC 2104), so that no reader without the secret can
try names. Different names never share one; for names of one or two bytes that ends where there are no more words. The
owner keeps secret and pairs in a key file: with it further captures get the same stand-ins, and what others say of them
can be read back. Words that Kafka itself defines stay: they say nothing of anybody, and tables read them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Collection, Iterator

from kdissect.problems import UsageError
from kdissect.schema.configurations import load_configurations

LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789"
WIDER = bytes(c for c in range(0x21, 0x7F) if c not in b"\"'\\`$")
"""What one or two bytes are taken from when letters and digits are used up."""
TRIES = 200
"""Words tried for a name before wider ones: more than enough from three bytes on, of which there are 46,656."""
FILLER = b"x"
SECRET_BYTES = 32
FORMAT = "kdissect-names-1"
KAFKAS = re.compile(
    rb"__(consumer_offsets|transaction_state|cluster_metadata|share_group_state)|kafka-cluster|localhost|ANONYMOUS|User:"
    rb"(ANONYMOUS|\*)|\*|<default>"
    rb"|(broker|controller)-\d{1,10}-(fetcher|to-controller)(-[a-z-]*channel-manager|-heartbeat|-forwarding)?(-\d{1,10})?"
    rb"|(raft-client|adminclient|producer)-\d{1,10}|\d{1,4}"
)
"""Topics, principals, hosts and client ids that Kafka defines; numbers of brokers stand in resource names."""


class StandIns:
    """Gives the stand-in of a name (`__call__`), makes it where there is none yet. `stay`: further names that are kept,
    those that the packets show anyway."""

    def __init__(self, secret: bytes, pairs: dict[bytes, bytes] | None = None, stay: Collection[bytes] = ()) -> None:
        self.secret = secret
        self.pairs = dict(pairs or {})
        self.taken = set(self.pairs.values())
        self.stay = frozenset(stay)
        self.used: set[bytes] = set()
        """Names that were replaced."""

    @classmethod
    def new(cls) -> StandIns:
        """With a secret of its own."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    def __call__(self, name: bytes) -> bytes:
        """As many bytes that stand for the name; the name itself where it identifies no one."""
        if name in self.stay or keeps(name):
            return name
        self.used.add(name)
        found = self.pairs.get(name)
        if found is None:
            found = next((word for word in self._words(name) if word not in self.taken and word != name), None)
            self.pairs[name] = found = FILLER * len(name) if found is None else found
            self.taken.add(found)
        return found

    def _words(self, name: bytes) -> Iterator[bytes]:
        size = len(name)
        for turn in range(2 * TRIES):
            letters = LETTERS if turn < TRIES else WIDER
            stream = b"".join(
                hmac.digest(self.secret, b"%d %d " % (turn, block) + name, hashlib.sha256)
                for block in range(-(-size // 32))
            )[:size]
            word = bytes(letters[byte % len(letters)] for byte in stream)
            if not KAFKAS.fullmatch(word):
                yield word

    def dumps(self) -> bytes:
        """The key file: its secret, then a pair a line, as JSON. Bytes that are no UTF-8 are surrogates (PEP 383)."""
        lines = [{"format": FORMAT, "secret": self.secret.hex()}]
        lines += [{"name": _text(name), "stands_in": _text(word)} for name, word in sorted(self.pairs.items())]
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    @classmethod
    def loads(cls, data: bytes) -> StandIns:
        """From a key file. Raises UsageError where it is none."""
        try:
            head, *rows = (json.loads(line) for line in data.decode().splitlines() if line.strip())
            if head["format"] != FORMAT:
                raise ValueError
            secret = bytes.fromhex(head["secret"])
            pairs = {_bytes(row["name"]): _bytes(row["stands_in"]) for row in rows}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError("this is no key file of `redact --names`") from None
        return cls(secret, pairs)


def keeps(name: bytes) -> bool:
    """Whether a name is Kafka's own: a topic, principal or client id that it defines, or a configuration it knows."""
    if KAFKAS.fullmatch(name):
        return True
    return name.isascii() and name.decode() in load_configurations()


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
