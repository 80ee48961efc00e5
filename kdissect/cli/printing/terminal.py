"""The two streams of a terminal program: data on standard output, everything else on standard error.

Widths, colours and characters follow what the streams are: plain when piped or under NO_COLOR, ASCII where the locale
cannot show more. All text that is written here passes `kdissect.escaping`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any, cast

from kdissect.cli.printing.progress import clear_all
from kdissect.escaping import visible
from kdissect.problems import UsageError

if TYPE_CHECKING:
    import subprocess

    from rich.console import Console
    from rich.text import Text

_COLOURS = r"\x1b\[[0-9;]*m"
PIPED_WIDTH, PIPED_LINES = 100, 24
"""Columns of the first screen where no terminal says how wide it is, and lines."""
ANY_WIDTH = 100_000
"""Columns that no row needs."""
STYLED = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables that have rich write colours where there is no terminal."""


def width() -> int:
    """Columns to write in: the terminal's (or COLUMNS), at least 40."""
    return max(40, _size()[0])


def page_lines() -> int | None:
    """Lines that fit above the prompt; None in a pipe, which has room for any number."""
    return _size()[1] - 1 if sys.stdout.isatty() else None


def short_rows() -> bool:
    """Whether rows are for eyes alone: a terminal. In a pipe nothing is cut and no column is left out."""
    return sys.stdout.isatty()


def row_width() -> int:
    """Columns for aligned rows: the terminal's; in a pipe, as many as the rows need."""
    return width() if short_rows() else ANY_WIDTH


def _size() -> tuple[int, int]:
    """Columns and lines of the terminal, as `shutil.get_terminal_size` finds them."""
    out = sys.__stdout__
    if not (os.environ.get("COLUMNS") or os.environ.get("LINES") or out is None or out.closed or out.isatty()):
        return PIPED_WIDTH, PIPED_LINES
    import shutil

    return shutil.get_terminal_size((PIPED_WIDTH, PIPED_LINES))


def console(stream: IO[str] | None = None) -> Console:
    """A console on a stream (standard output by default) that wraps nothing and guesses nothing about the text. It
    shows control characters instead of sending them; under NO_COLOR it sends none of its own."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise  # where rich would end the program

        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*map(_escape_line, objects), **options)

    return Output(
        file=stream or sys.stdout, width=width(), highlight=False, markup=False, emoji=False, soft_wrap=True,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )  # fmt: skip


def _escape_line(value: Any) -> Any:
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


class Paged:
    """Standard output that goes through a pager as soon as it is longer than the terminal: KDISSECT_PAGER, else PAGER,
    else less (which ends by itself where everything fits). Only where somebody sits before both ends; `cat` or an empty
    KDISSECT_PAGER turns it off."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._room = _size()[1] - 1
        self._program: subprocess.Popen[str] | None = None
        self._command: list[str] = []
        self._through = not (sys.stdout.isatty() and sys.stdin.isatty())
        if not self._through:
            self._command = pager_command()
            self._through = not self._command

    def __enter__(self) -> Paged:
        return self

    def write(self, text: str) -> int:
        """Take text: held until it is known whether it fits the terminal."""
        if self._program is not None:
            assert self._program.stdin is not None
            self._program.stdin.write(text)
        elif self._through:
            if sys.stdout.isatty():
                clear_all()
            sys.stdout.write(text)
        else:
            self._waiting.append(text)
            self._room -= _lines(text)
            if self._room < 0:
                import subprocess

                clear_all()
                environment = {"LESS": "FRX", **os.environ}
                try:
                    self._program = subprocess.Popen(self._command, stdin=subprocess.PIPE, text=True, env=environment)
                except OSError:  # a script of the user, whose interpreter may not run in the sandbox
                    self._through = True
                self.write("".join(self._waiting))
        return len(text)

    @property
    def paging(self) -> bool:
        """Whether a pager may come in between: one that is left early closes its pipe, which is no error."""
        return not self._through

    def isatty(self) -> bool:
        """Whether a terminal is at the end."""
        return sys.stdout.isatty()

    def fileno(self) -> int:
        """That of standard output."""
        return sys.stdout.fileno()

    @property
    def encoding(self) -> str:
        """That of standard output."""
        return sys.stdout.encoding

    def flush(self) -> None:
        """Nothing is held that could be shown: rows wait for their end or for a full screen."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._program is None:
            if not self._through:
                clear_all()
                sys.stdout.write("".join(self._waiting))
            return
        assert self._program.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._program.stdin.close()
        while True:
            try:
                self._program.wait()
                break
            except KeyboardInterrupt:  # the pager's own affair
                continue


def pager_command() -> list[str]:
    """The pager with its arguments; empty where there is none, or it is turned off."""
    import shlex
    import shutil

    command = shlex.split(os.environ.get("KDISSECT_PAGER", os.environ.get("PAGER", "less")))
    return command if command and command != ["cat"] and shutil.which(command[0]) else []


def _lines(text: str) -> int:
    """Lines of the terminal that a text takes, its colours not counted."""
    columns = width()
    plain = re.sub(_COLOURS, "", text)
    return sum(max(1, -(-len(line) // columns)) for line in plain.splitlines())


def page(lines: Iterable[Text]) -> None:
    """Lines on standard output, through a pager where they are longer than the terminal."""
    with Paged() as out, contextlib.suppress(*([BrokenPipeError] if out.paging else [])):
        if not (out.isatty() or any(map(os.environ.get, STYLED))):  # without styles a line is its text
            for line in lines:
                out.write(f"{visible(line.plain)}{line.end}")
            return
        shown = console(cast("IO[str]", out))
        for line in lines:
            shown.print(line)


def print_plain(lines: Iterable[str | Text]) -> None:
    """Plain lines on standard output."""
    sys.stdout.write("".join(f"{visible(str(line))}\n" for line in lines))


def refuse_binary(subject: str) -> None:
    """Raise UsageError where standard output is a terminal and `what` (a format, a capture) is not for one."""
    if sys.stdout.isatty():
        raise UsageError(f"{subject} is not written to a terminal: -o FILE, or a pipe")


def ascii_only(stream: IO[str] | None = None) -> bool:
    """Whether a stream cannot show characters beyond ASCII (a C locale, Latin-1)."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "ascii"
    return not encoding.lower().replace("-", "").startswith("utf")


def say(message: str) -> None:
    """One line on standard error; characters that it cannot show, or would obey, are escaped."""
    encoding = getattr(sys.stderr, "encoding", None) or "ascii"
    sys.stderr.write(visible(message).encode(encoding, "backslashreplace").decode(encoding) + "\n")
    sys.stderr.flush()
