"""Captures read from HDFS and tables written there, in a small cluster inside a process of its own.

The cluster's jar comes by Maven with its usual settings. Run with -m exhaustive tests/spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.spark.jars import fetched, hadoop

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("package", [None, "hdfs-native"])
def test_there_and_back(captures: Path, tmp_path: Path, package: str | None) -> None:
    """Read as whole files where neither libhdfs nor a package of fsspec's is there, and by ranges."""
    jars = fetched(tmp_path, [f"org.apache.hadoop:hadoop-client-minicluster:{hadoop()}"], alone=True)
    (jar,) = jars.glob("*.jar")
    place = tmp_path / "packages"
    if package is not None:
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(place), package, "fsspec"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no registry gives {package}: {done.stderr.strip().splitlines()[-1:]}")
    job = [sys.executable, str(ROOT / "tests" / "spark" / "hdfs_job.py"), str(jar), str(tmp_path / "dfs")]
    paths = os.pathsep.join([str(ROOT), str(place)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable}
    chosen = [str(captures / one) for one in ("base_tiny.pcap", "raw_ids.pcap")]
    ran = subprocess.run([*job, *chosen], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    by_range = package is not None
    assert ran.stdout.splitlines() == [f"ranged {[by_range]}", "True", f"ranged {[by_range] * 2}", "True"]
