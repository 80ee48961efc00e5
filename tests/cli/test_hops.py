"""`hops`: the lines of a record's way, of topics and readers, and what is refused."""

from __future__ import annotations

import json
import re

import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.cli.printing.waterfall import AXIS, waterfall
from tests.conftest import CAPTURES

SLOW = str(CAPTURES / "stories" / "slow_consumer.pcap.zst")
DEMO = CAPTURES / "k4_python_kafka.pcap"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["hops", *arguments]) == 0
    return capsys.readouterr().out


def test_a_record_s_way_has_a_line_a_hop(capsys: pytest.CaptureFixture[str]) -> None:
    heading, reader, *hops = printed(capsys, SLOW, "s3x:0@200").splitlines()
    assert heading == "s3x:0  offset 200, 1 record, 170 B"
    assert re.fullmatch(r"  group g3 \(c3a\), from broker 1: 142 ms after it was sent; waited for: reader; .*", reader)
    assert [hop.split()[0] for hop in hops] == ["buffered", "sent", "no", "served", "received"]
    assert [hop.split()[0] for hop in hops if "*" in hop] == ["no"]
    frames = [int(found[1]) for hop in hops if (found := re.search(r"frame (\d+)", hop))]
    exchanges = kdissect.open(SLOW).table("exchanges", ["request_frame", "response_frame", "api"]).to_pylist()
    assert {row["api"] for row in exchanges if row["request_frame"] == frames[0]} == {"Produce"}
    assert {row["api"] for row in exchanges if row["response_frame"] == frames[1]} == {"Fetch"}


def test_bars_lie_one_behind_the_other() -> None:
    capture = kdissect.open(SLOW)
    rows = capture.table("deliveries", None, "topic = 's3x' and partition = 0").slice(0, 40).to_pylist()
    for line in waterfall(rows, {}, 120):
        if "█" in line.plain:
            bar = line.plain.index("█"), line.plain.rindex("█")
            assert bar[1] - bar[0] < AXIS


def test_topics_and_readers(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, SLOW, "--topic", "s3x").splitlines()
    assert len(lines) == 2
    assert re.search(r"^s3x +g3 .* reader \((100|9\d)%\)", lines[1])
    (row,) = [json.loads(line) for line in printed(capsys, SLOW, "--topic", "s3x", "--format", "jsonl").splitlines()]
    assert (row["topic"], row["reader"], row["is_follower"], row["waited_for"]) == ("s3x", "g3", False, "reader")
    table = kdissect.open(SLOW).table("deliveries", ["delivery_ms", "group_id"], "topic = 's3x'").to_pandas()
    assert row["deliveries"] == len(table)
    assert row["p50_ms"] == pytest.approx(table.delivery_ms.quantile(0.5), rel=0.05)
    assert row["p99_ms"] == pytest.approx(table.delivery_ms.quantile(0.99), rel=0.05)
    assert row["max_ms"] == pytest.approx(table.delivery_ms.max())


def test_a_line_says_why_times_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    why = "not known, for --client and --broker leave out what producers sent"
    assert why in printed(capsys, str(DEMO), "--client", "kp-consumer")
    assert why not in printed(capsys, str(DEMO), "--topic", "py-kp")


def test_records_by_key_and_by_producer(capsys: pytest.CaptureFixture[str]) -> None:
    records = kdissect.open(DEMO).table("records", ["key", "topic", "offset"], reveal=True).to_pylist()
    key = next(row["key"] for row in records if row["key"] is not None).decode()
    assert "offset" in printed(capsys, str(DEMO), "--key", key, "--reveal", "--limit", "1")
    slowest = [
        json.loads(line)["delivery_ms"]
        for line in printed(capsys, SLOW, "--producer", "p3", "--limit", "3", "--format", "jsonl").splitlines()
    ]
    assert len(slowest) == 3
    assert slowest == sorted(slowest, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([SLOW, "s3x:0@99999999"], "no reader was given s3x:0@99999999 in this capture"),
        ([SLOW, "nosuch:0@1"], "no reader was given nosuch:0@1 in this capture"),
        ([SLOW, "--producer", "nosuch"], "no delivered record of producer 'nosuch' in this capture"),
        ([SLOW, "--key", "a"], "--key looks at the keys of records: it needs --reveal"),
        ([SLOW, "s3x:0@1", "--producer", "p3"], "name a record by TOPIC:PARTITION@OFFSET"),
    ],
)
def test_what_is_refused(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hops", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert why in told.err


def test_a_record_that_nobody_read_is_told_with_its_request(capsys: pytest.CaptureFixture[str]) -> None:
    capture = kdissect.open(SLOW)
    read = {(row["partition"], row["base_offset"]) for row in
            capture.table("deliveries", ["partition", "base_offset"], "topic = 's3x'").to_pylist()}  # fmt: skip
    parts = capture.table("produce_partitions", where="topic = 's3x' and error_code = 0").to_pylist()
    row = next(one for one in parts if (one["partition"], one["base_offset"]) not in read)
    assert main(["hops", SLOW, f"s3x:{row['partition']}@{row['base_offset']}"]) == 2
    assert f"which {row['exchange_id']} wrote" in capsys.readouterr().err


def test_nothing_was_delivered(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No record was given to a reader in this capture" in printed(capsys, str(CAPTURES / "raw_errors.pcap"))
    chosen = printed(capsys, str(CAPTURES / "raw_errors.pcap"), "--topic", "no-such-topic")
    assert "No record was given to a reader in what was asked for." in chosen


def test_a_capture_without_producers_says_why_there_are_no_times(capsys: pytest.CaptureFixture[str]) -> None:
    """Only what brokers sent was captured."""
    assert main(["hops", str(CAPTURES / "field_to_client.pcap")]) == 0
    assert (
        capsys.readouterr().out.rstrip().endswith("no Produce request of any of these records was found with its times")
    )
    assert main(["hops", str(CAPTURES / "k4_java_classic.pcap")]) == 0
    assert "no Produce request" not in capsys.readouterr().out


def test_the_end_of_a_transaction_is_no_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hops", str(CAPTURES / "k4_transactions.pcap"), "tx-out:0@3"]) == 2
    assert capsys.readouterr().err == (
        "kdissect: tx-out:0@3 is no record: it marks the end of a transaction (a control batch)\n"
    )
