"""Traced records: against what clients logged of their contexts, a plain join of tables, and with one side only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import zstandard

import kdissect
from kdissect.analysis.deliveries.traced_rows import traced as made
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import TRACED
from tests.conftest import CAPTURES

FOLDER = CAPTURES / "traces"
RECORDING = FOLDER / "franz_go.pcap.zst"
PLACE = ["topic", "partition", "offset"]


@pytest.fixture(scope="module")
def logged() -> pd.DataFrame:
    """What clients of franz-go logged of each record (captures/record/traces/client.go)."""
    packed = (FOLDER / "franz_go.records.jsonl.zst").read_bytes()
    lines = zstandard.ZstdDecompressor().stream_reader(packed).read().decode().splitlines()
    return pd.DataFrame([json.loads(line) for line in lines])


def traced(**selection: Any) -> pd.DataFrame:
    table = kdissect.open(RECORDING, **selection).table("traced")
    assert table.schema.equals(SCHEMAS["traced"])
    return table.to_pandas()


@pytest.mark.oracle
def test_each_record_with_a_context_is_joined_with_its_reader(logged: pd.DataFrame) -> None:
    """Both directions: each record that a client was given, by the ids that OpenTelemetry read, and no others."""
    given = logged[(logged.did == "given") & (logged.trace != "")]
    assert len(given) == 100
    expected = {
        (row.topic, row.partition, row.offset, f"app-{row.role}", f"g-{row.role}", row.trace, row.span)
        for row in given.itertuples()
    }
    found = traced()
    rows = zip(*(found[name] for name in (*PLACE, "client_id", "group_id", "trace_id", "span_id")), strict=True)
    assert sorted(rows) == sorted(expected)


@pytest.mark.oracle
def test_each_record_with_a_context_is_joined_with_its_producer(logged: pd.DataFrame) -> None:
    sent = logged[(logged.did == "sent") & (logged.trace != "")]
    producer = {(row.topic, row.partition, row.offset): f"app-{row.role}" for row in sent.itertuples()}
    found = traced().set_index(PLACE)
    assert {place: found.loc[place].producer_client_id for place in producer} == producer
    assert set(found.producer_client_id[found.index.get_level_values("topic") == "shipments"]) == {"app-relay"}
    produced = kdissect.open(RECORDING).table("produces", ["exchange_id", "client_id"]).to_pandas()
    client = dict(zip(produced.exchange_id, produced.client_id, strict=True))
    assert found.produce_exchange_id.map(client).equals(found.producer_client_id)


@pytest.mark.oracle
def test_a_relay_s_records_are_in_the_trace_of_what_it_read(logged: pd.DataFrame) -> None:
    """`relay` writes to `shipments` within the trace of the record of `orders` that it was given."""
    found = traced()
    orders = found[found.topic == "orders"].set_index("trace_id")
    shipments = found[found.topic == "shipments"].set_index("trace_id")
    assert set(orders.index) == set(shipments.index)
    assert len(orders) == len(shipments) == 20
    assert (shipments.produced_at >= orders.delivered_at[shipments.index]).all()
    assert (shipments.span_id != orders.span_id[shipments.index]).all()


def test_rows_are_those_of_a_plain_join() -> None:
    capture = kdissect.open(RECORDING)
    records = capture.table("records", ["exchange_id", "topic", "partition", "offset", "trace_id", "span_id"])
    records = records.to_pandas().dropna(subset=["trace_id"])
    deliveries = capture.table("deliveries").to_pandas()
    both = records.merge(
        deliveries, left_on=["exchange_id", "topic", "partition"], right_on=["fetch_exchange_id", "topic", "partition"]
    )
    both = both[(both.base_offset <= both.offset) & (both.offset <= both.last_offset)]
    columns = [*PLACE, "trace_id", "span_id", "produce_exchange_id", "fetch_exchange_id", "base_offset", "client_id",
               "producer_client_id", "group_id", "delivered_at", "delivery_ms", "waited_for"]  # fmt: skip
    expected = both[columns].sort_values(PLACE).reset_index(drop=True)
    found = traced()[columns].sort_values(PLACE).reset_index(drop=True)
    pd.testing.assert_frame_equal(found, expected)


def test_of_a_producer_alone_rows_have_no_reader() -> None:
    found = traced(client="app-batches")
    assert len(found) == 20
    assert found.fetch_exchange_id.isna().all()
    assert found.is_follower.isna().all()
    assert found.delivery_ms.isna().all()
    assert found.offset.notna().all(), "answers tell where batches were stored"
    whole = traced()
    mine = whole[whole.topic == "batches"]
    same = [*PLACE, "trace_id", "span_id", "produce_exchange_id", "produced_at"]
    assert sorted(map(tuple, found[same].to_numpy())) == sorted(map(tuple, mine[same].to_numpy()))


def test_of_a_reader_alone_rows_have_no_producer() -> None:
    found = traced(client="app-reader")
    assert len(found) == 80
    assert found.produce_exchange_id.isna().all()
    assert found.produced_at.isna().all()
    whole = traced()
    mine = whole[whole.client_id == "app-reader"]
    same = [*PLACE, "trace_id", "span_id", "fetch_exchange_id", "base_offset"]
    assert sorted(map(tuple, found[same].to_numpy())) == sorted(map(tuple, mine[same].to_numpy()))


def test_a_request_that_is_sent_again_adds_no_rows() -> None:
    """Every Produce request of the tables a second time, a millisecond later, under ids of its own: idempotent
    producers send a batch again under the same sequence."""
    tables = kdissect.open(RECORDING).tables({name: list(columns) for name, columns in TRACED.tables.items()})
    before = made(tables)
    sent = tables["exchanges"].filter(pc.equal(tables["exchanges"]["api_key"], 0))["exchange_id"]
    again = dict(tables)
    for name, table in tables.items():
        if "exchange_id" not in table.column_names:
            continue
        more = table.filter(pc.is_in(table["exchange_id"], value_set=sent.combine_chunks()))
        ids = pc.replace_substring(more["exchange_id"].cast(pa.string()), ":", ":9000")
        more = more.set_column(more.column_names.index("exchange_id"), "exchange_id", ids)
        for place, field in enumerate(more.schema):
            if name == "exchanges" and pa.types.is_timestamp(field.type):
                later = pc.add(more[field.name], pa.scalar(1000, pa.duration("us")))
                more = more.set_column(place, field, later)
        again[name] = pa.concat_tables([table, more.cast(table.schema)])
    assert again["exchanges"].num_rows > tables["exchanges"].num_rows
    assert made(again).equals(before)


@pytest.mark.parametrize("name", ["k4_java_classic.pcap", "not_kafka.pcap", "base_tiny.pcap"])
def test_where_no_record_has_a_context_there_is_no_row(name: str) -> None:
    table = kdissect.open(CAPTURES / name).table("traced")
    assert table.num_rows == 0
    assert table.schema.equals(SCHEMAS["traced"])


def test_other_tables_do_not_change_with_it() -> None:
    """Records that have no context are not left out where `records` is asked for, too."""
    alone = kdissect.open(RECORDING).table("records", ["exchange_id", "offset"])
    beside = kdissect.open(RECORDING).tables({"records": ["exchange_id", "offset"], "traced": None})
    assert beside["records"].equals(alone)
    assert beside["traced"].num_rows == 100


def test_it_is_made_only_where_it_is_named(tmp_path: Path) -> None:
    capture = kdissect.open(RECORDING)
    assert "traced" not in capture.tables()
    capture.save(tmp_path / "all")
    assert not (tmp_path / "all" / "traced.parquet").exists()
    assert capture.save(tmp_path / "one", {"traced": None}) == {"traced": 100}


def test_a_redacted_copy_has_no_id_of_a_trace(tmp_path: Path) -> None:
    found = traced()
    kdissect.open(RECORDING).redact(tmp_path / "safe.pcap")
    data = (tmp_path / "safe.pcap").read_bytes()
    assert not [one for one in {*found.trace_id, *found.span_id} if one.encode() in data]
    left = kdissect.open(tmp_path / "safe.pcap").table("traced").to_pandas()
    assert not {*left.trace_id, *left.span_id} & {*found.trace_id, *found.span_id}
