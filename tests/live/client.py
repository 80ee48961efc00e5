"""A client that sends every API at every version that a broker advertises, twice: full of values, and empty."""

from __future__ import annotations

import base64
import itertools
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import kdissect
from tests.kafka.records.building import START, batch, record
from tests.live.bodies import TOPIC, Known, encode, layout_of, make

PATIENCE_S = 8.0
"""For one answer."""
API_VERSIONS, METADATA, CREATE_TOPICS = 18, 3, 19
NOT_EMPTY = frozenset({(24, 4), (24, 5), (58, 0)})
"""AddPartitionsToTxn without a transaction is never answered: the broker counts the transactions down to the last, and
none is none. An Envelope must hold a request."""


@dataclass(slots=True)
class Sent:
    """What went out, and what came of it."""

    advertised: set[tuple[int, int]] = field(default_factory=set)
    """(API key, version)."""
    answered: set[tuple[int, int]] = field(default_factory=set)
    silent: list[tuple[int, int, bool]] = field(default_factory=list)
    """(API key, version, full): requests whose connection the broker closed, or that it never answered."""
    unknown: set[tuple[int, int]] = field(default_factory=set)
    """Advertised versions that the facts do not have."""
    by_hand: set[tuple[int, int]] = field(default_factory=set)
    """Requests that kio does not know."""


class Client:
    """Sends to one listener; a connection for each API."""

    def __init__(self, port: int, sent: Sent) -> None:
        self.port = port
        self.sent = sent
        self.correlation = itertools.count(1)
        self.socket: socket.socket | None = None

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def ask(self, key: int, version: int, body: bytes, full: bool = True) -> bytes | None:
        """The answer without its header, None when there is none."""
        layout = layout_of(key, version)
        assert layout is not None
        name = f"live-{key}-v{version}".encode()
        head = struct.pack(">hhi", key, version, next(self.correlation))
        head += struct.pack(">h", len(name)) + name + (b"\0" if layout.header == 2 else b"")
        try:
            if self.socket is None:
                self.socket = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
            self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            data = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        except OSError:
            self.sent.silent.append((key, version, full))
            self.close()
            return None
        self.sent.answered.add((key, version))
        return data[5 if layout.header == 2 and key != API_VERSIONS else 4 :]

    def _exactly(self, count: int) -> bytes:
        assert self.socket is not None
        out = b""
        while len(out) < count:
            data = self.socket.recv(count - len(out))
            if not data:
                raise ConnectionResetError
            out += data
        return out

    def versions(self) -> dict[int, range]:
        """What the listener advertises."""
        answer = self.ask(API_VERSIONS, 0, b"")
        assert answer is not None
        count = struct.unpack_from(">i", answer, 2)[0]
        found = (struct.unpack_from(">hhh", answer, 6 + 6 * i) for i in range(count))
        return {key: range(first, last + 1) for key, first, last in found}


def sweep(port: int, controller_port: int) -> Sent:
    """Everything that both listeners advertise."""
    sent = Sent()
    broker = Client(port, sent)
    known = _prepare(broker)
    for client in (broker, Client(controller_port, sent)):
        for key, version, full in _plan(client.versions(), sent):
            if client.sent.silent[-1:] == [(key, version, not full)]:
                continue  # refused once
            body, by_kio = encode(key, version, make(key, version, full, known))
            if not by_kio:
                sent.by_hand.add((key, version))
            client.ask(key, version, body, full)
            if not full:
                client.close()
        client.close()
    return sent


def _plan(offered: dict[int, range], sent: Sent) -> Iterator[tuple[int, int, bool]]:
    for key in sorted(offered):
        for version in offered[key]:
            sent.advertised.add((key, version))
            if layout_of(key, version) is None:
                sent.unknown.add((key, version))
                continue
            yield key, version, True
            if (key, version) not in NOT_EMPTY:
                yield key, version, False


def _prepare(client: Client) -> Known:
    """Make the topic and learn its id."""
    records = record(0, b"key", b"value") + record(1, None, b"more")
    nothing = Known(uuid.UUID(int=0), batch(records, 2, first=START))
    tree = make(CREATE_TOPICS, 5, True, nothing)
    tree["Topics"][0]["Name"] = TOPIC
    client.ask(CREATE_TOPICS, 5, encode(CREATE_TOPICS, 5, tree)[0])
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        tree = make(METADATA, 12, True, nothing)
        tree["Topics"][0]["TopicId"] = uuid.UUID(int=0)
        answer = client.ask(METADATA, 12, encode(METADATA, 12, tree)[0])
        assert answer is not None
        topic = kdissect.decode(answer, METADATA, 12, "response")["topics"][0]
        if not topic["error_code"] and topic["partitions"] and topic["partitions"][0]["leader_id"] == 1:
            client.close()
            return Known(uuid.UUID(bytes=base64.urlsafe_b64decode(topic["topic_id"] + "==")), nothing.records)
        time.sleep(0.2)
    raise AssertionError("the topic has no leader")
