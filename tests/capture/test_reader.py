from __future__ import annotations

import io
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from kdissect.capture import CaptureSet, Member, Window, open_captures
from kdissect.capture import pcap as r
from kdissect.capture.pcap import PACKET
from kdissect.capture.reader import MAX_DAMAGE
from kdissect.problems import CaptureError
from tests.capture.build import (
    CAPTURES,
    block,
    enhanced,
    interface,
    old_packet,
    option,
    pcap,
    pcapng,
    read_pcap,
    section,
    simple,
)

PACKETS = [(1_700_000_000_000_000_000 + i * 1_000_000_000, bytes([i]) * (60 + i)) for i in range(20)]
Row = tuple[int, bytes, int, int]  # time, bytes, original, number


def capture_of(data: bytes) -> CaptureSet:
    return CaptureSet("-", [Member("-", file=io.BytesIO(data))])


def read(capture: CaptureSet, window: Window | None = None) -> list[Row]:
    out: list[Row] = []
    for piece in capture.blocks(window or Window.for_size(1 << 20)):
        for time, at, captured, original, _, number in piece.packets.tolist():
            assert piece.start <= at <= at + captured <= piece.end
            out.append((time, piece.window.data[at : at + captured].tobytes(), original, number))
    return out


def rows(packets: list[tuple[int, bytes]]) -> list[Row]:
    return [(time, data, len(data), i + 1) for i, (time, data) in enumerate(packets)]


def test_the_last_block_says_so() -> None:
    data = pcap(PACKETS)
    two = CaptureSet("-", [Member(name, file=io.BytesIO(data)) for name in "ab"])
    window = Window.for_size(1 << 20)
    window.packets = 15
    assert [(piece.file, piece.last) for piece in two.blocks(window)] == [(0, False), (0, False), (1, False), (1, True)]
    cut = [piece.last for piece in capture_of(data[:-1]).blocks(Window.for_size(1 << 20))]
    assert cut == [True]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("magic", [0xA1B2C3D4, 0xA1B23C4D, 0xA1B2CD34])
def test_pcap(order: str, magic: int) -> None:
    capture = capture_of(pcap(PACKETS, order, magic))
    assert read(capture) == rows(PACKETS)
    (report,) = capture.reports
    assert (report.format, report.packets, report.first, report.last) == ("pcap", 20, PACKETS[0][0], PACKETS[-1][0])
    assert report.captured_bytes == report.original_bytes == sum(len(d) for _, d in PACKETS)
    assert capture.problems == []


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng(order: str) -> None:
    assert read(capture_of(pcapng(PACKETS, order))) == rows(PACKETS)


@pytest.mark.parametrize(
    ("resolution", "ticks"),
    [
        (6, 1_700_000_000_123_456),
        (9, 1_700_000_000_123_456_000),
        (3, 1_700_000_000_123),
        (0, 1_700_000_000),
        (12, 1_700_000_000_123_456 * 10**6 // 10**6),
        (0x80 | 20, (1_700_000_000 << 20) + 12345),
        (0x80 | 10, (1_700_000_000 << 10) + 1000),
        (0x80 | 0, 1_700_000_000),
        (0x80 | 32, (1_700_000_000 << 32) + 0xFEDCBA98),
    ],
)
@pytest.mark.parametrize("offset", [0, 1000, -1000])
def test_time_resolutions(resolution: int, ticks: int, offset: int) -> None:
    options = option(9, bytes([resolution])) + option(14, struct.pack("<q", offset))
    capture = capture_of(section() + interface(options=options) + enhanced(ticks, b"x" * 20))
    per_second = 2 ** (resolution & 127) if resolution & 128 else 10**resolution
    expected = ticks * 10**9 // per_second + offset * 10**9
    if expected < 0:
        pytest.skip("before the epoch")
    assert read(capture)[0][0] == expected


@pytest.mark.parametrize("megabytes", [5, 9, 11])
def test_a_large_description_of_an_interface_is_read(megabytes: int) -> None:
    """Comments without end, and the resolution behind them."""
    comments = option(1, bytes(65532)) * (megabytes << 4)
    data = section() + interface(options=comments + option(9, b"\x09")) + enhanced(10**18 + 7, b"a" * 60)
    capture = capture_of(data)
    assert read(capture, Window()) == rows([(10**18 + 7, b"a" * 60)])
    assert capture.problems == []


def test_a_description_that_is_too_large_is_told() -> None:
    """Its packets have no link type, and those of the next interface have theirs."""
    data = section() + interface(options=option(1, bytes(65532)) * (13 << 4)) + interface(link=101)
    capture = capture_of(data + enhanced(1, b"a" * 60) + enhanced(2_000_000, b"b" * 60, number=1))
    found = [row for piece in capture.blocks(Window()) for row in piece.packets.tolist()]
    assert [row[PACKET.link] & 0xFFFF for row in found] == [r.UNKNOWN_LINK, 101]
    assert found[1][PACKET.time] == 2_000_000_000
    assert capture.reports[0].untimed == 1
    assert "too many for the description of an interface" in capture.problems[0].detail
    assert capture.problems[0].bytes > 13 << 20


@pytest.mark.parametrize(
    ("resolution", "high"), [(0x80 | 64, 1 << 63), (0x80 | 127, (1 << 64) - 1), (27, (1 << 64) - 1), (0x7F, 1 << 63)]
)
def test_resolutions_beyond_int64(resolution: int, high: int) -> None:
    """if_tsresol of more than 2^63 ticks a second: the seconds are the offset's, the rest is exact to a nanosecond."""
    options = option(9, bytes([resolution])) + option(14, struct.pack("<q", 1_800_000_000))
    capture = capture_of(section() + interface(options=options) + enhanced(high, b"a" * 20))
    ((time, *_),) = read(capture)
    per_second = 2 ** (resolution & 127) if resolution & 128 else 10**resolution
    assert abs(time - 1_800_000_000 * 10**9 - high * 10**9 // per_second) <= 1
    assert capture.problems == []


@pytest.mark.parametrize("ticks", [2**64 - 1, 2**63, 2**62])
@pytest.mark.parametrize("resolution", [0, 6, 9, 0x80 | 1, 0xFF])
def test_times_beyond_all_reason_are_unknown(ticks: int, resolution: int) -> None:
    good = section() + interface(options=option(9, b"\x09")) + enhanced(10**18, b"a" * 20)
    capture = capture_of(
        good + interface(options=option(9, bytes([resolution]))) + enhanced(ticks, b"b" * 20, number=1)
    )
    times = [row[0] for row in read(capture)]
    assert times[0] == 10**18
    assert 0 <= times[1] <= 9 * 10**18 + 10**9
    if capture.reports[0].untimed:
        assert times[1] == 10**18
        assert "carry no time" in capture.problems[-1].detail


def test_every_block_of_pcapng() -> None:
    drops = option(4, struct.pack("<Q", 99)) + option(5, struct.pack("<Q", 7)) + option(7, struct.pack("<Q", 3))
    data = b"".join(
        [
            section(),
            interface(options=option(2, b"eth0") + option(9, b"\x09")),
            interface(link=101, snap=64, options=option(2, b"tun0")),
            enhanced(10**18, b"a" * 21),
            block(4, struct.pack("<HHI", 1, 5, 0) + b"\0" * 8),  # names
            block(0x0BAD, b"\0" * 12),  # custom: Wireshark numbers it
            block(10, struct.pack("<II", 0x544C534B, 11) + b"CLIENT_RAND" + b"\0"),
            block(0x7777, b"unknown."),
            enhanced(10**15 + 1, b"b" * 30, number=1, wire=90),
            simple(b"c" * 33),
            old_packet(10**18 + 5, b"d" * 10, drops=2),
            enhanced(5, b"e" * 10, number=9),
            block(5, struct.pack("<III", 0, 0, 0) + drops),
            section(">"),
            interface(">", link=113, options=option(9, b"\x09", ">")),
            enhanced(10**18 + 9, b"f" * 40, ">"),
        ]
    )
    capture = capture_of(data)
    got = read(capture)
    assert [(row[1][:1], len(row[1]), row[2], row[3]) for row in got] == [
        (b"a", 21, 21, 1),
        (b"b", 30, 90, 3),
        (b"c", 33, 33, 4),
        (b"d", 10, 10, 5),
        (b"e", 10, 10, 6),
        (b"f", 40, 40, 7),
    ]
    assert [row[0] for row in got] == [10**18, 10**18 + 1000, 10**18 + 1000, 10**18 + 5, 10**18 + 5, 10**18 + 9]
    (report,) = capture.reports
    assert [(i.name, i.link_type, i.snap_length, i.packets) for i in report.interfaces] == [
        ("eth0", 1, 0, 3),
        ("tun0", 101, 64, 1),
        ("", 113, 0, 1),
    ]
    assert report.interfaces[0].received == 99
    assert report.dropped == 7
    assert (report.untimed, report.snapped, report.packets) == (2, 1, 6)
    assert capture.secrets == [b"CLIENT_RAND"]
    assert [p.detail.split(" ", 1)[1][:12] for p in capture.problems] == ["packets carr", "packets name"]


def test_small_slots_give_the_same(tmp_path: Path) -> None:
    packets = read_pcap(CAPTURES / "base_short.pcap")
    expected = rows(packets)
    for data in (pcap(packets), pcapng(packets)):
        for slot in (1 << 17, 150_001):
            assert read(capture_of(data), Window(slot_bytes=slot, slots=2, extra_bytes=64)) == expected


def test_blocks_of_few_packets() -> None:
    data = section() + interface() + b"".join(enhanced(n, b"%d" % n * 20) for n in range(100))
    window = Window()
    window.packets = 7
    assert max(len(piece.packets) for piece in capture_of(data).blocks(window)) == 7
    assert read(capture_of(data), window) == read(capture_of(data))
    assert len(read(capture_of(data), window)) == 100


def test_logical_offsets_run_on_over_files(tmp_path: Path) -> None:
    folder = CAPTURES / "field_rotated_C"
    (capture,) = open_captures(folder)
    whole = b"".join((folder / name).read_bytes() for name in capture.files)
    at: list[int] = []
    size: list[int] = []
    numbers: list[int] = []
    for piece in capture.blocks(Window(slot_bytes=1 << 17, slots=2)):
        at += (piece.packets[:, PACKET.at] + piece.delta).tolist()
        size += piece.packets[:, PACKET.captured].tolist()
        numbers.append(int(piece.packets[0, PACKET.number]))
    assert capture.rereadable
    assert len(at) == 1293
    assert numbers.count(1) == 5
    for a, n in zip(at, size, strict=True):
        assert capture.read(a, n) == whole[a : a + n]
    out = np.zeros(sum(size) + 8, np.uint8)
    place = np.cumsum([8, *size[:-1]])
    capture.read_many(np.array(at), np.array(size), out, place)
    assert out[8:].tobytes() == b"".join(whole[a : a + n] for a, n in zip(at, size, strict=True))
    shuffled = np.random.default_rng(1).permutation(len(at))
    capture.read_many(np.array(at)[shuffled], np.array(size)[shuffled], out, place[shuffled])
    assert out[8:].tobytes() == b"".join(whole[a : a + n] for a, n in zip(at, size, strict=True))
    capture.close()


def test_what_left_the_window_of_a_pipe_is_gone() -> None:
    capture = capture_of((CAPTURES / "base.pcap").read_bytes())
    window = Window(slot_bytes=1 << 17, slots=2)
    for _ in capture.blocks(window):
        pass
    assert not capture.rereadable
    assert len(capture.read(window.end - 10, 10)) == 10
    with pytest.raises(LookupError):
        capture.read(30, 10)


def test_reading_twice() -> None:
    for name in ("base_short.pcap", "field_gz.pcap.gz"):
        (capture,) = open_captures(CAPTURES / name)
        first = read(capture)
        assert read(capture) == first
        assert capture.reports[0].packets == 254
    pipe = capture_of(pcap(PACKETS))
    read(pipe)
    with pytest.raises(CaptureError, match="once"):
        read(pipe)


@pytest.mark.parametrize("make", [pcap, pcapng])
def test_cut_at_every_byte(make: object) -> None:
    data = make(PACKETS[:4])  # type: ignore[operator]
    whole = rows(PACKETS[:4])
    for stop in range(len(data)):
        capture = capture_of(data[:stop])
        try:
            got = read(capture)
        except CaptureError as error:
            refused = str(error)
            assert stop < 24, refused
            continue
        assert got == whole[: len(got)]
        if capture.reports[0].cut:
            assert "ends inside a record" in capture.problems[-1].detail


def test_a_lying_length_costs_one_record() -> None:
    for make, at in ((pcap, 24 + sum(16 + len(d) for _, d in PACKETS[:7]) + 8), (pcapng, None)):
        data = bytearray(make(PACKETS))
        if at is None:
            at = len(pcapng(PACKETS[:7])) + 4
        data[at : at + 4] = struct.pack("<I", 0x7FFFFFF0)
        capture = capture_of(bytes(data))
        got = read(capture)
        expected = rows(PACKETS)
        assert got[:7] == expected[:7]
        assert [g[:3] for g in got[7:]] == [e[:3] for e in expected[8:]]
        (problem,) = capture.problems
        assert problem.packet == 8
        assert problem.bytes == len(PACKETS[7][1]) + 16 or make is pcapng
        assert capture.reports[0].damaged_places == 1


def test_zeros_are_no_packets() -> None:
    capture = capture_of(pcap(PACKETS) + bytes(100_000))
    assert read(capture) == rows(PACKETS)
    assert capture.problems[-1].bytes == 100_000
    capture = capture_of(pcap(PACKETS[:10]) + bytes(5000) + pcap(PACKETS[10:])[24:])
    assert [row[:3] for row in read(capture)] == [row[:3] for row in rows(PACKETS)]


def test_damage_without_end_is_given_up() -> None:
    good = pcap(PACKETS[:6])[24:]
    capture = capture_of(pcap([]) + (good + bytes(16) * 3) * (MAX_DAMAGE + 50))
    got = read(capture)
    assert len(got) >= MAX_DAMAGE * 6
    assert len(capture.problems) <= 1000
    assert "more" in capture.problems[-1].detail


def test_clock_and_lengths() -> None:
    times = [10**18, 10**18 + 10**6, 10**18, 10**18 - 10**9, 10**18 + 10**9]
    capture = capture_of(pcap([(t, b"x" * 60) for t in times], original={0: 50, 1: 1500}))
    got = read(capture)
    (report,) = capture.reports
    assert (report.backwards, report.clock_steps) == (2, 1)
    assert (report.first, report.last) == (10**18 - 10**9, 10**18 + 10**9)
    assert (report.over_original, report.snapped) == (1, 1)
    assert [row[2] for row in got] == [60, 1500, 60, 60, 60]


@pytest.mark.parametrize("make", [pcap, pcapng])
@pytest.mark.parametrize("part", range(4))
def test_mutations_never_raise(make: object, part: int) -> None:
    chance = random.Random(part)
    whole = make(read_pcap(CAPTURES / "base_tiny.pcap")[:40])  # type: ignore[operator]
    window = Window.for_size(len(whole))
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(24, len(data))
            kind = chance.randrange(4)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1:
                data[at : at + 4] = chance.randbytes(4)
            elif kind == 2:
                del data[at : at + chance.randrange(1, 80)]
            else:
                data[at:at] = chance.randbytes(chance.randrange(1, 80))
        capture = capture_of(bytes(data))
        got = read(capture, window)
        assert len(got) <= len(data) // 16


def test_following_a_growing_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    data = pcap(PACKETS)
    path.write_bytes(data[:700])
    (capture,) = open_captures(path)
    times: list[int] = []
    idle = [0]
    for piece in capture.blocks(Window(), follow=True, stopped=lambda: idle[0] > 2):
        times += piece.packets[:, PACKET.time].tolist()
        if piece.idle:
            idle[0] += 1
            with path.open("ab") as file:
                file.write(data[path.stat().st_size :][:400])
            if path.stat().st_size < len(data):
                idle[0] = 0
    assert times == [t for t, _ in PACKETS]


@pytest.mark.parametrize("packets", [3, 10], ids=["shorter", "longer"])
def test_a_file_that_is_overwritten_while_it_is_followed(packets: int, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(PACKETS[:10]))
    (capture,) = open_captures(path)
    times: list[int] = []
    for piece in capture.blocks(Window(), follow=True):
        times += piece.packets[:, PACKET.time].tolist()
        if piece.idle:
            path.write_bytes(pcap(PACKETS[10 : 10 + packets]))
    assert times == [t for t, _ in PACKETS[:10]]
    assert [one.detail for one in capture.problems] == ["another capture was written over it, which is not read"]
    assert capture.overwritten == [
        "a.pcap: another capture was written over it, which is not read; reading ended there"
    ]


def test_following_a_pipe() -> None:
    import os
    import threading

    ends = os.pipe()
    data = pcap(PACKETS)

    def write() -> None:
        with os.fdopen(ends[1], "wb", buffering=0) as sink:
            for at in range(0, len(data), 333):
                sink.write(data[at : at + 333])

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(ends[0], "rb") as source:
        (capture,) = open_captures(source)
        times = [t for p in capture.blocks(Window(), follow=True) for t in p.packets[:, PACKET.time].tolist()]
    writer.join()
    assert times == [t for t, _ in PACKETS]


def test_named_pipe(tmp_path: Path) -> None:
    import os
    import threading

    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(pcap(PACKETS)))
    writer.start()
    (capture,) = open_captures(path)
    assert read(capture) == rows(PACKETS)
    writer.join()
