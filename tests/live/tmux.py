"""A program on a terminal of a given size, in tmux: its keys, and what stands on its screen."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import ROOT

WAIT_S = 60.0


def needed() -> None:
    """Skip the test where tmux is missing; in CI it fails instead, for CI installs it."""
    if shutil.which("tmux") is None:
        (pytest.fail if os.environ.get("CI") or os.environ.get("KDISSECT_CI") else pytest.skip)("needs tmux")


class Terminal:
    """A session of tmux that runs one command."""

    def __init__(self, server: str) -> None:
        self._server = server

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._server, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def screen(self) -> list[str]:
        return self._tmux("capture-pane", "-p").split("\n")[:-1]

    def until(self, condition: Callable[[str], object]) -> list[str]:
        """The screen once it is like this; it is a hang that fails."""
        deadline = time.monotonic() + WAIT_S
        while not condition("\n".join(self.screen())):
            assert time.monotonic() < deadline, "\n".join(self.screen())
            time.sleep(0.1)
        return self.screen()


@contextlib.contextmanager
def running(arguments: list[str], width: int, height: int) -> Iterator[Terminal]:
    """`kdissect` with these arguments on a terminal of this size."""
    server = f"kdissect-{uuid.uuid4().hex[:8]}"
    command = shlex.join(
        [
            "env",
            "-u",
            "COLUMNS",
            "-u",
            "LINES",
            f"PYTHONPATH={ROOT}",
            "TERM=screen-256color",
            sys.executable,
            "-m",
            "kdissect",
            *arguments,
        ]
    )
    start = ["tmux", "-L", server, "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), command]
    subprocess.run(start, check=True, cwd=ROOT, timeout=30)
    try:
        yield Terminal(server)
    finally:
        subprocess.run(["tmux", "-L", server, "kill-server"], capture_output=True, check=False, timeout=30)
