"""Small capture files written by hand, to the letter of the formats."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

CAPTURES = Path(__file__).parents[2] / "captures"

Packet = tuple[int, bytes]  # time in ns, bytes


def read_pcap(path: Path) -> list[Packet]:
    """Packets of a plain little-endian microsecond pcap file."""
    data = path.read_bytes()
    assert data[:4] == bytes.fromhex("d4c3b2a1")
    out, at = [], 24
    while at < len(data):
        seconds, part, captured, _ = struct.unpack_from("<4I", data, at)
        out.append((seconds * 10**9 + part * 1000, data[at + 16 : at + 16 + captured]))
        at += 16 + captured
    return out


def pcap(
    packets: Iterable[Packet],
    order: str = "<",
    magic: int = 0xA1B2C3D4,
    link: int = 1,
    snap: int = 262144,
    original: dict[int, int] | None = None,
) -> bytes:
    """A pcap file; `original` overrides original lengths by packet index."""
    tick = 1 if magic == 0xA1B23C4D else 1000
    extra = b"\0" * 8 if magic == 0xA1B2CD34 else b""
    out = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snap, link)]
    for i, (time, data) in enumerate(packets):
        wire = (original or {}).get(i, len(data))
        out.append(struct.pack(order + "4I", time // 10**9, time % 10**9 // tick, len(data), wire) + extra + data)
    return b"".join(out)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += b"\0" * (-len(body) % 4)
    size = len(body) + 12
    return struct.pack(order + "II", kind, size) + body + struct.pack(order + "I", size)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(order: str = "<", link: int = 1, snap: int = 0, options: bytes = b"") -> bytes:
    end = struct.pack(order + "HH", 0, 0) if options else b""
    return block(1, struct.pack(order + "HHI", link, 0, snap) + options + end, order)


def enhanced(ticks: int, data: bytes, order: str = "<", number: int = 0, wire: int | None = None) -> bytes:
    head = struct.pack(
        order + "5I", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data) if wire is None else wire
    )
    return block(6, head + data, order)


def simple(data: bytes, order: str = "<") -> bytes:
    return block(3, struct.pack(order + "I", len(data)) + data, order)


def old_packet(ticks: int, data: bytes, drops: int = 0, order: str = "<") -> bytes:
    head = struct.pack(order + "HHIIII", 0, drops, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
    return block(2, head + data, order)


def pcapng(packets: Iterable[Packet], order: str = "<") -> bytes:
    """One section, one interface with nanoseconds."""
    out = [section(order), interface(order, options=option(9, b"\x09", order))]
    return b"".join([*out, *(enhanced(time, data, order) for time, data in packets)])


def tcp(
    sequence: int = 1,
    data: bytes = b"",
    flags: int = 0x18,
    options: bytes = b"",
    ports: tuple[int, int] = (40000, 9092),
) -> bytes:
    head = struct.pack(">HHIIBBHHH", *ports, sequence, 7, (20 + len(options)) // 4 << 4, flags, 512, 0, 0)
    return head + options + data


def ip4(
    payload: bytes, protocol: int = 6, ident: int = 9, fragment: int = 0, total: int | None = None, options: bytes = b""
) -> bytes:
    size = 20 + len(options)
    total = size + len(payload) if total is None else total
    first = 0x40 | size // 4
    head = struct.pack(">BBHHHBBH", first, 0, total, ident, fragment, 64, protocol, 0)
    return head + bytes([10, 0, 0, 1, 10, 0, 0, 2]) + options + payload


def ip6(payload: bytes, following: int = 6, length: int | None = None) -> bytes:
    head = struct.pack(">IHBB", 6 << 28, len(payload) if length is None else length, following, 64)
    return head + b"\xfd" + bytes(14) + b"\x01" + b"\xfd" + bytes(14) + b"\x02" + payload


def ethernet(payload: bytes, kind: int = 0x0800) -> bytes:
    return bytes(12) + struct.pack(">H", kind) + payload


def udp(payload: bytes, port: int) -> bytes:
    return struct.pack(">HHHH", 55555, port, 8 + len(payload), 0) + payload
