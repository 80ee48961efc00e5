"""The progress bar: only where somebody looks, gone when reading ends, never left behind."""

from __future__ import annotations

import io
import sys

import pytest

from kdissect.cli.printing import progress

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in place of standard error; to be called in the test, for pytest changes it between phases."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_it_goes_when_everything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watched(monkeypatch)
    bar = progress.Progress()
    bar(5, 10)
    assert "reading" in screen.getvalue()
    assert screen.getvalue().count(HIDE_CURSOR) == 1
    bar(10, 10)
    assert screen.getvalue().count(SHOW_CURSOR) == 1
    bar(3, 10)  # a second pass
    bar(10, 10)
    assert screen.getvalue().count(SHOW_CURSOR) == screen.getvalue().count(HIDE_CURSOR) == 2


def test_none_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stopped the reading."""
    screen = watched(monkeypatch)
    bar = progress.Progress()
    bar(5, None)
    assert SHOW_CURSOR not in screen.getvalue()
    progress.clear_all()
    assert SHOW_CURSOR in screen.getvalue()
    assert progress.SHOWN == []


def test_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    bar = progress.Progress()
    bar(5, 10)
    assert pipe.getvalue() == ""
