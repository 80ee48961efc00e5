"""The progress bar: only where somebody looks, gone when reading ends, never left behind."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from kdissect.cli.printing import progress, terminal

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in place of standard error; to be called in the test, for pytest changes it between phases."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


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


@pytest.mark.parametrize("lines", [1, 500])
def test_it_goes_before_anything_is_shown(lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a compressed capture nobody knows where it ends: the bar goes when there is something to read, not after the
    pager, which waits for a key."""
    screen, output = watched(monkeypatch), Terminal()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stdin", Terminal())
    seen: list[str] = []

    class Pager:
        stdin = Terminal()

        def __init__(self, *_: object, **__: object) -> None:
            seen.append(screen.getvalue())

        def wait(self) -> None: ...

    monkeypatch.setattr(subprocess, "Popen", Pager)
    monkeypatch.setenv("KDISSECT_PAGER", "sh")
    bar = progress.Progress()
    bar(5, None)
    with terminal.Paged() as out:
        out.write("a line\n" * lines)
    assert screen.getvalue().count(SHOW_CURSOR) == screen.getvalue().count(HIDE_CURSOR) == 1
    assert all(SHOW_CURSOR in text for text in seen)
    assert len(seen) == (lines > 100)
