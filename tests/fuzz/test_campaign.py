"""A slice of the campaigns in `campaign`, and every input that one of them ever found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.fuzz.campaign import FOUND, captures, check, frames
from tests.fuzz.metamorphic import campaign
from tests.fuzz.ways import compare
from tests.oracle.material import CAPTURES

SECONDS = float(os.environ.get("KDISSECT_FUZZ_SECONDS", "30"))
LONG = float(os.environ.get("KDISSECT_FUZZ_SECONDS", "60"))
"""The campaign of changes that change nothing finds the least in a short time."""


@pytest.mark.fuzz
def test_frames() -> None:
    tally = frames(SECONDS, seed=int(os.environ.get("KDISSECT_FUZZ_SEED", "1")))
    print(tally)
    assert 0 < tally.read < tally.inputs


@pytest.mark.fuzz
def test_metamorphic() -> None:
    tally = campaign(LONG, seed=int(os.environ.get("KDISSECT_FUZZ_SEED", "1")))
    print(tally)
    assert tally.read > 0


@pytest.mark.fuzz
@pytest.mark.exhaustive
def test_every_way_of_reading() -> None:
    assert compare(20_000, seed=1) > 100_000


def test_some_ways_of_reading() -> None:
    assert compare(10, seed=3) > 50


def test_some_changes_change_nothing() -> None:
    assert campaign(600, seed=7, most=40).read == 40


@pytest.mark.fuzz
def test_captures() -> None:
    tally = captures(SECONDS, seed=int(os.environ.get("KDISSECT_FUZZ_SEED", "1")))
    print(tally)
    assert tally.read > 0


@pytest.mark.parametrize("most", [10, pytest.param(400, marks=pytest.mark.exhaustive)])
@pytest.mark.fuzz
def test_kernels_as_python(most: int) -> None:
    """Integers that compiled kernels would wrap: nothing raises."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.campaign", "captures", "3600", "1", str(most)], capture_output=True,
        text=True, check=False, cwd=ROOT, env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"captures: {most} mutated in ")


@pytest.mark.parametrize("name", sorted(path.name for path in FOUND.glob("*")) or ["none"])
def test_found_once(name: str) -> None:
    if name != "none":
        keys = CAPTURES / f"{name.partition('-')[2].split('.')[0]}.keys.log"
        check((FOUND / name).read_bytes(), keys if keys.exists() else None)
        check(FOUND / name, keys if keys.exists() else None)
