"""Kafka frames of the workloads, made by hand from the protocol: layouts that tshark 4.0 knows too."""

from __future__ import annotations

import struct

import crc32c
import lz4.frame
import zstandard

from tests.bench.templates import Template, template_of

CLIENT_ID = b"bench-consumer-1"
BATCH_HEADER = 61
"""Bytes of a record batch before its records."""


def framed(body: Template | bytes) -> Template:
    """With the length prefix."""
    return template_of(struct.pack(">i", len(body)) + body)


def text(value: str | bytes) -> bytes:
    """A string with its int16 length."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">h", len(raw)) + raw


def request(key: int, version: int, body: Template | bytes) -> Template:
    """A request with header v1; the correlation id is 0, to be patched."""
    return framed(struct.pack(">hhi", key, version, 0) + text(CLIENT_ID) + body)


def response(body: Template | bytes) -> Template:
    """A response with header v0."""
    return framed(struct.pack(">i", 0) + body)


def batch(values: list[bytes], codec: str = "none") -> bytes:
    """A record batch (magic 2): a record for each value, without keys; its CRC is right."""
    one = b"".join(
        _varint(len(r)) + r
        for r in (
            b"\0" + _varint(n) + _varint(n) + _varint(-1) + _varint(len(value)) + value + _varint(0)
            for n, value in enumerate(values)
        )
    )
    records = len(values)
    code, packed = {
        "none": lambda: (0, one),
        "lz4": lambda: (3, lz4.frame.compress(one, block_linked=False)),
        "zstd": lambda: (4, zstandard.compress(one)),
    }[codec]()
    when = 1_800_000_000_000
    tail = struct.pack(">hiqqqhii", code, records - 1, when, when + records - 1, -1, -1, -1, records) + packed
    checked = struct.pack(">ibI", 0, 2, crc32c.crc32c(tail)) + tail
    return struct.pack(">qi", 1000, len(checked)) + checked


def _varint(value: int) -> bytes:
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def fetch_request(
    partitions: int, session: int | Template = 0, epoch: int = -1, topic: str = "orders", first: int = 0
) -> Template:
    """Fetch v11: so many partitions, numbered from `first` on."""
    rows = b"".join(struct.pack(">iiqqi", first + p, 3, 1000, -1, 1 << 20) for p in range(partitions))
    topics = struct.pack(">i", 1) + text(topic) + struct.pack(">i", partitions) + rows
    head = struct.pack(">iiiib", -1, 500, 1, 52428800, 0) + _session(session) + struct.pack(">i", epoch)
    return request(1, 11, head + topics + struct.pack(">i", 0) + text("rack-a"))


def _session(given: int | Template) -> Template:
    return template_of(struct.pack(">i", given) if isinstance(given, int) else given)


def fetch_response(
    records: list[bytes], session: int | Template = 0, topic: str = "orders", first: int = 0
) -> Template:
    """Fetch v11: one partition for each of `records`, numbered from `first` on."""
    rows = b"".join(
        struct.pack(">ihqqqii", first + p, 0, 2000, 2000, 0, -1, -1) + struct.pack(">i", len(r)) + r
        for p, r in enumerate(records)
    )
    topics = struct.pack(">i", 1) + text(topic) + struct.pack(">i", len(records)) + rows
    return response(struct.pack(">ih", 0, 0) + _session(session) + topics)


def produce_request(records: bytes, topic: str = "orders") -> Template:
    """Produce v7, acks=all."""
    head = struct.pack(">hhi", -1, -1, 30000) + struct.pack(">i", 1) + text(topic)
    return request(0, 7, head + struct.pack(">iii", 1, 4, len(records)) + records)


def produce_response(topic: str = "orders") -> Template:
    """Produce v7."""
    rows = struct.pack(">iihqqq", 1, 4, 0, 1000, -1, 0)
    return response(struct.pack(">i", 1) + text(topic) + rows + struct.pack(">i", 0))


def heartbeat_request() -> Template:
    """Heartbeat v3."""
    member = "bench-consumer-1-3f0c1d3e-7a57-4b0a-9a5a-6f2c6c1f3b11"
    return request(12, 3, text("bench-group") + struct.pack(">i", 7) + text(member) + struct.pack(">h", -1))


def heartbeat_response() -> Template:
    """Heartbeat v3."""
    return response(struct.pack(">ih", 0, 0))


def metadata_request(topics: int) -> Template:
    """Metadata v8."""
    names = b"".join(text(f"orders-{n:04d}") for n in range(topics))
    return request(3, 8, struct.pack(">i", topics) + names + b"\1\0\0")


def metadata_response(topics: int, partitions: int, brokers: int = 6) -> Template:
    """Metadata v8: that many topics of that many partitions each, three replicas."""
    nodes = b"".join(
        struct.pack(">i", n) + text(f"broker-{n}.kafka.example") + struct.pack(">ih", 9092, -1) for n in range(brokers)
    )
    rows = b""
    for topic in range(topics):
        each = b"".join(
            struct.pack(">hiiii", 0, p, p % brokers, 3, 3)
            + struct.pack(">iii", *((p + k) % brokers for k in range(3)))
            + struct.pack(">iiii", 3, *((p + k) % brokers for k in range(3)))
            + struct.pack(">i", 0)
            for p in range(partitions)
        )
        rows += struct.pack(">h", 0) + text(f"orders-{topic:04d}") + b"\0" + struct.pack(">i", partitions) + each
        rows += struct.pack(">i", -(2**31))
    cluster = text("MkU3OEVBNTcwNTJENDM2Qk")
    head = struct.pack(">ii", 0, brokers) + nodes + cluster + struct.pack(">ii", 1, topics)
    return response(head + rows + struct.pack(">i", -(2**31)))


def api_versions_request() -> Template:
    """ApiVersions v2."""
    return request(18, 2, b"")


def api_versions_response() -> Template:
    """ApiVersions v2 with 50 APIs."""
    rows = b"".join(struct.pack(">hhh", key, 0, 5) for key in range(50))
    return response(struct.pack(">hi", 0, 50) + rows + struct.pack(">i", 0))
