"""Every example of `--help` runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kdissect.cli.commands import EXAMPLES
from tests.conftest import ROOT

COMMANDS = [
    re.split(r" {2,}", line.strip())[0].strip()
    for line in EXAMPLES.splitlines()
    if "kdissect" in line and not line.startswith("Examples")
]
ON_SPARK = (pytest.mark.spark, pytest.mark.exhaustive)
"""README and docs/spark.md have the same commands, which are run more often."""
OFTEN = (pytest.mark.whole, pytest.mark.exhaustive, pytest.mark.exhaustive)
"""One of three runs before a change lands."""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=ON_SPARK if c.startswith("kdissect spark") else OFTEN[n % 3])
        for n, c in enumerate(COMMANDS)
    ],
)
def test_it_runs(command: str, tmp_path: Path) -> None:
    for name in ("broker.pcap", "before.pcap", "after.pcap"):
        shutil.copy(ROOT / "captures" / "k4_java_classic.pcap", tmp_path / name)
    line = command.replace("tcpdump -i eth0 -w - port 9092", "cat broker.pcap")  # no live interface in tests
    line = line.replace("--client shop", "--client rec-admin")  # a client of that capture
    program = tmp_path / "kdissect"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kdissect "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or any(word in line for word in (" -o ", " --html "))


def test_there_are_examples() -> None:
    assert len(COMMANDS) >= 10
