"""Tables that are made by topic and partition are those of one machine, however rows were cut and dealt out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.spark.cells import aligned_rows, dealt_rows
from kdissect.spark.cells.aligned_rows import BY_TOPIC
from tests.conftest import CAPTURES
from tests.other_cluster import write_other_cluster
from tests.spark.conftest import NO_CAPTURES

RECORDINGS = (
    "base.pcap", "k4_transactions.pcap", "k4_share_group.pcap", "k4_slow_and_throttled.pcap",
    "stories/slow_consumer.pcap.zst", "traces/franz_go.pcap.zst",
)  # fmt: skip
EVERY = [one for one in sorted(CAPTURES.rglob("*.pcap*")) if one.is_file() and one.name not in NO_CAPTURES]


@pytest.fixture
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lots of a few exchanges, passed on a few at a time, and shares that go through a temporary file."""
    monkeypatch.setattr(aligned_rows, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(dealt_rows, "KEPT_ROWS", 500)
    monkeypatch.setattr("kdissect.engine.extracts.delivery_shares.GATHERED", 50_000)


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.usefixtures("cut_small")
def test_tables_equal_the_local_engine(captures: Path, simulate: Any, equal: Any, partitions: int) -> None:
    """Producers, readers, members of groups and muted clients are on connections that different tasks decode."""
    paths = [captures / name for name in RECORDINGS]
    expected = kdissect.open(paths).tables(list(BY_TOPIC))
    equal(simulate(paths, partitions, list(BY_TOPIC)), expected)
    made = expected["deliveries"]
    assert set(made["waited_for"].unique().to_pylist()) > {"reader", "broker", "replication", "throttle"}
    assert made["member_id"].null_count < made.num_rows
    assert expected["topic_traffic"].num_rows > 50
    assert expected["traced"].num_rows == 100


@pytest.mark.usefixtures("cut_small")
def test_topics_of_one_name_in_two_clusters(captures: Path, tmp_path: Path, simulate: Any, equal: Any) -> None:
    """A task has rows of both, or of one only, and tells them apart."""
    recording = captures / "k4_java_classic.pcap"
    write_other_cluster(recording, tmp_path / "other.pcap")
    paths = [recording, tmp_path / "other.pcap"]
    expected = kdissect.open(paths).tables(list(BY_TOPIC))
    assert len(expected["deliveries"]["cluster"].unique()) > 1
    equal(simulate(paths, 3, list(BY_TOPIC)), expected)


@pytest.mark.usefixtures("cut_small")
def test_beside_other_tables_and_with_giant_connections(captures: Path, rotate: Any, simulate: Any, equal: Any) -> None:
    """Rows that the analysis takes broker by broker are there for both; bulk of giants is decoded by other tasks."""
    folder = rotate(captures / "base.pcap", 2)
    names = [*BY_TOPIC, "exchanges", "fetches", "fetch_partitions", "groups", "connections"]
    equal(simulate(folder, 2, names, giant=0, unit=20_000), kdissect.open(folder).tables(names))


@pytest.mark.exhaustive
@pytest.mark.parametrize("recording", [pytest.param(one, id=one.name) for one in EVERY])
@pytest.mark.usefixtures("cut_small")
def test_every_capture(recording: Path, simulate: Any, equal: Any) -> None:
    equal(simulate(recording, 3, list(BY_TOPIC)), kdissect.open(recording).tables(list(BY_TOPIC)))


def test_a_partition_is_one_tasks_whether_its_topic_is_named_or_not() -> None:
    """A name goes before the id; the same partition has the same task in tables of other rows."""
    ids = ["AAAAAAAAQACAAAAAAAAAAQ", "AAAAAAAAQACAAAAAAAAAAg"]
    known = [ids[0], None, *ids]
    table = pa.table({"topic": ["a", "a", None, None], "topic_id": known, "partition": [3] * 4})
    shares = dealt_rows.share_of_partition(table, 1 << 20).tolist()
    assert shares[0] == shares[1]
    assert len(set(shares[1:])) == 3
    assert dealt_rows.share_of_partition(table.slice(3), 1 << 20).tolist() == shares[3:]
