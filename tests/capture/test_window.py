from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kdissect.capture import EXTRA, Window
from kdissect.capture.window import EXTRA_SLOTS, FEW_PACKETS, SLOT_BYTES


def put(window: Window, data: bytes) -> None:
    window.target()[: len(data)] = data
    window.grow(len(data))


def test_a_cut_record_stands_whole_in_the_next_slot() -> None:
    window = Window(slot_bytes=64, slots=3, extra_bytes=64)
    window.advance(0, 0, 0)
    put(window, bytes(range(64)))
    assert window.room == 0
    start = window.position(60)
    window.advance(60, start, start + 4)
    put(window, bytes(range(64, 100)))
    place = window.locate(60, 30)
    assert place >= 0
    assert window.data[place : place + 30].tolist() == list(range(60, 90))
    assert window.locate(50, 14) >= 0  # the old slot still stands
    assert window.locate(50, 15) == -1  # in one piece nowhere
    assert window.end == 100


def test_old_slots_are_overwritten() -> None:
    window = Window(slot_bytes=64, slots=2, extra_bytes=64)
    for i in range(3):
        window.advance(i * 64, 0, 0)
        put(window, bytes([i]) * 64)
    assert window.locate(0, 1) == -1
    assert window.data[window.locate(64, 64)] == 1
    assert window.data[window.locate(128, 64)] == 2
    window.reset()
    assert window.locate(128, 1) == -1


def test_extra_bytes_rotate_by_themselves() -> None:
    window = Window(slot_bytes=64, slots=2, extra_bytes=100)
    places = [window.extra(bytes([i]) * 60) for i in range(EXTRA_SLOTS + 1)]
    assert places[0] == EXTRA
    assert all(b - a == 60 for a, b in pairwise(places))
    assert window.locate(places[0], 60) == -1
    for i in range(1, EXTRA_SLOTS + 1):
        place = window.locate(places[i], 60)
        assert np.all(window.data[place : place + 60] == i)
    assert window.extra(bytes(101)) == -1
    assert window.slots[: window.ring].max() < EXTRA


@pytest.mark.parametrize(("widens", "packets", "room"), [(True, 10, 192), (True, FEW_PACKETS, 64), (False, 10, 64)])
def test_blocks_of_large_packets_are_wide(widens: bool, packets: int, room: int) -> None:
    """One behind the other: a slot is as wide as the packets of the one before it say."""
    window = Window(slot_bytes=64, slots=2, extra_bytes=64, wide=3)
    window.widens = widens
    assert window.room == len(window.target()) == 64
    put(window, bytes(64))
    window.count += packets
    window.advance(60, window.position(60), window.position(60) + 4)
    assert window.room == len(window.target()) == room - 4
    put(window, bytes(range(4, room)))
    assert window.data[window.locate(60 + 4, room - 4) :][: room - 4].tolist() == list(range(4, room))
    assert window.locate(0, 64) >= 0  # which nothing was written over
    window.count += FEW_PACKETS
    window.advance(60 + room, 0, 0)
    assert window.room == 64


def test_small_inputs_get_small_rings() -> None:
    assert Window.for_size(200_000).slot_bytes < 300_000
    assert Window.for_size(10**9).slot_bytes == SLOT_BYTES
    assert Window.for_size(None).slot_bytes == SLOT_BYTES
