"""The two streams of a terminal program: data on standard output, everything else on standard error.

Widths, colours and characters follow what the streams are: plain when piped or under NO_COLOR, ASCII where the locale
cannot show more. Whatever text is written here passes `kdissect.escaping`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

from kdissect.escaping import visible
from kdissect.problems import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPED_WIDTH = 100
"""Columns of the first screen where no terminal says how wide it is."""


def width() -> int:
    """Columns to write in: the terminal's (or COLUMNS), at least 40."""
    return max(40, shutil.get_terminal_size((PIPED_WIDTH, 24)).columns)


def console(stream: IO[str] | None = None) -> Console:
    """A console on a stream (standard output by default) that wraps nothing, guesses nothing about the text, and shows
    control characters instead of sending them; under NO_COLOR it sends none of its own."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise  # where rich would end the program

        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*map(_shown, objects), **options)

    return Output(
        file=stream or sys.stdout, width=width(), highlight=False, markup=False, emoji=False, soft_wrap=True,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )  # fmt: skip


def _shown(value: Any) -> Any:
    """A line with what is not to be sent escaped, its styles kept."""
    from rich.text import Text

    if isinstance(value, str):
        return visible(value)
    if not isinstance(value, Text) or visible(value.plain) == value.plain:
        return value
    line = Text(style=value.style, end=value.end)
    for piece in value.divide(range(1, len(value.plain))):
        line.append_text(piece) if visible(piece.plain) == piece.plain else line.append(visible(piece.plain))
    return line


def put(lines: Iterable[str | Text]) -> None:
    """Plain lines on standard output."""
    sys.stdout.write("".join(f"{visible(str(line))}\n" for line in lines))


def refuse_binary(what: str) -> None:
    """Raise UsageError where standard output is a terminal and `what` (a format, a capture) is not for one."""
    if sys.stdout.isatty():
        raise UsageError(f"{what} is not written to a terminal: -o FILE, or a pipe")


def ascii_only(stream: IO[str] | None = None) -> bool:
    """Whether a stream cannot show characters beyond ASCII (a C locale, Latin-1)."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "ascii"
    return not encoding.lower().replace("-", "").startswith("utf")


def say(message: str) -> None:
    """One line on standard error; characters that it cannot show, or would obey, are escaped."""
    encoding = getattr(sys.stderr, "encoding", None) or "ascii"
    sys.stderr.write(visible(message).encode(encoding, "backslashreplace").decode(encoding) + "\n")
    sys.stderr.flush()
