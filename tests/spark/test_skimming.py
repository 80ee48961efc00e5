"""What is skimmed gives the index that whole files give, whatever stands in them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdissect.capture import open_captures
from kdissect.capture.captureset import Member
from kdissect.engine.settings import Settings
from kdissect.spark.stages import indexing
from kdissect.spark.stages.plan import Plan, source_of
from kdissect.spark.stages.skimming import SkimmedFile
from tests.bench.packets import write
from tests.bench.workloads import bulk


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Some megabytes of large packets."""
    path = tmp_path_factory.mktemp("large") / "large.pcap"
    write(path, bulk(), 20_000_000, 3)
    return path.read_bytes()


def rows(path: Path) -> list[dict[str, Any]]:
    (source,) = [source_of(capture, False) for capture in open_captures(path)]
    plan = Plan([source], {"exchanges": ["api"]}, Settings(), [0, 1])
    return [row for batch in indexing.index([(0, 0)], plan) for row in batch.to_pylist()]


def same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skimmed = rows(path)
    with monkeypatch.context() as patch:
        patch.setattr(indexing, "Skimmed", Member)
        assert skimmed == rows(path)


def test_large_packets_are_stepped_over(large: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.pcap"
    path.write_bytes(large)
    file = SkimmedFile(path)
    target = bytearray(len(large))
    assert file.readinto(memoryview(target)) == len(large)
    assert 20 * np.count_nonzero(np.frombuffer(target, np.uint8)) < np.count_nonzero(np.frombuffer(large, np.uint8))
    file.close()
    same(path, monkeypatch)


@pytest.mark.parametrize("seed", range(6))
def test_damage(large: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Lengths and whatever else at the front of packets, and bytes anywhere, are overwritten; the end is cut off."""
    chance = random.Random(seed)
    data, at = bytearray(large), 24
    while at < len(data) - 200:
        size = int.from_bytes(data[at + 8 : at + 12], "little")
        if chance.random() < 0.01:
            place = at + chance.randrange(60)
            data[place : place + 2] = chance.randbytes(2)
        at += 16 + size
    path = tmp_path / "damaged.pcap"
    path.write_bytes(data[: chance.randrange(len(data) // 2, len(data))])
    same(path, monkeypatch)


def test_slots_end_anywhere(large: bytes, tmp_path: Path) -> None:
    """Headers that reads cut are put together."""
    path = tmp_path / "large.pcap"
    path.write_bytes(large)
    chance, file = random.Random(1), SkimmedFile(path)
    whole = bytearray()
    while True:
        target = bytearray(chance.randrange(1, 60_000))
        got = file.readinto(memoryview(target))
        whole += target[:got]
        if got < len(target):
            break
    file.close()
    assert len(whole) == len(large)
    at = 24
    while at + 16 <= len(large):
        size = int.from_bytes(large[at + 8 : at + 12], "little")
        assert whole[at : at + min(size + 16, 150)] == large[at : at + min(size + 16, 150)]
        at += 16 + size
