from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from kdissect.cli.printing import stage_progress
from kdissect.cli.printing.stage_progress import Stages


def session(*counts: tuple[int, int] | None) -> Any:
    """A session in which stages run that have done so many of so many tasks; None: one that has just ended."""
    made = [None if one is None else SimpleNamespace(numCompletedTasks=one[0], numTasks=one[1]) for one in counts]
    tracker = SimpleNamespace(getActiveStageIds=lambda: range(len(made)), getStageInfo=lambda n: made[n])
    return SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))


@pytest.mark.parametrize(
    ("counts", "line"), [(((3, 8), (0, 2)), "groups: 3 of 10 tasks"), ((None,), "groups"), ((), "groups")]
)
def test_the_line(monkeypatch: pytest.MonkeyPatch, counts: Any, line: str) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    made = Stages(session(*counts))
    made.name = "groups"
    assert made.line() == line


def test_it_is_cleared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(stage_progress, "PATIENCE", 0.01)
    with Stages(session((1, 2))) as made:
        made.name = "groups"
        while not made._shown:
            time.sleep(0.01)
    line = "groups: 1 of 2 tasks"
    assert capsys.readouterr().err.endswith(f"\r{line}\r{' ' * len(line)}\r")


def test_nobody_is_looking(capsys: pytest.CaptureFixture[str]) -> None:
    with Stages(session((1, 2))):
        pass
    assert capsys.readouterr().err == ""
