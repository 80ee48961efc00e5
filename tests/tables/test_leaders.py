"""`leaders`: changes by epoch, whoever tells them late; views of brokers where there are no epochs."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kdissect
from kdissect.tables.leaders import Leaders
from kdissect.tables.topics import Topics
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"
TOPIC = ("c", "t", 0)


@cache
def rows(name: str) -> list[dict[str, object]]:
    return kdissect.open(next(iter(CAPTURES.glob(f"{name}.pcap*")))).table("leaders").to_pylist()


def changes(found: Leaders) -> list[tuple[int, int | None, int | None]]:
    table = found.table(Topics()).to_pylist()
    return [(row["leader"], row["leader_epoch"], row["previous"]) for row in table]


def test_a_leader_that_moved_and_came_back() -> None:
    mine = [row for row in rows("stories/leader_move") if row["topic"] == "s9"]
    assert [(row["leader"], row["previous"], row["leader_epoch"]) for row in mine] == [
        (1, None, 0),
        (3, 1, 1),
        (1, 3, 2),
    ]
    assert [row["source"] for row in mine] == ["Metadata", "Produce", "Fetch"]


def test_the_quorum_and_the_controller_of_the_zookeeper_era() -> None:
    quorum = [row for row in rows("era_3_9_1_kraft") if row["topic"] == "__cluster_metadata"]
    assert [(row["leader"], row["partition"], row["source"]) for row in quorum] == [(100, 0, "Fetch")]
    controller = [row for row in rows("era_2_4_1") if row["topic"] == "__cluster_metadata"]
    assert [(row["leader"], row["source"]) for row in controller] == [(1, "UpdateMetadata")]


def test_each_row_is_what_its_message_says() -> None:
    """Metadata answers hold the leader that a row tells, and no earlier answer tells that epoch."""
    capture = kdissect.open(CAPTURES / "k4_java_classic.pcap")
    answers = capture.messages("Metadata", "response").to_pylist()
    told = {
        (one["exchange_id"], topic["name"], part["partition_index"]): (part["leader_id"], part["leader_epoch"])
        for one in answers for topic in one["topics"] or () for part in topic["partitions"] or ()
    }  # fmt: skip
    mine = [row for row in rows("k4_java_classic") if row["source"] == "Metadata"]
    assert len(mine) > 10
    for row in mine:
        assert told[row["exchange_id"], row["topic"], row["partition"]] == (row["leader"], row["leader_epoch"])


def test_rows_are_in_order_and_previous_is_the_row_before() -> None:
    found = rows("era_3_9_1_kraft")
    assert [row["at"] for row in found] == sorted(row["at"] for row in found)
    of: dict[object, list[dict[str, object]]] = {}
    for row in found:
        of.setdefault((row["topic"], row["partition"]), []).append(row)
    assert any(len(one) > 1 for one in of.values())
    for one in of.values():
        assert one[0]["previous"] is None
        assert all(after["previous"] == before["leader"] for before, after in pairwise(one))


def test_what_a_broker_that_lags_behind_says_is_no_change() -> None:
    found = Leaders()
    for at, epoch, leader in ((1, 5, 1), (2, 6, 2), (3, 5, 1), (4, 6, 2), (9, 7, -1), (10, 7, 3)):
        found._epoch(TOPIC, (epoch, leader), (at, f"x:{at}", 3))
    assert changes(found) == [(1, 5, None), (2, 6, 1), (-1, 7, 2), (3, 7, -1)]


def test_without_epochs_a_change_is_that_of_a_brokers_mind() -> None:
    found = Leaders()
    told = [(1, "a", 1), (2, "b", 1), (3, "a", 2), (4, "b", 1), (5, "b", 2), (6, "c", 1), (7, "a", 2)]
    for at, broker, leader in told:
        found._view(TOPIC, broker, (at, f"x:{at}", 3), leader)
    assert changes(found) == [(1, None, None), (2, None, 1)]


def test_parts_in_any_order_make_the_same_table() -> None:
    told = [(at, "ab"[at % 2], 1 + (at // 7) % 3) for at in range(40)]
    whole = Leaders()
    for at, broker, leader in told:
        whole._view(TOPIC, broker, (at, f"{at % 2}:{at}", 3), leader)
        whole._epoch(("c", "u", 0), (at // 7, leader), (at, f"x:{at}", 3))
    for order in ((0, 1), (1, 0)):  # a connection's messages come to one part, in order
        parts = [Leaders() for _ in range(2)]
        for at, broker, leader in told:
            part = parts[at % 2]
            part._view(TOPIC, broker, (at, f"{at % 2}:{at}", 3), leader)
            part._epoch(("c", "u", 0), (at // 7, leader), (at, f"x:{at}", 3))
        merged = Leaders()
        for i in order:
            merged.merge(parts[i])
        assert merged.table(Topics()).equals(whole.table(Topics()))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_of_messages_at_one_time_the_least_id_counts(order: list[int]) -> None:
    """Whatever the order in which a block, or several, brings them."""
    at, ids = np.array([5, 5, 6]), ["b:7", "a:7", "0:1"]
    told: Any = SimpleNamespace(
        origin=np.zeros(3, np.int64), connection=np.arange(3), at=at[order], origins=["c"],
        of=lambda some: [(int(at[order[i]]), ids[order[i]], 4) for i in some.tolist()],
    )  # fmt: skip
    found = Leaders()
    found._note(told, pa.array(["t"] * 3), np.zeros(3, np.int64), np.full(3, 2), np.full(3, 1))
    assert found.epochs == {TOPIC: {(1, 2): (5, "a:7", 4)}}
