"""A plain reader of clean captures, for the tests: what is on the wire, by the simplest means that can be right.

It reads a whole pcap into memory, takes TCP streams apart by sequence number, cuts them at their length prefixes and
reads nothing but headers. It knows no loss: a hole ends a stream. It shares no code with kdissect.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Endpoint = tuple[str, int]


@dataclass(slots=True)
class Packet:
    """A TCP packet: frame number from 1, time in ns."""

    number: int
    time: int
    source: Endpoint
    target: Endpoint
    seq: int
    flags: int
    payload: bytes


@dataclass(slots=True)
class Frame:
    """A length-prefixed frame: four bytes of length, then `body`; times in ns, `last_packet` completed it."""

    body: bytes
    first: int
    last: int
    last_packet: int
    packets: frozenset[int]
    """Every packet that brought bytes of it first."""
    again: bool
    """Some of its bytes came more than once."""

    @property
    def size(self) -> int:
        return len(self.body) + 4


@dataclass(slots=True)
class Stream:
    """One direction of a connection."""

    base: int | None = None
    data: bytearray = field(default_factory=bytearray)
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    """(start, time, packet) of each run of new bytes."""
    repeats: list[tuple[int, int]] = field(default_factory=list)
    """[start, end) of bytes that came again."""
    ahead: dict[int, tuple[bytes, int, int]] = field(default_factory=dict)

    def add(self, packet: Packet) -> None:
        if packet.flags & 2:
            self.base = (packet.seq + 1) & 0xFFFFFFFF
            return
        if not packet.payload:
            return
        if self.base is None:
            self.base = packet.seq
        at = (packet.seq - self.base) & 0xFFFFFFFF
        if at < 1 << 31:
            known = self.ahead.get(at)
            if known is not None:
                self.repeats.append((at, at + min(len(known[0]), len(packet.payload))))
            if known is None or len(known[0]) < len(packet.payload):
                self.ahead[at] = (packet.payload, packet.time, packet.number)
        while True:
            ready = [a for a in self.ahead if a <= len(self.data)]
            if not ready:
                return
            start = min(ready)
            payload, time, number = self.ahead.pop(start)
            fresh = payload[len(self.data) - start :]
            if start < len(self.data):
                self.repeats.append((start, min(len(self.data), start + len(payload))))
            if fresh:
                self.marks.append((len(self.data), time, number))
                self.data += fresh

    def rest(self) -> bytes:
        """What stands behind the last whole frame."""
        return bytes(self.data[sum(frame.size for frame in self.frames()) :])

    def frames(self) -> Iterator[Frame]:
        """Whole frames, until one is cut or its length is not one."""
        at, mark = 0, 0
        while at + 4 <= len(self.data):
            (size,) = struct.unpack_from(">i", self.data, at)
            end = at + 4 + size
            if size < 0 or end > len(self.data):
                return
            while mark + 1 < len(self.marks) and self.marks[mark + 1][0] <= at:
                mark += 1
            runs = [self.marks[mark]]
            for later in self.marks[mark + 1 :]:
                if later[0] >= end:
                    break
                runs.append(later)
            latest = max(run[1] for run in runs)
            again = any(first < end and last > at for first, last in self.repeats)
            yield Frame(
                bytes(self.data[at + 4 : end]),
                runs[0][1],
                latest,
                max(run[2] for run in runs),
                frozenset(run[2] for run in runs),
                again,
            )
            at = end


@dataclass(slots=True)
class Conversation:
    """A TCP connection: requests go to `broker`."""

    client: Endpoint
    broker: Endpoint
    requests: Stream = field(default_factory=Stream)
    responses: Stream = field(default_factory=Stream)


@dataclass(slots=True)
class Request:
    """One request frame with the response that answered it, if one did."""

    client: Endpoint
    broker: Endpoint
    conversation: int
    key: int
    version: int
    correlation_id: int
    client_id: str | None
    frame: Frame
    response: Frame | None = None
    begun: bool = False
    """Some bytes of a response came, but not all: the broker was stopped, or the client left."""


def packets(path: Path) -> Iterator[Packet]:
    """TCP packets of a pcap file (µs or ns, either endian; Ethernet, SLL, SLL2)."""
    data = path.read_bytes()
    magic = data[:4]
    end = "<" if magic in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    scale = 1 if magic in (b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d") else 1000
    (link,) = struct.unpack_from(end + "I", data, 20)
    at, number = 24, 0
    while at + 16 <= len(data):
        seconds, part, size, _ = struct.unpack_from(end + "IIII", data, at)
        number += 1
        packet = _tcp(number, seconds * 1_000_000_000 + part * scale, link & 0xFFFF, data[at + 16 : at + 16 + size])
        if packet:
            yield packet
        at += 16 + size


def _tcp(number: int, time: int, link: int, raw: bytes) -> Packet | None:
    kind_at, start = {1: (12, 14), 113: (14, 16), 276: (0, 20)}[link]
    (kind,) = struct.unpack_from(">H", raw, kind_at)
    ip = raw[start:]
    if kind == 0x800 and ip[9] == 6:
        total, head = struct.unpack_from(">H", ip, 2)[0] or len(ip), (ip[0] & 15) * 4
        ends = ip[12:16], ip[16:20]
    elif kind == 0x86DD and ip[6] == 6:
        total, head = 40 + struct.unpack_from(">H", ip, 4)[0], 40
        ends = ip[8:24], ip[24:40]
    else:
        return None
    source, target = (str(ipaddress.ip_address(end)) for end in ends)
    tcp = ip[head:total]
    from_port, to_port, seq = struct.unpack_from(">HHI", tcp)
    return Packet(number, time, (source, from_port), (target, to_port), seq, tcp[13], tcp[(tcp[12] >> 4) * 4 :])


def conversations(path: Path, ports: frozenset[int]) -> list[Conversation]:
    """Connections to a broker's port, in order of their first packet. A SYN on a known 4-tuple begins a new one."""
    out: list[Conversation] = []
    current: dict[tuple[Endpoint, Endpoint], tuple[Conversation, int | None]] = {}
    for packet in packets(path):
        to_broker = packet.target[1] in ports and not (
            packet.source[1] in ports and packet.source[1] < packet.target[1]
        )
        client, broker = (packet.source, packet.target) if to_broker else (packet.target, packet.source)
        if broker[1] not in ports:
            continue
        opening = packet.flags & 0x12 == 2
        known = current.get((client, broker))
        if known is None or (opening and known[1] != packet.seq):
            known = Conversation(client, broker), packet.seq if opening else None
            current[client, broker] = known
            out.append(known[0])
        (known[0].requests if to_broker else known[0].responses).add(packet)
    return out


def requests(path: Path, ports: frozenset[int]) -> list[Request]:
    """Every request with its response: by correlation id, first come, first served."""
    out: list[Request] = []
    for index, talk in enumerate(conversations(path, ports)):
        waiting: dict[int, list[Request]] = {}
        known = False  # a request that looks like one was seen; after it even an odd key is a request
        bare = False  # SaslHandshake v0 was seen: tokens without a Kafka header may follow
        for frame in talk.requests.frames():
            plausible = len(frame.body) >= 8
            key, version, correlation = struct.unpack_from(">hhi", frame.body) if plausible else (-1, -1, -1)
            if not (0 <= key < 100 and 0 <= version < 100):
                if bare:
                    continue
                if not (known and plausible):
                    break
            known, bare = True, bare or (key == 17 and version == 0)
            client_id: str | None = None
            if len(frame.body) >= 10 and not (key == 7 and version == 0):
                (length,) = struct.unpack_from(">h", frame.body, 8)
                client_id = frame.body[10 : 10 + length].decode("utf-8", "replace") if length >= 0 else None
            request = Request(talk.client, talk.broker, index, key, version, correlation, client_id, frame)
            waiting.setdefault(correlation, []).append(request)
            out.append(request)
        for frame in talk.responses.frames():
            if len(frame.body) < 4:
                continue
            (correlation,) = struct.unpack_from(">i", frame.body)
            queue = [r for r in waiting.get(correlation, []) if r.response is None and r.frame.first <= frame.last]
            if queue:
                queue[0].response = frame
        rest = talk.responses.rest()
        if len(rest) >= 8:
            queue = [r for r in waiting.get(struct.unpack_from(">i", rest, 4)[0], []) if r.response is None]
            if queue:
                queue[0].begun = True
    return out


def orphans(path: Path, ports: frozenset[int]) -> list[tuple[Endpoint, int, Frame]]:
    """Responses whose request the capture does not have: client, correlation id, frame."""
    out = []
    for talk in conversations(path, ports):
        asked = {frame.body[4:8] for frame in talk.requests.frames()}
        for frame in talk.responses.frames():
            if len(frame.body) >= 4 and frame.body[:4] not in asked:
                out.append((talk.client, struct.unpack_from(">i", frame.body)[0], frame))
    return out
