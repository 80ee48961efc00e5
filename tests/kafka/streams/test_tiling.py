"""Cut connections that were met in their middle: Kafka by its headers, and nothing else for Kafka."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import kdissect
from tests.fuzz.metamorphic import packets_of, written
from tests.oracle.material import CAPTURES
from tests.oracle.pcap import Talk, framed, pcap

LONG = "a-client-id-that-no-packet-of-96-bytes-can-hold-to-its-end"
Turn = tuple[int, bytes]


def kafka_in(data: bytes) -> int:
    file = io.BytesIO(data)
    file.name = "cut.pcap"
    return sum(kdissect.open(file, jobs=1).table("connections", columns=["is_kafka"])["is_kafka"].to_pylist())


def cut(turns: list[Turn], snap: int = 96, port: int = 50000) -> bytes:
    """One connection without its beginning: each turn is a packet of a side, cut."""
    talk, at = Talk(client=("10.0.0.1", port)), [0, 0]
    for number, (side, data) in enumerate(turns):
        talk.put(number, side, at[side], data)
        at[side] += len(data)
    return pcap(talk.packets, snap)


def asks(correlation: int, size: int = 900, key: int = 1, version: int = 11, client: str = LONG) -> bytes:
    head = struct.pack(">hhih", key, version, correlation, len(client)) + client.encode()
    return framed(head + bytes(size))


def answer(correlation: int, size: int = 700) -> bytes:
    return framed(struct.pack(">i", correlation) + bytes(size))


def statuses(data: bytes) -> list[tuple[int, str]]:
    file = io.BytesIO(data)
    file.name = "cut.pcap"
    table = kdissect.open(file, jobs=1).table("exchanges", columns=["correlation_id", "status"])
    return list(zip(table["correlation_id"].to_pylist(), table["status"].to_pylist(), strict=True))


def test_headers_alone_tell_requests_and_their_answers() -> None:
    turns = [turn for n in range(6) for turn in ((0, asks(100 + n)), (1, answer(100 + n)))]
    assert statuses(cut(turns)) == [(100 + n, "partial") for n in range(6)]


def test_one_direction_is_enough_with_four_in_a_row() -> None:
    requests = [(0, asks(7 + n, size=300 + n)) for n in range(4)]
    assert [n for n, _ in statuses(cut(requests))] == [7, 8, 9, 10]
    assert statuses(cut(requests[:3])) == []


def test_one_request_needs_its_answer() -> None:
    assert len(statuses(cut([(0, asks(41)), (1, answer(41))]))) == 1
    assert statuses(cut([(0, asks(41)), (1, answer(42))])) == []
    assert statuses(cut([(0, asks(41)), (1, answer(41)[:-3])])) == []


def test_the_beginning_may_lie_inside_a_message() -> None:
    rest = [(0, bytes(range(200))), (1, bytes(reversed(range(250))))]
    turns = [turn for n in range(4) for turn in ((0, asks(9 + n)), (1, answer(9 + n)))]
    assert [n for n, _ in statuses(cut(rest + turns))] == [9, 10, 11, 12]


@pytest.mark.parametrize(
    "change",
    [
        lambda n: asks(n, key=900),
        lambda n: asks(n, version=31),
        lambda n: asks(5),
        lambda n: asks(50 - n),
        lambda n: asks(n, client=f"{n}-{LONG}"),
        lambda n: asks(n, client=""),
        lambda n: asks(n, client="\1\2"),
        lambda n: asks(n, version=4 + n % 2, client="\1"),
        lambda n: asks(n) + b"more",
    ],
)
def test_what_does_not_fit_together_is_not_kafka(change: Callable[[int], bytes]) -> None:
    assert statuses(cut([(0, change(n)) for n in range(8)])) == []


def others(chance: random.Random) -> dict[str, list[Turn]]:
    """A conversation of each of many protocols, as its document lays out messages."""

    def text(most: int = 60) -> bytes:
        return bytes(chance.choice(b"abcdefghijklmnopqrstuvwxyz-_.") for _ in range(chance.randint(1, most)))

    def turns(ask: Callable[[int], bytes], reply: Callable[[int], bytes]) -> list[Turn]:
        return [turn for n in range(1, 13) for turn in ((0, ask(n)), (1, reply(n)))]

    def http2(kind: int, stream: int, body: bytes) -> bytes:
        return struct.pack(">I", len(body))[1:] + bytes([kind, 4]) + struct.pack(">i", stream) + body

    def cassandra(version: int, n: int, body: bytes) -> bytes:
        return struct.pack(">BBhBi", version, 0, n, 7 if version < 128 else 8, len(body)) + body

    def mysql(n: int, body: bytes) -> bytes:
        return struct.pack("<I", len(body) | n << 24) + body

    def mongo(n: int, to: int, body: bytes) -> bytes:
        return struct.pack("<iiii", len(body) + 16, n, to, 2013) + body

    def thrift(kind: int, n: int) -> bytes:
        name = text(20)
        return framed(struct.pack(">HHi", 0x8001, kind, len(name)) + name + struct.pack(">i", n) + text(300))

    def zookeeper(n: int) -> bytes:
        path = b"/" + text(40)
        return framed(struct.pack(">iii", n, chance.choice((1, 2, 3, 4, 5, 8, 12, n)), len(path)) + path + b"\0")

    noise = chance.randbytes
    start = chance.randint(0, 9)
    return {
        "http": turns(
            lambda n: b"GET /" + text() + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            lambda n: b"HTTP/1.1 200 OK\r\n" + text(900),
        ),
        "http2": turns(lambda n: http2(1, 2 * n + 1, noise(80)), lambda n: http2(0, 2 * n + 1, noise(400))),
        "grpc": turns(lambda n: http2(0, n, framed(noise(200))), lambda n: http2(0, n, b"\0" + framed(noise(200)))),
        "postgresql": turns(
            lambda n: b"Q" + struct.pack(">i", 204) + noise(200),
            lambda n: b"T" + struct.pack(">i", 304) + noise(300),
        ),
        "mysql": turns(lambda n: mysql(0, b"\3select " + text(200)), lambda n: mysql(1, noise(300))),
        "redis": turns(lambda n: b"*2\r\n$3\r\nGET\r\n$9\r\n" + text(), lambda n: b"$300\r\n" + text(300)),
        "amqp": turns(
            lambda n: b"\1\0\1" + framed(noise(120)) + b"\xce",
            lambda n: b"\3\0\1" + framed(noise(300)) + b"\xce",
        ),
        "mqtt": turns(
            lambda n: b"\x32\xc8\1\0\5a/b/c" + struct.pack(">h", n) + noise(191),
            lambda n: b"\x40\2" + struct.pack(">h", n),
        ),
        "cassandra": turns(lambda n: cassandra(4, n, framed(text(200))), lambda n: cassandra(132, n, noise(300))),
        "zookeeper": turns(
            lambda n: zookeeper(n + start),
            lambda n: framed(struct.pack(">iqi", n + start, 70 + n, 0) + noise(90)),
        ),
        "mongodb": turns(lambda n: mongo(n, 0, noise(200)), lambda n: mongo(900 + n, n, noise(300))),
        "thrift": turns(lambda n: thrift(1, n), lambda n: thrift(2, n)),
        "tls": turns(lambda n: b"\x17\3\3\0\xc8" + noise(200), lambda n: b"\x17\3\3\1\x2c" + noise(300)),
        "counted": turns(
            lambda n: framed(struct.pack(">ii", n, n) + noise(150)),
            lambda n: framed(struct.pack(">ii", n, 0) + noise(90)),
        ),
        "zeros": turns(
            lambda n: framed(struct.pack(">ii", 0, n) + bytes(150)),
            lambda n: framed(struct.pack(">i", n) + bytes(90)),
        ),
        "noise": turns(lambda n: noise(chance.randint(1, 900)), lambda n: noise(chance.randint(1, 900))),
    }  # fmt: skip


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 20))]
)
def test_other_protocols_are_not_taken_for_kafka(seed: int) -> None:
    chance = random.Random(seed)
    for name, turns in others(chance).items():
        for snap in (74, 96, 200):
            kept = [turn for turn in turns if chance.random() > 0.03]
            assert kafka_in(cut(kept, snap)) == 0, (name, snap)


@pytest.mark.oracle
@pytest.mark.parametrize("snap", [74, 96, 128, 200])
def test_recorded_ones_are_not_either(snap: int) -> None:
    packets = packets_of(Path(CAPTURES / "not_kafka.pcap").read_bytes())
    middle = [packet for packet in packets if packet[1][47] & 2 == 0]
    for kept in (packets, middle, middle[7:], middle[1::2]):
        assert kafka_in(written([(when, data[:snap], size) for when, data, size in kept])) == 0
