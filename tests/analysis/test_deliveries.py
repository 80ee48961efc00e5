"""Deliveries against a plain reading of the tables that they are made of, and on recordings whose cause is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kdissect
from kdissect.analysis.deliveries import batch_matching
from kdissect.analysis.deliveries.batch_matching import match_batches
from kdissect.analysis.deliveries.delivery_input import InputReader
from kdissect.analysis.deliveries.delivery_rows import CAUSES, SCHEMA, deliveries
from kdissect.tables.declaration.readers import DELIVERIES
from tests.conftest import CAPTURES

PARTS = ["produce_ms", "commit_ms", "transaction_ms", "absent_ms", "served_ms", "transfer_ms"]
NAMES = [
    "base.pcap", "k4_transactions.pcap", "k4_slow_and_throttled.pcap", "k4_java_classic.pcap", "downconv_282.pcap",
    "mtu1500_2_3_1.pcap", "raw_acks0.pcap", "field_loss5.pcap", "k4_share_group.pcap", "stories/slow_consumer.pcap.zst",
    "stories/leader_move.pcap.zst", "stories/slow_broker.pcap.zst", "lab/throttled_librdkafka.pcap.zst",
]  # fmt: skip


def read(name: str) -> dict[str, pa.Table]:
    """The tables that deliveries are made of."""
    return kdissect.open(CAPTURES / name).tables({table: list(c) for table, c in DELIVERIES.tables.items()})


def rows(tables: Mapping[str, pa.Table]) -> pd.DataFrame:
    found: pd.DataFrame = deliveries(tables).to_pandas()
    return found


@pytest.fixture(scope="module")
def slow_consumer() -> dict[str, pa.Table]:
    return read("stories/slow_consumer.pcap.zst")


@pytest.mark.parametrize("name", NAMES)
def test_parts_add_up_and_none_is_negative(name: str) -> None:
    made = kdissect.open(CAPTURES / name).table("deliveries")
    assert made.schema.equals(SCHEMA)
    found = made.to_pandas()
    known = found[found.delivery_ms.notna()]
    assert (known[PARTS].fillna(0).sum(axis=1) - known.delivery_ms).abs().max() < 1e-6 or known.empty
    assert not (found[[*PARTS, "buffered_ms"]] < 0).any(axis=None)
    assert found.waited_for.notna().equals(found.delivery_ms.notna())
    assert set(found.waited_for.dropna()) <= set(CAUSES)
    assert found.produce_exchange_id.notna().equals(found.matched_by.notna())
    assert not found.duplicated(["topic", "topic_id", "partition", "base_offset", "client_id", "group_id"]).any()


@pytest.mark.parametrize(
    "name", ["k4_java_classic.pcap", "stories/slow_consumer.pcap.zst", "stories/slow_broker.pcap.zst"]
)
def test_every_batch_that_was_given_has_a_row_of_its_reader(name: str) -> None:
    """Batches of Kafka's present format: a row for each reader and offset of `record_batches`, the first answer's."""
    tables = read(name)
    exchanges = {one["exchange_id"]: one for one in tables["exchanges"].to_pylist()}
    followers = {one["exchange_id"]: one["replica_id"] for one in tables["fetches"].to_pylist() if one["is_follower"]}
    raft = {one["exchange_id"] for one in tables["fetches"].to_pylist() if one["is_raft"]}
    groups = {one["connection_id"]: one["group_id"] for one in tables["connections"].to_pylist()}
    sent: dict[tuple[Any, ...], str] = {}
    for one in tables["produce_partitions"].to_pylist():
        if one["error_code"] == 0 and (one["base_offset"] or 0) >= 0:
            sent[one["topic"], one["partition"], one["base_offset"]] = one["exchange_id"]
    given = defaultdict(list)
    for one in tables["record_batches"].to_pylist():
        exchange = exchanges[one["exchange_id"]]
        skipped = one["is_control"] or one["truncated"] or one["exchange_id"] in raft
        if exchange["api_key"] == 0 or skipped or exchange["response_last_at"] is None:
            continue
        reader = followers.get(one["exchange_id"])
        if reader is None:
            group = groups[exchange["connection_id"]]
            reader = group or (exchange["client_id"], exchange["client_ip"])
        key = one["topic"], one["topic_id"] if one["topic"] is None else None, one["partition"], one["base_offset"]
        given[*key, reader].append((exchange["response_last_at"], one["exchange_id"]))
    found = deliveries(tables).to_pylist()
    first = {(key, min(answers)[1]): len({one for _, one in answers}) for key, answers in given.items()}
    assert len(found) == len(first)
    for row in found:
        topic_id = row["topic_id"] if row["topic"] is None else None
        mine = [
            count for (key, exchange), count in first.items()
            if exchange == row["fetch_exchange_id"]
            and key[:4] == (row["topic"], topic_id, row["partition"], row["base_offset"])
        ] if row["times"] > 1 else [1]  # fmt: skip
        assert mine == [row["times"]]
        known = sent.get((row["topic"], row["partition"], row["base_offset"]))
        if row["times_written"] == 1 and row["matched_by"] == "offset":
            assert row["produce_exchange_id"] == known


def test_a_group_that_polls_too_late_is_what_its_records_wait_for(slow_consumer: dict[str, pa.Table]) -> None:
    """`c3a` works for 5 s between two polls (captures/README.md): what is late waits for the reader."""
    found = rows(slow_consumer)
    late = found[(found.group_id == "g3") & (found.delivery_ms > 500)]
    assert len(late) > 100
    assert (late.waited_for == "reader").mean() > 0.95
    assert late.absent_ms.sum() > 0.95 * late.delivery_ms.sum()


def test_readers_of_committed_records_wait_for_an_open_transaction() -> None:
    """`a11t` leaves a transaction open, `c11t` reads committed: what is late waits for the transaction."""
    found = rows(read("stories/txn_timeout.pcap.zst"))
    late = found[(found.client_id == "c11t") & (found.delivery_ms > 200)]
    assert len(late) > 50
    assert (late.waited_for == "transaction").mean() > 0.95


def test_where_no_transaction_is_open_none_is_waited_for() -> None:
    """librdkafka reads committed records by default."""
    found = rows(read("lab/healthy_librdkafka.pcap.zst"))
    assert found.isolation_level.eq(1).any()
    assert found.transaction_ms.fillna(0).eq(0).all()


def test_a_quota_is_what_throttled_clients_wait_for() -> None:
    found = rows(read("stories/quotas.pcap.zst"))
    late = found[found.delivery_ms > 1000]
    assert len(late) > 10
    assert (late.waited_for == "throttle").mean() > 0.9


def test_what_the_answer_does_not_tell_the_sequence_does(slow_consumer: dict[str, pa.Table]) -> None:
    """Without the offsets of Produce answers the same requests are found, by producer id and sequence."""
    stored = slow_consumer["produce_partitions"]
    lost = stored.set_column(
        stored.schema.get_field_index("base_offset"), "base_offset", pa.nulls(stored.num_rows, pa.int64())
    )
    columns = ["produce_exchange_id", "fetch_exchange_id", "topic", "partition", "base_offset", "times"]
    by_offset = rows(slow_consumer).dropna(subset="produce_exchange_id")
    by_bytes = rows({**slow_consumer, "produce_partitions": lost}).dropna(subset="produce_exchange_id")
    assert set(by_bytes.matched_by) == {"crc"}
    pd.testing.assert_frame_equal(by_offset[columns].reset_index(drop=True), by_bytes[columns].reset_index(drop=True))


def test_batches_without_an_answer_are_found_by_their_checksum() -> None:
    """acks=0 of a producer without an id: no answer, and no sequence."""
    found = rows(read("k4_slow_and_throttled.pcap"))
    silent = found[found.matched_by == "crc"]
    assert len(silent) == 15
    assert silent.producer_id.eq(-1).all()
    assert silent.delivery_ms.notna().all()


def test_what_was_produced_before_the_capture_lacks_the_producer(slow_consumer: dict[str, pa.Table]) -> None:
    exchanges = slow_consumer["exchanges"].filter(pc.not_equal(slow_consumer["exchanges"]["api_key"], 0))
    found, before = rows({**slow_consumer, "exchanges": exchanges}), rows(slow_consumer)
    assert len(found) == len(before)
    assert found.fetch_exchange_id.equals(before.fetch_exchange_id)
    nothing = ["produce_exchange_id", "delivery_ms", "buffered_ms", "waited_for", "produced_at", "visible_at", *PARTS]
    assert found[nothing].isna().all(axis=None)


def test_a_producer_whose_clock_is_ahead_says_nothing_of_its_buffer(slow_consumer: dict[str, pa.Table]) -> None:
    batches = slow_consumer["record_batches"]
    moved = {
        name: batches.set_column(
            batches.schema.get_field_index("first_timestamp"), "first_timestamp",
            pc.add(batches["first_timestamp"], pa.scalar(by, pa.duration("us"))),
        )
        for name, by in (("ahead", timedelta(seconds=1)), ("old", timedelta(hours=-1)))
    }  # fmt: skip
    for one in moved.values():
        found = rows({**slow_consumer, "record_batches": one})
        assert found.buffered_ms.isna().all()
        assert found.delivery_ms.notna().any()
        assert not found.waited_for.eq("producer").any()


def test_no_rows_of_nothing(slow_consumer: dict[str, pa.Table]) -> None:
    assert deliveries({name: table.slice(0, 0) for name, table in slow_consumer.items()}).equals(SCHEMA.empty_table())


def test_headers_that_claim_all_offsets_are_paired_with_some_batches_alone(
    slow_consumer: dict[str, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, produced = slow_consumer["record_batches"], slow_consumer["produces"]["exchange_id"].to_pylist()
    fetched = [row for row, one in enumerate(batches["exchange_id"].to_pylist()) if one not in set(produced)]
    last = batches["last_offset"].to_pylist()
    for row in fetched:
        last[row] = 2**62
    claimed = batches.set_column(batches.schema.get_field_index("last_offset"), "last_offset", pa.array(last))
    data, _ = InputReader().read({**slow_consumer, "record_batches": claimed})
    monkeypatch.setattr(batch_matching, "MOST_TOGETHER", 16)
    rows, _, _ = match_batches(data.sent, data.given, data.exchanges)
    assert np.bincount(rows).max() == 16
