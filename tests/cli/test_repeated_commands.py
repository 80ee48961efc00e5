"""A program that runs many commands, one after the other, keeps nothing of them: neither memory nor open files."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from kdissect.capture import CaptureSet
from kdissect.cli.main import main
from kdissect.problems import NotACapture
from kdissect.schema.walker import WalkError
from tests.conftest import CAPTURES
from tests.fuzz.adversary import adversarial

SEVERAL_LAYOUTS_TRIED = 5000728
"""Seed of a capture with a message that fits the second layout that is tried."""


def test_garbage_is_still_collected_as_the_program_wants() -> None:
    before = gc.get_freeze_count(), gc.get_threshold()
    assert main([str(CAPTURES / "base_tiny.pcap")]) == 0
    assert (gc.get_freeze_count(), gc.get_threshold()) == before


def write_whole(path: Path) -> None:
    path.write_bytes((CAPTURES / "base_tiny.pcap").read_bytes())


def write_hostile(path: Path) -> None:
    path.write_bytes(adversarial(SEVERAL_LAYOUTS_TRIED).data)


def write_nothing(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("write", "line", "code"),
    [
        (write_whole, ["top", "--once", "--no-findings"], 0),
        (write_hostile, ["redact", "--check"], 1),
        (write_nothing, ["slowest"], 1),
    ],
    ids=["top", "redact", "no-capture"],
)
def test_nothing_waits_for_a_collection(write: object, line: list[str], code: int, tmp_path: Path) -> None:
    """Captures with their open files, and exceptions with the frames in which they passed."""
    assert callable(write)
    path = tmp_path / "in.pcap"
    write(path)
    gc.collect()
    gc.disable()
    try:
        before = {id(one) for one in gc.get_objects()}
        assert main([line[0], str(path), *line[1:]]) == code
        kept = [one for one in gc.get_objects() if type(one) in (CaptureSet, NotACapture, WalkError)]
        assert [one for one in kept if id(one) not in before] == []
    finally:
        gc.enable()
