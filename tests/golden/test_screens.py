"""What every command shows on terminals of 80, 120 and 200 columns, and in a pipe, kept as text.

A change that is meant is written with `UPDATE_GOLDEN=1 pytest tests/golden/test_screens.py -m "whole or not whole"`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from kdissect.cli.commands import COMMANDS
from tests.conftest import ROOT

HERE = Path(__file__).resolve().parent / "screens"
WIDTHS = (80, 120, 200)
LINES = 50
UPDATE = bool(os.environ.get("UPDATE_GOLDEN"))
STORY = "captures/stories/slow_broker.pcap.zst"
SCREENS = {
    "first_screen": ["--demo"],
    "table": ["--demo", "--table", "exchanges", "--limit", "5"],
    "why": ["why", STORY, "1"],
    "why_list": ["why", STORY],
    "why_nothing": ["why", "captures/not_kafka.pcap"],
    "slowest": ["slowest", "--demo"],
    "errors": ["errors", "captures/raw_errors.pcap"],
    "gaps": ["gaps", "--demo"],
    "hops": ["hops", "--demo"],
    "show": ["show", "--demo", "--frame", "401"],
    "show_list": ["show", "--demo"],
    "sessions": ["sessions", "captures/k4_session_eviction.pcap"],
    "timeline": ["timeline", STORY],
    "latency": ["latency", "--demo"],
    "budget": ["budget", "--demo"],
    "diff": ["diff", "captures/base_tiny.pcap", "captures/base_short.pcap"],
    "stream": ["stream", "--demo", "--client", "kp-consumer", "--limit", "12"],
    "traffic": ["traffic", "--demo"],
    "whatif": ["whatif", "--demo", "--linger", "5ms"],
    "sql": ["sql", "--demo", "select api, count(*) as n from exchanges group by api order by n desc, api limit 4"],
    "schema": ["schema", "Heartbeat", "4"],
    "tables": ["tables", "producer_ids"],
    "top": ["top", "captures/base_tiny.pcap", "--once", "--no-findings"],
}
ELSEWHERE = {"crosscheck", "cut", "redact", "spark", "annotate", "wireshark", "man", "completion", "otlp"}
"""Commands that write files, text that no width changes, or what another program says."""
OFTEN = {"why", "slowest", "first_screen"}
"""What the default run looks at."""
WRAPPING = {"schema", "tables", "table"}
"""Commands whose lines may be longer than a terminal: layouts and descriptions of columns are not cut."""


def shown(arguments: list[str], width: int, home: Path) -> list[str]:
    """What a terminal of this width shows."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "KDISSECT_PAGER": "cat", "TERM": "xterm",
                   "LANG": "C.UTF-8", "HOME": str(home), "NO_COLOR": "1"}  # fmt: skip
    command = f"{shlex.quote(sys.executable)} -m kdissect {shlex.join(arguments)} 2>/dev/null"
    seen = pexpect.run(f"sh -c {shlex.quote(command)}", env=environment, timeout=240, dimensions=(LINES, width),
                       encoding="utf-8", cwd=str(ROOT))  # fmt: skip
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", str(seen)).splitlines()]


def piped(arguments: list[str]) -> list[str]:
    """What a pipe gets."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    done = subprocess.run([sys.executable, "-m", "kdissect", *arguments], cwd=ROOT, capture_output=True, text=True,
                          env=environment | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line.rstrip() for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.whole) for name in SCREENS]
)
def test_screens(name: str, tmp_path: Path) -> None:
    arguments = SCREENS[name]
    parts = []
    for width in WIDTHS:
        lines = shown(arguments, width, tmp_path)
        if name not in WRAPPING:
            assert max(map(len, lines)) <= width
        parts.append(f"--- {width} columns\n" + "\n".join(lines) + "\n")
    parts.append("--- pipe\n" + "\n".join(piped(arguments)) + "\n")
    kept, now = HERE / f"{name}.txt", f"$ kdissect {shlex.join(arguments)}\n{''.join(parts)}"
    if UPDATE:
        kept.write_text(now)
    assert now == kept.read_text(), "meant? UPDATE_GOLDEN=1 pytest tests/golden/test_screens.py"


def test_every_command_has_a_screen() -> None:
    seen = {arguments[0] for arguments in SCREENS.values()}
    assert set(COMMANDS) - ELSEWHERE - seen <= {"CAPTURE..."}


def test_no_strays() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} <= set(SCREENS)
