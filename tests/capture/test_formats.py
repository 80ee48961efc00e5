from __future__ import annotations

import pytest

from kdissect.capture.magic import recognise
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
