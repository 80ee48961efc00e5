"""A progress bar on standard error for work of more than a second, only on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

PATIENCE = 1.0
"""Seconds before the bar appears: what is faster needs none."""


class Progress:
    """Call it with (bytes done, bytes in all or None); use it as a context so that the bar is cleared at the end."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._watched = sys.stderr.isatty()
        self._bar: object | None = None
        self._task = 0
        SHOWN.append(self)

    def __call__(self, done: int, total: int | None) -> None:
        """Show how far reading is."""
        if not self._watched or time.monotonic() - self._started < PATIENCE:
            return
        import rich.progress as bars
        from rich.console import Console

        if not isinstance(self._bar, bars.Progress):
            self._bar = bars.Progress(
                bars.TextColumn("reading"),
                bars.BarColumn(),
                bars.DownloadColumn(),
                bars.TransferSpeedColumn(),
                bars.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("reading", total=total)
            self._bar.start()
        self._bar.update(bars.TaskID(self._task), completed=done, total=total)
        if total is not None and done >= total:
            self._stop()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the bar away (before data is written to the same terminal)."""
        self._stop()
        self._watched = False

    def _stop(self) -> None:
        stop = getattr(self._bar, "stop", None)
        if stop is not None:
            stop()
        self._bar = None


SHOWN: list[Progress] = []
"""Every bar of this process."""


def clear_all() -> None:
    """Take all bars away: a bar that is left behind hides the terminal's cursor."""
    while SHOWN:
        SHOWN.pop().clear()
