"""`kdissect.spark.dissect` on Spark itself: tables equal those of the local engine, row for row."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
import kdissect.spark
from kdissect.engine.capture_tables import MADE
from kdissect.problems import CaptureUnreadable, UsageError
from kdissect.spark import time_spans
from kdissect.spark.stages import analysing
from kdissect.tables.declaration import SCHEMAS, TABLES

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def arrow(dataset: kdissect.spark.Dataset) -> dict[str, Any]:
    return {name: frame.toArrow() for name, frame in dataset.items()}


@pytest.mark.exhaustive
def test_every_capture(spark: Any, all_captures: list[Path], equal: Any) -> None:
    expected = {name: _without_names(table) for name, table in kdissect.open(all_captures).tables().items()}
    shuffled = random.Random(5).sample(all_captures, len(all_captures))
    found = kdissect.spark.dissect(spark, shuffled, partitions=5)
    equal(arrow(found), expected)
    assert list(found) == list(MADE)
    found.unpersist()


def _without_names(table: pa.Table) -> pa.Table:
    """Spark does not read the names in a pcapng."""
    for at, name in enumerate(table.column_names):
        if name in ("client_name", "broker_name"):
            table = table.set_column(
                at, table.schema.field(name), pa.nulls(table.num_rows, table.schema.field(name).type)
            )
    return table


@pytest.mark.parametrize(("files", "partitions", "transport"), [(7, 2, "ranges"), (50, 3, "ranges"), (2, 2, "payload")])
def test_connections_cut_across_files(
    spark: Any, captures: Path, rotate: Any, equal: Any, files: int, partitions: int, transport: str
) -> None:
    folder = rotate(captures / "base.pcap", files)
    names = ["exchanges", "connections", "problems"]
    found = kdissect.spark.dissect(spark, folder, names, partitions=partitions, transport=transport)
    equal(arrow(found), kdissect.open(folder).tables(names))
    found.unpersist()


def test_giant_connections_are_decoded_in_units(spark: Any, captures: Path, rotate: Any, equal: Any) -> None:
    folder = rotate(captures / "base.pcap", 2)
    names = ["exchanges", "fetch_partitions", "connections", "problems"]
    found = kdissect.spark.dissect(spark, folder, names, partitions=2)
    found.plan = replace(found.plan, giant=0, unit=20_000)
    equal(arrow(found), kdissect.open(folder).tables(names))
    assert found._units is not None
    assert found._units.rdd.getNumPartitions() == 2
    found.unpersist()


@pytest.mark.exhaustive
def test_brokers_of_many_rows_are_analysed_span_by_span(
    spark: Any, captures: Path, equal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_killed_workers.py` has such spans, and `test_time_spans.py` all tables of others, before a change lands."""
    monkeypatch.setattr(time_spans, "SPAN_ROWS", 300)
    paths = [captures / f"{name}.pcap" for name in ("base", "k4_session_eviction", "k4_share_group")]
    names = [*analysing.MADE, "findings", "connections", "problems"]
    found = kdissect.spark.dissect(spark, paths, names, partitions=3)
    equal(arrow(found), kdissect.open(paths).tables(names))
    assert len(found._spans) > 2
    states = [part.where(f"table = '{analysing.STATE}'").count() for part in found._spans]
    assert 0 < states[0] <= states[-2]  # of brokers that had rows by then
    assert states[-1] == 0
    found.unpersist()


def test_records_and_producers(spark: Any, captures: Path, equal: Any) -> None:
    paths = [captures / "k4_transactions.pcap", captures / "k4_java_classic.pcap"]
    names = ["records", "producers", "findings"]
    found = kdissect.spark.dissect(spark, paths, names, reveal=True, partitions=3)
    equal(arrow(found), kdissect.open(paths).tables(names, reveal=True))
    found.unpersist()


def test_columns_carry_their_meaning_and_type(spark: Any, captures: Path) -> None:
    found = kdissect.spark.dissect(spark, captures / "base_tiny.pcap", {"fetches": ["latency_ms", "requested_at"]})
    frame = found["fetches"]
    assert frame.columns == ["latency_ms", "requested_at"]
    assert frame.dtypes == [("latency_ms", "double"), ("requested_at", "timestamp")]
    doc = SCHEMAS["fetches"].field("latency_ms").metadata[b"doc"].decode()
    assert frame.schema["latency_ms"].metadata["comment"] == doc
    found.unpersist()


@pytest.mark.parametrize("partitions", [None, 2])
def test_columns_that_are_never_null_are_not_nullable(spark: Any, captures: Path, partitions: int | None) -> None:
    """Whichever columns have no nulls in these captures alone."""
    found = kdissect.spark.dissect(spark, captures / "base_tiny.pcap", list(TABLES), partitions=partitions)
    for name, frame in found.items():
        assert {field.name for field in frame.schema if not field.nullable} == TABLES[name].never_null, name
    found.unpersist()


def test_times_leave_packets_out(spark: Any, captures: Path, equal: Any) -> None:
    path = captures / "base.pcap"
    times = kdissect.open(path).table("exchanges")["request_first_at"].drop_null().to_pylist()
    middle = sorted(times)[len(times) // 2]
    found = kdissect.spark.dissect(spark, path, ["exchanges"], start=middle)
    equal(arrow(found), kdissect.open(path, start=middle).tables(["exchanges"]))
    found.unpersist()


def test_what_is_wrong_is_said_before_anything_is_read(spark: Any, captures: Path, tmp_path: Path) -> None:
    path = captures / "base_tiny.pcap"
    with pytest.raises(UsageError, match="exchanges"):
        kdissect.spark.dissect(spark, path, ["exchangs"])
    with pytest.raises(UsageError, match="no table 'exchangs'"):
        kdissect.spark.dissect(spark, path, "exchangs")
    with pytest.raises(UsageError, match="no column of table 'exchanges' is named"):
        kdissect.spark.dissect(spark, path, {"exchanges": []})
    with pytest.raises(UsageError, match="transport"):
        kdissect.spark.dissect(spark, path, transport="pigeon")
    with pytest.raises(UsageError, match="partitions"):
        kdissect.spark.dissect(spark, path, partitions=0)
    with pytest.raises(kdissect.CaptureNotFound):
        kdissect.spark.dissect(spark, tmp_path / "*.pcap")


def test_strict_stops_at_a_file_that_is_none(spark: Any, captures: Path, tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes((captures / "base_tiny.pcap").read_bytes())
    (tmp_path / "a.pcap1").write_bytes(b"no capture at all, but long enough to be looked at")
    paths = [tmp_path / "a.pcap", tmp_path / "a.pcap1"]
    lenient = kdissect.spark.dissect(spark, paths, ["problems"], partitions=1)
    assert "a.pcap1" in {row.file for row in lenient["problems"].collect()}
    lenient.unpersist()
    strict = kdissect.spark.dissect(spark, paths, ["problems"], partitions=1, strict=True)
    with pytest.raises(CaptureUnreadable, match=r"a\.pcap1"):
        strict["problems"]
    strict.unpersist()


def test_connections_that_two_captures_saw(spark: Any, captures: Path, equal: Any) -> None:
    """Given together they are one, as on one machine."""
    ends = [captures / "stories" / f"net_delay_{end}.pcap.zst" for end in ("client", "broker")]
    names = ["exchanges", "connections", "fetches", "clock_offsets", "time_budget", "time_ledger", "deliveries"]
    found = kdissect.spark.dissect(spark, ends, names, partitions=2)
    assert {found[name].rdd.getNumPartitions() for name in ("time_budget", "time_ledger", "deliveries")} == {2}
    expected = kdissect.open(ends).tables(names)
    assert expected["clock_offsets"].num_rows == 1
    equal(arrow(found), expected)
    found.unpersist()


def test_deliveries_and_transactions_of_a_spread_job(spark: Any, captures: Path, equal: Any) -> None:
    """Producers, readers, coordinators and markers are on connections that different tasks decode."""
    stories = ("stories/slow_consumer.pcap.zst", "traces/franz_go.pcap.zst")
    paths = [captures / "k4_transactions.pcap", *(captures / name for name in stories)]
    names = ["deliveries", "traced", "transactions", "transaction_steps", "topic_traffic", "producers"]
    found = kdissect.spark.dissect(spark, paths, names, partitions=2)
    spread = ("deliveries", "traced", "topic_traffic", "producers", "transactions")
    assert {found[name].rdd.getNumPartitions() for name in spread} == {2}
    expected = kdissect.open(paths).tables(names)
    assert expected["transactions"].num_rows == 8
    assert expected["traced"].num_rows == 100
    assert expected["deliveries"]["delivery_ms"].null_count < expected["deliveries"].num_rows
    equal(arrow(found), expected)
    found.unpersist()
