"""Ctrl-C in the middle, SIGTERM, SIGHUP: the shell's exit code, one line, and no output half-written, whatever writes
it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

CAPTURE = (ROOT / "captures" / "base.pcap").read_bytes()


TABLE = ["-", "--table", "exchanges", "--format", "csv", "-o", "{}/out.csv"]
PARQUET = ["-", "-o", "{}/"]


@pytest.mark.parametrize(
    ("arguments", "sent", "code"),
    [
        pytest.param(TABLE, signal.SIGINT, 130, id="table"),
        pytest.param(["-", "--messages", "Fetch.response", "-o", "{}/out.jsonl"], signal.SIGINT, 130, id="messages"),
        pytest.param(PARQUET, signal.SIGINT, 130, id="parquet"),
        pytest.param(["cut", "-", "--from", "2000-01-01", "-o", "{}/out.pcap"], signal.SIGINT, 130, id="cut"),
        pytest.param(TABLE, signal.SIGTERM, 143, id="table-term"),
        pytest.param(PARQUET, signal.SIGTERM, 143, id="parquet-term"),
        pytest.param(PARQUET, signal.SIGHUP, 129, id="parquet-hup"),
    ],
)
def test_nothing_is_left_half_written(arguments: list[str], sent: signal.Signals, code: int, tmp_path: Path) -> None:
    """The capture comes through a pipe that never ends."""
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "kdissect", *(word.format(out) for word in arguments)]
    inherited = signal.signal(sent, signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL)
    try:  # tests that run under nohup ignore SIGHUP, and whatever they start would, too
        running = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    finally:
        signal.signal(sent, inherited)
    with running:
        assert running.stdin is not None
        assert running.stderr is not None
        running.stdin.write(CAPTURE)
        running.stdin.flush()
        deadline = time.monotonic() + 20
        # reading blocks in the pipe once all that was sent is taken; the main thread's stack tells
        while time.monotonic() < deadline and not _waits_for_input(running.pid):
            time.sleep(0.1)
        running.send_signal(sent)
        said = running.stderr.read().decode()
        running.stdin.close()
        assert running.wait(30) == code, said
    told = "interrupted" if sent is signal.SIGINT else f"ended by {sent.name}"
    assert said.splitlines()[-1] == f"kdissect: {told}; no output file was left half-written"
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
