"""What a run knows of topics does not depend on the order in which messages are read."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

import kdissect
from kdissect.tables.topics import Topics

METADATA, UPDATE, FETCH = 3, 6, 1
TOLD = [
    ("id", "orders", 20, METADATA), ("id", "ord\ufffdrs", 30, METADATA), ("id", None, 10, FETCH),
    (None, "orders", 5, FETCH), ("id", "0rders", 20, UPDATE),
]  # fmt: skip
"""(id, name, ns, API): damage makes two more names of one id."""


def learnt(order: tuple[int, ...]) -> Topics:
    topics = Topics(mentions=True)
    for topic_id, topic, at, api in (TOLD[place] for place in order):
        topics.note("c\t10.0.0.9:9092", topic_id, topic, at, 1, (False, at, api))
    return topics


@pytest.mark.parametrize("order", list(permutations(range(len(TOLD)))))
def test_the_name_that_was_told_first_counts(order: tuple[int, ...]) -> None:
    topics = learnt(order)
    assert topics.names() == {"id": "orders"}
    rows = topics.table().to_pylist()
    assert [(row["topic_id"], row["topic"], row["source"]) for row in rows] == [("id", "orders", "Metadata")]


@pytest.mark.parametrize("cut", range(len(TOLD)))
def test_parts_that_are_merged_know_the_same(cut: int) -> None:
    everything = tuple(range(len(TOLD)))
    for order in permutations(everything):
        one, other = learnt(order[:cut]), learnt(order[cut:])
        one.merge(other)
        assert one.table().equals(learnt(everything).table())


@pytest.mark.parametrize("name", ["base.pcap", "k4_transactions.pcap", "era_0_8_2.pcap", "k4_java_classic.pcap"])
def test_the_topics_of_exchanges_are_those_of_their_partitions(captures: Path, name: str) -> None:
    """Kafka's clients name no topic without a partition of it."""
    tables = kdissect.open(captures / name).tables(["fetches", "fetch_partitions", "produces", "produce_partitions"])
    named = 0
    for table, partitions in (("fetches", "fetch_partitions"), ("produces", "produce_partitions")):
        expected: dict[str, set[str]] = {}
        for row in tables[partitions].to_pylist():
            expected.setdefault(row["exchange_id"], set()).add(row["topic"] or row["topic_id"])
        for row in tables[table].to_pylist():
            found = row["topics"]
            assert len(set(found or ())) == len(found or ())
            assert set(found or ()) == expected.get(row["exchange_id"], set())
            named += len(found or ())
    assert named > 10
