"""What every command shows on terminals of 80, 120 and 200 columns, and in a pipe, kept as text.

A change that is meant is written with `UPDATE_GOLDEN=1 pytest tests/golden/test_screens.py -m "whole or not whole"`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

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


PROGRAM = """
import fcntl, json, os, pty, struct, sys, termios, threading
from kdissect.cli.main import main

def gather(end, got):
    try:
        while piece := os.read(end, 1 << 16):
            got.append(piece)
    except OSError:  # closed by the last writer
        pass

arguments, widths, lines = json.loads(sys.argv[1])
ours, seen = os.dup(1), []
for width in widths:
    read, write = pty.openpty() if width else os.pipe()
    if width:
        fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", lines, width, 0, 0))
        os.dup2(write, 0)
    os.dup2(write, 1)
    os.close(write)
    got = []
    reader = threading.Thread(target=gather, args=(read, got))
    reader.start()
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", encoding="utf-8", closefd=False)
    code = main(arguments)
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    reader.join()
    os.close(read)
    seen.append((code, b"".join(got).decode()))
os.write(ours, json.dumps(seen).encode())
"""
"""What a command shows on terminals of some widths, and in a pipe where the width is 0, one after the other in one
process: to start is what takes it longest."""


def shown(arguments: list[str], home: Path) -> list[list[str]]:
    """Lines on terminals of WIDTHS, and in a pipe."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "KDISSECT_PAGER": "cat", "TERM": "xterm",
                   "LANG": "C.UTF-8", "HOME": str(home), "NO_COLOR": "1"}  # fmt: skip
    asked = json.dumps([arguments, [*WIDTHS, 0], LINES])
    done = subprocess.run([sys.executable, "-c", PROGRAM, asked], cwd=ROOT, env=environment, capture_output=True,
                          text=True, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert [code for code, _ in seen] == [0] * len(seen), done.stderr
    texts = (re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text) for _, text in seen)
    return [[line.rstrip() for line in text.splitlines()] for text in texts]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.whole) for name in SCREENS]
)
def test_screens(name: str, tmp_path: Path) -> None:
    arguments = SCREENS[name]
    *screens, piped = shown(arguments, tmp_path)
    parts = []
    for width, lines in zip(WIDTHS, screens, strict=True):
        if name not in WRAPPING:
            assert max(map(len, lines)) <= width
        parts.append(f"--- {width} columns\n" + "\n".join(lines) + "\n")
    parts.append("--- pipe\n" + "\n".join(piped) + "\n")
    kept, now = HERE / f"{name}.txt", f"$ kdissect {shlex.join(arguments)}\n{''.join(parts)}"
    if UPDATE:
        kept.write_text(now)
    assert now == kept.read_text(), "meant? UPDATE_GOLDEN=1 pytest tests/golden/test_screens.py"


def test_every_command_has_a_screen() -> None:
    seen = {arguments[0] for arguments in SCREENS.values()}
    assert set(COMMANDS) - ELSEWHERE - seen <= {"CAPTURE..."}


def test_no_strays() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} <= set(SCREENS)
