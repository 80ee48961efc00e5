"""Following a capture that is still being made: `--follow`.

Reading goes on where the input ends, and asks a `Follower` some times a second whether to stop. A table's rows are
written as their exchanges complete. The first screen shows a capture as if it ended now. A copy of the process
(fork) ends it, prints and exits, while the process itself reads on. So the screen needs no second reading, and a pipe's
writer never waits for it.

A file that was made just now is still empty (tcpdump writes its first kilobytes together): following waits for it, and
for the first capture in a directory.

Ctrl-C ends following as the end of the input would: what is known is written. A second one ends at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from kdissect.cli.printing import terminal

if TYPE_CHECKING:
    from kdissect.engine.capture import Capture

EVERY = 1.0
"""Seconds between screens, at least: as often as people can read."""
HEADER = 24
"""Bytes that any capture has: the header of a pcap; a pcapng's first block has 28 at least."""
LOOK = 0.1
"""Seconds between looks at a file that is still empty."""
CLEAR = "\x1b[H\x1b[2J"
"""To the upper left, and all of the terminal blank (ECMA-48)."""


class OverwrittenFiles:
    """Says on standard error that another capture was written over a file that is followed. `lines`: a sentence for
    each such file so far."""

    def __init__(self, lines: Callable[[], Sequence[str]]) -> None:
        self._lines = lines
        self._said = 0

    def say_new(self) -> None:
        """Says the sentences that were not said yet."""
        for line in self._lines()[self._said :]:
            terminal.say(line)
            self._said += 1


class Follower:
    """Says when to stop; `screens`: the first screen is printed afresh meanwhile. Use it as a context."""

    def __init__(self, screens: bool) -> None:
        self._screens = screens and hasattr(os, "fork")
        self._interrupted = False
        self._reading = False
        self._copy = False  # this is a copy that prints
        self._copies: list[int] = []
        self._read = self._shown = 0
        self._at = 0.0
        self._screens_before = 0
        self._before: Any = None
        self._overwritten = OverwrittenFiles(tuple)

    def __enter__(self) -> Follower:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._copy:  # whatever happened, the process itself goes on and will say it
            os._exit(1)
        signal.signal(signal.SIGINT, self._before)
        self._wait(0)
        self._overwritten.say_new()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted or not self._reading:
            raise KeyboardInterrupt
        self._interrupted = True

    def await_beginning(self, captures: Sequence[str]) -> None:
        """Wait until all of the files named have started; Ctrl-C ends that too."""
        self._reading = True
        while not self._interrupted and any(_empty(Path(name)) or _bare(Path(name)) for name in captures):
            time.sleep(LOOK)
        self._reading = False

    def watch_files(self, capture: Capture) -> None:
        """Says from now on which files of the capture another one was written over."""
        self._overwritten = OverwrittenFiles(lambda: capture.overwritten)

    def progress(self, done: int, total: int | None) -> None:
        """Takes how many bytes were read."""
        self._read = done

    def __call__(self) -> bool:
        """Whether to stop reading now."""
        self._reading = True
        if self._interrupted:
            return True
        if not self._copy:
            self._overwritten.say_new()
        if self._screens and self._read > self._shown and time.monotonic() - self._at >= EVERY and self._idle():
            self._at, self._shown = time.monotonic(), self._read
            sys.stdout.flush()
            number = os.fork()
            if number == 0:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                self._copy = True
            else:
                self._copies = [number]
                self._screens_before += 1
        return self._copy

    def screen(self, show: Callable[[], None]) -> None:
        """Print a screen: over the last one on a terminal, below it elsewhere. A copy does not come back."""
        self._wait(0)
        if sys.stdout.isatty():
            sys.stdout.write(CLEAR)
        elif self._screens_before:
            sys.stdout.write("\n")
        show()
        sys.stdout.flush()
        if self._copy:
            os._exit(0)

    def _idle(self) -> bool:
        """Whether the last copy has finished."""
        self._wait(os.WNOHANG)
        return not self._copies

    def _wait(self, how: int) -> None:
        self._copies = [] if self._copy else [one for one in self._copies if os.waitpid(one, how)[0] == 0]


def _empty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < HEADER


def _bare(path: Path) -> bool:
    """Whether it is a directory without any file that has started."""
    return path.is_dir() and not any(one.is_file() and not _empty(one) for one in path.rglob("[!.]*"))
