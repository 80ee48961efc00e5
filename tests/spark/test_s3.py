"""Captures read from S3 and tables written there: a server of moto's in a process of its own.

The server comes by pip, Hadoop's client of S3 by Maven, with their usual settings. Run with -m exhaustive tests/spark.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSystem, S3FileSystem, copy_files

from kdissect.spark.source.remote_captures import WHOLE
from tests.bench.applications import application
from tests.bench.packets import write
from tests.conftest import ROOT
from tests.spark.jars import fetched, hadoop
from tests.spark.range_server import serving

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


@pytest.fixture
def bucket(endpoint: str) -> FileSystem:
    """The server's files."""
    host = endpoint.removeprefix("http://")
    return S3FileSystem(
        access_key="anyone", secret_key="any", region="us-east-1", scheme="http", endpoint_override=host
    )


def test_there_and_back(
    captures: Path, rotate: Any, tmp_path: Path, endpoint: str, bucket: FileSystem, jars: Path
) -> None:
    """Sets, compressed files, both ends of connections, and patterns in folders have all tables of the local engine."""
    chosen = [str(captures / one) for one in ("base_tiny.pcap", "raw_ids.pcap")]
    folder = tmp_path / "in"
    shutil.copytree(rotate(captures / "base.pcap", 3), folder / "sets" / "a1")
    (folder / "sets" / "a2").mkdir()
    with pa.input_stream(str(captures / "stories" / "net_delay_client.pcap.zst")) as stream:
        (folder / "sets" / "a2" / "client.pcap").write_bytes(stream.read())
    shutil.copy(captures / "stories" / "net_delay_broker.pcap.zst", folder / "sets" / "a2")
    shutil.copy(captures / "k4_transactions.pcap", folder / "sets" / "a1")
    copy_files(str(folder), "day", destination_filesystem=bucket)
    script = str(ROOT / "tests" / "spark" / "s3_job.py")
    ran = subprocess.run(
        [sys.executable, script, str(jars), endpoint, "day", *chosen, "sets/a?/*.pcap*", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = [line for line in ran.stdout.splitlines() if line.startswith(("equal", "True", "False"))]
    ranged = {"client.pcap": True, "cut.pcap": True, "k4_transactions.pcap": True, "net_delay_broker.pcap.zst": False}
    assert said == ["True", "True", f"equal {sorted(ranged.items())}"]


def test_a_file_larger_than_memory_is_not_held(tmp_path: Path) -> None:
    """A file of more than what Spark's own reader gives to a task: no worker has it, and only its index is shuffled."""
    size = int(os.environ.get("KDISSECT_LARGE", WHOLE + (64 << 20)))
    (tmp_path / "day").mkdir()
    path = tmp_path / "day" / "large.pcap"
    made = write(path, application(), size, 4000, interleave=None)
    assert made.size > WHOLE
    script = str(ROOT / "tests" / "spark" / "s3_large.py")
    with serving(tmp_path) as (endpoint, gets):
        ran = subprocess.run(
            [sys.executable, script, endpoint, "s3a://day/large.pcap", str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            capture_output=True, text=True,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    near, far = (json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{"))
    print(f"{made.size >> 20} MB, on disk {near}, on S3 {far}, {len(gets)} GETs of {sum(gets) >> 20} MB")
    assert near["rows"] == far["rows"] == made.exchanges
    assert far["index"] == near["index"]
    assert abs(far["shuffled"] - near["shuffled"]) < 100
    assert 100 < max(far["peaks"]) < 1024
    assert sum(gets) > len(gets) << 20
