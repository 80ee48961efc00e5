"""A rotated set that is followed while it is recorded: new files are taken up, each once, in order."""

from __future__ import annotations

import gzip
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kdissect
from kdissect.capture.rotation import Rotation
from kdissect.capture.sources import open_captures

COLUMNS = ["capture", "api", "status", "latency_ms", "request_file", "request_frame", "response_file"]


@pytest.fixture(params=["field_rotated_C", "field_rotated_G"])
def rotated(request: pytest.FixtureRequest, captures: Path) -> list[Path]:
    """Files of a set in the order in which they were recorded."""
    (whole,) = open_captures(captures / request.param)
    return [member.path for member in whole.members if member.path is not None]


def steps(*actions: Callable[[], object]) -> Callable[[], bool]:
    """Does one thing more each time that the reader finds nothing new; then stops it."""
    waiting = iter(actions)

    def stopped() -> bool:
        act = next(waiting, None)
        if act is None:
            return True
        act()
        return False

    return stopped


def put(path: Path, folder: Path, part: slice = slice(None)) -> Callable[[], object]:
    def write() -> None:
        with (folder / path.name).open("ab") as file:
            file.write(path.read_bytes()[part])

    return write


def test_new_files_are_taken_up(rotated: list[Path], tmp_path: Path) -> None:
    """Tables are those of the set read whole: the name of the capture, files and frames too."""
    folder = tmp_path / "ring"
    folder.mkdir()
    shutil.copy(rotated[0], folder)
    half = 10_000
    actions = [[put(path, folder, slice(half)), put(path, folder, slice(half, None))] for path in rotated[1:]]
    followed = kdissect.open(folder, follow=steps(*itertools.chain(*actions), *[lambda: None] * 3))
    rows = followed.table("exchanges", COLUMNS)
    whole = kdissect.open(rotated[0].parent)
    assert followed.names == whole.names
    assert rows.equals(whole.table("exchanges", COLUMNS))


def test_files_that_are_gone_or_compressed_meanwhile(rotated: list[Path], tmp_path: Path) -> None:
    """As `dumpcap -b files:` and `tcpdump -z gzip` leave them."""
    folder = tmp_path / "ring"
    folder.mkdir()
    shutil.copy(rotated[0], folder)

    def pack() -> None:
        first = folder / rotated[0].name
        Path(f"{first}.gz").write_bytes(gzip.compress(first.read_bytes()))
        first.unlink()

    actions: list[Callable[[], object]] = []
    for n, path in enumerate(rotated[1:]):
        actions += [put(path, folder), lambda: None]
        actions += [pack] if n == 0 else []
    followed = kdissect.open(folder, follow=steps(*actions, *[lambda: None] * 3))
    assert followed.table("exchanges", COLUMNS).equals(kdissect.open(rotated[0].parent).table("exchanges", COLUMNS))


def test_names_used_again(rotated: list[Path], tmp_path: Path) -> None:
    """`tcpdump -W 2`: the third file is written over the first."""
    (one,) = open_captures(rotated[0], growing=True)
    assert one.later is None, "a file by itself"
    for n in range(2):
        shutil.copy(rotated[n], tmp_path / f"ring.pcap{n}")
    (ring,) = open_captures(tmp_path, growing=True)
    assert isinstance(ring.later, Rotation)
    assert ring.later() == []
    shutil.copy(rotated[0], tmp_path / "ring.pcap0")
    os.utime(tmp_path / "ring.pcap0", ns=(1, 1))
    assert ring.later() == [], "written anew with what was read"
    shutil.copy(rotated[2], tmp_path / "ring.pcap0")
    assert [member.name for member in ring.later()] == ["ring.pcap0"]
    assert ring.later() == []


def test_others_are_left_alone(rotated: list[Path], tmp_path: Path) -> None:
    shutil.copy(rotated[0], tmp_path / "ring.pcap0")
    (ring,) = open_captures(tmp_path, growing=True)
    assert ring.later is not None
    shutil.copy(rotated[1], tmp_path / "other.pcap")
    (tmp_path / "ring.pcap1").write_bytes(rotated[1].read_bytes()[:24])
    assert ring.later() == [], "of another name, or without a packet"
    shutil.rmtree(tmp_path)
    assert ring.later() == []
