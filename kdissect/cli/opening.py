"""Captures as the command line needs them, and how it opens one."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kdissect.cli.confinement.sandbox import is_own_process
from kdissect.cli.printing import terminal
from kdissect.cli.printing.progress import Progress
from kdissect.escaping import visible

if TYPE_CHECKING:
    from kdissect.engine.capture import Capture

STDIN = "-"
CHOSEN = ("client", "broker", "topic")
"""Options that say which exchanges are wanted."""
SMALL = 64 << 20
"""Bytes of input up to which rows are printed in order of time: their tables take some tens of MB. Beyond, rows are
printed as their exchanges complete, so that memory stays flat."""


def open_capture(
    captures: Sequence[str], *, demo: bool = False, timings: bool = False, must_fit: bool = False, **settings: Any
) -> Capture:
    """Open what was named on the command line. `-` is standard input; settings left at None or False are not passed.

    `timings`: when the command ends, standard error says where the time went. `must_fit`: the command fails where
    something does not fit in memory, and says so; other commands leave it out, and standard error says that.
    """
    if demo and captures:
        raise click.UsageError("--demo is a capture of its own; leave out the others")
    if not demo and not captures:
        raise click.UsageError("no capture given: try kdissect --demo, or kdissect --help")
    given = {name: value for name, value in settings.items() if value not in (None, False, ())}
    source: Any
    if demo:
        from kdissect.demo import CAPTURE

        source = str(CAPTURE)
    elif STDIN in captures:
        if len(captures) > 1:
            raise click.UsageError("standard input (-) cannot be read together with other captures")
        source = sys.stdin.buffer
    else:
        source = list(captures)
    given.setdefault("progress", Progress())
    from kdissect.arrays.lean_arrow import load_arrow_alone

    load_arrow_alone()
    import kdissect

    opened = kdissect.open(source, **given)
    from kdissect.engine.bounds.spare_memory import few_collections, frugal

    frugal()
    if is_own_process():
        few_collections()
    if "follow" in given:
        given["follow"].watch_files(opened)
    chosen = {name: given[name] for name in CHOSEN if name in given}
    if chosen:
        click.get_current_context().call_on_close(lambda: _say_none_chosen(opened, chosen))
    if not must_fit:
        click.get_current_context().call_on_close(lambda: _say_left_out(opened.left_out))
    if timings:
        from kdissect.cli.printing.timing import say_timings

        click.get_current_context().call_on_close(lambda: say_timings(opened.timings))
    from kdissect.kernels.kernel import compiled_before

    if not compiled_before():
        terminal.say("compiling kernels (once; takes some seconds)")
    return opened


def _say_none_chosen(capture: Capture, chosen: Mapping[str, Sequence[str]]) -> None:
    """That nothing has to do with the clients, brokers and topics asked for, which no answer to a question says. A
    command that fails says why itself."""
    if capture.timings.exchanges == 0 and sys.exc_info()[0] is None:
        of = " and ".join(f"{name} {visible(' or '.join(values))}" for name, values in chosen.items())
        terminal.say(f"no exchange of this capture is of {of}")


def _say_left_out(notes: Sequence[str]) -> None:
    for note in notes:
        terminal.say(f"kdissect: {note}; --max-memory 4GB allows more")


def small(capture: Capture) -> bool:
    """Whether the input is known to be at most `SMALL` bytes, so that its tables can be held and put in order."""
    return capture.size is not None and capture.size <= SMALL


def name_captures(captures: Sequence[str], demo: bool) -> list[str]:
    """How to name the same captures in another command, quoted for a shell. Standard input that is a file has its
    path; a pipe stays `-`."""
    import shlex

    return ["--demo"] if demo else [shlex.quote(_file_of(capture)) for capture in captures]


def _file_of(capture: str) -> str:
    """The path of a regular file that standard input reads (Linux's /proc tells); else as given."""
    if capture != STDIN:
        return capture
    with contextlib.suppress(OSError, ValueError):
        if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
            path = os.readlink(f"/proc/self/fd/{sys.stdin.fileno()}")
            if os.path.samestat(os.stat(path), os.fstat(sys.stdin.fileno())):
                return path
    return capture
