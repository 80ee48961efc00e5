"""Ctrl-C in the middle: exit code 130, one line, and no output half-written, whatever writes it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

CAPTURE = (ROOT / "captures" / "base.pcap").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ["-", "--table", "exchanges", "--format", "csv", "-o", "{}/out.csv"],
        ["-", "--messages", "Fetch.response", "-o", "{}/out.jsonl"],
        ["-", "-o", "{}/"],
        ["cut", "-", "--from", "2000-01-01", "-o", "{}/out.pcap"],
    ],
    ids=["table", "messages", "parquet", "cut"],
)
def test_nothing_is_left_half_written(arguments: list[str], tmp_path: Path) -> None:
    """The capture comes through a pipe that never ends."""
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "kdissect", *(word.format(out) for word in arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as running:
        assert running.stdin is not None
        assert running.stderr is not None
        running.stdin.write(CAPTURE)
        running.stdin.flush()
        deadline = time.monotonic() + 20
        # reading blocks in the pipe once all that was sent is taken; the main thread's stack tells
        while time.monotonic() < deadline and not _waits_for_input(running.pid):
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        said = running.stderr.read().decode()
        running.stdin.close()
        assert running.wait(30) == 130, said
    assert said.splitlines()[-1].startswith("kdissect: interrupted")
    assert "Traceback" not in said
    assert list(out.rglob("*")) == []


def _waits_for_input(pid: int) -> bool:
    """Whether a process sleeps in a read of its pipe (Linux); elsewhere a moment has to do."""
    wait = Path(f"/proc/{pid}/wchan")
    try:
        return "pipe" in wait.read_text()
    except OSError:
        time.sleep(5)
        return True
