"""The first screen on terminals of three sizes, over all recordings: what it says, and what its commands give."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pexpect
import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.cli.printing import screen
from kdissect.cli.printing.accounts import in_words, worst_first
from tests.analysis.test_judged import JUDGED, fits, place
from tests.cli.test_screen import RECORDED
from tests.conftest import ROOT

SIZES = ((24, 80), (40, 100), (60, 200))
ALWAYS = {
    ("slow_broker", 80),
    ("k4_slow_and_throttled", 100),
    ("k4_session_eviction", 80),
    ("downconv_282", 100),
    ("raw_errors", 200),
}
"""What the default run looks at; the rest, ten minutes, is `exhaustive`."""
STORIES = sorted((ROOT / "captures" / "stories").glob("*.pcap.zst"))
LONG_POLLS = 0.2
"""Most of the rows of a proposed command that may be long polls."""
TELLING = 12
"""Lines that a person reads before anything else."""
UNTOLD = {"k4_admin_sweep", "k4_list_offsets_raw"}
"""Recordings whose cause does not stand in those lines: dozens of findings about deliberate mistakes, none worse than
the others."""


def cases() -> list[Any]:
    return [
        pytest.param(path, rows, columns, id=f"{path.name}-{columns}",
                     marks=() if (path.name.split(".")[0], columns) in ALWAYS else pytest.mark.exhaustive)
        for path in (*RECORDED, *STORIES) for rows, columns in SIZES
    ]  # fmt: skip


def typed(path: Path, rows: int, columns: int, home: Path) -> list[str]:
    """What a terminal shows, line by line as it was written."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "KDISSECT_PAGER": "cat", "TERM": "xterm",
                   "LANG": "C.UTF-8", "HOME": str(home)}  # fmt: skip
    command = f"{sys.executable} -m kdissect {path.relative_to(ROOT)} 2>/dev/null"
    seen = pexpect.run(f"sh -c {shlex.quote(command)}", env=environment, timeout=240, dimensions=(rows, columns),
                       encoding="utf-8", cwd=str(ROOT))  # fmt: skip
    return re.sub(r"\x1b\[[0-9;]*m", "", str(seen)).splitlines()


@pytest.mark.parametrize(("path", "rows", "columns"), cases())
def test_a_terminal(path: Path, rows: int, columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = kdissect.open(path).summary()
    lines = typed(path, rows, columns, tmp_path)
    commands = [line.strip() for line in lines if line.startswith("  ") and line.strip().startswith("kdissect ")]
    assert max(len(line) for line in lines if line.strip() not in commands) <= columns
    block = lines[lines.index("Findings") :] if "Findings" in lines else []
    end = next((n for n, line in enumerate(block) if not line.strip()), len(block))
    _findings(summary, block[:end])
    for command in commands:
        _gives(command, capsys)


def _findings(summary: Any, lines: list[str]) -> None:
    """Every finding that is begun is told to its end; nothing worse is hidden; hidden ones are counted."""
    seen = " ".join(" ".join(lines).split())
    assert not [line for line in lines if line.rstrip().endswith(("...", "…"))]
    told = [one for one in worst_first(summary.findings)
            if " ".join(one.headline["text"].split()) in seen or in_words(one.headline) in seen
            or one.headline["id"].replace("_", " ") in seen]  # fmt: skip
    serious = [one for one in worst_first(summary.findings) if one.severity in ("high", "medium")]
    if serious:
        assert " ".join(serious[0].headline["text"].split()) in seen
    if not any("more: kdissect timeline" in line for line in lines):
        assert len(told) == len(worst_first(summary.findings))
    assert worst_first(summary.findings)[: len(told)] == told


def _gives(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command runs, and shows rows that are no long polls."""
    words = shlex.split(command)[1:]
    if "-o" in words or words[0] == "timeline":
        return
    words = [str(ROOT / word) if word.startswith("captures/") else word for word in words]
    asked = "--table" in words
    assert main([*words, "--format", "jsonl"] if asked else words) == 0, command
    out = capsys.readouterr().out
    assert out.strip(), command
    if asked and words[words.index("--table") + 1] in ("exchanges", "fetches"):
        rows = [json.loads(line) for line in out.splitlines()]
        assert sum(_only_waited(row) for row in rows) <= LONG_POLLS * len(rows), command


def _only_waited(row: Mapping[str, Any]) -> bool:
    """A long poll that says nothing else: an answer that throttles its client, or refuses it a session, is what was
    found, however long the poll before it was."""
    return row["hold"] == "timeout" and not row["throttle_ms"] and row.get("session_outcome") != "refused"


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_the_first_lines_tell_the_story(name: str) -> None:
    assert len(UNTOLD) <= 0.1 * len(JUDGED)
    summary = kdissect.open(place(name)).summary()
    for _, columns in SIZES:
        lines = [line.plain for line in screen.render(summary, [f"captures/{place(name).name}"], columns)]
        shown = [line[at : at + columns] for line in lines for at in range(0, max(1, len(line)), columns)]
        seen = " ".join(" ".join(shown[:TELLING]).split())
        told = [
            finding
            for finding in summary.findings
            for statement in JUDGED[name]["named"]
            if fits(finding, statement) and (" ".join(finding["text"].split()) in seen or in_words(finding) in seen)
        ]
        assert told or name in UNTOLD, seen
