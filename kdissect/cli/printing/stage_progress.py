"""A progress line on standard error for a Spark job, only where somebody is looking."""

from __future__ import annotations

import contextlib
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 1.0
"""Seconds between two looks at the job, and before the first."""


class Stages:
    """While it is entered: which table is made, and how many tasks of the stages that run are done."""

    def __init__(self, session: SparkSession) -> None:
        self.name = ""
        """The table that is made."""
        self._tracker = session.sparkContext.statusTracker() if sys.stderr.isatty() else None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._shown = 0

    def __enter__(self) -> Stages:
        if self._tracker is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._tracker is not None:
            self._thread.join()
            self._show("")

    def _watch(self) -> None:
        with contextlib.suppress(Exception):  # the JVM has ended, which who waits for the job says
            while not self._done.wait(PATIENCE):
                self._show(self.line())

    def line(self) -> str:
        """The line that says what is going on."""
        if self._tracker is None:
            return self.name
        done = total = 0
        for stage in self._tracker.getActiveStageIds():
            found = self._tracker.getStageInfo(stage)
            if found is not None:
                done, total = done + found.numCompletedTasks, total + found.numTasks
        return f"{self.name}: {done} of {total} tasks" if total else self.name

    def _show(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._shown) + ("" if line else "\r"))
        sys.stderr.flush()
        self._shown = len(line)
