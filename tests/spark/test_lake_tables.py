"""Tables in Delta and Iceberg: written, merged, and written by processes that are killed on the way.

Their jars are for some versions of Spark only, so a PySpark of such a version is installed aside, from the registries
that pip and Spark's own resolver (Ivy, with Maven's settings) are set up for. Run with -m exhaustive tests/spark.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kdissect
from tests.conftest import ROOT

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]

PYSPARK = "4.1.4"
PACKAGES = {
    "delta": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}
"""Pairs that work together. MERGE of delta-spark 4.1.0 fails on PySpark 4.1.4 (NoClassDefFoundError)."""
KILLS = int(os.environ.get("KDISSECT_KILLS", "4"))


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a PySpark that there are jars for."""
    place = tmp_path_factory.mktemp("pyspark")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), f"pyspark=={PYSPARK}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no registry gives pyspark {PYSPARK}: {done.stderr.strip().splitlines()[-1:]}")
    return place


def started(older: Path, form: str, out: Path, *captures: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "tests" / "spark" / "lake_writer.py"), form, PACKAGES[form], str(out)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(older), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
    }
    return subprocess.Popen(
        [*command, *map(str, captures)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> list[str]:
    said, wrong = process.communicate()
    if process.returncode and "unresolved dependency" in wrong.lower():
        pytest.skip("no repository gives the jars")
    assert process.returncode == 0, wrong
    return sorted(line for line in said.splitlines() if line.startswith("Row("))


@pytest.mark.parametrize("form", PACKAGES)
def test_killed_at_random_points(older: Path, captures: Path, tmp_path: Path, form: str) -> None:
    few, more = (captures / "base_tiny.pcap",), (captures / "base_tiny.pcap", captures / "raw_ids.pcap")
    expected = {}
    for paths in (few, more):
        finished(started(older, form, tmp_path / str(len(paths)), *paths))
        expected[len(paths)] = finished(started(older, form, tmp_path / str(len(paths))))
        assert len(expected[len(paths)]) == kdissect.open(paths).table("exchanges").num_rows
    chosen = random.Random(7)
    for turn in range(KILLS):
        process = started(older, form, tmp_path / "1", *(more, few)[turn % 2])
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(chosen.uniform(0, 20))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert finished(started(older, form, tmp_path / "1")) in expected.values()
    finished(started(older, form, tmp_path / "1", *more))
    assert finished(started(older, form, tmp_path / "1")) == expected[2]
