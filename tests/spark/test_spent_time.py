"""Time is spent on what it is on one machine, however brokers, clients and topics were dealt out to tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.spark.cells import dealt_rows
from kdissect.spark.shares.spent_time import BY
from tests.conftest import CAPTURES
from tests.other_cluster import write_other_cluster
from tests.spark.conftest import NO_CAPTURES

RECORDINGS = ("base.pcap", "k4_transactions.pcap", "k4_share_group.pcap", "k4_slow_and_throttled.pcap")
EVERY = [one for one in sorted(CAPTURES.rglob("*.pcap*")) if one.is_file() and one.name not in NO_CAPTURES]


@pytest.fixture(autouse=True)
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealt_rows, "KEPT_ROWS", 500)


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.whole), 4])
def test_tables_equal_the_local_engine(captures: Path, simulate: Any, equal: Any, partitions: int) -> None:
    """Clients, groups and topics have several brokers, whose rows different tasks have."""
    paths = [captures / name for name in RECORDINGS]
    expected = kdissect.open(paths).tables(list(BY))
    equal(simulate(paths, partitions, list(BY)), expected)
    assert set(expected["time_budget"]["by"].unique().to_pylist()) == {"client", "broker", "group", "topic"}
    assert set(expected["time_ledger"]["by"].unique().to_pylist()) == {"client", "broker", "connection"}
    assert expected["time_ledger"].num_rows > 1000


def test_subjects_of_one_name_in_two_clusters(captures: Path, tmp_path: Path, simulate: Any, equal: Any) -> None:
    """A task has rows of both, or of one only, and tells them apart."""
    recording = captures / "k4_java_classic.pcap"
    write_other_cluster(recording, tmp_path / "other.pcap")
    paths = [recording, tmp_path / "other.pcap"]
    expected = kdissect.open(paths).tables(list(BY))
    assert len(expected["time_budget"]["cluster"].unique()) > 1
    equal(simulate(paths, 3, list(BY)), expected)


@pytest.mark.whole
def test_beside_other_tables_and_with_giant_connections(captures: Path, rotate: Any, simulate: Any, equal: Any) -> None:
    """Bulk of giants is decoded by other tasks, which stage rows of the same brokers."""
    folder = rotate(captures / "base.pcap", 2)
    names = [*BY, "exchanges", "fetches", "fetch_partitions", "connections"]
    equal(simulate(folder, 2, names, giant=0, unit=20_000), kdissect.open(folder).tables(names))


@pytest.mark.exhaustive
@pytest.mark.parametrize("recording", [pytest.param(one, id=one.name) for one in EVERY])
def test_every_capture(recording: Path, simulate: Any, equal: Any) -> None:
    equal(simulate(recording, 3, list(BY)), kdissect.open(recording).tables(list(BY)))
