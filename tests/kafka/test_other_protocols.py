"""Recorded conversations of other protocols, whole and damaged as captures are: none is taken for Kafka."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterator

import pytest
import zstandard

import kdissect
from tests.fuzz.metamorphic import Packet, packets_of, side_by_side, written
from tests.oracle.material import CAPTURES

NAMES = (
    "amqp", "cassandra", "grpc", "http", "mqtt", "mysql", "postgresql", "redis", "tls", "zookeeper",
)  # fmt: skip
SNAPS = (74, 96, 128, 200)
BROKER = struct.pack(">H", 9092)


def recorded() -> dict[str, list[Packet]]:
    """The packets of each recording."""
    out = {}
    for name in NAMES:
        with (CAPTURES / "others" / f"{name}.pcap.zst").open("rb") as file:
            out[name] = packets_of(zstandard.ZstdDecompressor().stream_reader(file).read())
    out["twenty more"] = packets_of((CAPTURES / "not_kafka.pcap").read_bytes())
    return out


def to_the_brokers_port(packets: list[Packet]) -> list[Packet]:
    """As if the server were a broker: its port is the one of the first SYN."""
    server = next(data[36:38] for _, data, _ in packets if data[47] & 18 == 2)

    def moved(data: bytes) -> bytes:
        ports = [BROKER if port == server else port for port in (data[34:36], data[36:38])]
        return data[:34] + b"".join(ports) + data[38:]

    return [(when, moved(data), size) for when, data, size in packets]


def one_way(packets: list[Packet], chance: random.Random) -> list[Packet]:
    """What one side of each connection sent."""
    asks = chance.random() < 0.5
    return [packet for packet in packets if (packet[1][34:36] > packet[1][36:38]) == asks]


def damaged(packets: list[Packet], chance: random.Random) -> Iterator[list[Packet]]:
    """Ways in which captures are not whole: cut, begun late, with holes, one direction only, and several of these."""
    middle = [packet for packet in packets if not packet[1][47] & 2]
    late = middle[chance.randrange(len(middle) // 2) :]
    yield packets
    yield middle
    yield to_the_brokers_port(packets)
    for kept in (middle, late):
        for snap in SNAPS:
            rate = chance.choice((0, 0.01, 0.03, 0.05))
            torn = [packet for packet in kept if chance.random() >= rate]
            for some in (torn, one_way(torn, chance)):
                yield [(when, data[:snap], size) for when, data, size in some]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 12))])
def test_none_is_taken_for_kafka(seed: int) -> None:
    chance = random.Random(seed)
    captures = [(name, one) for name, packets in recorded().items() for one in damaged(packets, chance)]
    assert len(captures) > 200
    for first in range(0, len(captures), 100):
        some = captures[first : first + 100]
        file = io.BytesIO(written(side_by_side([packets for _, packets in some])))
        file.name = "others.pcap"
        tables = kdissect.open(file, jobs=1).tables(
            {"connections": ["client_ip", "is_kafka"], "exchanges": ["exchange_id"]}
        )
        rows = tables["connections"].to_pylist()
        assert len(rows) >= len(some)
        taken = {row["client_ip"] for row in rows if row["is_kafka"]}
        assert not [some[int(ip.split(".")[1])][0] for ip in taken]
        assert tables["exchanges"].num_rows == 0
