"""Time budgets: boxes that add up, and stories whose owner is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.budget import BOXES, SUBJECTS, time_budget
from kdissect.problems import UsageError
from tests.analysis.read import CAPTURES
from tests.analysis.wire import START, made

A, B = "00000000000000aa", "00000000000000bb"


def exchange(n: int, at: float, api: int = 1, connection: str = A, **parts: Any) -> dict[str, Any]:
    """An exchange of client c with broker 1 that begins `at` ms after the start; `parts` in ms."""
    names = ("request_transfer_ms", "network_ms", "queued_ms", "broker_ms", "response_transfer_ms")
    given = {name: float(parts.pop(name, 0)) for name in names}
    begun = START + int(at * 1000)
    return {
        "exchange_id": f"{connection}:{n}", "connection_id": connection, "client_id": "c", "broker": "1",
        "api_key": api, "status": "ok", "network_kind": "handshake", "request_first_at": begun,
        "response_last_at": begun + int(sum(given.values()) * 1000), **given,
    } | parts  # fmt: skip


def budget(rows: list[dict[str, Any]], fetches: list[dict[str, Any]] = [], **more: Any) -> dict[str, Any]:  # noqa: B006
    instants = [row[at] for row in rows for at in ("request_first_at", "response_last_at")]
    closed = max(START + 10_000_000 if at is None else at for at in instants)
    connections = [
        {"connection_id": name, "started_at": min(filter(None, instants)), "ended_at": closed} for name in (A, B)
    ]
    tables = {
        "exchanges": made("exchanges", rows), "fetches": made("fetches", fetches),
        "connections": made("connections", connections),
    }  # fmt: skip
    (row,) = time_budget(tables, **more).to_pylist()
    assert sum(row[box] for box in BOXES) == pytest.approx(row["wall_ms"])
    return {name: value for name, value in row.items() if name in BOXES and value}


def fetch(n: int, records: int = 0, connection: str = A) -> dict[str, Any]:
    return {"exchange_id": f"{connection}:{n}", "record_bytes": records}


def test_each_part_has_its_box() -> None:
    row = exchange(0, 0, api=0, request_transfer_ms=1, network_ms=8, broker_ms=5, response_transfer_ms=2)
    assert budget([row]) == {"network_ms": 11.0, "broker_ms": 5.0}


def test_requests_in_flight_together_count_once() -> None:
    rows = [exchange(n, n * 2, api=0, broker_ms=10) for n in range(5)]
    assert budget(rows) == {"broker_ms": 18.0}


def test_a_long_poll_is_agreed_up_to_its_wait() -> None:
    row = exchange(0, 0, broker_ms=700, agreed_ms=500.0)
    assert budget([row]) == {"agreed_ms": 500.0, "broker_ms": 200.0}
    assert budget([row | {"agreed_ms": 0.0}]) == {"broker_ms": 700.0}
    assert budget([row | {"api_key": 78}]) == {"agreed_ms": 500.0, "broker_ms": 200.0}


def test_what_a_quota_took_comes_before_what_was_agreed() -> None:
    row = exchange(0, 0, broker_ms=700, agreed_ms=500.0, throttled_ms=150.0)
    assert budget([row]) == {"throttled_ms": 150.0, "agreed_ms": 500.0, "broker_ms": 50.0}


def test_a_commit_beside_a_long_poll_does_not_outrank_it() -> None:
    rows = [exchange(0, 0, broker_ms=400, agreed_ms=400.0), exchange(0, 100, api=8, connection=B, broker_ms=50)]
    assert budget(rows) == {"agreed_ms": 400.0}


def test_between_an_answer_with_records_and_the_next_fetch_is_the_clients_own() -> None:
    rows = [exchange(n, n * 100, broker_ms=10, agreed_ms=10.0) for n in range(2)]
    assert budget(rows, [fetch(0, 70), fetch(1)]) == {"agreed_ms": 20.0, "own_ms": 90.0}
    assert budget(rows, [fetch(0), fetch(1)]) == {"agreed_ms": 20.0, "idle_ms": 90.0}


def test_a_broker_that_answers_nobody_owns_the_time() -> None:
    rows = [
        exchange(0, 0, api=0, broker_ms=1),
        exchange(1, 10, broker_ms=3000, agreed_ms=500.0),
        exchange(0, 20, api=0, connection=B, broker_ms=2990),
        exchange(2, 10, api=0, broker_ms=3001),
    ]
    assert budget(rows, start=START + 10_000, end=START + 3_010_000) == {"broker_ms": 3000.0}
    alone = budget(rows[:2], start=START + 10_000, end=START + 3_010_000)
    assert alone == {"agreed_ms": 500.0, "broker_ms": 2500.0}


def test_a_request_without_an_answer_is_unknown() -> None:
    row = exchange(0, 0, api=0) | {"status": "unanswered", "response_last_at": None, "broker_ms": None}
    assert budget([row], end=START + 2_000_000) == {"unknown_ms": 2000.0}


@pytest.mark.parametrize("every", [None, 0.25])
def test_boxes_add_up_to_the_wall_time(every: float | None) -> None:
    table = kdissect.open(CAPTURES / "base.pcap").analysis.budget(SUBJECTS, every)
    assert set(table["by"].to_pylist()) == {"client", "broker", "group", "topic"}
    boxes = np.stack([np.asarray(table[box]) for box in BOXES], axis=1)
    assert boxes.min() >= -1e-6
    assert np.allclose(boxes.sum(axis=1), np.asarray(table["wall_ms"]))


def test_the_table_is_the_budget_of_everybody() -> None:
    capture = kdissect.open(CAPTURES / "base_short.pcap")
    table = capture.table("time_budget")
    assert table.equals(capture.analysis.budget(SUBJECTS))
    assert sum(one.num_rows for one in capture.batches("time_budget", ["subject"], "by = 'broker'")) == 1


def test_stretches_hold_what_the_whole_does() -> None:
    capture = kdissect.open(CAPTURES / "base_short.pcap")
    whole, cut = (capture.analysis.budget(("client",), every) for every in (None, 0.1))
    for box in (*BOXES, "wall_ms", "exchanges"):
        summed = cut.group_by("subject", use_threads=False).aggregate([(box, "sum")])
        found = dict(zip(summed["subject"].to_pylist(), summed[f"{box}_sum"].to_pylist(), strict=True))
        for subject, value in zip(whole["subject"].to_pylist(), whole[box].to_pylist(), strict=True):
            assert found[subject] == pytest.approx(value, abs=0.01)


def test_no_exchanges_and_wrong_subjects() -> None:
    none = {"exchanges": made("exchanges", []), "fetches": made("fetches", []), "connections": made("connections", [])}
    assert time_budget(none).num_rows == 0
    assert isinstance(time_budget(none, SUBJECTS), pa.Table)
    with pytest.raises(UsageError):
        time_budget(none, ("nothing",))


STORIES = CAPTURES / "stories"


def test_three_seconds_of_a_suspended_broker_are_its_own() -> None:
    capture = kdissect.open(STORIES / "slow_broker.pcap.zst")
    table = capture.analysis.budget(("broker",), None, "2026-11-22T01:02:51.698", "2026-11-22T01:02:54.696")
    rows = {row["subject"]: row for row in table.to_pylist()}
    assert rows["3"]["broker_ms"] >= 0.98 * rows["3"]["wall_ms"]
    assert max(rows[other]["broker_ms"] for other in "12") < 0.25 * rows["3"]["wall_ms"]


def test_a_consumer_whose_application_is_slow_and_a_healthy_one() -> None:
    capture = kdissect.open(STORIES / "slow_consumer.pcap.zst")
    rows = {row["subject"]: row for row in capture.analysis.budget(("client",)).to_pylist()}
    slow, healthy = rows["c3a"], rows["c3b"]
    assert slow["own_ms"] > 0.7 * slow["wall_ms"]
    assert healthy["agreed_ms"] > 0.9 * healthy["wall_ms"]
    assert healthy["broker_ms"] < 0.02 * healthy["wall_ms"]


def test_a_process_that_stood_still() -> None:
    """`frozen` was suspended for 8 s, `dozing` for 4; who is only without partitions, and sends heartbeats, is idle."""
    capture = kdissect.open(next((CAPTURES / "rules").glob("suspended.pcap*")))
    rows = {row["subject"]: row for row in capture.analysis.budget(("client",)).to_pylist()}
    assert rows["frozen"]["silent_ms"] == pytest.approx(8000, abs=300)
    assert rows["dozing"]["silent_ms"] == pytest.approx(4000, abs=300)
    joining = kdissect.open(STORIES / "kip848.pcap.zst").analysis.budget(("client",)).to_pylist()
    assert max(row["silent_ms"] for row in joining if row["subject"].startswith("c14-1")) < 100


def test_the_measured_ways_of_both_ends_are_taken() -> None:
    """A request that took 80 ms on its way there and none back reaches its broker at 80 ms."""
    row = exchange(0, 0, api=0, network_ms=80, broker_ms=10, network_up_ms=80.0, network_down_ms=0.0)
    assert budget([row], start=START + 81_000, end=START + 89_000) == {"broker_ms": 8.0}
    assert budget([row | {"network_up_ms": None}], start=START + 81_000, end=START + 89_000) == {"network_ms": 8.0}
