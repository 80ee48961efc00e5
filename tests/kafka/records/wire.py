"""Record sets out of a recorded capture without the dissector: scapy regroups the streams, batches are found by their
checksums alone. Slow and simple on purpose."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from pathlib import Path

import numpy as np
from crc32c import crc32c
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import CookedLinux, Ether
from scapy.utils import RawPcapReader


def streams(path: Path) -> list[bytes]:
    """Bytes of each direction of each connection, in order, without repeats (the captures used here lack nothing)."""
    parts: dict[tuple[str, int, str, int], dict[int, bytes]] = {}
    starts: dict[tuple[str, int, str, int], list[int]] = {}
    with RawPcapReader(str(path)) as packets:
        link = Ether if packets.linktype == 1 else CookedLinux
        for data, _ in packets:
            packet = link(data)
            if TCP not in packet:
                continue
            ip, tcp = packet[IP], packet[TCP]
            size = ip.len - ip.ihl * 4 - tcp.dataofs * 4
            key = (ip.src, tcp.sport, ip.dst, tcp.dport)
            if tcp.flags & 2:
                parts[(*key, len(starts))] = parts.pop(key, {})
                starts[key] = [tcp.seq + 1]
            if size > 0:
                first = starts.setdefault(key, [tcp.seq])[0]
                payload = bytes(tcp.payload)[:size]
                at = (tcp.seq - first) % 2**32
                if at < 2**31 and len(payload) > len(parts.setdefault(key, {}).get(at, b"")):
                    parts[key][at] = payload
    joined = []
    for pieces in parts.values():
        out = bytearray()
        for at in sorted(pieces):
            if at <= len(out) < at + len(pieces[at]):
                out += pieces[at][len(out) - at :]
            elif at > len(out):
                joined.append(bytes(out))
                out = bytearray(b"\0" * at)  # a hole: start over at the same place
                out += pieces[at]
        joined.append(bytes(out))
    return joined


def _sound(data: bytes, p: int) -> int:
    """Length of the whole batch or message at p whose checksum is right, else 0."""
    if p + 26 > len(data):
        return 0
    (length,) = struct.unpack_from(">i", data, p + 8)
    end = p + 12 + length
    if length < 14 or end > len(data):
        return 0
    if data[p + 16] == 2:
        if length < 49 or struct.unpack_from(">I", data, p + 17)[0] != crc32c(memoryview(data)[p + 21 : end]):
            return 0
    elif struct.unpack_from(">I", data, p + 12)[0] != zlib.crc32(memoryview(data)[p + 16 : end]):
        return 0
    return 12 + length


@cache
def record_sets(path: Path) -> list[bytes]:
    """Runs of adjacent batches in all streams of a capture, in no order; those of one record set stay together."""
    found = []
    for data in streams(path):
        s = np.frombuffer(data, np.uint8)
        if len(s) < 26:
            continue
        n = len(s) - 25
        length = np.zeros(n, np.int64)
        for k in range(4):
            length = (length << 8) | s[8 + k : 8 + k + n]
        likely = np.flatnonzero((s[16 : 16 + n] <= 2) & (length >= 14) & (length <= len(s)) & (s[:n] < 1))
        p = 0
        for start in likely.tolist():
            if start < p:
                continue
            p = start
            while size := _sound(data, p):
                p += size
            if p > start:
                found.append(data[start:p])
            else:
                p = 0
    return found
