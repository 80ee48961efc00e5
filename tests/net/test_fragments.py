from __future__ import annotations

import random
import struct

import pytest

from kdissect.net.fragments import LIFETIME, MAX_PENDING, Reassembler
from kdissect.net.segment import SEGMENT
from tests.capture.build import ethernet, ip4, ip6, pcap, tcp, udp
from tests.net.test_scanner import capture_of, kinds, scan

DATA = random.Random(3).randbytes(3000)
WHOLE = tcp(data=DATA)


def pieces4(payload: bytes, size: int = 800, protocol: int = 6, ident: int = 9) -> list[bytes]:
    out = []
    for at in range(0, len(payload), size):
        more = 0x2000 if at + size < len(payload) else 0
        out.append(ip4(payload[at : at + size], protocol, ident, more | at // 8))
    return out


def pieces6(payload: bytes, size: int = 800) -> list[bytes]:
    out = []
    for at in range(0, len(payload), size):
        head = struct.pack(">BBHI", 6, 0, at | (at + size < len(payload)), 77)
        out.append(ip6(bytes([44, 0]) + bytes(6) + head + payload[at : at + size], following=60))
    return out


@pytest.mark.parametrize("make", [pieces4, pieces6])
@pytest.mark.parametrize("seed", range(4))
def test_any_order(make: object, seed: int) -> None:
    fragments = make(WHOLE)  # type: ignore[operator]
    random.Random(seed).shuffle(fragments)
    fragments.insert(2, fragments[1])  # a copy
    scanner, rows, payloads = scan(capture_of(pcap([(i, f) for i, f in enumerate(fragments)], link=101)))
    assert payloads == [DATA]
    assert rows[0, SEGMENT.packet] == len(fragments)
    assert rows[0, SEGMENT.time] == (len(fragments) - 1) // 1000 * 1000
    assert rows[0, SEGMENT.wire] == len(DATA)
    assert kinds(scanner)["rejoined"] == 1


def test_rows_keep_their_order() -> None:
    fragments = pieces4(WHOLE)
    other = ip4(tcp(sequence=5))
    packets = [fragments[0], other, *fragments[1:], other]
    _, rows, _ = scan(capture_of(pcap([(i, f) for i, f in enumerate(packets)], link=101)))
    assert rows[:, SEGMENT.packet].tolist() == [2, len(packets) - 1, len(packets)]


def test_a_cut_piece_cuts_the_packet() -> None:
    fragments = pieces4(WHOLE)
    cut = [fragments[0], fragments[1][:500], *fragments[2:]]
    lengths = {1: len(fragments[1])}
    _, rows, payloads = scan(capture_of(pcap([(i, f) for i, f in enumerate(cut)], link=101, original=lengths)))
    assert payloads == [DATA[: 800 - 20 + 480]]
    assert rows[0, SEGMENT.wire] == len(DATA)


def test_tunnelled_packets_in_fragments() -> None:
    frame = ethernet(ip4(WHOLE))
    tunnel = udp(struct.pack(">II", 8 << 24, 7 << 8) + frame, 4789)
    _, _, payloads = scan(capture_of(pcap([(i, f) for i, f in enumerate(pieces4(tunnel, protocol=17))], link=101)))
    assert payloads == [DATA]
    # and fragments inside a tunnel
    inner = [udp(struct.pack(">II", 8 << 24, 7 << 8) + ethernet(f), 4789) for f in pieces4(WHOLE)]
    _, rows, payloads = scan(capture_of(pcap([(i, ip4(f, 17)) for i, f in enumerate(inner)], link=101)))
    assert payloads == [DATA]
    assert rows[0, SEGMENT.viewpoint] != 0


def test_other_fragments_are_only_counted() -> None:
    packets = pieces4(bytes(3000), protocol=17) + pieces4(bytes(3000), protocol=1)
    scanner, rows, _ = scan(capture_of(pcap([(i, f) for i, f in enumerate(packets)], link=101)))
    assert len(rows) == 0
    assert kinds(scanner) == {"fragment": len(packets)}
    assert scanner.capture.problems == []


def test_what_never_becomes_whole_is_reported() -> None:
    packets = [(0, pieces4(WHOLE)[0]), (LIFETIME + 10**6, pieces4(WHOLE, ident=10)[0])]
    scanner, rows, _ = scan(capture_of(pcap(packets, link=101)))
    assert len(rows) == 0
    assert "2 fragmented IP packets never became whole" in scanner.capture.problems[0].detail


def test_bounds() -> None:
    reassembler = Reassembler()
    for i in range(MAX_PENDING * 2):
        assert reassembler.add(pieces4(WHOLE, ident=i % 65536)[0], i >> 16, 0) is None
    assert reassembler.given_up == MAX_PENDING
    reassembler.finish()
    assert reassembler.given_up == 2 * MAX_PENDING


def test_too_long_a_packet_is_never_whole() -> None:
    packets = [ip4(tcp(data=bytes(780)), fragment=0x2000), ip4(bytes(1000), fragment=0x1FFF)]
    packets += [ip4(bytes(60_000), fragment=0x2000 | at) for at in (100, 4000)]
    _, rows, _ = scan(capture_of(pcap([(i, f) for i, f in enumerate(packets)], link=101)))
    assert len(rows) == 0


def test_random_fragments_never_raise() -> None:
    chance = random.Random(5)
    packets = []
    for i in range(3000):
        body = bytearray(chance.choice(pieces4(WHOLE, 80) + pieces6(WHOLE, 80)))
        for _ in range(chance.randrange(4)):
            body[chance.randrange(min(len(body), 60))] = chance.randrange(256)
        packets.append((i, bytes(body[: chance.randrange(1, len(body) + 1)])))
    scan(capture_of(pcap(packets, link=101)))
