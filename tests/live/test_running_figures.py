"""What is judged of live traffic: a broker that stands still, and one that only waits as it was asked to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kdissect.live.moment import Moment, Waiting
from kdissect.live.running_figures import Figures
from kdissect.tables.declaration import SCHEMAS

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
NONE: list[dict[str, Any]] = []


def raw(**rows: list[dict[str, Any]]) -> dict[str, pa.Table]:
    names = ("exchanges", "fetches", "fetch_partitions", "record_batches")
    return {name: pa.Table.from_pylist(rows.get(name, []), SCHEMAS[name]) for name in names}


def moment(
    now_us: int, *waits: Waiting, answered: list[dict[str, Any]] = NONE, **settled: list[dict[str, Any]]
) -> Moment:
    return Moment(now_us * 1000, raw(exchanges=answered), [raw(**settled)], waits, {}, 0)


def told(figures: Figures, now: int, *waits: Waiting, answered: list[dict[str, Any]] = NONE) -> list[str]:
    figures.tick(moment(now, *waits, answered=answered))
    return list(figures.snapshot()["standing_still"])


@pytest.fixture
def figures() -> Figures:
    return Figures()


def test_an_overdue_request_and_no_answer(figures: Figures) -> None:
    wait = Waiting("1", "shop", "Metadata", NOW, 2)
    assert told(figures, NOW + SECOND - 1, wait) == []
    assert told(figures, NOW + SECOND, wait) == ["1"]
    assert told(figures, NOW + 2 * SECOND, wait) == ["1"]
    (alert,) = figures.findings
    assert alert["text"] == "broker 1 has answered nobody for 1.0 s: Metadata of 1 client waits"
    line = Waiting("1", "shop", "Metadata", NOW, 2)
    assert told(figures, NOW + 3 * SECOND, line) == ["1"]
    assert told(figures, NOW + 3 * SECOND, answered=[{"broker": "1", "response_first_at": NOW + 3 * SECOND}]) == []
    assert [one["id"] for one in figures.findings] == ["standstill", "answers_again"]


def test_who_gave_up_was_not_answered(figures: Figures) -> None:
    assert told(figures, NOW + SECOND, Waiting("1", "shop", "Metadata", NOW, 2)) == ["1"]
    assert told(figures, NOW + 2 * SECOND) == []
    assert [one["id"] for one in figures.findings] == ["standstill", "waits_no_more"]


def test_requests_from_before_dropped_packets_prove_nothing(figures: Figures) -> None:
    """Their answers may be among these."""
    wait, later = Waiting("1", "shop", "Metadata", NOW, 2), Waiting("1", "shop", "Metadata", NOW + 3 * SECOND, 1)
    figures.dropped = 0
    assert told(figures, NOW + SECOND, wait) == ["1"]
    figures.dropped = 7
    assert told(figures, NOW + 2 * SECOND, wait) == []
    assert [one["text"] for one in figures.findings][1:] == [
        "it is not known whether broker 1 answers: the kernel dropped packets"
    ]
    assert told(figures, NOW + 5 * SECOND, wait) == []
    assert told(figures, NOW + 5 * SECOND, wait, later) == ["1"]


def test_what_is_seen_of_a_broker_when_connections_are_left_out(figures: Figures) -> None:
    figures.share = 0.25
    assert told(figures, NOW + SECOND, Waiting("1", "shop", "Metadata", NOW, 2)) == ["1"]
    (alert,) = figures.findings
    assert alert["text"] == (
        "broker 1 has answered nobody on the 25% of connections that are worked on for 1.0 s: "
        "Metadata of 1 client waits"
    )


def test_a_broker_that_answers_others_is_alive(figures: Figures) -> None:
    answer = [{"broker": "1", "response_first_at": NOW + 10}]
    assert told(figures, NOW + 5 * SECOND, Waiting("1", "shop", "Produce", NOW, 1), answered=answer) == []
    assert told(figures, NOW + 5 * SECOND, Waiting("1", "shop", "Produce", NOW + 11, 1)) == ["1"]


def test_long_polls_wait_as_agreed(figures: Figures) -> None:
    fetch = Waiting("1", "shop", "Fetch", NOW, 1)
    assert told(figures, NOW + 5 * SECOND, fetch) == [], "nobody knows how long it may"
    seen = {"client_id": "shop", "max_wait_ms": 5000, "broker": "1", "hold": "timeout", "broker_ms": 5000.0}
    figures.tick(moment(NOW, fetches=[seen]))
    assert told(figures, NOW + 6 * SECOND - 1, fetch) == []
    assert told(figures, NOW + 6 * SECOND, fetch) == ["1"]
    assert told(figures, NOW + 600 * SECOND, Waiting("2", "shop", "JoinGroup", NOW, 1)) == []


def test_whose_time_a_fetch_took(figures: Figures) -> None:
    rows = [
        {"broker": "1", "client_id": "a", "hold": hold, "broker_ms": took, "excess_ms": excess, "max_wait_ms": 500}
        for hold, took, excess in (("timeout", 510.0, 10.0), ("data", 300.0, None), ("immediate", 4.0, None))
    ]
    figures.tick(moment(NOW, answered=[{"api": "Fetch", "broker": "1", "client_id": "a"}]))
    figures.tick(moment(NOW, fetches=rows))
    api = figures.of["api"]
    place = api.place("Fetch")
    assert api.histogram[place, 1].sum() == 2, "own: 10 ms beyond the agreed wait, and 4 ms"
    assert api.sum_ms[place, 1] == 14.0
    assert np.isclose(api.sum_ms[place, 2], 800.0), "agreed"
