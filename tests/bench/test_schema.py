"""What the compiled schema costs. Run with: pytest -m bench -s tests/bench/test_schema.py"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

PROGRAM = """
import time
from kdissect.schema import index, library
start = time.perf_counter()
found = library.load_library(index.digest(), lambda: index.load().apis)
print((time.perf_counter() - start) * 1000, len(found.identity))
"""
BUDGET_MS = 50


def loaded(cache: Path) -> tuple[float, int]:
    """(milliseconds, layouts) of a new process."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        check=True,
    )
    took, layouts = found.stdout.split()
    return float(took), int(layouts)


def test_loading(tmp_path: Path) -> None:
    first, layouts = loaded(tmp_path)
    again = [loaded(tmp_path)[0] for _ in range(10)]
    print(f"\n{layouts} layouts: compiled once in {first:.0f} ms", end=", ")
    print(f"loaded in {statistics.median(again):.1f} ms (most {max(again):.1f}; the budget is {BUDGET_MS})")
    assert len(list(tmp_path.rglob("layouts-*.bin"))) == 1
