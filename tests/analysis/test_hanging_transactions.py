"""Readers of committed records behind a transaction that nobody ends (KIP-664), at the edge of what is called hanging.

The tables are made by hand: brokers since Kafka 3.6 refuse what made transactions hang (KIP-890)."""

from __future__ import annotations

from typing import Any

import pytest

from kdissect.analysis.findings import findings
from tests.analysis.wire import START, made

SECOND = 1_000_000
TIMEOUT_MS = 60_000
INIT_PRODUCER_ID = 22


def found(
    seconds: int, timeout_ms: int | None = TIMEOUT_MS, moves_at: int | None = None, answers: int = 1000
) -> list[dict[str, Any]]:
    """Findings where a reader fetches every second for so many seconds. Producer 7's transaction begins at offset 5,
    others write behind it; the last stable offset moves at `moves_at` (second), if it does. So many answers have the
    partition."""
    fetches, partitions, exchanges = [], [], []
    for n in range(seconds + 1):
        name = f"{1:016x}:{n}"
        at = START + n * SECOND
        stable = 5 if moves_at is None or n < moves_at else 7 + n
        fetches.append({"exchange_id": name, "response_first_at": at, "isolation_level": 1, "client_id": "reader"})
        if n >= answers:
            continue
        partitions.append({"exchange_id": name, "topic": "t", "partition": 0, "error_code": 0, "high_watermark": 7 + n,
                           "last_stable_offset": stable})  # fmt: skip
    name = f"{2:016x}:0"
    exchanges.append({"exchange_id": name, "connection_id": f"{2:016x}", "client_id": "writer",
                      "api_key": INIT_PRODUCER_ID, "request_first_at": START - SECOND})  # fmt: skip
    ids = [{"exchange_id": name, "transactional_id": "tx", "producer_id": 7, "producer_epoch": 0,
            "transaction_timeout_ms": timeout_ms}]  # fmt: skip
    batches = [{"exchange_id": f"{3:016x}:0", "topic": "t", "partition": 0, "base_offset": 5, "last_offset": 5,
                "is_transactional": True, "is_control": False, "leader_epoch": 0, "producer_id": 7}]  # fmt: skip
    rows = {"fetches": fetches, "fetch_partitions": partitions, "exchanges": exchanges, "producer_ids": ids,
            "record_batches": batches}  # fmt: skip
    tables = {name: made(name, some) for name, some in rows.items()}
    every = findings(tables).findings.to_pylist()
    return [one for one in every if one["id"] == "held_back_by_transaction"]


def test_a_transaction_that_outlives_its_timeout_by_half_a_minute_is_hanging() -> None:
    [one] = found(90)
    assert (one["severity"], one["client_id"], one["transactional_id"]) == ("high", "writer", "tx")
    assert (one["topic"], one["partition"]) == ("t", 0)
    assert "hanging transaction of client writer (transactional id tx, producer 7)" in one["text"]
    assert "offset 5 for 1 min 30 s" in one["text"] or "offset 5 for 90.0 s" in one["text"]
    assert "KIP-664" in one["text"]
    assert one["headline"].startswith("a hanging transaction of client writer")
    assert (one["first_at"].timestamp() - START / SECOND) == pytest.approx(0)


@pytest.mark.parametrize(
    ("seconds", "timeout_ms", "moves_at"), [(89, TIMEOUT_MS, None), (200, None, None), (200, TIMEOUT_MS, 89)]
)
def test_one_that_its_coordinator_may_still_end_is_open(
    seconds: int, timeout_ms: int | None, moves_at: int | None
) -> None:
    """A second less; a timeout that was not captured; an offset that moves in time."""
    [one] = found(seconds, timeout_ms, moves_at)
    assert one["severity"] == "medium"
    assert one["headline"].startswith("a transaction of client writer")
    assert "hanging" not in one["text"]


def test_what_no_answer_shows_any_more_is_not_hanging() -> None:
    """Later answers of the session leave the partition out: nothing says that its last stable offset stands still."""
    [one] = found(200, answers=3)
    assert "to the end of the capture" in one["text"]
    assert "hanging" not in one["text"]


def test_topics_without_a_name_are_told_apart_by_their_ids() -> None:
    """The offsets of the two would be one that moves at every answer."""
    fetches, partitions = [], []
    for n in range(8):
        name = f"{1:016x}:{n}"
        fetches.append({"exchange_id": name, "response_first_at": START + n * SECOND // 2, "isolation_level": 1})
        partitions.append({"exchange_id": name, "topic_id": "even" if n % 2 == 0 else "odd", "partition": 0,
                           "error_code": 0, "high_watermark": 99, "last_stable_offset": 5 + n % 2})  # fmt: skip
    rows = {"fetches": fetches, "fetch_partitions": partitions}
    found = findings({name: made(name, some) for name, some in rows.items()}).findings.to_pylist()
    assert {one["headline"] for one in found} == {
        "a transaction held readers of even-0 back for 3.5 s", "a transaction held readers of odd-0 back for 3.0 s",
    }  # fmt: skip
    assert {one["filter"].partition(" and ")[0] for one in found} == {"topic_id = 'even'", "topic_id = 'odd'"}
    assert all(f"of topic {one['filter'].split(chr(39))[1]} back" in one["text"] for one in found)
    assert all(one["topic"] is None for one in found)
