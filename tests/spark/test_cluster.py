"""`kdissect.spark.dissect` on a cluster of two executors, one of which is lost, and through Spark Connect: `pytest -m
exhaustive tests/spark`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kdissect

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("span_rows", "spans"), [(1 << 28, 1), (100, 4)])
def test_a_lost_executor_costs_no_row(captures: Path, rotate: Any, tmp_path: Path, span_rows: int, spans: int) -> None:
    """States between spans of time are on two executors, rows are computed again."""
    folder, out = rotate(captures / "base.pcap", 7), tmp_path / "out.json"
    script = Path(__file__).with_name("lost_executor.py")
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    made = subprocess.run(
        [sys.executable, str(script), str(folder), str(out), str(span_rows)],
        env={**os.environ, "PYTHONPATH": paths}, cwd=tmp_path, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-3000:]
    found = json.loads(out.read_text())
    assert (found["executors"], found["lost"], found["spans"]) == (2, 1, spans)
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
    told = ["exchanges True", "fetch_sessions True", "findings True", "latency_by_part latency_by_hold"]
    assert made.stdout.splitlines() == told


@contextmanager
def standalone(place: Path, hidden: Path) -> Iterator[str]:
    """The master of a standalone cluster whose one worker has something else where a folder is."""
    import pyspark

    home = Path(pyspark.__file__).parent
    program, deploy = str(home / "bin" / "spark-class"), "org.apache.spark.deploy"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    master = f"spark://127.0.0.1:{port}"
    worker = f"mount -t tmpfs none {hidden} && exec {program} {deploy}.worker.Worker"
    worker += f" -h 127.0.0.1 -c 1 -m 1g -d {place} --webui-port 0 {master}"
    commands = [
        [program, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0"],
        ["unshare", "-m", "sh", "-c", worker],
    ]
    environment = {**os.environ, "SPARK_HOME": str(home)}
    running = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        for command in commands
    ]
    try:
        yield master
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


@pytest.mark.parametrize(
    ("hidden", "code", "told"),
    [
        ("in", 1, "Spark's executors have none of the captures. "),
        ("out", 2, "where Spark's executors write, does not have it"),
    ],
)
def test_executors_that_share_no_disk(captures: Path, tmp_path: Path, hidden: str, code: int, told: str) -> None:
    """One line says which disk it is."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("who runs this may not have mounts of their own")
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    shutil.copy(captures / "base_tiny.pcap", tmp_path / "in")
    with standalone(tmp_path / "work", tmp_path / hidden) as master:
        command = [sys.executable, "-m", "kdissect", "spark", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
        command += ["--master", master, "--conf", f"spark.executorEnv.PYTHONPATH={ROOT}"]
        command += ["--conf", "spark.driver.host=127.0.0.1", "--tables", "exchanges"]
        made = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True,
            timeout=280,
        )  # fmt: skip
    assert made.returncode == code, made.stderr[-3000:]
    assert told in made.stderr
    assert "Traceback" not in made.stderr
