"""Epochs of fetch sessions over a time that no capture has, by the local engine and by the stages of a job."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect

TABLES = ("fetches", "fetch_sessions")
SESSIONS = 11
"""Sessions of k4_session_eviction that are used before and after the middle fifth of its packets."""


def statuses(table: pa.Table) -> Counter[str | None]:
    return Counter(table["epoch_status"].to_pylist())


@pytest.fixture
def fifths(captures: Path, rotate: Any) -> list[Path]:
    folder: Path = rotate(captures / "k4_session_eviction.pcap", 5)
    return sorted(folder.iterdir())


@pytest.fixture
def file_missing(fifths: list[Path]) -> list[Path]:
    """A rotated set that lacks a file."""
    fifths[2].unlink()
    return [*fifths[:2], *fifths[3:]]


@pytest.fixture
def pause(fifths: list[Path]) -> list[Path]:
    """Two captures of one host, with a pause between."""
    header = fifths[0].read_bytes()[:24]
    made = [fifths[0].with_name("morning.pcap"), fifths[0].with_name("evening.pcap")]
    for target, parts in zip(made, (fifths[:2], fifths[3:]), strict=True):
        target.write_bytes(header + b"".join(part.read_bytes()[24:] for part in parts))
    return made


@pytest.mark.parametrize("kind", ["file_missing", "pause"])
def test_a_time_without_a_capture(kind: str, simulate: Any, equal: Any, request: pytest.FixtureRequest) -> None:
    paths: list[Path] = request.getfixturevalue(kind)
    found = kdissect.open(paths).tables(TABLES)
    counts = statuses(found["fetches"])
    assert (counts["not_captured"], counts["gap"], counts["repeat"]) == (SESSIONS, 0, 0)
    sums = {name: sum(found["fetch_sessions"][name].to_pylist()) for name in ("epochs_not_captured", "epoch_gaps")}
    assert sums == {"epochs_not_captured": SESSIONS, "epoch_gaps": 0}
    equal(simulate(paths, 3, list(TABLES)), found)


def test_all_files_of_a_set(fifths: list[Path]) -> None:
    assert statuses(kdissect.open(fifths).table("fetches"))["not_captured"] == 0


def test_a_wrong_epoch_across_two_files_is_a_gap(captures: Path, rotate: Any) -> None:
    """k4_fetch_sessions_raw: 42 where 9 is due, twelve times; every byte was captured."""
    found = kdissect.open(rotate(captures / "k4_fetch_sessions_raw.pcap", 40)).table("fetches")
    assert (statuses(found)["gap"], statuses(found)["not_captured"]) == (12, 0)


def test_lost_packets(captures: Path) -> None:
    """field_loss5 is base without every twentieth packet: base has no gap."""
    found = statuses(kdissect.open(captures / "field_loss5.pcap").table("fetches"))
    assert (found["gap"], found["not_captured"]) == (0, 11)


def test_requests_cut_by_a_snap_length(captures: Path, tmp_path: Path) -> None:
    """Where a request is cut before its epoch the next one stands beyond what is expected."""
    data = (captures / "k4_slow_and_throttled.pcap").read_bytes()
    made, at = bytearray(data[:24]), 24
    while at < len(data):
        seconds, rest, size, wire = struct.unpack("<IIII", data[at : at + 16])
        kept = min(size, 150)
        made += struct.pack("<IIII", seconds, rest, kept, wire) + data[at + 16 : at + 16 + kept]
        at += 16 + size
    (tmp_path / "snapped.pcap").write_bytes(made)
    found = statuses(kdissect.open(tmp_path / "snapped.pcap").table("fetches"))
    assert (found["gap"], found["not_captured"]) == (0, 16)


def test_sessions_whose_fetches_nobody_sees(file_missing: list[Path]) -> None:
    """Rows of fetches are integers then (`kdissect.arrays.rows`)."""
    capture = kdissect.open(file_missing)
    sessions = capture.tables({"exchanges": ["exchange_id", "hold"], "fetch_sessions": None})["fetch_sessions"]
    assert sessions.equals(capture.table("fetch_sessions"))
    assert sum(sessions["epochs_not_captured"].to_pylist()) == SESSIONS
