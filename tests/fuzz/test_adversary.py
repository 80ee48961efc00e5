"""A share of what the nightly adversary does, and every seed that once found something."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kdissect.cli.commands import main as commands
from kdissect.engine.capture import Capture
from kdissect.net.scanner import Scanner
from tests.fuzz import adversary

INPUTS = 500
LONGEST_S = float(os.environ.get("KDISSECT_FUZZ_SECONDS", "60"))
"""For which this share runs at most, seconds."""


@pytest.mark.fuzz
def test_a_share_of_the_adversary() -> None:
    verdict = adversary.campaign(INPUTS, LONGEST_S, seed=int(os.environ.get("KDISSECT_FUZZ_SEED", "1")))
    print(verdict.inputs, verdict.kinds)
    assert verdict.found == []
    assert verdict.inputs > len(adversary.KINDS)


@pytest.mark.parametrize("seed", [*range(len(adversary.KINDS)), *adversary.found_seeds()])
def test_seeds(seed: int, tmp_path: Path) -> None:
    """One of each kind, and those that were found."""
    assert list(adversary.judge(seed, tmp_path)) == []


def test_every_command_that_reads_captures_is_tried() -> None:
    tried = {line[0] for line in adversary.lines("x", "y", random.Random(1))} & set(commands.commands)
    silent = {"schema", "tables", "man", "completion", "wireshark", "crosscheck", "spark", "CAPTURE..."}
    assert set(commands.commands) - silent == tried


def found(kind: Any, folder: Path, seeds: int = 1) -> set[str]:
    """What is found in some inputs of a kind."""
    first = adversary.KINDS.index(kind)
    numbers = range(first, first + seeds * len(adversary.KINDS), len(adversary.KINDS))
    return {what for number in numbers for what, _ in adversary.judge(number, folder)}


def test_it_finds_what_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(Scanner, "scan", broken)
    assert "raised" in found(adversary.damaged, tmp_path)


def test_it_finds_what_is_not_redacted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Capture, "redact", lambda self, target, **_: shutil.copy(tmp_path / "in.pcap", target))
    assert "a planted text stayed" in found(adversary.planted, tmp_path, 3)


def test_a_killed_campaign_has_kept_its_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def judge(seed: int, folder: Path) -> Iterator[tuple[str, str]]:
        if seed == 3:
            raise KeyboardInterrupt
        yield "raised", "planted"

    monkeypatch.setattr(adversary, "judge", judge)
    monkeypatch.setattr(adversary, "FOUND_SEEDS", tmp_path / "seeds.txt")
    with pytest.raises(KeyboardInterrupt):
        adversary.campaign(10, 60, 1, adversary.keep_seed)
    assert adversary.found_seeds() == [1, 2]


@pytest.mark.parametrize("code", adversary.INTERRUPTED)
def test_an_interrupted_campaign_found_nothing(code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(adversary, "command_line", lambda line: code)
    with pytest.raises(KeyboardInterrupt):
        found(adversary.mutant, tmp_path)


def test_it_finds_invented_exchanges() -> None:
    ends = frozenset({("a", 1), ("b", 2)})
    real = frozenset({(ends, "Fetch", 7), (ends, "Metadata", 8)})
    assert adversary.invented(real, real) == []
    assert adversary.invented(frozenset({(ends, None, 7)}), real) == []  # a response without its request
    assert len(adversary.invented(frozenset({(ends, None, 9), (ends, "Fetch", 8)}), real)) == 2


def test_it_finds_results_that_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = iter(range(100))
    monkeypatch.setattr(adversary, "rows_of", lambda *_, **__: {"exchanges": [str(next(rows))]})
    assert "another result" in found(adversary.damaged, tmp_path)


def test_it_finds_control_characters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(adversary, "run", lambda line: (0, "a\x1b[2J"))
    assert "control characters" in found(adversary.hostile_names, tmp_path)


def test_it_finds_files_that_stay_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened:

        def run(line: list[str]) -> tuple[int, str]:
            opened.enter_context(tempfile.TemporaryFile())
            return 0, ""

        monkeypatch.setattr(adversary, "run", run)
        assert "a file stayed open" in found(adversary.mutant, tmp_path)
