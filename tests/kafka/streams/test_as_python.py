"""Kernels run as Python: the whole program for debuggers, and how much of the stream core its tests reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLAIN = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}
CORE = (
    "kafka/streams/framing.py", "kafka/streams/pairing/*.py", "kafka/streams/resync.py",
    "kafka/streams/connection_kernel.py", "tcp/assembly.py",
)  # fmt: skip
LEAST = 95
"""Branches of each file that the tests here reach, %."""
PROGRAM = """
import sys, kdissect
tables = kdissect.open(sys.argv[1], jobs=1).tables(["exchanges", "connections", "problems", "fetches"])
print({name: table.to_pylist() for name, table in tables.items()})
"""


def both(path: str) -> tuple[str, str]:
    """The tables of a capture by kernels as Python, and by compiled ones; asserts that nothing else is said."""
    told = []
    for environment in (PLAIN, {**PLAIN, "NUMBA_DISABLE_JIT": "0"}):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, path], env=environment, cwd=ROOT, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        told.append(done.stdout)
    return told[0], told[1]


def test_the_whole_program_runs_as_python() -> None:
    """The same tables."""
    plain, compiled = both("captures/base_tiny.pcap")
    assert plain == compiled


@pytest.mark.parametrize(
    "header",
    ["00038000", "7fff000d", "ffff000d",
     *(pytest.param(header, marks=pytest.mark.exhaustive) for header in ("0003ffff", "8000000d", "ffffffff"))],
)  # fmt: skip
def test_keys_and_versions_of_damaged_headers(header: str, tmp_path: Path) -> None:
    """INT16 in Kafka, from 0x8000 on negative: compiled kernels wrap them, Python's numbers have no end."""
    metadata = bytes.fromhex("0003000d")
    base = (ROOT / "captures" / "base_tiny.pcap").read_bytes()
    assert metadata in base
    path = tmp_path / "damaged.pcap"
    path.write_bytes(base.replace(metadata, bytes.fromhex(header), 1))
    plain, compiled = both(str(path))
    assert plain == compiled


@pytest.mark.exhaustive
def test_the_rules_reach_the_stream_core(tmp_path: Path) -> None:
    """Branch coverage of each file with kernels as Python, by the tests of this folder alone."""
    data = ["--data-file", str(tmp_path / "coverage")]
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run(
        [*coverage, "run", *data, "--branch", "--source=kdissect/kafka/streams,kdissect/tcp", "-m", "pytest", "-q",
         "-p", "no:cacheprovider", "-W", "ignore:overflow encountered:RuntimeWarning", str(Path(__file__).parent)],
        env=PLAIN, cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    for name in CORE:
        subprocess.run(
            [*coverage, "report", *data, f"--include=kdissect/{name}", f"--fail-under={LEAST}"],
            env=PLAIN, cwd=ROOT, check=True,
        )  # fmt: skip
