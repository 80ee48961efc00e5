"""Frames of the versions that Java's clients send: Fetch in sessions (KIP-227), flexible versions (KIP-482).

Layouts of Apache Kafka's message definitions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.frames import framed
from tests.bench.templates import Template, join, template_of

FETCH_FLEXIBLE, FETCH_TOPIC_IDS, FETCH_NO_REPLICA = 12, 13, 15
"""The first versions of Fetch that are flexible, that name topics by id, that have no replica id in their body."""
PRODUCE_FLEXIBLE, METADATA_TOPIC_IDS = 9, 10
"""The first versions of Produce that are flexible, and of Metadata that have topic ids."""
MAX_WAIT_MS = 500
Bytes = Template | bytes


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's name, and its id (sixteen bytes)."""

    name: Bytes
    id: Bytes


@dataclass(frozen=True, slots=True)
class Client:
    """A client's id, and what its requests have in front of their bodies."""

    id: Bytes

    def request(self, key: int, version: int, body: Bytes, flexible: bool = True) -> Template:
        """A request with header v2, or v1 where it is not flexible; the correlation id is 0, to be patched."""
        head = struct.pack(">hhi", key, version, 0) + struct.pack(">h", len(self.id)) + self.id
        return framed(template_of(head) + _tags(flexible) + body)


def response(body: Bytes, flexible: bool = True) -> Template:
    """A response with header v1, or v0 where it is not flexible."""
    return framed(struct.pack(">i", 0) + _tags(flexible) + body)


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tags(flexible: bool) -> bytes:
    return b"\0" if flexible else b""


def _text(value: Bytes, flexible: bool = True) -> Template:
    return template_of(uvarint(len(value) + 1) if flexible else struct.pack(">h", len(value))) + value


def _no_text(flexible: bool) -> bytes:
    return b"\0" if flexible else struct.pack(">h", -1)


def _blob(value: Bytes, flexible: bool = True) -> Template:
    return template_of(uvarint(len(value) + 1) if flexible else struct.pack(">i", len(value))) + value


def _array(items: Sequence[Bytes], flexible: bool = True) -> Template:
    return join([uvarint(len(items) + 1) if flexible else struct.pack(">i", len(items)), *items])


def records_at(offset: Template, batch: bytes) -> Template:
    """A record batch that begins at another offset, which its checksum does not cover."""
    return offset + batch[8:]


def fetch_request(
    version: int, client: Client, session: Bytes, epoch: Bytes, topic: Topic, offsets: Sequence[tuple[int, Bytes]]
) -> Template:
    """Fetch v11 to v16 of a consumer: partitions of one topic, each with its offset; none where only the session's are
    meant."""
    flexible, tags = version >= FETCH_FLEXIBLE, _tags(version >= FETCH_FLEXIBLE)
    rows = [
        join([
            struct.pack(">ii", partition, 3), offset, struct.pack(">i", -1) if flexible else b"",
            struct.pack(">qi", -1, 1 << 20), tags,
        ])
        for partition, offset in offsets
    ]  # fmt: skip
    topics = [join([_named(version, topic), _array(rows, flexible), tags])] if rows else []
    replica = b"" if version >= FETCH_NO_REPLICA else struct.pack(">i", -1)
    body = join([
        replica, struct.pack(">iiib", MAX_WAIT_MS, 1, 52428800, 0), session, epoch, _array(topics, flexible),
        _array([], flexible), _text(b"", flexible), tags,
    ])  # fmt: skip
    return client.request(1, version, body, flexible)


def fetch_response(
    version: int, session: Bytes, topic: Topic, partitions: Sequence[tuple[int, Bytes, Bytes]]
) -> Template:
    """Fetch v11 to v16: partitions of one topic, each with its high watermark and records."""
    flexible, tags = version >= FETCH_FLEXIBLE, _tags(version >= FETCH_FLEXIBLE)
    no_aborted = b"\0" if flexible else struct.pack(">i", -1)
    rows = [
        join([
            struct.pack(">ih", partition, 0), watermark, watermark, struct.pack(">q", 0), no_aborted,
            struct.pack(">i", -1), _blob(records, flexible), tags,
        ])
        for partition, watermark, records in partitions
    ]  # fmt: skip
    topics = [join([_named(version, topic), _array(rows, flexible), tags])] if rows else []
    return response(join([struct.pack(">ih", 0, 0), session, _array(topics, flexible), tags]), flexible)


def _named(version: int, topic: Topic) -> Bytes:
    return topic.id if version >= FETCH_TOPIC_IDS else _text(topic.name, version >= FETCH_FLEXIBLE)


def produce_request(version: int, client: Client, topic: Topic, partitions: Sequence[tuple[int, Bytes]]) -> Template:
    """Produce v8 or v9, acks=all: records of several partitions of one topic."""
    flexible, tags = version >= PRODUCE_FLEXIBLE, _tags(version >= PRODUCE_FLEXIBLE)
    rows = [join([struct.pack(">i", index), _blob(records, flexible), tags]) for index, records in partitions]
    topics = _array([join([_text(topic.name, flexible), _array(rows, flexible), tags])], flexible)
    body = join([_no_text(flexible), struct.pack(">hi", -1, 30000), topics, tags])
    return client.request(0, version, body, flexible)


def produce_response(version: int, topic: Topic, partitions: Sequence[tuple[int, Bytes]]) -> Template:
    """Produce v8 or v9: partitions of one topic, each with the offset of its first record."""
    flexible, tags = version >= PRODUCE_FLEXIBLE, _tags(version >= PRODUCE_FLEXIBLE)
    behind = join([struct.pack(">qq", -1, 0), _array([], flexible), _no_text(flexible), tags])
    rows = [join([struct.pack(">ih", index, 0), offset, behind]) for index, offset in partitions]
    topics = _array([join([_text(topic.name, flexible), _array(rows, flexible), tags])], flexible)
    return response(join([topics, struct.pack(">i", 0), tags]), flexible)


def heartbeat_request(client: Client, group: Bytes, member: Bytes) -> Template:
    """Heartbeat v4."""
    body = join([_text(group), struct.pack(">i", 7), _text(member), b"\0", b"\0"])
    return client.request(12, 4, body)


def heartbeat_response() -> Template:
    """Heartbeat v4."""
    return response(struct.pack(">ih", 0, 0) + b"\0")


def commit_request(
    client: Client, group: Bytes, member: Bytes, topic: Topic, offsets: Sequence[tuple[int, Bytes]]
) -> Template:
    """OffsetCommit v8: offsets of partitions of one topic."""
    rows = [join([struct.pack(">i", p), offset, struct.pack(">i", -1), b"\1", b"\0"]) for p, offset in offsets]
    topics = _array([join([_text(topic.name), _array(rows), b"\0"])])
    return client.request(8, 8, join([_text(group), struct.pack(">i", 7), _text(member), b"\0", topics, b"\0"]))


def commit_response(topic: Topic, partitions: Sequence[int]) -> Template:
    """OffsetCommit v8."""
    rows = [struct.pack(">ih", partition, 0) + b"\0" for partition in partitions]
    topics = _array([join([_text(topic.name), _array(rows), b"\0"])])
    return response(join([struct.pack(">i", 0), topics, b"\0"]))


def api_versions_request(client: Client) -> Template:
    """ApiVersions v3."""
    return client.request(18, 3, join([_text(b"apache-kafka-java"), _text(b"3.9.1"), b"\0"]))


def api_versions_response(count: int = 60) -> Template:
    """ApiVersions v3 with so many APIs; its header is v0 (KIP-511)."""
    rows = [struct.pack(">hhh", key, 0, 17) + b"\0" for key in range(count)]
    return response(join([struct.pack(">h", 0), _array(rows), struct.pack(">i", 0), b"\0"]), flexible=False)


def metadata_request(version: int, client: Client, topic: Topic) -> Template:
    """Metadata v9 or v12 of one topic, by its name."""
    ids = version >= METADATA_TOPIC_IDS
    topics = _array([join([bytes(16) if ids else b"", _text(topic.name), b"\0"])])
    return client.request(3, version, join([topics, b"\1\0" if ids else b"\1\0\0", b"\0"]))


def metadata_response(version: int, topic: Topic, partitions: int, brokers: int = 3) -> Template:
    """Metadata v9 or v12 of one topic: so many partitions, three replicas each."""
    ids, nobody_asked = version >= METADATA_TOPIC_IDS, struct.pack(">i", -(2**31))
    nodes = [
        join([struct.pack(">i", n), _text(b"broker-%d.kafka.example" % n), struct.pack(">i", 9092), b"\0", b"\0"])
        for n in range(brokers)
    ]
    rows = []
    for partition in range(partitions):
        replicas = _array([struct.pack(">i", (partition + k) % brokers) for k in range(3)])
        leads = struct.pack(">hiii", 0, partition, partition % brokers, 3)
        rows.append(join([leads, replicas, replicas, _array([]), b"\0"]))
    name = [struct.pack(">h", 0), _text(topic.name), topic.id if ids else b"", b"\0"]
    one = join([*name, _array(rows), nobody_asked, b"\0"])
    cluster = [_text(b"MkU3OEVBNTcwNTJENDM2Qk"), struct.pack(">i", 1)]
    end = b"\0" if ids else nobody_asked + b"\0"
    return response(join([struct.pack(">i", 0), _array(nodes), *cluster, _array([one]), end]))


def list_offsets_request(client: Client, topic: Topic, partition: int) -> Template:
    """ListOffsets v6: the end of one partition."""
    rows = _array([struct.pack(">iiq", partition, 3, -1) + b"\0"])
    topics = _array([join([_text(topic.name), rows, b"\0"])])
    return client.request(2, 6, join([struct.pack(">ib", -1, 0), topics, b"\0"]))


def list_offsets_response(topic: Topic, partition: int, offset: Bytes) -> Template:
    """ListOffsets v6."""
    rows = _array([join([struct.pack(">ihq", partition, 0, -1), offset, struct.pack(">i", 3), b"\0"])])
    return response(join([struct.pack(">i", 0), _array([join([_text(topic.name), rows, b"\0"])]), b"\0"]))


def coordinator_request(client: Client, group: Bytes) -> Template:
    """FindCoordinator v3, of a group."""
    return client.request(10, 3, join([_text(group), b"\0", b"\0"]))


def coordinator_response() -> Template:
    """FindCoordinator v3."""
    broker = [struct.pack(">i", 1), _text(b"broker-1.kafka.example"), struct.pack(">i", 9092)]
    return response(join([struct.pack(">ih", 0, 0), b"\0", *broker, b"\0"]))


def committed_request(client: Client, group: Bytes, topic: Topic, partitions: Sequence[int]) -> Template:
    """OffsetFetch v7."""
    rows = _array([struct.pack(">i", partition) for partition in partitions])
    topics = _array([join([_text(topic.name), rows, b"\0"])])
    return client.request(9, 7, join([_text(group), topics, b"\0", b"\0"]))


def committed_response(topic: Topic, offsets: Sequence[tuple[int, Bytes]]) -> Template:
    """OffsetFetch v7."""
    rows = [
        join([struct.pack(">i", p), offset, struct.pack(">i", -1), b"\1", struct.pack(">h", 0), b"\0"])
        for p, offset in offsets
    ]
    topics = _array([join([_text(topic.name), _array(rows), b"\0"])])
    return response(join([struct.pack(">i", 0), topics, struct.pack(">h", 0), b"\0"]))
