"""The workloads: what traffic each large capture holds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lz4.frame
import zstandard

from tests.bench import frames as f
from tests.bench.applications import application
from tests.bench.mixture import mixture
from tests.bench.packets import ACK, FIN, SYN, Cycle, Made, Packet, write
from tests.bench.templates import int32

SEGMENT = 16384
"""Payload of a packet of a large response: what a receiver's offload makes of a stream."""
PARTITIONS, VALUES = 4, 1000
"""Of a bulk response, and of each of its batches."""
VALUE = b"an event of forty bytes, as small as any"
"""A small record's value."""


def plain() -> Cycle:
    """Small frames without fetch sessions: a fetch with one small batch, a produce, a heartbeat."""
    cycle = Cycle()
    cycle.ask(f.fetch_request(2))
    cycle.answer(f.fetch_response([f.batch([VALUE])]))
    cycle.ask(f.produce_request(f.batch([VALUE])))
    cycle.answer(f.produce_response())
    cycle.ask(f.heartbeat_request())
    cycle.answer(f.heartbeat_response())
    return cycle


def bulk(codec: str = "none") -> Cycle:
    """Large fetches: responses of about 1 MB, four partitions of batches of a thousand 100-byte values."""
    one, times = _filling(codec)
    cycle = Cycle()
    cycle.ask(f.fetch_request(PARTITIONS))
    cycle.answer(f.fetch_response([one * times] * PARTITIONS), SEGMENT)
    return cycle


def _filling(codec: str) -> tuple[bytes, int]:
    """A batch, and how many of them make a partition of a quarter megabyte."""
    one = f.batch(_values(VALUES), codec)
    return one, max(1, (256 << 10) // len(one))


@dataclass(frozen=True, slots=True)
class Held:
    """What a bulk capture holds, and what its codec's library alone needs to decompress that."""

    records: int
    seconds: float | None


def held(name: str, exchanges: int) -> Held | None:
    """Of a bulk workload with so many exchanges; None for others."""
    codec = BULK.get(name)
    if codec is None:
        return None
    one, times = _filling(codec)
    batches = exchanges * PARTITIONS * times
    unpack = UNPACK.get(codec)
    if unpack is None:
        return Held(batches * VALUES, None)
    payload = one[f.BATCH_HEADER :]
    rounds = []
    for _ in range(3):
        started = time.process_time()
        for _ in range(batches):
            unpack(payload)
        rounds.append(time.process_time() - started)
    return Held(batches * VALUES, min(rounds))


BULK = {"bulk": "none", "bulk-lz4": "lz4", "bulk-zstd": "zstd"}
"""Codec of the workloads that are records and nothing else."""
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "lz4": lz4.frame.decompress,
    "zstd": zstandard.ZstdDecompressor().decompress,
}


def _values(count: int) -> list[bytes]:
    """Values of 100 bytes that compress as events in JSON do: about threefold."""
    rng = random.Random(1)
    return [
        b'{"event":"page_view","user":"%08x","item":%9d,"session":"%012x","price":%6d,"note":"%-9s"}'
        % (rng.getrandbits(32), rng.randrange(10**9), rng.getrandbits(48), rng.randrange(10**6), b"n%d" % (n % 17))
        for n in range(count)
    ]


def halves() -> Cycle:
    """Half plain, half bulk, by bytes."""
    cycle = Cycle()
    small, large = plain(), bulk()
    for _ in range(large.size // small.size):
        cycle.packets += small.packets
        cycle.exchanges += small.exchanges
    cycle.packets += large.packets
    cycle.exchanges += large.exchanges
    return cycle


def metadata() -> Cycle:
    """Responses that describe 10,000 partitions."""
    cycle = Cycle()
    cycle.ask(f.metadata_request(100))
    cycle.answer(f.metadata_response(100, 100), SEGMENT)
    return cycle


def sessions() -> Cycle:
    """Fetch sessions of 3,000 partitions: the full request, then twenty incremental ones."""
    cycle = Cycle()
    small = f.batch([VALUE])
    cycle.ask(f.fetch_request(3000, 0, 0), SEGMENT)
    cycle.answer(f.fetch_response([b""] * 3000, 77), SEGMENT)
    for epoch in range(1, 21):
        cycle.ask(f.fetch_request(50, 77, epoch))
        cycle.answer(f.fetch_response([small] * 50, 77))
    return cycle


def partitions(connections: int = 16) -> Cycle:
    """A fetch session of 20,000 partitions, all of which move once, two hundred a request. With so many connections
    each turn of each has a session of its own."""
    cycle = Cycle()
    count, some = 20_000, 200
    small = [f.batch([VALUE])] * some
    session = int32(1, copy=1, turn=connections)
    cycle.ask(f.fetch_request(count, 0, 0), SEGMENT)
    cycle.answer(f.fetch_response([b""] * count, session), SEGMENT)
    for epoch, first in enumerate(range(0, count, some), 1):
        cycle.ask(f.fetch_request(some, session, epoch, first=first), SEGMENT)
        cycle.answer(f.fetch_response(small, session, first=first), SEGMENT)
    return cycle


def short() -> Cycle:
    """A whole short connection: handshake, ApiVersions, Metadata of one topic, FIN both ways."""
    cycle = Cycle([Packet(0, b"", SYN), Packet(1, b"", SYN | ACK), Packet(0, b"")])
    cycle.ask(f.api_versions_request())
    cycle.answer(f.api_versions_response())
    cycle.ask(f.metadata_request(1))
    cycle.answer(f.metadata_response(1, 3, 3))
    cycle.packets += [Packet(0, b"", FIN | ACK), Packet(1, b"", FIN | ACK), Packet(0, b"")]
    return cycle


def _many(cycle: Callable[[], Cycle], connections: int, loss: float = 0.0) -> Callable[[Path, int], Made]:
    return lambda path, size: write(path, cycle(), size, connections, loss=loss)


def _together(cycle: Callable[[], Cycle], connections: int, loss: float = 0.0) -> Callable[[Path, int], Made]:
    return lambda path, size: write(path, cycle(), size, connections, interleave=None, loss=loss)


WORKLOADS: dict[str, tuple[str, Callable[[Path, int], Made]]] = {
    "chatter": (
        "small frames of Java's clients, fetch sessions (Fetch v12), 4,000 connections",
        _together(application, 4000),
    ),
    "chatter-16": ("the same over 16 connections", _together(application, 16)),
    "chatter-v11": ("the same with Fetch v11, 4,000 connections", _together(lambda: application(11), 4000)),
    "chatter-v11-16": ("the same with Fetch v11, 16 connections", _together(lambda: application(11), 16)),
    "chatter-v16": ("the same with Fetch v16, which names topics by id", _together(lambda: application(16), 4000)),
    "chatter-v16-16": ("the same with Fetch v16, 16 connections", _together(lambda: application(16), 16)),
    "plain": ("small frames without fetch sessions over 4,000 connections", _many(plain, 4000)),
    "plain-16": ("the same over 16 connections", _many(plain, 16)),
    "plain-5000": ("the same over 5,000 connections", _many(plain, 5000)),
    "bulk": ("fetch responses of 1 MB, uncompressed", _many(bulk, 16)),
    "bulk-lz4": ("the same, lz4", _many(lambda: bulk("lz4"), 16)),
    "bulk-zstd": ("the same, zstd", _many(lambda: bulk("zstd"), 16)),
    "mixed": ("sizes and shares of APIs as in the committed captures, 600 connections", _together(mixture, 600)),
    "halves": ("half plain, half bulk by bytes", _many(halves, 16)),
    "metadata": ("Metadata responses of 10,000 partitions", _many(metadata, 16)),
    "sessions": ("fetch sessions of 3,000 partitions", _many(sessions, 16)),
    "partitions": ("fetch sessions of 20,000 partitions", _many(partitions, 16)),
    "loss": ("chatter with 1 % of the packets missing", _together(application, 4000, 0.01)),
    "plain-loss": ("plain with 1 % of the packets missing", _many(plain, 4000, 0.01)),
    "giant": ("plain on one connection", _many(plain, 1)),
    "short": (
        "short connections, 1 KB each, a thousand a second",
        lambda path, size: write(path, short(), size, 1, fresh=True, step_us=100),
    ),
}
"""Name -> what it is, and what writes about so many bytes of it."""
