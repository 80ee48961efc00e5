from __future__ import annotations

import io
import struct

import pytest

from kdissect.capture import open_captures
from kdissect.capture.magic import recognise
from kdissect.capture.pcap import PACKET
from tests.capture.build import pcap, pcapng


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("magic", "header", "tick"), [(0xA1B2C3D4, 16, 1000), (0xA1B23C4D, 16, 1), (0xA1B2CD34, 24, 1000)]
)
def test_every_pcap_magic_in_both_orders(order: str, magic: int, header: int, tick: int) -> None:
    form = recognise(pcap([], order=order, magic=magic, link=113, snap=96))
    assert form is not None
    assert (form.name, form.big, form.header, form.tick) == ("pcap", order == ">", header, tick)
    assert (form.link_type, form.snap_length, form.start) == (113, 96, 24)


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng(order: str) -> None:
    form = recognise(pcapng([], order)[:24])
    assert form is not None
    assert (form.name, form.big, form.start) == ("pcapng", order == ">", 0)


@pytest.mark.parametrize(
    "head", [b"", b"\xd4\xc3\xb2\xa1", b"\x0a\x0d\x0d\x0a" + bytes(20), b"PK\3\4" + bytes(30), bytes(64)]
)
def test_anything_else_is_no_capture(head: bytes) -> None:
    assert recognise(head) is None


def test_frame_check_sequence_bits_are_no_link_type() -> None:
    head = bytearray(pcap([], link=1))
    head[23] = 0x24  # FCS length 2 words, present
    form = recognise(bytes(head))
    assert form is not None
    assert form.link_type == 1


@pytest.mark.parametrize(
    ("resolution", "ticks"),
    [
        (0x80 | 63, 1 << 62),
        (0x80 | 64, 1 << 63),
        (0x80 | 33, 1 << 32),
        (19, 5 * 10**18),
        (18, 5 * 10**17),
        (9, 5 * 10**8),
    ],
)
def test_half_a_second_at_any_resolution(resolution: int, ticks: int) -> None:
    """if_tsresol far below a nanosecond, the seconds in if_tsoffset: ticks take all 64 bits."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = struct.pack("<I", len(body) + 12)
        return struct.pack("<I", kind) + size + body + size

    options = struct.pack("<HHB3x", 9, 1, resolution) + struct.pack("<HHq", 14, 8, 1_800_000_000) + bytes(4)
    data = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    data += block(1, struct.pack("<HHI", 1, 0, 0) + options)
    data += block(6, struct.pack("<IIIII", 0, ticks >> 32, ticks & 0xFFFFFFFF, 60, 60) + bytes(60))
    (capture,) = open_captures(io.BytesIO(data))
    times = [int(block.packets[0, PACKET.time]) for block in capture.blocks(capture.window()) if len(block.packets)]
    assert times == [1_800_000_000_500_000_000]
