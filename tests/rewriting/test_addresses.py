"""Stand-ins of addresses: one for each, also beyond the room that there is at first."""

from __future__ import annotations

import struct

import numpy as np

from kdissect.capture.pcap import PACKET
from kdissect.rewriting.addresses import SLOTS, Addresses

IP_LINK = 101
HEADERS = 40


def hidden(addresses: Addresses, numbers: list[int]) -> list[int]:
    """What stands for the sources 10.0.0.0 + number of packets to 192.0.2.1."""
    raw = b"".join(
        struct.pack(">BBHHHBBH", 0x45, 0, HEADERS, 0, 0, 64, 6, 0)
        + struct.pack(">II", (10 << 24) + number, 0xC0000201)
        + struct.pack(">HHIIBBHHH", 1000, 9092, 1, 1, 0x50, 16, 100, 0, 0)
        for number in numbers
    )
    records = np.frombuffer(raw, np.uint8).copy()
    packets = np.zeros((len(numbers), 6), np.int64)
    packets[:, PACKET.captured], packets[:, PACKET.link] = HEADERS, IP_LINK
    place = np.arange(len(numbers)) * HEADERS
    addresses.hide(records, packets, place, np.full(len(numbers), HEADERS))
    return [int(one) for one in records.reshape(-1, HEADERS)[:, 12:16].copy().view(">u4")[:, 0]]


def test_each_has_its_own_and_keeps_it() -> None:
    addresses = Addresses()
    numbers = list(range(3 * SLOTS))
    first = hidden(addresses, numbers)
    assert len(set(first)) == len(numbers)
    assert not set(first) & {(10 << 24) + number for number in numbers}
    assert hidden(addresses, numbers[::-1]) == first[::-1]
    assert addresses.replaced == len(numbers) + 1


def test_brokers_stay() -> None:
    addresses = Addresses()
    kept = np.array([[0, 0xFFFF << 32 | (10 << 24) + number] for number in range(SLOTS)], np.int64)
    addresses.keep(kept)
    assert hidden(addresses, list(range(SLOTS))) == [(10 << 24) + number for number in range(SLOTS)]
    assert addresses.replaced == 1
