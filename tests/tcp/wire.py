"""A connection whose every packet and acknowledgement a test states."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, field
from typing import Any

import pytest

import kdissect
from tests.oracle.pcap import ACK, MS, START, SYN, api_versions_request, api_versions_response, pcap

CLIENT, BROKER = 0, 1
FIRST = (1000, 7000)


@dataclass
class Wire:
    """A connection as its client's host captures it; every packet acknowledges what the test says it does."""

    broker: bytes = b"\x0a\0\0\2"
    """Its address."""
    counts: bool = True
    """Whether hosts count up IP ids."""
    stamps: bool = False
    """Whether packets have TCP timestamps, of 1 ms, and echo the latest one of the other side."""
    slower: float = 0.0
    """What packets of the broker take longer on their way than their timestamps say, ms."""
    packets: list[tuple[int, bytes]] = field(default_factory=list)
    said: list[bytes] = field(default_factory=lambda: [b"", b""])
    sent: list[int] = field(default_factory=lambda: [0, 0])
    """Packets of each side, which its host counts in their IP ids."""
    stamped: list[int] = field(default_factory=lambda: [0, 0])
    """The latest timestamp of each side."""

    def packet(self, ms: float, side: int, at: int, data: bytes, acked: int, flags: int = ACK) -> None:
        """A packet of `side` seen `ms` after START: `data` stands at `at` of its stream, `acked` bytes of the other are
        acknowledged; -1 stands before the first byte."""
        ends = (b"\x0a\0\0\1", 50000), (self.broker, 9092)
        here, there = ends[side], ends[1 - side]
        numbers = FIRST[side] + 1 + at, FIRST[1 - side] + 1 + acked if flags & ACK else 0
        options = b""
        if self.stamps:
            late = self.slower if side == BROKER else 0
            self.stamped[side] = 7_000_000 + int(ms - late)
            options = struct.pack(">BBBBII", 1, 1, 8, 10, self.stamped[side], self.stamped[1 - side])
        head = (5 + len(options) // 4) << 4
        tcp = struct.pack(">HHIIBBHHH", here[1], there[1], *numbers, head, flags, 65535, 0, 0) + options + data
        ip = (
            struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), self.sent[side] if self.counts else 0, 0, 64, 6, 0)
            + here[0]
            + there[0]
        )
        self.sent[side] += 1
        self.packets.append((START + round(ms * MS), b"\2" * 6 + b"\4" * 6 + b"\x08\x00" + ip + tcp))

    def handshake(self, trip: float) -> None:
        """It begins at 0 and takes so many ms to the broker and back."""
        self.packet(0, CLIENT, -1, b"", 0, SYN)
        self.packet(trip, BROKER, -1, b"", 0, SYN | ACK)
        self.packet(trip, CLIENT, 0, b"", 0)

    def handshake_at_broker(self, trip: float) -> None:
        """As the broker's host captures it: it begins at 0 and takes so many ms to the client and back."""
        self.packet(0, CLIENT, -1, b"", 0, SYN)
        self.packet(0, BROKER, -1, b"", 0, SYN | ACK)
        self.packet(trip, CLIENT, 0, b"", 0)

    def begin(self) -> None:
        """A handshake of 0.4 ms and three quick exchanges, by which the broker's IP ids are known to count up."""
        self.handshake(0.4)
        for n in range(3):
            self.ask(1 + n)
            self.answer(1.4 + n)

    def ask(self, ms: float) -> None:
        """The next request."""
        data = api_versions_request(self.said[CLIENT].count(b"\0\x12\0\0"))
        self.packet(ms, CLIENT, len(self.said[CLIENT]), data, len(self.said[BROKER]))
        self.said[CLIENT] += data

    def again(self, ms: float) -> None:
        """The last request once more."""
        size = len(api_versions_request(0))
        self.packet(ms, CLIENT, len(self.said[CLIENT]) - size, self.said[CLIENT][-size:], len(self.said[BROKER]))

    def bare(self, ms: float, side: int = BROKER) -> None:
        """A host acknowledges everything, without bytes."""
        self.packet(ms, side, len(self.said[side]), b"", len(self.said[1 - side]))

    def answer(self, ms: float) -> None:
        """The next response; it acknowledges everything."""
        size = len(api_versions_response(0))
        data = api_versions_response(len(self.said[BROKER]) // size)
        self.packet(ms, BROKER, len(self.said[BROKER]), data, len(self.said[CLIENT]))
        self.said[BROKER] += data

    def say(self, ms: float, side: int, data: bytes) -> None:
        """The next bytes of `side`, in a packet that acknowledges everything."""
        self.packet(ms, side, len(self.said[side]), data, len(self.said[1 - side]))
        self.said[side] += data

    def uncaptured(self) -> None:
        """The last packet was not captured."""
        self.packets.pop()

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = kdissect.open(io.BytesIO(pcap(self.packets))).table(name).to_pylist()
        return rows

    def shares(self) -> list[tuple[float | None, str | None, float]]:
        """network_ms, how it was found, and broker_ms, of each exchange."""
        return [
            (row["network_ms"], row["network_kind"], pytest.approx(row["broker_ms"])) for row in self.table("exchanges")
        ]


def message(*parts: bytes) -> bytes:
    """A Kafka message of these parts, behind its size."""
    text = b"".join(parts)
    return struct.pack(">I", len(text)) + text
