"""`kdissect.spark.dissect` on a cluster of two executors, one of which is lost: `pytest -m exhaustive tests/spark`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kdissect

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]


def test_a_lost_executor_costs_no_row(captures: Path, rotate: Any, tmp_path: Path) -> None:
    folder, out = rotate(captures / "base.pcap", 7), tmp_path / "out.json"
    script = Path(__file__).with_name("lost_executor.py")
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    made = subprocess.run(
        [sys.executable, str(script), str(folder), str(out)],
        env={**os.environ, "PYTHONPATH": paths}, cwd=tmp_path, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-3000:]
    found = json.loads(out.read_text())
    assert (found["executors"], found["lost"]) == (2, 1)
    for name, table in kdissect.open(folder).tables(list(found["rows"])).items():
        assert found["rows"][name] == sorted(map(repr, table.to_pylist())), name
        assert table.num_rows or name == "problems", name
