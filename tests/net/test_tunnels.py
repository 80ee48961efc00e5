from __future__ import annotations

import struct

import pytest

from kdissect.net.segment import SEGMENT
from tests.capture.build import ethernet, ip4, ip6, pcap, tcp, udp
from tests.net.test_packets import one
from tests.net.test_scanner import capture_of, kinds, scan

INNER = ip4(tcp(data=b"hello"))
FRAME = ethernet(INNER)


def gre(flags: int, kind: int, fields: bytes = b"") -> bytes:
    return struct.pack(">HH", flags, kind) + fields


def vxlan(flags: int = 8, network: int = 7) -> bytes:
    return struct.pack(">II", flags << 24, network << 8)


def geneve(kind: int, options: bytes = b"") -> bytes:
    return struct.pack(">BBHI", len(options) // 4, 0, kind, 9 << 8) + options


def label(value: int, bottom: bool) -> bytes:
    return struct.pack(">I", value << 12 | bottom << 8 | 64)


def nsh(below: int, metadata: int = 1, context: bytes = bytes(16)) -> bytes:
    return struct.pack(">HBBI", 0x0FC0 | (8 + len(context)) // 4, metadata, below, 7 << 8 | 255) + context


TUNNELS = {
    "gre": ip4(gre(0, 0x0800) + INNER, 47),
    "gre6": ip4(gre(0, 0x86DD) + ip6(tcp(data=b"hello")), 47),
    "gre with checksum, key, sequence": ip4(gre(0xB000, 0x0800, bytes(12)) + INNER, 47),
    "gretap": ip4(gre(0, 0x6558) + FRAME, 47),
    "gre over ipv6": ip6(gre(0x2000, 0x0800, bytes(4)) + INNER, 47),
    "pptp": ip4(gre(0x3081, 0x880B, bytes(12)) + b"\xff\x03\x00\x21" + INNER, 47),
    "erspan 1": ip4(gre(0, 0x88BE) + FRAME, 47),
    "erspan 2": ip4(gre(0x1000, 0x88BE, bytes(4)) + bytes(8) + FRAME, 47),
    "erspan 3": ip4(gre(0x1000, 0x22EB, bytes(4)) + bytes(12) + FRAME, 47),
    "erspan 3 with subheader": ip4(gre(0x1000, 0x22EB, bytes(4)) + bytes(11) + b"\1" + bytes(8) + FRAME, 47),
    "ipip": ip4(INNER, 4),
    "6in4": ip4(ip6(tcp(data=b"hello")), 41),
    "4in6": ip6(INNER, 4),
    "vxlan": ip4(udp(vxlan() + FRAME, 4789), 17),
    "vxlan as linux first had it": ip4(udp(vxlan() + FRAME, 8472), 17),
    "vxlan-gpe": ip4(udp(struct.pack(">II", 12 << 24 | 1, 7 << 8) + INNER, 4790), 17),
    "nsh in vxlan-gpe": ip4(udp(struct.pack(">II", 12 << 24 | 4, 7 << 8) + nsh(1) + INNER, 4790), 17),
    "nsh in gre": ip4(gre(0, 0x894F) + nsh(3) + FRAME, 47),
    "geneve": ip4(udp(geneve(0x6558, bytes(8)) + FRAME, 6081), 17),
    "geneve with ip": ip4(udp(geneve(0x0800) + INNER, 6081), 17),
    "mpls in udp": ip4(udp(label(5, True) + INNER, 6635), 17),
    "mpls in ip": ip4(label(5, False) + label(6, True) + INNER, 137),
    "etherip": ip4(b"\x30\x00" + FRAME, 97),
    "twice": ip4(udp(vxlan() + ethernet(ip4(udp(geneve(0x6558) + ethernet(ip4(INNER, 4)), 6081), 17)), 4789), 17),
}
FRAMES = {
    "nsh with ethernet": ethernet(nsh(3) + FRAME, 0x894F),
    "nsh with ip": ethernet(nsh(1) + INNER, 0x894F),
    "nsh of type 2": ethernet(nsh(3, 2, b"") + FRAME, 0x894F),
    "nsh of type 2 with metadata": ethernet(nsh(1, 2, bytes(36)) + INNER, 0x894F),
    "nsh in nsh with mpls": ethernet(nsh(4) + nsh(5) + label(5, True) + INNER, 0x894F),
    "mpls": ethernet(label(5, False) + label(6, True) + INNER, 0x8847),
    "pseudowire": ethernet(label(5, True) + bytes(4) + FRAME, 0x8847),
    "pppoe": ethernet(struct.pack(">BBHH", 0x11, 0, 5, len(INNER) + 2) + b"\x00\x21" + INNER, 0x8864),
    "vlan in vxlan": ethernet(
        ip4(udp(vxlan() + ethernet(b"\x00\x05\x08\x00" + INNER, 0x8100), 4789), 17),
    ),
    "bridging": ethernet(FRAME, 0x6558),
}


@pytest.mark.parametrize("name", TUNNELS)
def test_ip_tunnels(name: str) -> None:
    found, row, payload = one(TUNNELS[name], link=101)
    assert (found, payload) == ({"tcp": 1}, b"hello")
    assert row[SEGMENT.viewpoint] != 0
    assert (row[SEGMENT.len], row[SEGMENT.wire]) == (5, 5)


@pytest.mark.parametrize("name", FRAMES)
def test_frame_tunnels(name: str) -> None:
    found, row, payload = one(FRAMES[name])
    assert (found, payload) == ({"tcp": 1}, b"hello")
    assert row[SEGMENT.viewpoint] != 0


@pytest.mark.parametrize("name", TUNNELS)
def test_cut_anywhere(name: str) -> None:
    packet = TUNNELS[name]
    whole = one(packet, link=101)[1]
    for stop in range(len(packet)):
        found, row, payload = one(packet[:stop], link=101, original=len(packet))
        assert sum(found.values()) == 1
        if row:
            assert row[SEGMENT.wire] == 5
            assert row[SEGMENT.viewpoint] == whole[SEGMENT.viewpoint]
            assert b"hello".startswith(payload)
            assert stop >= len(packet) - 9


def test_views_tell_tunnels_apart() -> None:
    networks = [ip4(udp(vxlan(network=n) + FRAME, 4789), 17) for n in (1, 2, 1)]
    kinds_of = [TUNNELS[n] for n in ("gre", "erspan 2", "ipip", "6in4", "geneve", "mpls in udp", "mpls in ip", "twice")]
    packets = list(enumerate([INNER, *kinds_of, *networks]))
    _, rows, _ = scan(capture_of(pcap(packets, link=101)))
    views = rows[:, SEGMENT.viewpoint].tolist()
    assert views[0] == 0
    assert len(set(views)) == len(views) - 1
    assert views[-3] == views[-1] != views[-2]


def test_order_is_kept_when_tunnels_start_late() -> None:
    packets = [(i, INNER if i % 3 else TUNNELS["vxlan"]) for i in range(1, 200)]
    scanner, rows, _ = scan(capture_of(pcap(packets, link=101)))
    assert rows[:, SEGMENT.packet].tolist() == list(range(1, 200))
    assert kinds(scanner) == {"tcp": 199}


@pytest.mark.parametrize(
    ("packet", "kind"),
    [
        (ip4(udp(vxlan(flags=0) + FRAME, 4789), 17), "udp"),  # something else on the port
        (ip4(udp(b"\xff" + bytes(20), 6081), 17), "udp"),
        (ip4(gre(0x4000, 0x0800) + INNER, 47), "other_ip"),
        (ip4(gre(0, 0x0806) + bytes(28), 47), "other_ip"),
        (ip4(b"", 4), "cut"),
    ],
)
def test_what_is_no_tunnel_is_counted(packet: bytes, kind: str) -> None:
    assert one(packet, link=101)[0] == {kind: 1}


def test_other_packets_inside_are_counted_as_such() -> None:
    inside = ethernet(ip4(udp(b"x", 53), 17))
    assert one(ip4(udp(vxlan() + inside, 4789), 17), link=101)[0] == {"udp": 1}


def test_endless_nesting_ends() -> None:
    packet = INNER
    for _ in range(200):
        packet = ip4(packet, 4)
    found, _, _ = one(packet, link=101)
    assert sum(found.values()) == 1
