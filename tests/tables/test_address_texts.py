"""Texts of addresses and brokers by columns, against Python's `ipaddress` and plain strings."""

from __future__ import annotations

import ipaddress
import random

import numpy as np
import pyarrow as pa
import pytest

from kdissect.tables.address_texts import ROOM, Addresses, behind_separator, numbered, write_texts
from kdissect.tables.identity import address, endpoint


def some_addresses() -> list[int]:
    """IPv4-mapped ones, and IPv6 ones with every pattern of groups that are zero."""
    chance = random.Random(1)
    mapped = [0xFFFF << 32 | value for value in (0, 1, 2**32 - 1, 0x0A000001, 0x7F000001, 0xC0A80164)]
    mapped += [0xFFFF << 32 | chance.getrandbits(32) for _ in range(200)]
    patterned = []
    for pattern in range(256):
        groups = [chance.choice((1, 0xA, 0xBC, 0xDEF, 0x1234, 0xFFFF)) if pattern >> n & 1 else 0 for n in range(8)]
        patterned.append(int.from_bytes(b"".join(group.to_bytes(2, "big") for group in groups), "big"))
    near = [0xFFFE << 32 | 5, 0x1FFFF << 32 | 5, 1 << 64 | 0xFFFF << 32 | 5]
    return mapped + patterned + near + [chance.getrandbits(128) for _ in range(200)]


def halves(addresses: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([value >> 64 for value in addresses], np.uint64),
        np.array([value & 2**64 - 1 for value in addresses], np.uint64),
    )


def expected(value: int) -> str:
    found = ipaddress.IPv6Address(value)
    return str(found.ipv4_mapped) if value >> 32 == 0xFFFF and value >> 48 == 0 else str(found)


def test_addresses_are_written_as_python_writes_them() -> None:
    some = some_addresses()
    high, low = halves(some)
    column = Addresses(high, low).column
    column.validate(full=True)
    assert column.to_pylist() == [expected(value) for value in some]
    assert column.to_pylist() == [address(value >> 64, value & 2**64 - 1) for value in some]
    assert len(column.dictionary) == len(set(some))


def test_hosts_and_brokers_stand_behind_their_prefix() -> None:
    some = some_addresses() * 2
    chance = np.random.default_rng(1)
    port, capture = chance.integers(0, 65536, len(some)), chance.integers(0, 3, len(some))
    names = ["", "größer.pcap", "a\tb.pcap"]
    found = Addresses(*halves(some))
    assert found.unresolved_hosts.to_pylist() == [f"\t{expected(value)}" for value in some]
    brokers = found.unresolved_brokers(port.astype(np.uint16), capture, names)
    brokers.validate(full=True)
    places = [endpoint(expected(value), at) for value, at in zip(some, port.tolist(), strict=True)]
    assert brokers.to_pylist() == [f"{names[n]}\t{at}" for n, at in zip(capture.tolist(), places, strict=True)]
    assert behind_separator(brokers.dictionary).take(brokers.indices).to_pylist() == places


def test_the_longest_text_has_room() -> None:
    longest = int.from_bytes(b"\xab\xcd" * 8, "big")
    (text,) = write_texts(*halves([longest]), np.array([65535]), np.array([0]), [""]).to_pylist()
    assert text == f"[{expected(longest)}]:65535"
    assert len(text) == ROOM


@pytest.mark.parametrize("begin", [0, 1, 3])
def test_what_stands_behind_the_last_separator(begin: int) -> None:
    texts = ["a\tb", "no", "", "a\tb\tc", "\t", None, "ü\tö", "x"]
    behind = behind_separator(pa.array(texts, pa.string()).slice(begin))
    behind.validate(full=True)
    assert behind.to_pylist() == [text if text is None else text.rpartition("\t")[2] for text in texts[begin:]]
    assert behind_separator(pa.array([None], pa.string())).to_pylist() == [None]
    assert behind_separator(pa.array([], pa.string())).to_pylist() == []


def test_no_addresses() -> None:
    none = Addresses(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    assert len(none.column) == len(none.unresolved_hosts) == 0
    assert len(none.unresolved_brokers(np.zeros(0, np.uint16), np.zeros(0, np.int32), ["a"])) == 0


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_numbers_of_values_are_those_of_arrow(kind: type) -> None:
    rng = np.random.default_rng(5)
    alike = np.arange(4000) << 32 | 7
    for values in (
        rng.integers(0, 50, 3000),
        rng.integers(0, 1 << 62, 3000),
        np.concatenate([alike, alike]),
        alike[:0],
    ):
        codes, distinct = numbered(values.astype(kind))
        found = pa.array(values.astype(kind)).dictionary_encode()
        assert codes.tolist() == found.indices.to_pylist()
        assert distinct.dtype == kind
        assert distinct.tolist() == found.dictionary.to_pylist()
