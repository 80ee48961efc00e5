"""Output on a terminal: a pager where it is longer than the screen, and nowhere else."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pexpect
import pytest

from kdissect.cli.printing.terminal import PIPED_WIDTH
from tests.conftest import ROOT

CAPTURE = ROOT / "captures" / "base_tiny.pcap"


@pytest.mark.parametrize(("lines", "paged"), [(24, True), (200, False)])
def test_a_pager_where_it_is_longer(lines: int, paged: bool, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(tmp_path))}/used\ncat\n")
    pager.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "KDISSECT_PAGER": str(pager), "TERM": "xterm",
                   "LANG": "C.UTF-8", "HOME": str(tmp_path)}  # fmt: skip
    seen = pexpect.run(
        f"{sys.executable} -m kdissect {CAPTURE} --table exchanges",
        env=environment, timeout=240, dimensions=(lines, 100), encoding="utf-8",
    )  # fmt: skip
    assert "exchange_id" in seen
    assert seen.count("\n") > 24
    assert (tmp_path / "used").exists() == paged


def test_the_width_in_a_pipe_is_the_documented_one() -> None:
    assert f"`COLUMNS` ({PIPED_WIDTH} if it is not set)" in (ROOT / "docs" / "commands.md").read_text()
