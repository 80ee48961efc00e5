from __future__ import annotations

import contextlib
import io
import ipaddress
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdissect.capture import CaptureSet, Member, Window, open_captures
from kdissect.net import segment as s
from kdissect.net.packets import KINDS
from kdissect.net.scanner import Scanner
from kdissect.net.segment import SEGMENT
from tests.capture.build import CAPTURES, ethernet, ip4, pcap, pcapng, read_pcap, tcp

Ends = tuple[str, int, str, int]


def capture_of(data: bytes) -> CaptureSet:
    return CaptureSet("-", [Member("-", file=io.BytesIO(data))])


def scan(capture: CaptureSet, window: Window | None = None, **limits: int) -> tuple[Scanner, np.ndarray, list[bytes]]:
    """Scanner, segment rows and payloads of a whole capture."""
    scanner = Scanner(capture, **limits)
    rows, payloads = [], []
    for block in capture.blocks(window or capture.window()):
        found = scanner.scan(block).copy()
        rows.append(found)
        payloads += [capture.read(at, size) for at, size in found[:, [SEGMENT.at, SEGMENT.len]].tolist()]
    scanner.finish()
    return scanner, np.concatenate([np.empty((0, s.SEGMENT_COLUMNS), np.int64), *rows]), payloads


def kinds(scanner: Scanner) -> dict[str, int]:
    return {name: int(n) for name, n in zip(KINDS, scanner.kinds.sum(axis=0), strict=True) if n}


def ends(scanner: Scanner, row: np.ndarray) -> Ends:
    """Source and destination of a row."""
    a_high, a_low, b_high, b_low, ports = (int(x) & (1 << 64) - 1 for x in scanner.flows[int(row[SEGMENT.flow]) >> 1])
    a, b = (ipaddress.IPv6Address(high << 64 | low) for high, low in ((a_high, a_low), (b_high, b_low)))
    first, second = (str(x.ipv4_mapped or x) for x in (a, b))
    if row[SEGMENT.flow] & 1:
        return second, ports & 0xFFFF, first, ports >> 16
    return first, ports >> 16, second, ports & 0xFFFF


def content(capture: CaptureSet, **limits: int) -> list[tuple[object, ...]]:
    """What must be the same however a packet was wrapped."""
    scanner, rows, payloads = scan(capture, **limits)
    columns = [SEGMENT.seq, SEGMENT.ack, SEGMENT.flags, SEGMENT.len, SEGMENT.wire]
    return [(*ends(scanner, row), *row[columns].tolist(), payload) for row, payload in zip(rows, payloads, strict=True)]


def opened(name: str) -> CaptureSet:
    (capture,) = open_captures(CAPTURES / name)
    return capture


TINY = [
    "4in6", "erspan", "geneve", "gre", "gretap", "incl_over_orig", "ipip", "ipv4", "ipv6_options", "loop", "modified",
    "mpls", "null", "padded", "pppoe", "qinq", "raw", "raw12", "vlan", "vxlan",
]  # fmt: skip


@pytest.mark.parametrize("name", TINY)
def test_every_wrapping_of_base_tiny(name: str) -> None:
    base, wrapped = scan(opened("base_tiny.pcap")), scan(opened(f"field_{name}.pcap"))
    assert content(opened(f"field_{name}.pcap")) == content(opened("base_tiny.pcap"))
    columns = [SEGMENT.time, SEGMENT.packet, SEGMENT.flow]
    assert np.array_equal(base[1][:, columns], wrapped[1][:, columns])
    assert not base[1][:, SEGMENT.viewpoint].any()
    plain = {"incl_over_orig", "ipv4", "loop", "modified", "null", "padded", "raw", "raw12"}
    assert (wrapped[1][:, SEGMENT.viewpoint] != 0).all() == (name not in plain)
    assert kinds(wrapped[0]) == {"tcp": 167}


@pytest.mark.parametrize(
    "name",
    ["be_ns.pcap", "be_us.pcap", "le_ns.pcap", "gz.pcap.gz", "zst.pcap.zst", "lz4.pcap.lz4", "two_interfaces.pcapng"],
)
def test_every_format_of_base_short(name: str) -> None:
    assert content(opened(f"field_{name}")) == content(opened("base_short.pcap"))
    times = scan(opened(f"field_{name}"))[1][:, SEGMENT.time]
    assert np.array_equal(times // 1000, scan(opened("base_short.pcap"))[1][:, SEGMENT.time] // 1000)


def test_sections_and_simple_packets() -> None:
    tiny = opened("base_tiny.pcap")
    two = opened("field_two_sections.pcapng")
    assert content(two) == content(tiny) == content(opened("field_simple_packets.pcapng"))
    off = scan(tiny)[1][:, SEGMENT.time] - scan(two)[1][:, SEGMENT.time]
    assert ((off >= 0) & (off < 954)).all()


def test_any_device() -> None:
    # The same packets from another tap: addresses and contents agree, times nearly.
    for name in ("field_any_sll.pcap", "field_any_sll2.pcap"):
        assert content(opened(name)) == content(opened("base_tiny.pcap"))


def test_rotated_set_is_its_whole() -> None:
    assert content(opened("field_rotated_C")) == content(opened("base.pcap"))
    files = scan(opened("field_rotated_C"))[1][:, SEGMENT.packet] >> s.FILE_SHIFT
    assert np.unique(files).tolist() == [0, 1, 2, 3, 4]


def without_ident(name: str) -> list[tuple[object, ...]]:
    """Content without the IP identification, which whoever made the fragments chose anew."""
    ident = 0xFFFF << s.IPID_SHIFT
    return [(*row[:6], int(row[6]) & ~ident, *row[7:]) for row in content(opened(name))]  # type: ignore[call-overload]


def test_fragments_are_joined() -> None:
    scanner, rows, _ = scan(opened("field_ip_fragments.pcap"))
    assert without_ident("field_ip_fragments.pcap") == without_ident("base_tiny.pcap")
    assert kinds(scanner) == {"tcp": 167, "fragment": 60, "rejoined": 30}
    assert (np.diff(rows[:, SEGMENT.packet]) > 0).all()


@pytest.mark.parametrize("snap", [96, 200])
def test_snap_length_keeps_sizes(snap: int) -> None:
    _, rows, payloads = scan(opened(f"field_snap{snap}.pcap"))
    _, whole, all_payloads = scan(opened("base.pcap"))
    columns = [SEGMENT.time, SEGMENT.flow, SEGMENT.seq, SEGMENT.ack, SEGMENT.flags, SEGMENT.wire, SEGMENT.packet]
    assert np.array_equal(rows[:, columns], whole[:, columns])
    assert (rows[:, SEGMENT.len] <= rows[:, SEGMENT.wire]).all()
    assert (rows[:, SEGMENT.len] < rows[:, SEGMENT.wire]).any()
    assert all(full.startswith(cut) for cut, full in zip(payloads, all_payloads, strict=True))


@pytest.mark.parametrize("make", [pcap, pcapng])
def test_small_slots_give_the_same(make: object) -> None:
    data = make(read_pcap(CAPTURES / "base_short.pcap"))  # type: ignore[operator]
    window = Window(slot_bytes=1 << 17, slots=2)
    scanner, rows, payloads = scan(capture_of(data), window)
    _, expected, expected_payloads = scan(opened("base_short.pcap"))
    columns = [c for c in range(s.SEGMENT_COLUMNS) if c != SEGMENT.at]
    assert np.array_equal(rows[:, columns], expected[:, columns])
    assert payloads == expected_payloads
    assert len(scanner.flows) == 7


def test_time_filter() -> None:
    _, rows, _ = scan(opened("base.pcap"))
    first, last = int(rows[100, SEGMENT.time]), int(rows[900, SEGMENT.time])
    scanner, some, _ = scan(opened("base.pcap"), after=first, before=last)
    assert np.array_equal(
        some[:, SEGMENT.packet],
        rows[(rows[:, SEGMENT.time] >= first) & (rows[:, SEGMENT.time] <= last), SEGMENT.packet],
    )
    assert kinds(scanner)["filtered"] == len(rows) - len(some)


def test_many_flows_and_forgotten_ones() -> None:
    def burst(start: int, count: int) -> bytes:
        return pcap(
            (10**18, ethernet(ip4(tcp(ports=(i % 60_000 + 1, 9092 + i // 60_000)))))
            for i in range(start, start + count)
        )

    capture = capture_of(burst(0, 100_000))
    scanner, rows, _ = scan(capture)
    assert len(scanner.flows) == 100_000
    assert np.array_equal(rows[:, SEGMENT.flow] >> 1, np.arange(100_000))
    assert ends(scanner, rows[70_000]) == ("10.0.0.1", 10_001, "10.0.0.2", 9093)
    scanner.forget(np.arange(50_000))
    scanner.forget(np.arange(10))  # twice is once
    again = capture_of(burst(100_000, 60_000))
    numbers = [scanner.scan(block)[:, SEGMENT.flow] >> 1 for block in again.blocks(Window())]
    used = np.concatenate(numbers)
    assert len(scanner.flows) == 110_000
    assert len(np.unique(used)) == 60_000
    assert (used < 50_000).sum() == 50_000
    old = capture_of(burst(60_000, 1000))
    known = np.concatenate([scanner.scan(block)[:, SEGMENT.flow] >> 1 for block in old.blocks(Window())])
    assert np.array_equal(known, np.arange(60_000, 61_000))


def scapy_rows(path: Path) -> list[tuple[object, ...]]:
    """The same rows from scapy's reader and dissectors."""
    logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
    from scapy.layers.inet import IP, TCP
    from scapy.layers.inet6 import IPv6
    from scapy.layers.l2 import Ether
    from scapy.utils import RawPcapReader

    out: list[tuple[object, ...]] = []
    packets = []
    with RawPcapReader(str(path)) as reader, contextlib.suppress(EOFError):
        while True:
            packets.append(reader._read_packet(size=1 << 20))  # iterating would cut packets of more than 65,535 bytes
    for i, (data, meta) in enumerate(packets):
        packet = Ether(data)
        ip = packet.getlayer(IP) or packet.getlayer(IPv6)
        if ip is None or TCP not in packet:
            continue
        part = packet[TCP]
        header = part.dataofs * 4
        size = (ip.len - ip.ihl * 4 if ip.version == 4 else ip.plen) - header
        scale = next((v for k, v in part.options if k == "WScale"), None) if part.flags & 2 else None
        mss = next((v for k, v in part.options if k == "MSS"), None) if part.flags & 2 else None
        flags = int(part.flags) & 0xFF | part.window << 8 | (ip.id if ip.version == 4 else 0) << 24
        flags |= (0 if scale is None else scale + 1) << 40 | min(mss or 0, 0x7FFF) << 48
        if ip.src == ip.dst and not part.flags & 2:
            flags |= s.SAME_HOST
        time = meta.sec * 10**9 + meta.usec * 1000
        payload = bytes(part.original)[header : header + size]
        addresses = ip.src, part.sport, ip.dst, part.dport
        ack = part.ack if part.flags & 16 else 0
        out.append((i + 1, time, *addresses, part.seq, ack, flags, len(payload), size, payload))
    return out


def agree(name: str) -> None:
    scanner, rows, payloads = scan(opened(name))
    ours = [
        (
            int(row[SEGMENT.packet]),
            int(row[SEGMENT.time]),
            *ends(scanner, row),
            *row[[SEGMENT.seq, SEGMENT.ack, SEGMENT.flags, SEGMENT.len, SEGMENT.wire]].tolist(),
            payload,
        )
        for row, payload in zip(rows, payloads, strict=True)
    ]
    assert [plain(row) for row in ours] == [plain(row) for row in scapy_rows(CAPTURES / name)]


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row without the mark of D-SACKs, which the scapy side does not make; of SYNs the bit is the window scale's."""
    flags = row[8] if row[8] & s.SYN else row[8] & ~s.DSACK
    return (*row[:8], flags, *row[9:])


@pytest.mark.oracle
@pytest.mark.parametrize(
    "name",
    ["base.pcap", "field_snap96.pcap", "k4_mtu1500.pcap", "not_kafka.pcap", "raw_zerowindow.pcap", "zoo_franz_go.pcap"],
)
def test_scapy_agrees(name: str) -> None:
    agree(name)


@pytest.mark.oracle
@pytest.mark.exhaustive
@pytest.mark.parametrize("path", sorted(p.name for p in CAPTURES.glob("[!f]*.pcap")))
def test_scapy_agrees_on_every_capture(path: str) -> None:
    agree(path)


@pytest.mark.parametrize(
    "name",
    [
        "base_tiny.pcap",
        "field_vxlan.pcap",
        "field_geneve.pcap",
        "field_mpls.pcap",
        "field_ipv6_options.pcap",
        "field_erspan.pcap",
        "field_pppoe.pcap",
        "field_any_sll2.pcap",
        "field_ip_fragments.pcap",
    ],
)
def test_mutated_packets_never_raise(name: str) -> None:
    chance = random.Random(name)
    path = CAPTURES / name
    link = path.read_bytes()[20]
    packets = [p for p in read_pcap(path) if len(p[1]) < 400][:80]
    for _ in range(25):
        hurt = []
        for time, data in packets:
            body = bytearray(data)
            for _ in range(chance.randrange(1, 8)):
                body[chance.randrange(min(len(body), 130))] = chance.choice(
                    [0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)]
                )
            if chance.random() < 0.3:
                del body[chance.randrange(len(body)) :]
            hurt.append((time, bytes(body)))
        original = {i: chance.randrange(0, 70_000) for i in range(0, len(hurt), 5)}
        scanner, rows, payloads = scan(capture_of(pcap(hurt, link=link, original=original)))
        assert (rows[:, SEGMENT.wire] >= rows[:, SEGMENT.len]).all()
        assert (rows[:, SEGMENT.len] >= 0).all()
        assert all(len(p) == n for p, n in zip(payloads, rows[:, SEGMENT.len].tolist(), strict=True))
        counted = kinds(scanner)
        seen = sum(n for kind, n in counted.items() if kind not in ("by_scapy", "rejoined"))
        assert seen >= len(hurt)
