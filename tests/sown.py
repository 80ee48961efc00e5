"""Captures with a marker in every text of every API, version and side that the schema has, and in bytes before a login.

`planted` takes messages from kio, which knows Kafka's newest releases; this encodes them from our own schema, so old
versions and old layouts are there too, and unknown tags. What may stay is not asked of the schema but of the tests.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kdissect.schema import index
from kdissect.schema.model import SCALARS, Field, Message
from kdissect.schema.rules import Rules
from tests.bench.frames import batch
from tests.oracle.pcap import (
    Talk,
    api_versions_request,
    api_versions_response,
    framed,
    metadata_request,
    metadata_response,
)

MARKER = re.compile(rb"mk\d{6}z")
FRAGMENT = re.compile(rb"mk\d\d|n,,n|n,,a|r=mk")
"""Any beginning of a marker that means something, and of a SASL token."""
PIECE = 200
"""Payload bytes a packet, so that most messages are in several."""
UNKNOWN_TAG = 99
HEADERS = 54
"""Bytes of a packet before its payload."""
SASL_HANDSHAKE = 17
Packets = list[tuple[int, bytes]]
Text = Callable[[Field | None], bytes]
"""Takes a field (None: a tag that the schema does not know) and gives what its text says."""
Count = Callable[[Field], int]


class Sower:
    """Gives markers, and remembers the field of each."""

    def __init__(self) -> None:
        self.fields: dict[bytes, Field | None] = {}

    def __call__(self, item: Field | None) -> bytes:
        marker = f"mk{len(self.fields):06}z".encode()
        self.fields[marker] = item
        return marker

    def named(self) -> set[bytes]:
        """Markers in fields that hold names, or words of the protocol: `redact` keeps them without --names."""
        return {one for one, item in self.fields.items() if item is not None and item.policy in ("name", "public")}


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encodes bodies of one version of one message: a marker in each text, `count` elements in each array, ones in
    numbers but error codes, all tags."""

    rules: Rules
    text: Text
    count: Count = lambda item: 1

    def struct(self, fields: tuple[Field, ...]) -> bytes:
        plain, tagged = self.rules.split(fields)
        out = b"".join(map(self.field, plain))
        if not self.rules.flexible:
            return out
        values = [(item.tag or 0, self.field(item)) for item in tagged]
        return out + tags(*sorted(values), (UNKNOWN_TAG, self.text(None)))

    def field(self, item: Field) -> bytes:
        if item.kind == "struct":
            return b"\1" * self.rules.nullable(item) + self.struct(item.fields)
        if item.kind != "array":
            return self.value(item, item.kind)
        count = self.count(item)
        elements = [
            self.struct(item.fields) if item.element == "struct" else self.value(item, item.element or "")
            for _ in range(count)
        ]
        return (uvarint(count + 1) if self.rules.compact(item) else struct.pack(">i", count)) + b"".join(elements)

    def value(self, item: Field, kind: str) -> bytes:
        if kind in SCALARS:
            number = 0 if self.rules.is_error(item) or kind in ("uuid", "float64") else 1
            return number.to_bytes(SCALARS[kind], "big")
        text = self.text(item)
        if kind == "records":
            text = batch([text])
        if self.rules.compact(item):
            return uvarint(len(text) + 1) + text
        return struct.pack(">h" if kind == "string" else ">i", len(text)) + text


def tags(*values: tuple[int, bytes]) -> bytes:
    """A buffer of tagged fields (KIP-482)."""
    return uvarint(len(values)) + b"".join(uvarint(tag) + uvarint(len(value)) + value for tag, value in values)


def message(
    key: int, side: int, version: int, correlation: int, text: Text, count: Count = lambda item: 1,
    fields: tuple[Field, ...] | None = None,
) -> bytes:  # fmt: skip
    """One framed message, its header with a marker as client id and one in an unknown tag."""
    layout: Message = index.load().apis[key].message(side)
    body = Encoder(Rules(layout, side, version), text, count).struct(layout.fields if fields is None else fields)
    if side:
        header = struct.pack(">i", correlation)
        return framed(
            header + (tags((UNKNOWN_TAG, text(None))) if index.response_header_version(key, version) else b"") + body
        )
    form = index.request_header_version(key, version)
    header = struct.pack(">hhi", key, version, correlation)
    if form > 0:
        client = text(Field("ClientId", "string", policy="name"))
        header += struct.pack(">h", len(client)) + client
    return framed(header + (tags((UNKNOWN_TAG, text(None))) if form > 1 else b"") + body)


def layouts() -> Iterator[tuple[int, int, tuple[Field, ...] | None, tuple[Field, ...] | None]]:
    """Every API, version, and layout of its request and its response (None: the main one)."""
    for key, api in index.load().apis.items():
        request, response = api.request, api.response
        for version in range(request.versions.first, request.versions.last + 1):
            yield key, version, None, None
            for side, one in ((0, request), (1, response)):
                for variant in one.variants:
                    if version in variant.versions:
                        yield key, version, variant.fields if side == 0 else None, variant.fields if side else None


class Conversation:
    """A connection of its own client, and where each side is in its stream."""

    def __init__(self, n: int) -> None:
        self.talk = Talk((f"10.0.{n >> 8}.{n & 255}", 40000), ("10.9.0.2", 9092), client_isn=0, broker_isn=0)
        self.ms = n * 20.0
        self.at = [0, 0]
        self.talk.handshake(self.ms)

    def say(self, side: int, data: bytes) -> None:
        """Bytes of one side, a millisecond later, in packets of PIECE bytes."""
        self.ms += 1
        for n, first in enumerate(range(0, len(data), PIECE)):
            piece = data[first : first + PIECE]
            self.talk.put(self.ms + n / 1000, side, self.at[side], piece)
            self.at[side] += len(piece)

    def metadata(self, correlation: int) -> None:
        """An exchange that holds no marker."""
        self.say(0, metadata_request(correlation, []))
        self.say(1, metadata_response(correlation))


Layout = tuple[int, int, tuple[Field, ...] | None, tuple[Field, ...] | None]


def messages(text: Text) -> list[Talk]:
    """A connection for each layout: ApiVersions, the exchange with its markers, Metadata."""
    return messages_of(layouts(), text)


def messages_of(which: Iterable[Layout], text: Text) -> list[Talk]:
    """As `messages`, of these layouts."""
    talks = []
    for n, (key, version, request, response) in enumerate(which):
        one = Conversation(n)
        one.say(0, api_versions_request(1))
        one.say(1, api_versions_response(1))
        one.say(0, message(key, 0, version, 2, text, fields=request))
        answer = message(key, 1, version, 2, text, fields=response)
        if (key, version) == (SASL_HANDSHAKE, 0):  # refused, for no tokens follow here
            answer = answer[:8] + struct.pack(">h", 33) + answer[10:]
        one.say(1, answer)
        one.metadata(3)
        talks.append(one.talk)
    return talks


def logins(text: Text) -> list[Talk]:
    """Logins with bare tokens behind SaslHandshake v0, each with markers at the tokens' beginnings."""
    talks = []
    for n, (mechanism, make) in enumerate(TOKENS):
        one = Conversation(n)
        one.say(0, framed(struct.pack(">hhi", SASL_HANDSHAKE, 0, 1) + _short(b"c") + _short(mechanism)))
        one.say(1, framed(struct.pack(">ihi", 1, 0, 1) + _short(mechanism)))
        for side, token in enumerate(make(lambda: text(None))):
            one.say(side & 1, framed(token))
        one.metadata(2)
        talks.append(one.talk)
    return talks


def _short(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


Mark = Callable[[], bytes]
TOKENS: tuple[tuple[bytes, Callable[[Mark], list[bytes]]], ...] = (
    (b"PLAIN", lambda mark: [b"\0" + mark() + b"\0" + mark(), b""]),
    (b"PLAIN", lambda mark: [mark() + b"\0" + mark() + b"\0" + mark(), b""]),
    (b"PLAIN", lambda mark: [b"\0e\0" + mark(), b""]),
    (b"PLAIN", lambda mark: [b"\0A\0" + mark(), b""]),
    (b"PLAIN", lambda mark: [b"\0\0" + mark(), b""]),
    (b"SCRAM-SHA-256", lambda mark: [b"n,,n=" + mark() + b",r=" + mark(), b"r=" + mark() + b",s=" + mark() + b",i=4096",
                                     b"c=biws,r=" + mark() + b",p=" + mark(), b"v=" + mark()]),
    (b"OAUTHBEARER", lambda mark: [b"n,,\1auth=Bearer " + mark() + b"\1\1", b""]),
    (b"OAUTHBEARER", lambda mark: [b"n,a=" + mark() + b",\1auth=Bearer " + mark(), mark(), b"\1"]),
    (b"MADE", lambda mark: [mark(), mark(), mark(), mark()]),
)  # fmt: skip
"""Mechanisms, and the tokens of client and broker in turn."""


def packets(talks: list[Talk]) -> Packets:
    """The packets of connections, in order of time."""
    return sorted(packet for talk in talks for packet in talk.packets)


def lossy(given: Packets, seed: int) -> Packets:
    """A tenth of the packets is missing."""
    chance = random.Random(seed)
    return [packet for packet in given if chance.random() > 0.1]


def without_one(talks: list[Talk], n: int) -> Packets:
    """Each connection without one of its packets: the n-th with a payload, counted around."""
    left = []
    for talk in talks:
        payloads = [packet for packet in talk.packets if len(packet[1]) > HEADERS]
        left += [packet for packet in talk.packets if packet is not payloads[n % len(payloads)]]
    return sorted(left)


def late(given: Packets, seed: int) -> Packets:
    """Packets with their times in the order of a capture that mixes up its neighbours."""
    chance = random.Random(seed)
    order = [(n + chance.choice((0, 0, 0, 3)), n) for n in range(len(given))]
    return [given[n] for _, n in sorted(order)]
