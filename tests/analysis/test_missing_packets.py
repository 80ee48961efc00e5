"""Packets that a capture lacks for some seconds are not taken for clients, brokers or networks that stood still."""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import Any

import pytest
import zstandard

import kdissect
from tests.conftest import ROOT

Record = tuple[int, bytes, bytes]
"""A packet of a pcap file: its time in us, the record's header and its bytes."""
ABSENT = frozenset(
    ("client_paused", "clients_paused_together", "consumer_silent", "producer_silent", "network_silent",
     "broker_stalled")
)  # fmt: skip
"""Findings about somebody who sent nothing."""
LINKS = {1: 14, 113: 16, 276: 20, 101: 0}
"""Bytes in front of the IPv4 header, by link type."""


@cache
def records_of(name: str) -> tuple[bytes, list[Record]]:
    """The header and the packets of a little-endian pcap file, compressed or not."""
    data = (ROOT / "captures" / name).read_bytes()
    if name.endswith(".zst"):
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    tick = 1000 if data[:4] == bytes.fromhex("4d3cb2a1") else 1
    found, at = [], 24
    while at < len(data):
        seconds, part, captured, _ = struct.unpack_from("<4I", data, at)
        found.append((seconds * 10**6 + part // tick, data[at : at + 16], data[at + 16 : at + 16 + captured]))
        at += 16 + captured
    return data[:24], found


def table_of(header: bytes, records: list[Record], name: str) -> list[dict[str, Any]]:
    """The rows of a table of a capture."""
    data = header + b"".join(head + packet for _, head, packet in records)
    return kdissect.open(io.BytesIO(data)).table(name).to_pylist()


def told(header: bytes, records: list[Record]) -> list[tuple[str, str, str]]:
    """Kind, severity and headline of what is said about somebody who sent nothing."""
    rows = table_of(header, records, "findings")
    return [(row["id"], row["severity"], row["headline"]) for row in rows if row["id"] in ABSENT]


def within(records: list[Record], begin: float, end: float) -> tuple[int, int]:
    """Two instants by their share of a capture's time."""
    first, last = records[0][0], records[-1][0]
    return round(first + (last - first) * begin), round(first + (last - first) * end)


def ports_of(header: bytes, packet: bytes) -> tuple[int, int]:
    """Where an IPv4 packet comes from, and where it goes."""
    ip = LINKS[struct.unpack_from("<I", header, 20)[0]]
    source, target = struct.unpack_from(">HH", packet, ip + (packet[ip] & 15) * 4)
    return source, target


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("stories/kip848.pcap.zst", 0.3, 0.5),
        ("stories/kip848.pcap.zst", 0.5, 0.7),
        ("stories/tiny.pcap.zst", 0.5, 0.7),
        ("stories/tiny.pcap.zst", 0.45, 0.55),
        ("lab/healthy_librdkafka.pcap.zst", 0.3, 0.5),
        ("lab/healthy_kafka_python.pcap.zst", 0.5, 0.7),
    ],
)
def test_seconds_without_any_packet_are_nobodys_silence(name: str, begin: float, end: float) -> None:
    header, records = records_of(name)
    first, last = within(records, begin, end)
    kept = [one for one in records if not first < one[0] < last]
    assert len(kept) < len(records)
    assert told(header, kept) == told(header, records)


@pytest.mark.parametrize("name", ["stories/healthy", "stories/tiny", "stories/kip848", "lab/healthy_librdkafka"])
@pytest.mark.parametrize("begin", [0.35, 0.55])
def test_seconds_without_what_clients_sent_are_nobodys_silence(name: str, begin: float) -> None:
    """Brokers' answers show that clients went on."""
    header, records = records_of(f"{name}.pcap.zst")
    brokers = {row["broker_port"] for row in table_of(header, records, "connections")}
    first, last = within(records, begin, begin + 0.15)
    kept = []
    for at, head, packet in records:
        source, target = ports_of(header, packet)
        if not (first < at < last and target in brokers and source not in brokers):
            kept.append((at, head, packet))
    assert len(kept) < len(records)
    assert told(header, kept) == told(header, records)
