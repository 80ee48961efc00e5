"""Community ids against the reference implementation."""

from __future__ import annotations

import ipaddress
import random

import communityid
import numpy as np
import pytest

import kdissect
from kdissect.kafka.completed import Connections
from kdissect.tables.community import community_ids
from tests.conftest import CAPTURES

ENDS = ("client_hi", "client_lo", "broker_hi", "broker_lo")


def expected(client: str, client_port: int, broker: str, broker_port: int) -> str:
    flow = communityid.FlowTuple.make_tcp(client, broker, client_port, broker_port)
    return str(communityid.CommunityID().calc(flow))


class Ends:
    """Connections as far as community ids read them."""

    def __init__(self, rows: list[tuple[str, int, str, int]]) -> None:
        for name, values in zip(ENDS, zip(*map(_halves, rows), strict=True), strict=True):
            setattr(self, name, np.array(values, np.uint64))
        self.client_port = np.array([row[1] for row in rows], np.uint16)
        self.broker_port = np.array([row[3] for row in rows], np.uint16)


def _halves(row: tuple[str, int, str, int]) -> list[int]:
    numbers = []
    for text in (row[0], row[2]):
        address = ipaddress.ip_address(text)
        number = int(address) if address.version == 6 else MAPPED << 32 | int(address)
        numbers += [number >> 64, number & 0xFFFFFFFFFFFFFFFF]
    return numbers


MAPPED = 0xFFFF


def ids(rows: list[tuple[str, int, str, int]]) -> list[str]:
    table: Connections = Ends(rows)  # type: ignore[assignment]
    return [text.decode() for text in community_ids(table, np.arange(len(rows))).tolist()]


def test_ids_are_those_of_the_reference_implementation() -> None:
    draw = random.Random(4)
    rows = [("10.0.0.1", 9092, "10.0.0.1", 9092), ("10.0.0.1", 40000, "10.0.0.1", 9092), ("::1", 1, "::1", 65535)]
    for _ in range(300):
        bits = draw.choice([32, 128])
        kind = ipaddress.IPv4Address if bits == 32 else ipaddress.IPv6Address
        client, broker = (str(kind(draw.getrandbits(bits))) for _ in range(2))
        rows.append((client, draw.getrandbits(16), broker, draw.getrandbits(16)))
    assert ids(rows) == [expected(*row) for row in rows]


@pytest.mark.parametrize("name", ["base", "field_ipv6_options"])
def test_connections_and_exchanges_of_a_recording_have_them(name: str) -> None:
    capture = kdissect.open(CAPTURES / f"{name}.pcap")
    for table in ("connections", "exchanges"):
        columns = ["client_ip", "client_port", "broker_ip", "broker_port", "community_id"]
        rows = {tuple(row.values()) for row in capture.table(table, columns).to_pylist()}
        assert rows
        assert {row[-1] for row in rows} == {expected(*row[:-1]) for row in rows}
