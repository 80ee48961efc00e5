"""`kdissect stream`: what was said, in order, on recorded captures."""

from __future__ import annotations

import re
from collections import Counter

import pytest

import kdissect
from kdissect.analysis.gist import whose
from kdissect.cli.main import main
from tests.conftest import ROOT

CLASSIC = str(ROOT / "captures" / "k4_java_classic.pcap")
PYTHON = str(ROOT / "captures" / "k4_python_kafka.pcap")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["stream", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_client_from_first_to_last(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, PYTHON, "--client", "kp-consumer", "--no-draw")
    rows = kdissect.open(PYTHON, client="kp-consumer").table("exchanges").to_pylist()
    assert len(lines) == 1 + len(rows)
    for line, row in zip(lines[1:], rows, strict=True):
        assert line.startswith(f"{row['request_first_at']:%H:%M:%S}")
        assert f"{row['api']} v{row['api_version']}" in line
    assert any("kp-group" in line for line in lines)


def test_what_a_fetch_brought_and_what_was_sent(capsys: pytest.CaptureFixture[str]) -> None:
    opened = kdissect.open(CLASSIC)
    brought = opened.table("fetch_partitions", ["exchange_id", "topic", "partition", "fetch_offset", "record_bytes"],
                           "record_bytes > 0").to_pylist()[0]  # fmt: skip
    lines = said(capsys, CLASSIC, brought["exchange_id"], "--no-draw")
    place = f"{brought['topic']}-{brought['partition']}@{brought['fetch_offset']}"
    assert any(place in line and f"{brought['record_bytes']:,} B" in line for line in lines)
    produced = opened.table("exchanges", ["exchange_id"], "api = 'Produce'")["exchange_id"][0].as_py()
    assert any("1 record" in line or "records" in line for line in said(capsys, CLASSIC, produced, "--no-draw"))


def test_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, CLASSIC, "--group", "jc-group")
    assert any("jc-group join" in line for line in lines)


TRANSACTIONS = str(ROOT / "captures" / "k4_transactions.pcap")


def test_a_transactional_id_has_its_transactions_and_all_who_took_part(capsys: pytest.CaptureFixture[str]) -> None:
    """The exchanges are those of Kafka's own protocol for transactions: of a producer and its successor that fenced it,
    of partitions' leaders that ask the coordinator (KIP-890), and markers, which name the producer id alone."""
    lines = said(capsys, TRANSACTIONS, "--transactional-id", "tx-id-1", "--no-draw")
    end = lines.index("")
    table = kdissect.open(TRANSACTIONS).table("transactions", where="transactional_id = 'tx-id-1'").to_pylist()
    assert [line.split()[1] for line in lines[1:end]] == [row["outcome"] for row in table]
    assert {row["outcome"] for row in table} == {"committed", "aborted", "fenced"}
    exchanges = lines[end + 2 :]
    apis = Counter(re.split(r" {2,}", line)[3].split()[0] for line in exchanges)
    assert apis["InitProducerId"] >= 2
    assert apis["EndTxn"] >= 4
    stored = [line for line in exchanges if " Produce " in line and "INVALID_PRODUCER_EPOCH" not in line]
    assert len(stored) == sum(row["batches"] for row in table) == apis["Produce"] - 1
    assert apis["TxnOffsetCommit"] == sum(bool(row["groups"]) for row in table)
    assert apis["WriteTxnMarkers"] > 4
    assert set(apis) == {
        "InitProducerId", "EndTxn", "Produce", "TxnOffsetCommit", "WriteTxnMarkers", "AddPartitionsToTxn",
    }  # fmt: skip
    assert any(line.endswith("tx-id-1 abort") for line in exchanges)
    assert any(line.endswith("producer 1002 commit: tx-out-1") for line in exchanges)
    assert any(line.endswith("tx-id-1: tx-out-0") for line in exchanges)


def test_a_producer_id_that_was_refused_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    held = str(ROOT / "captures" / "deliveries" / "held_up.pcap.zst")
    lines = said(capsys, held, "--transactional-id", "tx-held", "--no-draw")
    [refused] = [line for line in lines if "COORDINATOR_LOAD_IN_PROGRESS" in line and "InitProducerId" in line]
    assert refused.endswith("  tx-held")


def test_a_few_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, CLASSIC, "--client", "jc-consumer-1", "--limit", "3")
    assert lines[0].split() == ["client", "broker"]
    assert sum("->|" in line for line in lines) == 3
    assert sum("|<-" in line for line in lines) == 3
    assert "exchanges more: --limit N" in lines[-1]


@pytest.mark.parametrize("drawing", ["--draw", "--no-draw"])
def test_a_pipe_gets_whole_ids_and_whole_lines(
    drawing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe has no width: what a terminal would cut stands there, so that another command can take an id."""
    monkeypatch.setenv("COLUMNS", "60")
    lines = said(capsys, PYTHON, "--client", "kp-consumer", drawing)
    rows = kdissect.open(PYTHON, client="kp-consumer").table("exchanges", ["exchange_id", "api", "error"]).to_pylist()
    text = "\n".join(lines)
    for row in rows:
        assert row["exchange_id"] in text
        assert row["error"] is None or row["error"] in text
    assert not re.search(r"\S\.\.( |$)", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((CLASSIC,), "say whose conversation"),
        ((CLASSIC, "zz"), "is no connection id"),
        ((CLASSIC, "--group", "none"), "no connection of this capture is of group 'none'"),
        ((TRANSACTIONS, "--transactional-id", "x"), "no exchange of transactional id 'x' (transactional ids: tx-id-1"),
        ((CLASSIC, "--transactional-id", "x"), "no exchange of transactional id 'x', and no transaction"),
        ((CLASSIC, "--client", "none"), "no exchange in this capture"),
        ((CLASSIC, "ffffffffffffffff"), "no exchange in this capture"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_whose_time() -> None:
    assert whose({"latency_ms": 2.0, "broker_ms": 2.0}) == ""
    assert whose({"latency_ms": 500.0, "broker_ms": 499.0, "hold": "timeout"}) == "long poll"
    assert whose({"latency_ms": 500.0, "broker_ms": 499.0, "hold": "immediate"}) == "broker"
    assert whose({"latency_ms": 500.0, "broker_ms": 9.0, "queued_ms": 491.0}) == "behind the request before"
    assert whose({"latency_ms": 500.0, "broker_ms": 499.0, "replication_ms": 400.0}) == "followers"
    assert whose({"latency_ms": 500.0}) == ""
