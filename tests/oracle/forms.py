"""What people do to captures: each form and each damage as a function from a capture's packets to the files of a copy.

A form leaves packets out, cuts them or takes the file apart on purpose (a display filter, a snap length, a ring of
files). Damage is what happens while packets are captured. Nothing of kdissect is used.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

LINKS = {0: 4, 1: 14, 101: 0, 113: 16, 276: 20}
"""Bytes of the link header, by link type: loopback, Ethernet, raw IP, the two cooked ones of Linux."""
SYN, PSH = 2, 8


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet of a pcap file; `flow`, `flags`, `size` (payload bytes) and `source` are of TCP, else None, 0, 0, 0."""

    time: int
    data: bytes
    original: int
    flow: tuple[bytes, bytes] | None = None
    source: int = 0
    """Which end of the flow sent it."""
    target_port: int = 0
    source_port: int = 0
    flags: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """A classic pcap file."""

    link: int
    packets: list[Packet]


def read(data: bytes) -> Recording:
    """A classic pcap file, compressed with zstd or not."""
    if data[:4] == b"\x28\xb5\x2f\xfd":
        with pa.input_stream(pa.BufferReader(data), compression="zstd") as plain:
            data = plain.read()
    order = "<" if data[0] in (0xD4, 0x4D) else ">"
    nanoseconds = struct.unpack(order + "I", data[:4])[0] == 0xA1B23C4D
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    at, packets = 24, []
    while at + 16 <= len(data):
        seconds, fraction, captured, original = struct.unpack_from(order + "IIII", data, at)
        body = data[at + 16 : at + 16 + captured]
        at += 16 + captured
        packets.append(_parsed(seconds * 10**9 + fraction * (1 if nanoseconds else 1000), body, original, link))
    return Recording(link, packets)


def _parsed(time: int, data: bytes, original: int, link: int) -> Packet:
    plain = Packet(time, data, original)
    at = LINKS[link]
    if len(data) < at + 20:
        return plain
    if data[at] >> 4 == 4 and data[at + 9] == 6:
        begin, end = at + (data[at] & 15) * 4, at + struct.unpack_from(">H", data, at + 2)[0]
        hosts = data[at + 12 : at + 16], data[at + 16 : at + 20]
    elif data[at] >> 4 == 6 and data[at + 6] == 6:
        begin, end = at + 40, at + 40 + struct.unpack_from(">H", data, at + 4)[0]
        hosts = data[at + 8 : at + 24], data[at + 24 : at + 40]
    else:
        return plain
    if len(data) < begin + 14:
        return plain
    ends = hosts[0] + data[begin : begin + 2], hosts[1] + data[begin + 2 : begin + 4]
    source, target = struct.unpack_from(">HH", data, begin)
    size = max(end - begin - (data[begin + 12] >> 4) * 4, 0)
    flow = min(ends), max(ends)
    return replace(
        plain, flow=flow, source=flow.index(ends[0]), source_port=source, target_port=target, flags=data[begin + 13],
        size=size,
    )  # fmt: skip


def written(packets: list[Packet], link: int, snap: int = 262144) -> bytes:
    """A pcap file of nanoseconds."""
    out = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, snap, link)]
    for packet in packets:
        data = packet.data[:snap]
        out.append(struct.pack("<IIII", packet.time // 10**9, packet.time % 10**9, len(data), packet.original) + data)
    return b"".join(out)


def interfaces(packets: list[tuple[int, Packet]], link: int) -> bytes:
    """A pcapng file of two interfaces; packets with the number of theirs."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    nanoseconds = struct.pack("<HHBxxxHH", 9, 1, 9, 0, 0)
    out = [block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
    out += [block(1, struct.pack("<HHI", link, 0, 262144) + nanoseconds)] * 2
    for number, p in packets:
        head = struct.pack("<IIIII", number, p.time >> 32, p.time & 0xFFFFFFFF, len(p.data), p.original)
        out.append(block(6, head + p.data))
    return b"".join(out)


Copy = Callable[[Recording, frozenset[int]], list[bytes]]
"""Makes the files of a copy. The numbers are the ports of brokers."""


def _only(keep: Callable[[Packet, frozenset[int]], bool]) -> Copy:
    def copy(recording: Recording, ports: frozenset[int]) -> list[bytes]:
        return [written([p for p in recording.packets if keep(p, ports)], recording.link)]

    return copy


def _snapped(length: int) -> Copy:
    return lambda recording, ports: [written(recording.packets, recording.link, length)]


def _one_flow_in_ten(recording: Recording, ports: frozenset[int]) -> list[bytes]:
    flows = sorted({p.flow for p in recording.packets if p.flow is not None})
    kept = set(flows[::10])
    return [written([p for p in recording.packets if p.flow in kept], recording.link)]


def _merged(recording: Recording, ports: frozenset[int]) -> list[bytes]:
    copies = [(1, replace(p, time=p.time + 20_000)) for p in recording.packets]
    both = sorted([(0, p) for p in recording.packets] + copies, key=lambda one: one[1].time)
    return [interfaces(both, recording.link)]


def _deduplicated(recording: Recording, ports: frozenset[int]) -> list[bytes]:
    """As `editcap -d` does it: a packet equal to one of the four before it is left out."""
    kept: list[Packet] = []
    last: list[bytes] = []
    for packet in recording.packets:
        if packet.data not in last:
            kept.append(packet)
        last = [*last[-3:], packet.data]
    return [written(kept, recording.link)]


def _rotated(recording: Recording, ports: frozenset[int]) -> list[bytes]:
    n = len(recording.packets)
    parts = [recording.packets[n * i // 3 : n * (i + 1) // 3] for i in range(3)]
    return [written(part, recording.link) for part in parts]


def _late(recording: Recording, ports: frozenset[int]) -> list[bytes]:
    return [written(recording.packets[len(recording.packets) // 4 :], recording.link)]


FORMS: dict[str, Copy] = {
    "data only": _only(lambda p, ports: p.size > 0),
    "PSH only": _only(lambda p, ports: p.flags & PSH > 0),
    "data and SYN": _only(lambda p, ports: p.size > 0 or p.flags & SYN > 0),
    "requests only": _only(lambda p, ports: p.target_port in ports),
    "responses only": _only(lambda p, ports: p.source_port in ports),
    "snapped at 96": _snapped(96),
    "snapped at 128": _snapped(128),
    "1 in 10 flows": _one_flow_in_ten,
    "two interfaces": _merged,
    "duplicates removed": _deduplicated,
    "rotated": _rotated,
    "started late": _late,
}


def _losing(share: float, burst: int) -> Copy:
    def copy(recording: Recording, ports: frozenset[int]) -> list[bytes]:
        draw, gone = random.Random(len(recording.packets)), set[int]()
        for n in range(len(recording.packets)):
            if draw.random() < share / burst:
                gone |= set(range(n, n + burst))
        return [written([p for n, p in enumerate(recording.packets) if n not in gone], recording.link)]

    return copy


def _duplicated(recording: Recording, ports: frozenset[int]) -> list[bytes]:
    draw = random.Random(1)
    copies = [replace(p, time=p.time + 20_000) for p in recording.packets if draw.random() < 0.05]
    return [written(sorted([*recording.packets, *copies], key=lambda p: p.time), recording.link)]


def _reordered(recording: Recording, ports: frozenset[int]) -> list[bytes]:
    """One packet in 20 stands up to three places further down."""
    draw = random.Random(len(recording.packets))
    places = [n + (draw.uniform(1, 3.5) if draw.random() < 0.05 else 0) for n in range(len(recording.packets))]
    order = sorted(range(len(places)), key=lambda n: places[n])
    return [written([recording.packets[n] for n in order], recording.link)]


DAMAGE: dict[str, Copy] = {
    "1 % lost": _losing(0.01, 1),
    "1 % lost in bursts": _losing(0.01, 8),
    "begun late": _late,
    "5 % twice": _duplicated,
    "cut to 128 bytes": _snapped(128),
    "5 % change places": _reordered,
}
