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


def test_there_and_back(captures: Path, tmp_path: Path) -> None:
    jars = fetched(tmp_path, [f"org.apache.hadoop:hadoop-client-minicluster:{hadoop()}"], alone=True)
    (jar,) = jars.glob("*.jar")
    job = [sys.executable, str(ROOT / "tests" / "spark" / "hdfs_job.py"), str(jar), str(tmp_path / "dfs")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    chosen = [str(captures / one) for one in ("base_tiny.pcap", "raw_ids.pcap")]
    ran = subprocess.run([*job, *chosen], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "0 of 1 capture as decoded before, 1 decoded whole", "True",
        "1 of 2 captures as decoded before, 1 decoded whole", "True",
    ]  # fmt: skip
