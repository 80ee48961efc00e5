"""What `kdissect spark` writes by its default flags on a cluster, against the local engine: `pytest -m exhaustive`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.engine.capture import MADE
from tests.conftest import CAPTURES, ROOT
from tests.other_cluster import write_other_cluster
from tests.spark.conftest import read_cut

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]
WIRES = ("net_delay", "net_blackout", "lossy_1")
"""Recordings with both ends of a wire."""


def both_ends(folder: Path) -> list[Path]:
    return [CAPTURES / "stories" / f"{wire}_{end}.pcap.zst" for wire in WIRES for end in ("client", "broker")]


def recordings(folder: Path) -> list[Path]:
    """All that are not made of another one (`field_`)."""
    return [one for one in sorted(CAPTURES.glob("*.pcap*")) if not one.name.startswith("field_")]


def two_clusters(folder: Path) -> list[Path]:
    """One recording beside itself: other addresses, ClusterId and ids, the same node ids."""
    recording = CAPTURES / "k4_session_eviction.pcap"
    write_other_cluster(recording, folder / "other.pcap")
    return [recording, folder / "other.pcap"]


@pytest.mark.parametrize("chosen", [both_ends, two_clusters, recordings])
def test_every_table_is_that_of_the_local_engine(
    chosen: Callable[[Path], list[Path]], tmp_path: Path, equal: Any
) -> None:
    import pyspark

    paths = [str(one) for one in chosen(tmp_path)]
    command = [sys.executable, "-m", "kdissect", "spark", *paths, "-o", str(tmp_path / "out")]
    command += ["--master", "local-cluster[2,1,1024]", "--conf", f"spark.executorEnv.PYTHONPATH={ROOT}"]
    environment = {
        **os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent), "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    made = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-3000:]
    expected = kdissect.open(paths).tables(list(MADE))
    found = {name: read_cut(tmp_path / "out" / name).select(table.schema.names) for name, table in expected.items()}
    equal(found, expected)
    assert expected["exchanges"].num_rows > 100
    assert list((tmp_path / "out" / "exchanges").glob("date=*/cluster=*" if chosen is two_clusters else "date=*"))
