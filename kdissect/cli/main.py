"""The entry point: runs a command and turns any error into one line and an exit code.

- 0: the capture was read, with or without findings.
- 1: a capture could not be read at all, for lack of memory too, or a Spark job or a query could not be done.
- 2: arguments are bad, or output cannot be written.
- 130: the user interrupted it. 143, 129: SIGTERM or SIGHUP ended it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import IO

import click

from kdissect.cli.ending import Ended, Ending
from kdissect.cli.printing import terminal
from kdissect.cli.printing.progress import clear_all
from kdissect.problems import CaptureError, CaptureNotFound, JobFailed, KdissectError

READ, UNREADABLE, BAD_ARGUMENTS, INTERRUPTED = 0, 1, 2, 130
ALIKE = 0.65
"""How much of two words is alike (`difflib`) for the one to be meant by the other: two of three letters in order."""


def main(arguments: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Run the command line and return its exit code; `arguments` are those after the program's name. `own_process`:
    this process is the command's alone, and is confined to what the command needs."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _standard_streams()
    try:
        with Ending() as ending:
            if not own_process:
                ending.watch()
            try:
                code = _run(given, ending.watch if own_process else None)
            finally:
                clear_all()
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        return READ
    except OSError as error:
        return _unwritten(error)
    return code


def _run(arguments: list[str], confined: Callable[[], None] | None) -> int:
    """Run a command. `confined` is called when this process, the command's own, is confined."""
    from kdissect.cli.commands import COMPLETION, PROGRAM
    from kdissect.cli.commands import main as commands

    if COMPLETION in os.environ:  # a shell asks what could come next
        from click.shell_completion import shell_complete

        return shell_complete(commands, {}, PROGRAM, COMPLETION, os.environ[COMPLETION])
    try:
        with commands.make_context(PROGRAM, arguments) as context:
            if confined is not None:
                from kdissect.cli.confinement.sandbox import OWN

                context.meta[OWN] = confined
            commands.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except Ended as ended:
        terminal.say(ended.message)
        return ended.code
    except (click.Abort, KeyboardInterrupt):
        terminal.say("kdissect: interrupted; no output file was left half-written")
        return INTERRUPTED
    except click.ClickException as error:
        terminal.say(f"kdissect: {_one_line(error.format_message())}")
        return BAD_ARGUMENTS
    except CaptureError as error:
        terminal.say(f"kdissect: {_one_line(str(error))}{_meant(error, arguments)}")
        return UNREADABLE
    except JobFailed as error:
        terminal.say(f"kdissect: {_one_line(str(error))}")
        return UNREADABLE
    except KdissectError as error:
        terminal.say(f"kdissect: {_one_line(str(error))}")
        return BAD_ARGUMENTS
    except MemoryError as error:
        terminal.say(f"kdissect: not enough memory: {_one_line(str(error)) or 'Python got no more'}")
        return UNREADABLE
    except BrokenPipeError:
        raise
    except OSError as error:
        return _unwritten(error)
    return READ


def _nowhere(name: str, flags: int) -> IO[str]:
    """A stream in the place of a closed one."""
    return open(f"<{name}>", "r" if name == "stdin" else "w", opener=lambda *_: os.open(os.devnull, flags))


def _unwritten(error: OSError) -> int:
    """Say that standard output cannot be written: it is closed, or a file on a full disk."""
    terminal.say(f"kdissect: cannot write: {error.strerror or error}")
    _forget_output()
    return BAD_ARGUMENTS


def _meant(error: CaptureError, arguments: list[str]) -> str:
    """Whether a capture that does not exist was meant as a command or as a table."""
    if not isinstance(error, CaptureNotFound) or not arguments:
        return ""
    from difflib import get_close_matches

    from kdissect.cli.commands import main as commands
    from kdissect.tables.declaration import TABLES

    if arguments[0] in commands.commands:
        return ""
    asked = {**{name: f"the command {name!r}" for name in commands.commands},
             **{name: f"--table {name}" for name in TABLES if name not in commands.commands}}  # fmt: skip
    near = get_close_matches(arguments[0].lower(), asked, n=1, cutoff=ALIKE)
    return f" (did you mean {asked[near[0]]}?)" if near else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _standard_streams() -> None:
    """Escape what the locale cannot encode instead of failing on it. A stream that was closed (`>&-`) is opened before
    another file gets its number: messages go nowhere, data cannot be read or written."""
    for name, flags in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(name, flags))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """Point standard output at nothing, so that Python's own flush at exit stays quiet."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
