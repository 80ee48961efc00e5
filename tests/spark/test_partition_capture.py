"""The addresses that a worker needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kdissect.kernels.kernel import compiled_before
from kdissect.spark.stages.partition_capture import SLOT_BYTES, SLOTS, Gathered
from kdissect.spark.stages.plan import Source

resource = pytest.importorskip("resource")

ADDRESSES = 900 << 20
"""What spark.executor.pyspark.memory may give a worker."""
WORKER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
import pyspark.worker
from kdissect.engine.capture_tables import MADE
from tests.spark.conftest import simulated
print(simulated(sys.argv[2], 1, list(MADE))["exchanges"].num_rows)
"""


@pytest.mark.skipif(not compiled_before(), reason="compiling takes more")
def test_a_small_capture_needs_few_addresses(captures: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(ADDRESSES), str(captures / "base_tiny.pcap")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert found.returncode == 0, found.stderr[-1000:]
    assert int(found.stdout) > 20


@pytest.mark.parametrize(("size", "ranged"), [(100, True), (1 << 20, True), (1 << 30, True), (100, False)])
def test_a_window_has_room_for_what_there_is(size: int, ranged: bool, captures: Path) -> None:
    path = str(captures / "base_tiny.pcap")
    capture = Gathered(Source("a", [("a", path)], [size], ranged, []), iter(()), [])
    window = capture.window()
    assert window.ring == SLOTS
    assert window.slot_bytes <= SLOT_BYTES
    assert window.slot_bytes >= min(size + (1 << 16), SLOT_BYTES)
    assert ranged or window.slot_bytes == SLOT_BYTES
    capture.close()
