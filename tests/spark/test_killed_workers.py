"""A Python worker killed with -9 in each stage of a job costs no row and doubles none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kdissect
from tests.conftest import ROOT
from tests.spark.conftest import read_cut, rows_of
from tests.spark.killed_workers import STAGES

pytestmark = pytest.mark.spark


def test_a_killed_worker_costs_no_row(captures: Path, rotate: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    folder, out = rotate(captures / "base.pcap", 3), tmp_path / "out"
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "spark" / "killed_workers.py"), str(folder), str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert {note.name for note in (out / "notes").iterdir()} == STAGES.keys()
    for name, table in kdissect.open(folder).tables().items():
        found = read_cut(out / "tables" / name)
        assert rows_of(found.select(table.column_names)) == rows_of(table), name
