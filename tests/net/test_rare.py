from __future__ import annotations

import struct

import pytest

import kdissect.net.scanner as scanner_module
from kdissect.net.segment import SEGMENT
from tests.capture.build import ip4, pcap, tcp
from tests.net.test_packets import one
from tests.net.test_scanner import capture_of, kinds, scan

INNER = ip4(tcp(data=b"hello"))
LLC = bytes.fromhex("aaaa030000000800")
DATA_FRAME = struct.pack("<HH", 0x0008, 0) + bytes(6) + b"\2" * 6 + b"\4" * 6 + bytes(2)
RADIOTAP = struct.pack("<BBHI", 0, 0, 8, 0)
PPI = struct.pack("<BBHI", 0, 0, 8, 105)


@pytest.mark.parametrize(("link", "head"), [(105, b""), (127, RADIOTAP), (192, PPI)], ids=["802.11", "radiotap", "ppi"])
def test_wireless(link: int, head: bytes) -> None:
    found, row, payload = one(head + DATA_FRAME + LLC + INNER, link=link)
    assert (found, payload) == ({"tcp": 1, "by_scapy": 1}, b"hello")
    assert row[SEGMENT.viewpoint] != 0


def test_an_unknown_link_type_is_named() -> None:
    scanner, rows, _ = scan(capture_of(pcap([(1, INNER)] * 5, link=147)))
    assert len(rows) == 0
    assert kinds(scanner) == {"undecoded": 5}
    (problem,) = scanner.capture.problems
    assert "5 packets of LINKTYPE 147" in problem.detail


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner_module, "MAX_RARE", 10)
    scanner, rows, _ = scan(capture_of(pcap([(1, DATA_FRAME + LLC + INNER)] * 30, link=105)))
    assert len(rows) == 10
    assert kinds(scanner) == {"tcp": 10, "by_scapy": 10, "undecoded": 20}
    assert "20 packets" in scanner.capture.problems[0].detail


def test_nothing_in_them() -> None:
    scanner, rows, _ = scan(
        capture_of(pcap([(10**18, data) for data in (b"\x80\0" + bytes(40), b"", b"\xff" * 70)], link=105))
    )
    assert len(rows) == 0
    assert kinds(scanner) == {"undecoded": 3}
