"""`kdissect spark`, ended while Spark starts."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_no_jvm_is_left(sent: signal.Signals, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kdissect", "spark", "captures/base_tiny.pcap", "-o", f"{tmp_path}/tables/"]
    inherited = signal.signal(sent, signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL)
    try:
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT)
    finally:
        signal.signal(sent, inherited)
    with running:
        gateway = _gateway(running.pid)
        running.send_signal(sent)
        assert running.stderr is not None
        said = running.stderr.read().decode()  # ends when nobody has it any more
        assert running.wait(60) == code, said
    assert said.splitlines()[-1].startswith("kdissect: ")
    assert not gateway.is_running()


def _gateway(pid: int) -> psutil.Process:
    """The JVM that a process starts, as soon as there is one."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                words = child.cmdline()
                if words and words[0].endswith("java") and "pyspark-shell" in words and "-Xmx128m" not in words:
                    return child  # and not the one that makes the command of this one
        time.sleep(0.05)
    raise AssertionError("no JVM was started")
