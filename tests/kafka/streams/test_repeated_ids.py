"""A client whose correlation ids are all 0 (0.8's SimpleConsumer), of whose packets some are lost: an answer goes to
its own request or to none."""

from __future__ import annotations

import io
import random
from collections import Counter
from typing import Any

import pytest

import kdissect
from tests.oracle.pcap import (  # fmt: skip
    FIN,
    Talk,
    api_versions_request,
    api_versions_response,
    metadata_request,
    metadata_response,
    pcap,
)

Packets = list[tuple[int, bytes]]


def simple_consumer(count: int, chance: random.Random) -> Packets:
    """So many exchanges, one after the other."""
    talk = Talk()
    talk.handshake()
    asked = answered = 0
    ms = 1.0
    for _ in range(count):
        if chance.random() < 0.3:
            request, response = api_versions_request(0), api_versions_response(0, chance.randrange(1, 12))
        else:
            topics = [f"t{chance.randrange(20)}"] * chance.randrange(1, 4)
            request, response = metadata_request(0, topics), metadata_response(0)
        talk.put(ms, 0, asked, request)
        ms += 0.2 + chance.random()
        talk.put(ms, 1, answered, response)
        ms += 0.1 + 2 * chance.random()
        asked, answered = asked + len(request), answered + len(response)
    talk.put(ms, 0, asked, b"", FIN | 16)
    talk.put(ms + 0.1, 1, answered, b"", FIN | 16)
    return acknowledged(talk.packets)


def acknowledged(packets: Packets) -> Packets:
    """Every packet acknowledges all that came before it."""
    ends: dict[bytes, int] = {}
    out = []
    for when, data in packets:
        ends[data[26:30]] = (int.from_bytes(data[38:42], "big") + len(data) - 54 + bool(data[47] & 3)) & 0xFFFFFFFF
        out.append((when, data[:42] + ends.get(data[30:34], 0).to_bytes(4, "big") + data[46:]))
    return out


def rows(packets: Packets) -> list[dict[str, Any]]:
    columns = ["request_first_at", "response_first_at", "api_key", "status"]
    table = kdissect.open(io.BytesIO(pcap(packets)), jobs=1).table("exchanges", columns, "status != 'orphan'")
    return list(table.to_pylist())


@pytest.mark.parametrize("bursts", [False, True])
def test_no_answer_goes_to_another_request(bursts: bool) -> None:
    count: Counter[str] = Counter()
    for seed in range(4):
        chance = random.Random(seed)
        packets = simple_consumer(250, chance)
        truth = {row["request_first_at"]: row for row in rows(packets)}
        assert [row["status"] for row in truth.values()] == ["ok"] * 250
        if bursts:
            at = set().union(*(range(n, n + 5) for n in chance.sample(range(10, 480), 2)))
            kept = [packet for n, packet in enumerate(packets) if n not in at]
        else:
            kept = [packet for packet in packets if chance.random() >= 0.01]
        for row in rows(kept):
            right = truth[row["request_first_at"]]
            if row["response_first_at"] is None:
                count["unanswered"] += 1
            else:
                count["right" if row == {**right, "status": row["status"]} else "wrong"] += 1
    assert count["wrong"] == 0
    assert count["right"] >= 0.95 * count.total()
