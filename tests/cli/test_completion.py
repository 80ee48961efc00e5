"""Completion as somebody types it, in the shells themselves; left out where a shell is not installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tests.conftest import ROOT

SETUP = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
}
LOAD = {
    "bash": 'bind "set bell-style none"; eval "$(kdissect completion bash)"',
    "zsh": 'unsetopt beep zle_bracketed_paste; autoload -U compinit; compinit -u -D; eval "$(kdissect completion zsh)"',
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which `kdissect` is a command, and nobody's own settings are read."""
    program = tmp_path / "kdissect"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kdissect "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "TERM": "dumb",
            "LANG": "C.UTF-8", "PS1": "ready> "}  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_tab_completes(shell: str, environment: dict[str, str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed (apt install {shell})")
    child = pexpect.spawn(shell, SETUP[shell], env=environment, cwd=str(tmp_path), timeout=60, encoding="utf-8",
                          dimensions=(24, 200))  # fmt: skip
    try:
        child.sendline(f"PS1='ready> '; {LOAD[shell]}; echo loaded$((1+1))")
        child.expect_exact("loaded2")
        for typed, whole in (("kdissect timel", "timeline"), ("kdissect --demo --table exch", "exchanges")):
            child.send(f"echo {typed}\x15")  # a line begun and wiped: the prompt is ready
            child.send(f"{typed}\t")
            child.expect_exact(whole)
            child.send("\x15")
    finally:
        child.close(force=True)


def test_fish_offers(environment: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed (apt install fish)")
    asked = (
        'kdissect completion fish | source; complete -C "kdissect timel"; complete -C "kdissect --demo --table exch"'
    )
    made = subprocess.run(["fish", "--no-config", "-c", asked], env=environment, cwd=tmp_path, capture_output=True,
                          text=True, timeout=120, check=True)  # fmt: skip
    assert [line.split("\t")[0] for line in made.stdout.splitlines()] == ["timeline", "exchanges"]
