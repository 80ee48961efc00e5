"""Transactions are those of one machine, however producers were dealt out to tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.spark.cells import aligned_rows, dealt_rows
from kdissect.spark.cells.aligned_rows import FROM_ALIGNED
from kdissect.spark.cells.table_cells import cell
from kdissect.spark.shares.transaction_shares import PAIRS, join_producers
from tests.conftest import CAPTURES
from tests.other_cluster import write_other_cluster
from tests.spark.conftest import NO_CAPTURES

RECORDINGS = ("k4_transactions.pcap", "base.pcap", "stories/txn_timeout.pcap.zst")
EVERY = [one for one in sorted(CAPTURES.rglob("*.pcap*")) if one.is_file() and one.name not in NO_CAPTURES]


@pytest.fixture(autouse=True)
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lots of a few exchanges, passed on a few at a time."""
    monkeypatch.setattr(aligned_rows, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(dealt_rows, "KEPT_ROWS", 500)


@pytest.mark.parametrize("partitions", [1, 4])
def test_tables_equal_the_local_engine(captures: Path, simulate: Any, equal: Any, partitions: int) -> None:
    """Requests to brokers and markers between them are on connections that different tasks decode."""
    paths = [captures / name for name in RECORDINGS]
    expected = kdissect.open(paths).tables(["transactions"])
    equal(simulate(paths, partitions, ["transactions"]), expected)
    assert set(expected["transactions"]["outcome"].unique().to_pylist()) >= {"committed", "aborted", "timed_out"}
    assert len(expected["transactions"]["transactional_id"].unique()) > 3


def test_ids_of_one_name_in_two_clusters(captures: Path, tmp_path: Path, simulate: Any, equal: Any) -> None:
    """Each cluster's last instant ends what was open in it; beside tables that are made by partition."""
    recording = captures / "k4_transactions.pcap"
    write_other_cluster(recording, tmp_path / "other.pcap")
    paths = [recording, tmp_path / "other.pcap"]
    names = [*FROM_ALIGNED, "exchanges", "produces", "record_batches", "transaction_steps"]
    expected = kdissect.open(paths).tables(names)
    assert len(expected["transactions"]["cluster"].unique()) > 1
    equal(simulate(paths, 3, names), expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("recording", [pytest.param(one, id=one.name) for one in EVERY])
def test_every_capture(recording: Path, simulate: Any, equal: Any) -> None:
    equal(simulate(recording, 3, ["transactions"]), kdissect.open(recording).tables(["transactions"]))


def test_what_stands_in_one_request_is_one_share() -> None:
    """An id that got a new producer id joins both; a producer id that two ids had joins these."""
    told = [[(1, "a"), (2, "a")], [(3, "b"), (4, "c"), (2, "d")], [(4, "b")]]
    cells = [cell(pa.table([list(column) for column in zip(*some, strict=True)], schema=PAIRS)) for some in told]
    roots = join_producers(cells)
    shares = {frozenset(text for text in roots if roots[text] == root) for root in roots.values()}
    assert shares == {frozenset({"1", "2", "=a", "=d"}), frozenset({"3", "4", "=b", "=c"})}
