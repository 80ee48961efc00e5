"""Transactions of recordings, as their clients were written and their brokers logged."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import zstandard

import kdissect
from kdissect.analysis.deliveries.transaction_rows import OUTCOMES, SCHEMA, transactions
from kdissect.tables.declaration.readers import TRANSACTIONS
from tests.analysis.read import read_lines
from tests.conftest import CAPTURES


def read(name: str) -> dict[str, pa.Table]:
    return kdissect.open(CAPTURES / name).tables({table: list(c) for table, c in TRANSACTIONS.tables.items()})


def rows(tables: Mapping[str, pa.Table]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = transactions(tables).to_pylist()
    return found


@pytest.fixture(scope="module")
def kip890() -> dict[str, pa.Table]:
    return read("k4_transactions.pcap")


OF_K4 = [
    ("tx-id-1", 0, "committed", 5), ("tx-id-1", 1, "aborted", 5), ("tx-id-1", 2, "committed", 1),
    ("tx-id-1", 3, "fenced", 2), ("tx-id-1", 5, "committed", 2), ("tx-id-slow", 0, "timed_out", 1),
    ("tx-id-1", 6, "fenced", 1), ("tx-id-hang", 0, "aborted", 1),
]  # fmt: skip
"""k4_transactions.toml: which records were committed, aborted, and by whom."""


def test_each_transaction_of_kip_890_has_its_outcome(kip890: dict[str, pa.Table]) -> None:
    found = rows(kip890)
    assert [(row["transactional_id"], row["producer_epoch"], row["outcome"], row["records"]) for row in found] == OF_K4
    assert found[0]["groups"] == ["tx-group"]
    assert found[0]["partitions"] == 2
    assert all(row["topics"] == ["tx-out"] for row in found)
    assert found[5]["timeout_ms"] == 1500 < found[5]["open_ms"] < 4000
    assert all(row["markers_ms"] > 0 for row in found)
    assert all(row["open_ms"] >= row["idle_ms"] >= 0 for row in found)


ERAS = ["era_0_11_0", "era_1_1_1", "era_2_4_1", "era_2_8_2", "era_3_9_1_kraft", "mtu1500_2_3_1"]


@pytest.mark.parametrize("name", ERAS)
def test_transactions_of_every_era(name: str) -> None:
    """The same client program everywhere (captures/record/eras): 8 records, 5 that are aborted, 5 with offsets."""
    found = rows(read(f"{name}.pcap"))
    told = [(row["outcome"], row["records"], row["batches"], row["partitions"], row["groups"]) for row in found]
    assert told == [("committed", 8, 1, 1, []), ("aborted", 5, 1, 1, []), ("committed", 5, 2, 2, ["g-txn"])]


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["k4_transactions", "era_2_8_2", "era_3_9_1_kraft"])
def test_what_producers_ended_is_what_the_brokers_logged(name: str) -> None:
    """EndTxn requests in the brokers' log that were answered without an error, by what they asked for."""
    log = zstandard.ZstdDecompressor().stream_reader((CAPTURES / f"{name}.requests.log.zst").read_bytes()).read()
    logged: Counter[str] = Counter()
    for line in log.decode().splitlines():
        if '"END_TXN"' in line and "Completed request:" in line:
            one = json.JSONDecoder().raw_decode(line.split("Completed request:", 1)[1])[0]
            if one["response"]["errorCode"] == 0:
                logged["committed" if one["request"]["committed"] else "aborted"] += 1
    tables = read(f"{name}.pcap")
    ended = Counter(
        row["outcome"] for row in rows(tables) if row["end_exchange_id"] and row["outcome"] in ("committed", "aborted")
    )
    answered = pd.Series(tables["exchanges"]["error_code"].to_pylist(), tables["exchanges"]["exchange_id"].to_pylist())
    by_end = Counter(
        row["outcome"] for row in rows(tables) if row["end_exchange_id"] and answered[row["end_exchange_id"]] == 0
    )
    assert by_end == logged
    assert ended >= logged


def test_a_transaction_that_the_coordinator_aborted_is_timed_out() -> None:
    """`a11t` asks for a timeout of 2 s and ends its transaction after 15 s (captures/README.md): too late."""
    (row,) = rows(read("stories/txn_timeout.pcap.zst"))
    assert (row["transactional_id"], row["outcome"], row["timeout_ms"]) == ("tx11t", "timed_out", 2000)
    assert 2000 < row["open_ms"] < 12_000  # brokers look for such transactions every 10 s
    assert row["idle_ms"] > 0.9 * row["open_ms"]
    assert row["client_id"] == "a11t"
    assert row["end_exchange_id"] is not None


def test_without_the_brokers_own_traffic(kip890: dict[str, pa.Table]) -> None:
    """A client's capture has no markers: the errors that the producer gets tell the same, but for what an administrator
    did."""
    steps = kip890["transaction_steps"]
    clients = {**kip890, "transaction_steps": steps.filter(pc.not_equal(steps["step"], "markers"))}
    found = rows(clients)
    told = [(row["transactional_id"], row["producer_epoch"], row["outcome"], row["records"]) for row in found]
    assert told[:7] == OF_K4[:7]
    assert told[7][2] in ("fenced", None)
    assert all(row["markers_ms"] is None for row in found)


def test_what_began_before_the_capture() -> None:
    """Of a transaction of which only the end was captured the beginning is unknown."""
    tables = read("era_2_8_2.pcap")
    steps, batches = tables["transaction_steps"], tables["record_batches"]
    late = {
        **tables,
        "transaction_steps": steps.filter(pc.is_in(steps["step"], pa.array(["end", "markers"]))),
        "record_batches": batches.slice(0, 0),
    }
    found = rows(late)
    assert [row["outcome"] for row in found] == ["committed", "aborted", "committed"]
    unknown = ("began_at", "open_ms", "idle_ms", "first_exchange_id")
    assert all(row[name] is None for row in found for name in unknown)
    markers = rows({**late, "transaction_steps": steps.filter(pc.equal(steps["step"], "markers"))})
    assert {row["transactional_id"] for row in markers} == {None}
    assert {row["outcome"] for row in markers} == {"committed", "aborted"}


def test_an_open_transaction_is_open_until_the_end_of_the_capture(kip890: dict[str, pa.Table]) -> None:
    steps = kip890["transaction_steps"]
    ends = pc.and_(pc.is_in(steps["step"], pa.array(["end", "markers"])), pc.equal(steps["producer_id"], 2003))
    inits = kip890["producer_ids"]
    found = rows({
        **kip890, "transaction_steps": steps.filter(pc.invert(ends)),
        "producer_ids": inits.filter(pc.invert(pc.equal(inits["transactional_id"], "tx-id-slow"))),
    })  # fmt: skip
    exchanges = kip890["exchanges"].to_pylist()
    latest = max(one for row in exchanges for one in (row["request_first_at"], row["response_last_at"]) if one)
    (row,) = [row for row in found if row["transactional_id"] == "tx-id-slow"]
    assert (row["outcome"], row["ended_at"]) == ("open", None)
    assert row["open_ms"] == pytest.approx((latest - row["began_at"]).total_seconds() * 1000)


@pytest.mark.parametrize("name", ["base.pcap", "sweep_231.pcap", "sweep_440_kraft.pcap", "k4_admin_sweep.pcap"])
def test_rows_of_any_capture(name: str) -> None:
    made = kdissect.open(CAPTURES / name).table("transactions")
    assert made.schema.equals(SCHEMA)
    found = made.to_pandas()
    assert set(found.outcome.dropna()) <= set(OUTCOMES)
    assert not (found[["open_ms", "idle_ms", "end_ms", "markers_ms"]] < 0).any(axis=None)
    assert (found.idle_ms.fillna(0) <= found.open_ms.fillna(0)).all()


def test_no_rows_of_nothing(kip890: dict[str, pa.Table]) -> None:
    assert transactions({name: one.slice(0, 0) for name, one in kip890.items()}).equals(SCHEMA.empty_table())


OF_THE_LABORATORY = [
    *(f"transactions_{library}" for library in ("java", "franz_go", "librdkafka", "kafka_python")),
    "hanging",
]


def words_of(name: str) -> tuple[list[tuple[str, str, str, int]], dict[str, dict[str, Any]]]:
    """What clients and brokers say (captures/record/deliveries): transactions as (transactional id, client, outcome,
    records), and of each topic what a broker answered when it was asked for open transactions."""
    events = read_lines(name, "events")
    texts = [one["text"] for one in events if one["step"] == "log"]
    expired = {one for text in texts for one in re.findall(r"transactionalId (\S+) due to timeout", text)}
    told, under_way = [], dict[tuple[str, str], int]()
    for one in events:
        key = one.get("id", ""), one.get("client", "")
        if one["step"] == "begin":
            under_way[key] = 0
        elif one["step"] == "send" and not one["error"]:
            under_way[key] += one["count"]
        elif one["step"] in ("commit", "abort"):
            done = "timed_out" if key[0] in expired else "fenced"
            done = done if one["error"] else {"commit": "committed", "abort": "aborted"}[one["step"]]
            told.append((*key, done, under_way.pop(key)))
    told += [(*key, "open", count) for key, count in under_way.items()]
    return told, {one["topic"]: one for one in events if one["step"] == "described"}


@pytest.mark.oracle
@pytest.mark.parametrize("name", OF_THE_LABORATORY)
def test_transactions_of_the_laboratory(name: str) -> None:
    """Committed, aborted, timed out, fenced, left open by a producer that was killed, and hanging (KIP-664): outcome
    and records as their clients' and brokers' own words have them."""
    told, described = words_of(name)
    found = rows(read(f"deliveries/{name}.pcap.zst"))
    columns = ("transactional_id", "client_id", "outcome", "records")
    assert sorted(tuple(row[column] for column in columns) for row in found) == sorted(told)
    assert {outcome for _, _, outcome, _ in told} == (
        {"open"} if name == "hanging" else {"committed", "aborted", "timed_out", "fenced", "open"}
    )
    ((topic, asked),) = described.items()
    (row,) = [one for one in found if one["outcome"] == "open"]
    (open_one,) = [one for one in asked["producers"] if one["began_at_offset"] >= 0]
    assert (row["producer_id"], row["producer_epoch"]) == (open_one["producer_id"], open_one["epoch"])
    assert row["topics"] == [topic]
    # The coordinator knows of the open transaction, but for the hanging one.
    assert [one["state"] for one in asked["transactions"]] == ["Empty" if name == "hanging" else "Ongoing"]
    if name == "hanging":
        assert row["open_ms"] > 3 * row["timeout_ms"], "nobody ends it"


@pytest.mark.oracle
@pytest.mark.parametrize("name", OF_THE_LABORATORY)
def test_readers_stand_before_an_open_transaction(name: str) -> None:
    """Nothing from its first record on was given to the reader of committed records, to the end of the capture, and a
    finding says so. It calls the hanging transaction so, half a minute after its timeout."""
    _, described = words_of(name)
    ((topic, asked),) = described.items()
    (first,) = [one["began_at_offset"] for one in asked["producers"] if one["began_at_offset"] >= 0]
    opened = kdissect.open(CAPTURES / f"deliveries/{name}.pcap.zst")
    found = opened.table("deliveries").to_pandas()
    committed = found[(found.topic == topic) & (found.isolation_level == 1)]
    assert committed.last_offset.max() == first - 1
    polled = [offset for _, place, _, offset, *_ in read_lines(name, "polls") if place == topic]
    if name == "hanging":
        others = found[(found.topic == topic) & (found.isolation_level == 0)]
        assert others.last_offset.max() == max(polled) > first + 10
    else:
        assert max(polled) == first - 1
    said = [one for one in opened.table("findings").to_pylist() if one["topic"] == topic]
    assert [one["id"] for one in said] == ["held_back_by_transaction"]
    assert ("hanging transaction of client p-open" in said[0]["text"]) == (name == "hanging")
