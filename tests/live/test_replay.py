"""A replay keeps the capture's time, or a multiple of it; its clock is the test's."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdissect.capture import open_captures
from kdissect.capture.pcap import PACKET
from kdissect.live.replay import Replay


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.05
        self.now += seconds


@pytest.mark.parametrize("speed", [0.5, 10.0])
def test_packets_come_when_they_are_due(speed: float, captures: Path) -> None:
    (capture,) = open_captures(captures / "zoo_kafkajs.pcap")
    clock = Clock()
    replay = Replay(speed, clock, clock.sleep)
    window = capture.window()
    count, first, last = 0, 0, 0
    for block in replay.pieces(capture.blocks(window)):
        times = block.packets[:, PACKET.time]
        if len(times):
            first = first or int(times[0])
            last = max(last, int(times.max()))
            assert abs((last - first) / 1e9 / speed - (clock.now - 100.0)) < 0.051
            assert replay.late_s == 0
        count += len(times)
    assert count == capture.reports[0].packets
    assert clock.now - 100.0 == pytest.approx((last - first) / 1e9 / speed, abs=0.06)


def test_it_says_that_it_is_late(captures: Path) -> None:
    (capture,) = open_captures(captures / "zoo_kafkajs.pcap")
    clock = Clock()
    replay = Replay(1.0, clock, clock.sleep)
    late = []
    for _ in replay.pieces(capture.blocks(capture.window())):
        clock.now += 0.7  # whoever takes it is slow
        late.append(replay.late_s)
    assert max(late) > 0.5
