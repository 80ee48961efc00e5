from __future__ import annotations

import struct

import pytest

from kdissect.net import segment as s
from kdissect.net.segment import SEGMENT
from tests.capture.build import enhanced as packet_block
from tests.capture.build import ethernet, interface, ip4, ip6, option, pcap, section, tcp, udp
from tests.net.test_scanner import capture_of, ends, kinds, scan


def one(packet: bytes, link: int = 1, original: int | None = None) -> tuple[dict[str, int], list[int], bytes]:
    """Kinds, the row and the payload of a capture of one packet."""
    wire = {} if original is None else {0: original}
    scanner, rows, payloads = scan(capture_of(pcap([(10**18, packet)], link=link, original=wire)))
    return kinds(scanner), rows[0].tolist() if len(rows) else [], payloads[0] if payloads else b""


def test_padding_and_frame_checks_fall_off() -> None:
    for tail in (b"", b"\0" * 6, b"\0" * 6 + b"\xde\xad\xbe\xef"):
        _, row, payload = one(ethernet(ip4(tcp(data=b"abc"))) + tail)
        assert (row[SEGMENT.len], row[SEGMENT.wire], payload) == (3, 3, b"abc")


@pytest.mark.parametrize("packet", [ip4(tcp(data=b"x" * 500), total=0), ip6(tcp(data=b"x" * 500), length=0)])
def test_segmentation_offload_leaves_the_records_length(packet: bytes) -> None:
    _, row, _ = one(packet, link=101, original=70_000)
    assert row[SEGMENT.len] == 500
    assert row[SEGMENT.wire] == 70_000 - len(packet) + 500


def test_syn_options() -> None:
    options = bytes([2, 4, 5, 0xB4, 1, 3, 3, 7])
    _, row, _ = one(ip4(tcp(flags=2, options=options)), link=101)
    assert row[SEGMENT.flags] >> s.MSS_SHIFT == 1460
    assert row[SEGMENT.flags] >> s.SCALE_SHIFT & 0xFF == 8
    assert row[SEGMENT.flags] & 0xFF == s.SYN
    assert row[SEGMENT.ack] == 0
    _, row, _ = one(ip4(tcp(flags=2, options=bytes([1, 1, 1, 0]))), link=101)
    assert row[SEGMENT.flags] >> s.SCALE_SHIFT == 0
    _, row, _ = one(ip4(tcp(flags=16, options=options)), link=101)
    assert row[SEGMENT.flags] >> s.SCALE_SHIFT == 0
    assert row[SEGMENT.ack] == 7
    assert row[SEGMENT.flags] >> s.WINDOW_SHIFT & 0xFFFF == 512
    assert row[SEGMENT.flags] >> s.IPID_SHIFT & 0xFFFF == 9


@pytest.mark.parametrize("options", [b"\2\4\5\xb4" + b"\3\0\0\0", b"\x02\xff\0\0", b"\3\3\7\2", bytes([2, 1, 0, 0])])
def test_broken_options_do_no_harm(options: bytes) -> None:
    found, row, _ = one(ip4(tcp(flags=2, options=options)), link=101)
    assert found == {"tcp": 1}
    assert row[SEGMENT.len] == 0


def extension(following: int, size: int = 8) -> bytes:
    return bytes([following, size // 8 - 1]) + b"\1" * (size - 2)


@pytest.mark.parametrize("first", [0, 43, 60, 135, 139, 140])
def test_ipv6_extensions(first: int) -> None:
    found, row, payload = one(ip6(extension(60, 16) + extension(6) + tcp(data=b"hello"), following=first), link=229)
    assert (found, payload) == ({"tcp": 1}, b"hello")
    assert row[SEGMENT.flags] >> s.IPID_SHIFT == 0


def test_authentication_and_atomic_fragments() -> None:
    ah = bytes([6, 4]) + bytes(22)
    assert one(ip6(ah + tcp(data=b"x"), following=51), link=101)[2] == b"x"
    atomic = struct.pack(">BBHI", 6, 0, 0, 99)
    assert one(ip6(atomic + tcp(data=b"x"), following=44), link=101)[2] == b"x"
    assert one(ip6(extension(0) * 40, following=0), link=101)[0] == {"malformed": 1}
    assert one(ip6(b"", following=59), link=101)[0] == {"other_ip": 1}


@pytest.mark.parametrize(
    ("packet", "kind"),
    [
        (ethernet(ip4(udp(b"x", 53), 17)), "udp"),
        (ethernet(ip4(bytes(8), protocol=1)), "icmp"),
        (ethernet(ip6(bytes(8), following=58), 0x86DD), "icmp"),
        (ethernet(ip4(bytes(8), protocol=132)), "other_ip"),
        (ethernet(bytes(28), 0x0806), "not_ip"),
        (ethernet(bytes(40), 38), "not_ip"),  # LLC: spanning tree
        (ethernet(b""), "cut"),
        (ethernet(ip4(tcp()))[:40], "cut"),
        (ethernet(ip4(tcp()))[:13], "cut"),
        (ethernet(ip4(tcp()), 0x8100)[:16], "cut"),
        (ethernet(b"\x30" + bytes(30)), "not_ip"),
        (ethernet(b"\x44" + ip4(tcp())[1:]), "malformed"),
        (ethernet(ip4(tcp(), total=19)), "malformed"),
        (ethernet(ip4(tcp(), total=30)), "malformed"),
        (ethernet(ip4(tcp()[:12] + b"\x40" + tcp()[13:])), "malformed"),
    ],
)
def test_kinds(packet: bytes, kind: str) -> None:
    assert one(packet, original=200 if kind == "cut" else None)[0] == {kind: 1}


def test_a_header_cut_by_the_snap_length_still_counts() -> None:
    packet = ethernet(ip4(tcp(data=b"x" * 100, options=bytes(12))))
    for cut in range(14 + 20 + 16, len(packet)):
        _, row, payload = one(packet[:cut], original=len(packet))
        assert row[SEGMENT.wire] == 100
        assert row[SEGMENT.len] == len(payload) == max(0, cut - 66)
        assert row[SEGMENT.seq] == 1


@pytest.mark.parametrize(
    ("link", "head", "kind"),
    [
        (0, struct.pack("<I", 2), None),
        (0, struct.pack(">I", 2), None),
        (0, struct.pack("<I", 30), b"6"),
        (0, struct.pack("<I", 24), b"6"),
        (108, struct.pack(">I", 28), b"6"),
        (12, b"", None),
        (14, b"", b"6"),
        (101, b"", b"6"),
        (228, b"", None),
        (229, b"", b"6"),
        (113, bytes(14) + b"\x08\x00", None),
        (276, b"\x08\x00" + bytes(18), None),
        (276, b"\x81\x00" + bytes(18) + b"\x00\x05\x08\x00", None),
        (1, bytes(12) + b"\x88\xa8\x00\x05\x81\x00\x00\x06\x86\xdd", b"6"),
        (1, bytes(12) + b"\x91\x00\x00\x05\x08\x00", None),
        (1, bytes(12) + b"\x00\x40\xaa\xaa\x03\x00\x00\x00\x08\x00", None),
        (9, b"\xff\x03\x00\x21", None),
        (9, b"\x57", b"6"),
    ],
)
def test_link_types(link: int, head: bytes, kind: bytes | None) -> None:
    segment = tcp(data=b"hello")
    found, _, payload = one(head + (ip6(segment) if kind else ip4(segment)), link=link)
    assert (found, payload) == ({"tcp": 1}, b"hello")


def test_both_directions_are_one_flow() -> None:
    packets = [
        (10**18, ip6(tcp(ports=(9092, 40000)))),
        (10**18, ip4(tcp(ports=(40000, 9092)))),
        (
            10**18,
            bytes(ip4(tcp(ports=(9092, 40000)))[:12]) + bytes([10, 0, 0, 2, 10, 0, 0, 1]) + tcp(ports=(9092, 40000)),
        ),
        (10**18, ip4(tcp(ports=(40001, 9092)))),
    ]
    scanner, rows, _ = scan(capture_of(pcap(packets, link=101)))
    assert len(scanner.flows) == 3
    assert rows[1, SEGMENT.flow] == 2
    assert rows[2, SEGMENT.flow] == 3
    assert ends(scanner, rows[0]) == ("fd00::1", 9092, "fd00::2", 40000)
    assert ends(scanner, rows[2]) == ("10.0.0.2", 9092, "10.0.0.1", 40000)


def test_high_addresses_sort_as_unsigned() -> None:
    high = bytearray(ip6(tcp(ports=(5, 6))))
    high[8], high[24] = 0xFE, 0x20
    back = bytearray(ip6(tcp(ports=(6, 5))))
    back[8:24], back[24:40] = high[24:40], high[8:24]
    scanner, rows, _ = scan(capture_of(pcap([(1, bytes(high)), (2, bytes(back))], link=101)))
    assert len(scanner.flows) == 1
    assert rows[:, SEGMENT.flow].tolist() == [1, 0]
    assert ends(scanner, rows[1])[0] == "2000::2"


def test_one_host_talking_to_itself() -> None:
    def local(source: int, target: int) -> bytes:
        return ip4(b"")[:12] + bytes([127, 0, 0, 1] * 2) + tcp(ports=(source, target))

    def whole(packet: bytes) -> bytes:
        return packet[:2] + struct.pack(">H", len(packet)) + packet[4:]

    packets = [(1, whole(local(50000, 9092))), (2, whole(local(9092, 50000)))]
    scanner, rows, _ = scan(capture_of(pcap(packets, link=101)))
    assert rows[:, SEGMENT.flow].tolist() == [1, 0]
    assert ends(scanner, rows[0]) == ("127.0.0.1", 50000, "127.0.0.1", 9092)


def test_views_tell_interfaces_apart() -> None:
    frame = ethernet(ip4(tcp()))
    options = option(9, b"\x09")
    data = section() + interface(options=options) * 2 + b"".join(packet_block(1, frame, number=n) for n in (0, 1, 0))
    _, rows, _ = scan(capture_of(data))
    views = rows[:, SEGMENT.viewpoint].tolist()
    assert views[0] == views[2] == 0
    assert views[1] != 0
