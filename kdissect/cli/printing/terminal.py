"""The two streams of a terminal program: data on standard output, everything else on standard error.

Widths, colours and characters follow what the streams are: plain when piped, no colour under NO_COLOR, ASCII where the
locale cannot show more.
"""

from __future__ import annotations

import shutil
import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 100
"""Columns of the first screen where no terminal says how wide it is."""


def width() -> int:
    """Columns to write in: the terminal's (or COLUMNS), at least 40."""
    return max(40, shutil.get_terminal_size((PIPED_WIDTH, 24)).columns)


def console(stream: IO[str] | None = None) -> Console:
    """A console on a stream (standard output by default) that wraps nothing and guesses nothing about the text."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise  # where rich would end the program

    return Output(file=stream or sys.stdout, width=width(), highlight=False, markup=False, emoji=False, soft_wrap=True)


def ascii_only(stream: IO[str] | None = None) -> bool:
    """Whether a stream cannot show characters beyond ASCII (a C locale, Latin-1)."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "ascii"
    return not encoding.lower().replace("-", "").startswith("utf")


def say(message: str) -> None:
    """One line on standard error; characters that it cannot show are escaped."""
    encoding = getattr(sys.stderr, "encoding", None) or "ascii"
    sys.stderr.write(message.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    sys.stderr.flush()
