"""SIGTERM and SIGHUP unwind the program, as Ctrl-C does, so that unfinished files are taken away."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

from kdissect.cli.printing import terminal
from kdissect.output import abandon

ENDED_BY = 128
"""Plus the signal's number: the exit code that shells know."""
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a program at once unless it asks for them: a job killed, a terminal closed."""
GRACE = 0.7
"""Seconds that the program has to unwind: whoever ends it waits no longer than one."""


class Ended(KeyboardInterrupt):
    """One of ENDING arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = ENDED_BY + number
        self.message = f"kdissect: ended by {self}; no output file was left half-written"


class Ending:
    """Lets ENDING unwind the program. A signal that is ignored (nohup) stays so. Use it as a context.

    Python runs a handler when the main thread is back from its call, which may be a kernel or another thread
    that works on a large block. From `watch` on, what has not ended by itself within GRACE is ended.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._over = threading.Event()

    def __enter__(self) -> Ending:
        with contextlib.suppress(ValueError):  # not the main thread: whoever runs us there handles signals
            for number in ENDING:
                if signal.getsignal(number) == signal.SIG_DFL:
                    self._before[number] = signal.signal(number, _end)
        self._source, self._sink = os.pipe()
        os.set_blocking(self._sink, False)
        if self._before:
            signal.set_wakeup_fd(self._sink, warn_on_full_buffer=False)
        return self

    def watch(self) -> None:
        """Starts the thread that ends a program which does not unwind."""
        if self._before and self._source >= 0:
            threading.Thread(target=_watch, args=(self._source, self._over), daemon=True).start()
            self._source = -1  # the thread closes it

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._before:
            signal.set_wakeup_fd(-1)
        os.close(self._sink)  # ends the thread
        if self._source >= 0:
            os.close(self._source)
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise Ended(number)


def _watch(source: int, over: threading.Event) -> None:
    """End the process GRACE after one of ENDING, unless it is over by then."""
    with os.fdopen(source, "rb", buffering=0) as signals:
        while got := signals.read(1):
            if got[0] in ENDING and not over.wait(GRACE):
                abandon()
                ended = Ended(got[0])
                terminal.say(ended.message)
                os._exit(ended.code)
