"""Writes small captures packet by packet, with chosen times, for tests that know every instant.

`Talk` is one TCP connection: it keeps both sequence numbers; each call is one packet. Nothing of kdissect is used.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

MS = 1_000_000
"""Nanoseconds in a millisecond."""
START = 1_800_000_000_000_000_000
"""Time zero of built captures, ns since the epoch."""

SYN, FIN, RST, ACK = 2, 1, 4, 16


@dataclass(slots=True)
class Talk:
    """A TCP connection between a client and a broker; `packets` are (ns, Ethernet frame), in order of capture."""

    client: tuple[str, int] = ("10.0.0.1", 50000)
    broker: tuple[str, int] = ("10.0.0.2", 9092)
    client_isn: int = 1000
    broker_isn: int = 0xFFFFFF00
    packets: list[tuple[int, bytes]] = field(default_factory=list)

    def handshake(self, ms: float = 0.0) -> None:
        """SYN, SYN with ACK, ACK; 0.1 ms apart."""
        self.put(ms, 0, -1, b"", SYN)
        self.put(ms + 0.1, 1, -1, b"", SYN | ACK)
        self.put(ms + 0.2, 0, 0, b"")

    def put(self, ms: float, side: int, at: int, payload: bytes, flags: int = ACK) -> None:
        """A packet of `side` (0 client, 1 broker) whose payload stands at `at` in its stream, seen `ms` after START."""
        source, target = (self.client, self.broker) if side == 0 else (self.broker, self.client)
        isn = self.client_isn if side == 0 else self.broker_isn
        seq = (isn + 1 + at) & 0xFFFFFFFF
        tcp = struct.pack(">HHIIBBHHH", source[1], target[1], seq, 1, 5 << 4, flags, 65535, 0, 0) + payload
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, _ip(source[0]), _ip(target[0]))
        self.packets.append((START + round(ms * MS), b"\2" * 6 + b"\4" * 6 + b"\x08\x00" + ip + tcp))


def _ip(text: str) -> bytes:
    return bytes(int(part) for part in text.split("."))


def pcap(packets: list[tuple[int, bytes]], snap: int = 262144) -> bytes:
    """A little-endian pcap with nanoseconds, Ethernet."""
    out = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, snap, 1)]
    for time, data in packets:
        out.append(struct.pack("<IIII", time // 10**9, time % 10**9, min(len(data), snap), len(data)) + data[:snap])
    return b"".join(out)


def framed(body: bytes) -> bytes:
    """With the 4-byte length prefix."""
    return struct.pack(">i", len(body)) + body


def api_versions_request(correlation: int, client_id: str = "c") -> bytes:
    """ApiVersions v0, framed."""
    return framed(struct.pack(">hhih", 18, 0, correlation, len(client_id)) + client_id.encode())


def api_versions_response(correlation: int, apis: int = 10) -> bytes:
    """ApiVersions v0 with that many APIs, framed: 14 bytes and 6 more for each."""
    keys = b"".join(struct.pack(">hhh", key, 0, 3) for key in range(apis))
    return framed(struct.pack(">ihi", correlation, 0, apis) + keys)


def metadata_request(correlation: int, topics: list[str], client_id: str = "c") -> bytes:
    """Metadata v1, framed."""
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    header = struct.pack(">hhih", 3, 1, correlation, len(client_id)) + client_id.encode()
    return framed(header + struct.pack(">i", len(topics)) + names)


def metadata_response(correlation: int) -> bytes:
    """Metadata v1 without brokers and topics, framed."""
    return framed(struct.pack(">iiii", correlation, 0, 7, 0))


def produce_request(correlation: int, acks: int, client_id: str = "c") -> bytes:
    """Produce v2 with no topics, framed."""
    header = struct.pack(">hhih", 0, 2, correlation, len(client_id)) + client_id.encode()
    return framed(header + struct.pack(">hii", acks, 1000, 0))
