"""Captures read from S3 and tables written there: a server of moto's in a process of its own.

The server comes by pip, Hadoop's client of S3 by Maven, with their usual settings. Run with -m exhaustive tests/spark.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.spark.jars import fetched, hadoop

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1200)]

SDK = "2.35.4"
"""Of the version of Hadoop that PySpark 4.3 has, which asks for all services in one jar of 600 MB: two are enough."""
MODULES = ("s3-transfer-manager", "sts")


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """A server with the bucket `day`."""
    place = tmp_path / "moto"
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(place)]
    command += ["moto[s3]", "flask", "flask-cors"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no registry gives moto: {done.stderr.strip().splitlines()[-1:]}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "PYTHONPATH": str(place)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(urllib.request.Request(f"{url}/day", method="PUT")).close()
                break
            except OSError:
                time.sleep(0.2)
        else:
            raise AssertionError("the server does not answer")
        yield url
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """A folder with Hadoop's client of S3."""
    artifacts = [f"org.apache.hadoop:hadoop-aws:{hadoop()}"]
    artifacts += [f"software.amazon.awssdk:{name}:{SDK}" for name in MODULES]
    return fetched(tmp_path / "jars", artifacts, ["software.amazon.awssdk:bundle"])


def test_there_and_back(captures: Path, endpoint: str, jars: Path) -> None:
    chosen = [str(captures / one) for one in ("base_tiny.pcap", "raw_ids.pcap")]
    script = str(ROOT / "tests" / "spark" / "s3_job.py")
    ran = subprocess.run(
        [sys.executable, script, str(jars), endpoint, "day", *chosen],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = [line for line in ran.stdout.splitlines() if "decoded" in line or line in ("True", "False")]
    assert said == [
        "0 of 1 capture as decoded before, 1 decoded whole", "True",
        "1 of 2 captures as decoded before, 1 decoded whole", "True",
    ]  # fmt: skip
