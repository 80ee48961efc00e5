"""The last seconds on disk: what is written of them is a capture with just these packets, and the disk is bounded."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import pytest

import kdissect
from kdissect.capture import open_captures
from kdissect.capture.pcap import PACKET
from kdissect.live import ring as rings
from kdissect.live.replay import Replay
from kdissect.live.ring import SLICES, Ring
from kdissect.output import ASIDE, abandon


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder: never that of this machine, where others may have rings."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def filled(path: Path, ring: Ring) -> list[int]:
    """Times of all packets, which came in small pieces."""
    (capture,) = open_captures(path)
    now = iter(range(1_000_000))
    replay = Replay(1.0, clock=lambda: next(now) / 20, sleep=lambda seconds: None)
    times: list[int] = []
    for block in replay.pieces(capture.blocks(capture.window())):
        ring.write(block)
        times += block.packets[:, PACKET.time].tolist()
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
    got = [time for block in saved.blocks(saved.window()) for time in block.packets[:, PACKET.time].tolist()]
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


def test_rings_of_dead_processes_are_taken_away(place: Path) -> None:
    stale = place / "kdissect-locked-ring-stale"
    stale.mkdir()
    (stale / "live.pcap7").write_bytes(b"packets")
    alive = Ring()
    assert not stale.exists()
    other = Ring()
    assert len(list(place.iterdir())) == 2, "that of a living process stays"
    other.close()
    alive.close()
    assert not list(place.iterdir())


def test_rings_of_earlier_versions_stay(place: Path) -> None:
    """They have no lock, and may be in use."""
    earlier = place / "kdissect-ring-abc"
    earlier.mkdir()
    (earlier / "live.pcap0").touch()
    Ring().close()
    assert (earlier / "live.pcap0").exists()


def test_what_is_no_ring_stays(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "live.pcap0").touch()
    (place / "kdissect-locked-ring-link").symlink_to(elsewhere)
    (place / "kdissect-locked-ring-file").touch()
    foreign = place / "kdissect-locked-ring-foreign"
    foreign.mkdir()
    (foreign / "notes").touch()
    (foreign / "live.pcap0").symlink_to(elsewhere / "live.pcap0")
    Ring().close()
    assert (elsewhere / "live.pcap0").exists()
    names = sorted(path.name.removeprefix("kdissect-locked-ring-") for path in place.iterdir())
    assert names == ["file", "foreign", "link"]
    assert sorted(path.name for path in foreign.iterdir()) == ["live.pcap0", "notes"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_rings_of_other_users_stay(place: Path) -> None:
    theirs = place / "kdissect-locked-ring-theirs"
    theirs.mkdir()
    (theirs / "live.pcap0").touch()
    os.chown(theirs, 65534, 65534)
    Ring().close()
    assert (theirs / "live.pcap0").exists()


def test_a_ring_that_is_taken_away_before_it_is_locked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another process that starts at the same moment; then there is another one."""
    real = fcntl.flock
    times: list[int] = []

    def late(handle: int, how: int) -> None:
        times.append(how)
        if len(times) == 1:
            for folder in place.iterdir():
                shutil.rmtree(folder)
        real(handle, how)

    monkeypatch.setattr(rings.fcntl, "flock", late)
    ring = Ring()
    assert len(times) == 2
    assert len(list(place.iterdir())) == 1
    ring.close()


def test_a_process_that_ends_without_unwinding(place: Path) -> None:
    ring = Ring()
    abandon()
    assert not list(place.iterdir())
    ring.close()
    assert not any("kdissect-locked-ring" in path for path in ASIDE)
