"""The first screen on terminals of three sizes, over all recordings: what it says, and what its commands give."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.cli.printing import screen
from kdissect.cli.subcommands.evidence import why_screen
from kdissect.summary.account import number_findings
from kdissect.summary.lead import lead_sentence
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
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines).replace(" \\\n    ", " ").replace("\\\n", "")
    commands = [line.strip() for line in text.splitlines() if line.startswith("  kdissect ")]
    assert commands
    serious = [one for one in number_findings(summary.findings) if one.row["severity"] in ("high", "medium")]
    page = lines[: screen.PAGE]
    numbers = [line.split()[0] for line in page if line[:4].strip().isdigit() and line.split()[1] in SEVERITIES]
    if len(serious) <= MANY:
        assert [str(one.number) for one in serious] == [n for n in numbers if int(n) in {o.number for o in serious}]
    for command in commands:
        _gives(command, capsys)


SEVERITIES = ("high", "medium", "low", "info")
MANY = 6
"""Findings that leave room for APIs and clients on the first page."""


def _gives(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command runs, and shows rows that are no long polls."""
    words = shlex.split(command)[1:]
    if "-o" in words or words[0] == "timeline":
        return
    words = [str(ROOT / word) if word.startswith("captures/") else word for word in words]
    assert main(words) == 0, command
    assert capsys.readouterr().out.strip(), command


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
            if fits(finding, statement) and " ".join(finding["headline"].split()) in seen
        ]
        assert told or name in UNTOLD or not JUDGED[name]["named"], seen


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.name)
def test_the_first_page_of_a_story(path: Path) -> None:
    """At 80x24: a sentence, all findings above low, APIs, three clients."""
    summary = kdissect.open(path).summary()
    lines = [line.plain for line in screen.render(summary, [path.name], 80)]
    page = lines[: screen.PAGE]
    clients = next(n for n, line in enumerate(page) if line.startswith("Client "))
    assert clients + min(3, len(summary.clients)) < screen.PAGE
    assert any(line.startswith("API ") for line in page)
    said = lead_sentence(summary.findings)
    if said is not None:
        assert said.split("; ")[0].removesuffix(".") in " ".join(lines[:3])
    for one in number_findings(summary.findings):
        if one.row["severity"] in ("high", "medium"):
            assert any(line.startswith(f"{one.number:>3} ") for line in page)


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=() if n % 6 == 0 else pytest.mark.exhaustive) for n, path in enumerate(STORIES)],
    ids=lambda path: path.name,
)  # fmt: skip
def test_why_fits_the_smallest_terminal(path: Path) -> None:
    capture = kdissect.open(path)
    for one in capture.analysis.numbered_findings():
        command = why_screen.rows_command([path.name], one.number)
        lines = [line.plain for line in why_screen.render(capture.analysis.explain(one.row), one, command, 80)]
        assert len(lines) <= screen.PAGE
        assert max(map(len, lines)) <= 80
        assert f"kdissect why {path.name} {one.number} --rows" in " ".join(lines[-3:]).replace(" \\ ", " ")
