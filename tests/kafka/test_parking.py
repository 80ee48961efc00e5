"""Connections that rest are packed and brought back: nothing of it may show."""

from __future__ import annotations

from pathlib import Path

import pytest

import kdissect
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.kafka.streams.idle import resting

NAMES = ("base.pcap", "mtu1500_2_3_1.pcap", "k4_slow_and_throttled.pcap")
TABLES = ("exchanges", "connections", "fetches", "record_batches", "problems", "capture_quality")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_it_shows(captures: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Everything that may rest does, at every block of some packets, in lots of three."""
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17, 2))
    whole = kdissect.open(captures / name).tables(TABLES)
    packed = []
    real = resting.Parked._pack

    def pack(self: resting.Parked, *given: object) -> None:
        packed.append(given)
        real(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(resting.Parked, "_pack", pack)
    monkeypatch.setattr(resting, "LIVE", 0)
    monkeypatch.setattr(resting, "LOT", 3)
    monkeypatch.setattr(resting, "REST_NS", 100_000_000)
    assert kdissect.open(captures / name).tables(TABLES) == whole
    assert packed
