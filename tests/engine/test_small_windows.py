"""Frames in many pieces, put together from a window much smaller than what they take to arrive: their bytes are right,
as the brokers' own checksums over the record batches in them say."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdissect.capture import open_captures
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine.run import Run, Settings
from kdissect.kafka.batches import walk
from kdissect.kafka.verification import verify
from kdissect.tables.recordsets import record_sets


@pytest.mark.parametrize("name", ["k4_slow_and_throttled", "base", "mtu1500_2_3_1"])
@pytest.mark.parametrize("slots", [2, 3, 8])
def test_bytes_of_frames(captures: Path, monkeypatch: pytest.MonkeyPatch, name: str, slots: int) -> None:
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17, slots))
    run = Run(open_captures(captures / f"{name}.pcap"), {"record_batches": None}, Settings())
    right = 0
    for done in run.completed():
        assert done.data is not None
        sets = record_sets(run.builder.block(done))
        batches = walk(done.data, sets.at, sets.size)
        verify(batches)
        assert not (batches.crc_ok == 0).any()
        assert not len(batches.problems())
        right += int((batches.crc_ok == 1).sum())
    assert right > 80
