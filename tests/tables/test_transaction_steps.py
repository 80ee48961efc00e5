"""Steps of transactions, against the messages that they are read from."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import kdissect
from tests.conftest import CAPTURES


def spoken(capture: kdissect.Capture) -> Counter[tuple[Any, ...]]:
    """(exchange, step, transactional id, producer id, epoch, topic, partition, committed) as the messages say."""
    found: Counter[tuple[Any, ...]] = Counter()
    for one in capture.messages("AddPartitionsToTxn", "request").to_pylist():
        named = [("add_partitions", *(one[f"v3_and_below_{name}"] for name in ("transactional_id", "producer_id",
                  "producer_epoch", "topics")))] if one["api_version"] < 4 else [
            ("verify" if each["verify_only"] else "add_partitions", each["transactional_id"], each["producer_id"],
             each["producer_epoch"], each["topics"]) for each in one["transactions"]
        ]  # fmt: skip
        for step, who, producer, epoch, topics in named:
            for topic in topics:
                for partition in topic["partitions"]:
                    found[one["exchange_id"], step, who, producer, epoch, topic["name"], partition, None] += 1
    for one in capture.messages("WriteTxnMarkers", "request").to_pylist():
        for each in one["markers"]:
            for topic in each["topics"]:
                for partition in topic["partition_indexes"]:
                    key = None, each["producer_id"], each["producer_epoch"], topic["name"], partition
                    found[one["exchange_id"], "markers", *key, each["transaction_result"]] += 1
    for api, step in (("AddOffsetsToTxn", "add_offsets"), ("EndTxn", "end"), ("TxnOffsetCommit", "commit_offsets")):
        for one in capture.messages(api, "request").to_pylist():
            key = one["transactional_id"], one["producer_id"], one["producer_epoch"], None, None, one.get("committed")
            found[one["exchange_id"], step, *key] += 1
    return found


@pytest.mark.parametrize("name", ["sweep_391_kraft", "k4_transactions", "sweep_0110", "sweep_440_kraft"])
def test_steps_are_what_the_messages_say(name: str) -> None:
    """AddPartitionsToTxn v0 to v5, and every version of the others that brokers offer."""
    capture = kdissect.open(CAPTURES / f"{name}.pcap")
    steps = capture.table("transaction_steps").to_pylist()
    columns = ("exchange_id", "step", "transactional_id", "producer_id", "producer_epoch", "topic", "partition",
               "committed")  # fmt: skip
    assert Counter(tuple(row[column] for column in columns) for row in steps) == spoken(capture)
    assert {row["group_id"] is not None for row in steps if row["step"] in ("add_offsets", "commit_offsets")} <= {True}


def ends(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        kdissect.open(CAPTURES / name).table("transaction_steps", where="step = 'end'").to_pylist()
    )
    return found


def test_the_epoch_to_go_on_with_is_the_answers() -> None:
    steps = ends("k4_transactions.pcap")
    good = [row for row in steps if row["error_code"] == 0]
    assert {row["next_producer_epoch"] - row["producer_epoch"] for row in good} == {1}
    assert all(row["next_producer_epoch"] is None for row in steps if row["error_code"] != 0)
    assert {row["next_producer_epoch"] for row in ends("era_2_8_2.pcap")} == {None}
