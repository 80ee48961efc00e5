"""`kdissect.spark.dissect` on a cluster of two executors, one of which is lost, and through Spark Connect: `pytest -m
exhaustive tests/spark`."""

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


def test_spark_connect(captures: Path, rotate: Any, tmp_path: Path) -> None:
    """What Connect needs beside PySpark comes by pip."""
    place = tmp_path / "connect"
    packages = ["grpcio", "grpcio-status", "googleapis-common-protos", "zstandard"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(place), *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no registry gives them: {done.stderr.strip().splitlines()[-1:]}")
    script = Path(__file__).with_name("connect_job.py")
    made = subprocess.run(
        [sys.executable, str(script), str(rotate(captures / "base.pcap", 3))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(place)]), "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-3000:]
    assert made.stdout.splitlines() == ["exchanges True", "fetch_sessions True", "findings True"]
