"""The last seconds on disk: what is written of them is a capture with just these packets, and the disk is bounded."""

from __future__ import annotations

from pathlib import Path

import kdissect
from kdissect.capture import open_captures
from kdissect.capture.pcap import TIME
from kdissect.live.replay import Replay
from kdissect.live.ring import SLICES, Ring


def filled(path: Path, ring: Ring) -> list[int]:
    """Times of all packets, which came in small pieces."""
    (capture,) = open_captures(path)
    now = iter(range(1_000_000))
    replay = Replay(1.0, clock=lambda: next(now) / 20, sleep=lambda seconds: None)
    times: list[int] = []
    for block in replay.pieces(capture.blocks(capture.window())):
        ring.write(block)
        times += block.packets[:, TIME].tolist()
    return times


def test_the_last_seconds(captures: Path, tmp_path: Path) -> None:
    ring = Ring(seconds=5.0)
    times = filled(captures / "k4_session_eviction.pcap", ring)
    assert len(ring.files()) <= SLICES
    target = tmp_path / "last.pcap"
    written = ring.save(str(target), 5.0)
    expected = [time for time in times if time >= max(times) - 5_000_000_000]
    assert written == len(expected) > 100
    (saved,) = open_captures(target)
    got = [time for block in saved.blocks(saved.window()) for time in block.packets[:, TIME].tolist()]
    assert got == expected
    assert kdissect.open(target).table("exchanges").num_rows > 20
    folder = ring.files()[0].parent
    ring.close()
    assert not folder.exists()


def test_the_disk_is_bounded(captures: Path, tmp_path: Path) -> None:
    ring = Ring(seconds=3600.0, most=120_000)
    filled(captures / "k4_session_eviction.pcap", ring)
    assert sum(path.stat().st_size for path in ring.files()) < 200_000
    ring.close()


def test_nothing_yet(tmp_path: Path) -> None:
    ring = Ring()
    assert ring.save(str(tmp_path / "empty.pcap"), 10.0) == 0
    assert kdissect.open(tmp_path / "empty.pcap").table("exchanges").num_rows == 0
    ring.close()
