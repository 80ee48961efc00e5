"""The entry point: runs a command and turns whatever stops it into one line and an exit code.

0: read, whatever the findings. 1: a capture could not be read at all, for lack of memory too, or a Spark job or a
query could not be done.
2: bad arguments, or output that cannot be written. 130: interrupted. 143, 129: ended by SIGTERM or SIGHUP.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import IO, NoReturn

import click

from kdissect.cli.printing import terminal
from kdissect.cli.printing.progress import clear_all
from kdissect.output import abandon
from kdissect.problems import CaptureError, CaptureNotFound, JobFailed, KdissectError

READ, UNREADABLE, BAD_ARGUMENTS, INTERRUPTED = 0, 1, 2, 130
ENDED_BY = 128
"""Plus the signal's number: the exit code that shells know."""
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a program at once unless it asks for them: a job killed, a terminal closed."""


GRACE = 0.7
"""Seconds that the program has to unwind: whoever ends it waits no longer than one."""


class _Ended(KeyboardInterrupt):
    """One of ENDING arrived; its argument says which."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; `arguments` are those after the program's name."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _standard_streams()
    try:
        with _ending():
            try:
                code = _run(given)
            finally:
                clear_all()
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        return READ
    except OSError as error:
        return _unwritten(error)
    return code


def _run(given: list[str]) -> int:
    from kdissect.cli.commands import COMPLETION, PROGRAM
    from kdissect.cli.commands import main as commands

    if COMPLETION in os.environ:  # a shell asks what could come next
        from click.shell_completion import shell_complete

        return shell_complete(commands, {}, PROGRAM, COMPLETION, os.environ[COMPLETION])
    try:
        with commands.make_context(PROGRAM, given) as context:
            commands.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except _Ended as ended:
        by = signal.Signals[str(ended)]
        terminal.say(_ended(by))
        return ENDED_BY + by
    except (click.Abort, KeyboardInterrupt):
        terminal.say("kdissect: interrupted; no output file was left half-written")
        return INTERRUPTED
    except click.ClickException as error:
        terminal.say(f"kdissect: {_one_line(error.format_message())}")
        return BAD_ARGUMENTS
    except CaptureError as error:
        terminal.say(f"kdissect: {_one_line(str(error))}{_meant(error, given)}")
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


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """Let ENDING unwind the program as Ctrl-C does, so that what was written aside is taken away. A signal that is
    ignored (nohup) stays so.

    Python runs a handler when the main thread is back from whatever it called, which may be a kernel or another thread
    that works on a large block: what has not ended by itself within GRACE is ended."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise _Ended(signal.Signals(number).name)

    before = {}
    with contextlib.suppress(ValueError):  # not the main thread: whoever runs us there handles signals
        for number in ENDING:
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    over = threading.Event()
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    try:
        if before:
            signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
            threading.Thread(target=_watch, args=(source, over), daemon=True).start()
        yield
    finally:
        over.set()
        if before:
            signal.set_wakeup_fd(-1)
        os.close(sink)  # ends the thread
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(source: int, over: threading.Event) -> None:
    """End the process GRACE after one of ENDING, unless it is over by then."""
    with os.fdopen(source, "rb", buffering=0) as signals:
        while got := signals.read(1):
            if got[0] in ENDING and not over.wait(GRACE):
                abandon()
                terminal.say(_ended(signal.Signals(got[0])))
                os._exit(ENDED_BY + got[0])


def _ended(by: signal.Signals) -> str:
    return f"kdissect: ended by {by.name}; no output file was left half-written"


def _meant(error: CaptureError, given: list[str]) -> str:
    """Whether a capture that does not exist was meant as a command."""
    if not isinstance(error, CaptureNotFound) or not given:
        return ""
    from difflib import get_close_matches

    from kdissect.cli.commands import main as commands

    if given[0] in commands.commands:
        return ""
    near = get_close_matches(given[0], list(commands.commands), n=1, cutoff=0.7)
    return f" (did you mean the command {near[0]!r}?)" if near else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _standard_streams() -> None:
    """Escape what the locale cannot encode instead of failing on it. What was closed (`>&-`) is open before another
    file gets its number: messages go nowhere, data cannot be read or written."""
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
