"""The table `deliveries` joined in shares on disk: the same rows, whatever is gathered, split and read at a time."""

from __future__ import annotations

import errno
import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kdissect
from kdissect.analysis.deliveries.delivery_input import InputReader
from kdissect.engine import capture_tables
from kdissect.engine.bounds.spool import Spool
from kdissect.engine.extracts import delivery_shares
from kdissect.engine.saving import sorted_parts
from kdissect.output import ScratchFull
from kdissect.tables.declaration.readers import DELIVERIES
from kdissect.tables.order import order
from tests.conftest import CAPTURES

NAMES = ["k4_java_classic.pcap", "k4_transactions.pcap", "k4_slow_and_throttled.pcap", "stories/slow_consumer.pcap.zst"]
TABLES = {table: list(columns) for table, columns in DELIVERIES.tables.items()}


def at_once(name: str) -> pa.Table:
    """Made of whole tables, in one process and piece."""
    return kdissect.open(CAPTURES / name).tables({**TABLES, "deliveries": None})["deliveries"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gathered", [1, 50_000])
def test_shares_on_disk_have_the_rows_of_whole_tables(
    name: str, gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_shares, "GATHERED", gathered)
    monkeypatch.setattr(delivery_shares, "SHARES", 3)
    assert kdissect.open(CAPTURES / name).table("deliveries").equals(at_once(name))


def test_of_answers_at_one_instant_the_first_request_counts_whatever_else_is_asked_for() -> None:
    """Recordings of one traffic, each of which lacks other packets."""
    paths = [CAPTURES / name for name in ("field_loss1.pcap", "field_loss5.pcap", "field_rotated_C")]
    alone = kdissect.open(paths).table("deliveries")
    assert kdissect.open(paths).tables(["deliveries", "exchanges"])["deliveries"].equals(alone)


@pytest.mark.parametrize("name", NAMES)
def test_shares_without_room_are_split_again_and_lose_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until each has a single partition of a topic."""
    whole = at_once(name)
    most = whole.group_by(["topic", "partition"]).aggregate([([], "count_all")])["count_all"]
    assert len(most) > 2
    monkeypatch.setattr(delivery_shares, "GATHERED", 1)
    monkeypatch.setattr(delivery_shares, "SHARES", 2)
    monkeypatch.setattr(delivery_shares, "COPIES", 1)
    monkeypatch.setattr(delivery_shares, "READING", 256_000_000 - largest_partition(name))
    capture = kdissect.open(CAPTURES / name, memory=256_000_000)
    assert capture.table("deliveries").equals(whole)
    assert capture.left_out == []


def largest_partition(name: str) -> int:
    """Bytes of columns of the largest partition of a topic."""
    data, _ = InputReader().read(kdissect.open(CAPTURES / name).tables(TABLES))
    places = data.names.places
    return max(part.size for part in data.split(np.arange(places), places))


def test_a_partition_without_room_has_its_first_deliveries_and_the_rest_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "stories/slow_consumer.pcap.zst"
    whole = at_once(name)
    monkeypatch.setattr(delivery_shares, "GATHERED", 1)
    monkeypatch.setattr(delivery_shares, "COPIES", 1)
    monkeypatch.setattr(delivery_shares, "READING", 256_000_000 - largest_partition(name) // 2)
    capture = kdissect.open(CAPTURES / name, memory=256_000_000)
    first = capture.table("deliveries")
    assert 0 < first.num_rows < whole.num_rows
    problems = capture.table("problems").to_pylist()
    told = {row["where"]: row for row in problems if row["kind"] == "buffer_limit"}
    assert {row["capture"] for row in told.values()} == {Path(name).name}
    batches = kdissect.open(CAPTURES / name).table("record_batches").to_pylist()
    count = 0
    for place, row in told.items():
        kept, left_out = (int(part.replace(",", "")) for part in re.findall(r"([\d,]+) (?:record|more)", row["detail"]))
        topic, _, partition = place.rpartition(":")
        assert kept + left_out == sum(
            (one["topic"] or one["topic_id"]) == topic and one["partition"] == int(partition) for one in batches
        )
        count += left_out
    [note] = capture.left_out
    assert note.startswith("the first record batches of each partition fit in 256 MB of memory; ")
    assert f"; {count:,} more are left out, of " in note
    assert any(place in note for place in told)
    keys = ["fetch_exchange_id", "topic", "partition", "base_offset"]
    known = {tuple(row.values()) for row in whole.select(keys).to_pylist()}
    assert {tuple(row.values()) for row in first.select(keys).to_pylist()} <= known


def test_batches_left_out_are_problems_of_what_is_read_later_and_of_nothing_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Problems alone make no deliveries. Of several captures the row names none."""
    name = "stories/slow_consumer.pcap.zst"
    monkeypatch.setattr(delivery_shares, "GATHERED", 1)
    monkeypatch.setattr(delivery_shares, "COPIES", 1)
    monkeypatch.setattr(delivery_shares, "READING", 256_000_000 - largest_partition(name) // 2)
    capture = kdissect.open([CAPTURES / name, CAPTURES / "base_tiny.pcap"], memory=256_000_000)
    limits = "kind = 'buffer_limit'"
    assert capture.table("problems", where=limits).num_rows == 0
    capture.table("deliveries")
    rows = capture.table("problems", where=limits).to_pylist()
    assert rows
    assert {row["capture"] for row in rows} == {None}
    for again in (
        pa.Table.from_batches(capture.batches("problems", where=limits)).to_pylist(),
        pa.Table.from_batches(capture.ordered("problems", where=limits)).to_pylist(),
        capture.tables(["problems", "exchanges"], where={"problems": limits})["problems"].to_pylist(),
    ):
        assert again == rows
    capture.save(tmp_path, {"problems": None})
    saved = pq.read_table(tmp_path / "problems.parquet").to_pylist()
    assert [row for row in saved if row["kind"] == "buffer_limit"] == rows


def test_a_whole_table_beyond_the_memory_has_its_first_rows_and_its_pieces_have_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of what is allowed beyond reading is for its rows."""
    name = "stories/slow_consumer.pcap.zst"
    whole = at_once(name)
    monkeypatch.setattr(delivery_shares, "GATHERED", 1)
    monkeypatch.setattr(sorted_parts, "AT_ONCE", 256)
    monkeypatch.setattr(capture_tables, "READING", 256_000_000 - whole.nbytes)
    capture = kdissect.open(CAPTURES / name, memory=256_000_000)
    first = capture.table("deliveries")
    assert 0.1 * whole.num_rows < first.num_rows < 0.6 * whole.num_rows
    assert first.equals(whole.slice(0, first.num_rows))
    left_out = (
        f"the first {first.num_rows:,} deliveries fit in 256 MB of memory; {whole.num_rows - first.num_rows:,} more"
    )
    assert capture.left_out == [left_out + " are left out"]
    [problem] = capture.table("problems", where="kind = 'buffer_limit'").to_pylist()
    assert (problem["where"], problem["detail"]) == ("deliveries", capture.left_out[0])
    capture = kdissect.open(CAPTURES / name, memory=256_000_000)
    assert pa.Table.from_batches(capture.batches("deliveries")).equals(whole)
    assert capture.left_out == []


def test_what_memory_holds_needs_no_temporary_file_and_the_rest_says_that_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    capture = kdissect.open(CAPTURES / "k4_java_classic.pcap")
    assert capture.table("deliveries").num_rows
    monkeypatch.undo()

    def put(spool: Spool, table: pa.Table) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Spool, "put", put)
    monkeypatch.setattr(delivery_shares, "GATHERED", 1)
    with pytest.raises(ScratchFull, match="No space left on device"):
        capture.table("deliveries")


def test_columns_filters_batches_and_parquet_are_those_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_shares, "GATHERED", 1)
    capture = kdissect.open(CAPTURES / "k4_java_classic.pcap")
    whole = capture.table("deliveries")
    where, columns = "partition = 1 and records > 0", ["records", "client_id"]
    wanted = whole.filter((pc.field("partition") == 1) & (pc.field("records") > 0)).select(columns)
    assert 0 < wanted.num_rows < whole.num_rows
    assert capture.table("deliveries", columns, where).equals(wanted)
    for way in (capture.batches, capture.ordered):
        assert pa.Table.from_batches(way("deliveries", columns, where)).equals(wanted)
    assert capture.save(tmp_path, {"deliveries": columns}) == {"deliveries": whole.num_rows}
    assert pq.read_table(tmp_path / "deliveries.parquet").equals(whole.select(columns))


def test_rows_of_equal_times_are_put_in_order_by_the_columns_behind() -> None:
    rows = pa.table({
        "delivered_at": pa.array([5, 3, None, 5, 3, 5], pa.timestamp("us", tz="UTC")),
        "fetch_exchange_id": ["b", "a", "a", "a", "a", "a"],
        "topic": ["t", "u", "t", "t", "t", None],
        "n": [0, 1, 2, 3, 4, 5],
    })  # fmt: skip
    assert order("deliveries", rows)["n"].to_pylist() == [4, 1, 3, 5, 0, 2]
