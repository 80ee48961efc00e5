"""Packets that netfilter logged (LINKTYPE_NFLOG), and captures in other wrappings: their tables are Ethernet's."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kdissect
from tests.capture.build import ethernet, ip4, ip6, tcp
from tests.conftest import CAPTURES
from tests.net.test_packets import one
from tests.net.test_tunnels import nsh

PAYLOAD = 9
INNER = ip4(tcp(data=b"hello"))


def nflog(packet: bytes, order: str = "<", family: int = 2, last: bool = True) -> bytes:
    """What `tcpdump -i nflog` writes: the header of the packet, its hook and mark, the packet, a time."""

    def attribute(kind: int, value: bytes) -> bytes:
        return struct.pack(order + "HH", len(value) + 4, kind) + value + bytes(-len(value) % 4)

    head = struct.pack(">BBH", family, 0, 30)
    parts = [attribute(1, bytes.fromhex("08000300")), attribute(10, b"log\0"), attribute(19 | 0x8000, bytes(8))]
    parts += [attribute(PAYLOAD, packet), attribute(3, bytes(16))] if last else [attribute(PAYLOAD, packet)]
    return head + b"".join(parts)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("packet", "family"), [(INNER, 2), (ip6(tcp(data=b"hello")), 10)])
def test_the_packet_is_found(order: str, packet: bytes, family: int) -> None:
    found, _, payload = one(nflog(packet, order, family), link=239)
    assert (found, payload) == ({"tcp": 1}, b"hello")


def test_every_cut_is_counted() -> None:
    whole = nflog(INNER, last=False)
    for size in range(len(whole) - len(INNER)):
        found, _, payload = one(whole[:size], link=239, original=len(whole))
        assert payload == b""
        assert sum(found.values()) == 1


@pytest.mark.parametrize(
    ("packet", "kind"),
    [
        (struct.pack(">BBH", 2, 0, 0) + struct.pack("<HH", 3, 1) + bytes(40), "not_ip"),
        (struct.pack(">BBH", 2, 0, 0) + struct.pack("<HH", 4, 1) * 40, "not_ip"),
        (struct.pack(">BBH", 2, 1, 0) + bytes(40), "undecoded"),
        (nflog(b"\0" * 40), "not_ip"),
    ],
)
def test_what_is_none_is_counted(packet: bytes, kind: str) -> None:
    assert one(packet, link=239)[0] == {kind: 1}


def packets(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Times and packets of a little-endian pcap of Ethernet."""
    data = path.read_bytes()
    assert struct.unpack_from("<I", data, 20) == (1,)
    at = 24
    while at < len(data):
        (captured,) = struct.unpack_from("<I", data, at + 8)
        yield data[at : at + 8], data[at + 16 : at + 16 + captured]
        at += 16 + captured


WRAPPINGS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "nflog": (239, lambda frame: nflog(frame[14:])),
    "nsh 1": (1, lambda frame: ethernet(nsh(3) + frame, 0x894F)),
    "nsh 2": (1, lambda frame: ethernet(nsh(1, 2, bytes(8)) + frame[14:], 0x894F)),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_tables_are_those_of_ethernet(wrapping: str, tmp_path: Path) -> None:
    link, wrap = WRAPPINGS[wrapping]
    source = CAPTURES / "base_tiny.pcap"
    folders = []
    for name, change, kind in (("plain", lambda frame: frame, 1), ("wrapped", wrap, link)):
        (tmp_path / name).mkdir()
        made = (tmp_path / name / "same.pcap").open("wb")
        with made:
            made.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, kind))
            for time, frame in packets(source):
                packet = change(frame)
                made.write(time + struct.pack("<II", len(packet), len(packet)) + packet)
        folders.append(kdissect.open(tmp_path / name / "same.pcap").tables())
    plain, wrapped = folders
    assert plain["exchanges"].num_rows > 20
    for name, table in plain.items():
        if name != "capture_quality":  # which counts bytes of packets
            assert table.equals(wrapped[name]), name
