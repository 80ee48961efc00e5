"""Clocks that step back: told with their packets, and packets that are merely late are none."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest

from kdissect.capture import CaptureSet, Member, Window
from kdissect.problems import Kind
from tests.capture.build import enhanced, interface, option, pcap, section, simple

MS = 1_000_000
START = 1_700_000_000_000 * MS
NANOSECONDS = option(9, b"\x09")


def steps(data: bytes, slot: int = 1 << 20) -> list[tuple[int, int]]:
    """(packet, ms back) of the rows, which the list of steps agrees with where there is one interface."""
    capture = CaptureSet("-", [Member("-", file=io.BytesIO(data))])
    for _ in capture.blocks(Window(slot, 4)):
        pass
    rows = [problem for problem in capture.problems if problem.kind == Kind.CLOCK_STEP]
    assert capture.steps in ([], [row.packet for row in rows])
    back = [float(row.detail.split(" ms")[0].replace(",", "")) for row in rows]
    return [(row.packet, round(ms)) for row, ms in zip(rows, back, strict=True)]


def at(*milliseconds: float) -> list[tuple[int, bytes]]:
    return [(START + int(ms * MS), bytes(60)) for ms in milliseconds]


def test_a_step_back_is_told_with_its_packet() -> None:
    assert steps(pcap(at(0, 1, 2, -3_600_000, -3_599_999, 5000, 4500))) == [(4, 3_600_002), (7, 500)]


@pytest.mark.parametrize("back", [0.001, 1, 30, 99, 100])
def test_packets_that_are_late_are_no_step(back: float) -> None:
    """Several receive queues: late by some ms, again and again."""
    assert steps(pcap(at(*(ms - back * (ms % 3 == 0) for ms in range(300))))) == []


@pytest.mark.parametrize("slot", [1 << 17, 1 << 20])
def test_the_same_steps_however_it_is_read(slot: int) -> None:
    """5000 packets of 60 bytes are several blocks of the smaller window."""
    times = np.arange(5000.0)
    for place in range(500, 5000, 500):
        times[place:] -= 1000
    told = steps(pcap(at(*times)), slot)
    assert told == [(place + 1, 999) for place in range(500, 5000, 500)]


def test_each_interface_has_a_clock_of_its_own() -> None:
    """The second one's clock is half a second behind; then the first one's steps."""
    blocks = [section(), interface(options=NANOSECONDS), interface(options=NANOSECONDS)]
    for i in range(20):
        step = 2000 if i >= 10 else 0
        blocks.append(enhanced(START + (i * 10 - step) * MS, bytes(60)))
        blocks.append(enhanced(START + (i * 10 - 500) * MS, bytes(60), number=1))
    assert steps(b"".join(blocks)) == [(21, 1990)]


def test_another_section_is_another_recording() -> None:
    first, second = (
        section() + interface(options=NANOSECONDS) + b"".join(enhanced(time, data) for time, data in at(*times))
        for times in ((5000, 5001), (0, 1, -500))
    )
    assert steps(first + second) == [(5, 501)]
    assert steps(second + first) == [(3, 501)]


def test_packets_without_a_time_are_no_step() -> None:
    blocks = [section(), interface(), *(simple(bytes(60)) for _ in range(5))]
    assert steps(b"".join(blocks)) == []


def test_more_interfaces_than_are_noted_tell_nothing() -> None:
    many = b"".join(interface(options=NANOSECONDS) for _ in range(300))
    data = section() + interface(options=NANOSECONDS) + enhanced(START, bytes(60)) + many + enhanced(0, bytes(60))
    assert steps(data) == []


def test_a_name_of_an_interface_that_is_none() -> None:
    head = struct.pack("<5I", 0xFFFFFFFF, START >> 32, START & 0xFFFFFFFF, 60, 60)
    unknown = struct.pack("<II", 6, 92) + head + bytes(60) + struct.pack("<I", 92)
    data = section() + interface(options=NANOSECONDS) + enhanced(START, bytes(60)) + unknown
    assert steps(data + enhanced(START - 500 * MS, bytes(60))) == [(3, 500)]
