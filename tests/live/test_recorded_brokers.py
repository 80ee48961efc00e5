"""Recorded clusters, watched: three brokers are three rows, one that was killed is gone, and back when it is back."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.cli.live.panel import causes
from tests.conftest import ROOT
from tests.live.paced import prints
from tests.live.test_paced import FEW, NAMES, STORIES

KILLED = Path(__file__).parent / "recordings" / "broker_killed.pcap.zst"
"""Three Kafka 4.3.1 nodes of which node 3 (10.55.0.1:19093) got SIGKILL, and was started again six seconds later."""
KILLED_AT = datetime.fromisoformat("2026-11-22T01:12:23.138Z")
FETCHES_AGAIN_AT = datetime.fromisoformat("2026-11-22T01:12:43.564Z")
"""Its first packet after that: it fetches from node 1. Nobody asks it anything before the recording ends."""
WITHIN = timedelta(seconds=2)
SPEED, EVERY_S = 4.0, 0.1
ADDRESSES = {"19091": "1", "19092": "2", "19093": "3"}
"""Node ids by port, in all these recordings."""
PATHS = {**{name: STORIES / f"{name}.pcap.zst" for name in NAMES}, "broker_killed": KILLED}


@cache
def played(path: Path) -> list[dict[str, Any]]:
    """The snapshots of a replay, which several tests look at."""
    return prints(path, SPEED, EVERY_S)


def time_of(snapshot: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(snapshot["at"])


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in FEW else pytest.mark.exhaustive) for one in (*NAMES, "broker_killed")]
)
def test_three_brokers_are_three_rows(name: str) -> None:
    """At each print; a row under an address goes to that of the node id, with what it had counted."""
    known: set[str] = set()
    before: dict[str, int] = {}
    seen = played(PATHS[name])
    for one in seen:
        rows = {line["name"]: line["exchanges"] for line in one["brokers"]}
        nodes = [ADDRESSES.get(row.rpartition(":")[2], row) for row in rows]
        assert len(nodes) == len(set(nodes)) <= 3, one["at"]
        assert known <= rows.keys(), "a node id that is known stays"
        known |= {row for row in rows if row.isdecimal()}
        counts = dict(zip(nodes, rows.values(), strict=True))
        assert all(counts[node] >= count for node, count in before.items()), "its past is merged"
        before = counts
    assert known == {"1", "2", "3"}


def test_a_killed_broker_is_gone_and_back() -> None:
    seen = [one for one in played(KILLED) if one["at"]]
    gone = [time_of(one) for one in seen if one["gone"]]
    assert KILLED_AT <= gone[0] <= KILLED_AT + WITHIN
    assert FETCHES_AGAIN_AT - WITHIN <= gone[-1] <= FETCHES_AGAIN_AT + WITHIN
    assert all(one["gone"] for one in seen if gone[0] <= time_of(one) <= gone[-1])
    assert not any(one["standing_still"] for one in seen), "its requests ended with its connections"
    states = [one for one in seen[-1]["findings"] if one["broker"] == "3"]
    assert [one["id"] for one in states] == ["gone", "back"]
    assert states[0]["text"] == "broker 3 is gone: it closed all of its 2 connections, with requests open"
    assert causes(states) == states[1:]


RETURNED = {
    "franz_go": ("12:20:49.759", "12:21:00.067", "12:21:00.935", "others list it again"),
    "kafkajs": ("12:36:53.473", "12:37:03.406", "12:37:06.092", "others list it again"),
}
"""Node 2 of two got SIGKILL, and served again; its client asked another broker, which listed it again at the third
instant: nothing before that tells (a Metadata answer, which had left it out)."""


@pytest.mark.parametrize(
    "client",
    [pytest.param("franz_go", marks=pytest.mark.whole), pytest.param("kafkajs", marks=pytest.mark.exhaustive)],
)
def test_a_killed_broker_is_back_when_another_one_lists_it(client: str) -> None:
    seen = [one for one in played(KILLED.parent / f"broker_killed_{client}.pcap.zst") if one["at"]]
    killed, served, listed = (datetime.fromisoformat(f"2026-11-24T{at}Z") for at in RETURNED[client][:3])
    gone = [time_of(one) for one in seen if one["gone"] == ["2"]]
    assert killed - WITHIN <= gone[0] <= killed + WITHIN
    assert served <= listed <= gone[-1] + WITHIN
    assert gone[-1] <= listed + WITHIN
    states = [one for one in seen[-1]["findings"] if one["id"] in ("gone", "back")]
    assert [(one["id"], one["broker"]) for one in states] == [("gone", "2"), ("back", "2")]
    assert states[1]["text"].endswith(RETURNED[client][3])


LAB = ROOT / "captures" / "lab"
ENDED = {"broker_killed_aiokafka": "04:42:40.421", "broker_killed_kafka_python": "04:42:05.427",
         "broker_restarted_aiokafka": "04:40:56.399", "broker_restarted_kafka_python": "04:40:21.821",
         "broker_restarted_librdkafka": "04:41:31.881"}  # fmt: skip
"""When the process of node 2 ended, by SIGKILL or in order after SIGTERM. No client speaks with it again."""
THERE = ("reset_all_every_client", "reset_librdkafka_client", "unread_6s_aiokafka_client")
"""Connections are reset, answers stand still: brokers are there."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one.endswith("restarted_aiokafka") else pytest.mark.exhaustive) for one in ENDED],
)
def test_a_broker_that_ended_is_gone_within_two_seconds(name: str) -> None:
    seen = [one for one in played(LAB / f"{name}.pcap.zst") if one["at"]]
    gone = [one for one in seen if one["gone"]]
    ended = datetime.fromisoformat(f"{seen[0]['at'][:10]}T{ENDED[name]}Z")
    assert ended - WITHIN <= time_of(gone[0]) <= ended + WITHIN
    assert all(one["gone"] == ["2"] for one in seen if time_of(one) >= time_of(gone[0]))


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one.startswith("reset_all") else pytest.mark.whole) for one in THERE]
)
def test_brokers_that_are_there_are_not_gone(name: str) -> None:
    assert not any(one["gone"] for one in played(LAB / f"{name}.pcap.zst"))


def test_a_suspended_broker_stands_still() -> None:
    """Node 3 got SIGSTOP at 01:02:51.698 and SIGCONT at 01:02:54.696."""
    stopped, went_on = (datetime.fromisoformat(f"2026-11-22T01:02:{at}Z") for at in ("51.698", "54.696"))
    seen = [one for one in played(STORIES / "slow_broker.pcap.zst") if one["at"]]
    still = [time_of(one) for one in seen if one["standing_still"] == ["3"]]
    assert stopped <= still[0] <= stopped + WITHIN
    assert went_on - timedelta(seconds=1) <= still[-1] <= went_on + timedelta(seconds=1)
    assert not any(one["gone"] for one in seen)


@pytest.mark.parametrize("name", ["leader_move", "broker_killed"])
def test_sessions_go_on_under_the_new_name(name: str) -> None:
    """Fetch sessions that were met before the node id was known are alive once, as the table has them."""
    last = played(PATHS[name])[-2]
    alive = [
        row["broker"]
        for row in kdissect.open(PATHS[name]).table("fetch_sessions").to_pylist()
        if (row["opened_at"] or time_of(last)) <= time_of(last) and (row["closed_at"] or time_of(last)) >= time_of(last)
    ]
    assert {line["name"]: line["sessions"] for line in last["brokers"]} == Counter(alive)
