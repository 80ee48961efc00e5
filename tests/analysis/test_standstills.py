"""A span in which nothing was sent at all is not taken for a broker, a client or a network that stood still."""

from __future__ import annotations

import io
import struct

import pytest

import kdissect
from tests.analysis import test_near_misses as edges
from tests.analysis.test_missing_packets import Record, records_of, within

WAITS = frozenset(("slow_requests", "slow_fetches", "slow_followers"))
ABSENT = WAITS | {
    "broker_stalled", "client_paused", "clients_paused_together", "consumer_silent", "producer_silent",
    "network_silent",
}  # fmt: skip
"""Findings about somebody who sent nothing, or answered late."""


def put_off(records: list[Record], at: int, seconds: float) -> list[Record]:
    """The packets from an instant on come so much later."""
    found = []
    for moment, head, packet in records:
        if moment >= at:
            whole, _ = divmod(moment + round(seconds * 10**6), 10**6)
            head = struct.pack("<I", whole) + head[4:]
        found.append((moment, head, packet))
    return found


def told(header: bytes, records: list[Record]) -> list[dict[str, str]]:
    data = header + b"".join(head + packet for _, head, packet in records)
    return [row for row in kdissect.open(io.BytesIO(data)).table("findings").to_pylist() if row["id"] in ABSENT]


@pytest.mark.parametrize("name", ["stories/healthy.pcap.zst", "stories/tiny.pcap.zst", "k4_java_classic.pcap"])
@pytest.mark.parametrize("place", [0.35, 0.5, 0.8])
@pytest.mark.parametrize("seconds", [5, 60])
def test_a_clock_set_forward_is_nobodys_fault(name: str, place: float, seconds: int) -> None:
    header, records = records_of(name)
    known = {(row["id"], row["client_id"], row["broker"]) for row in told(header, records)}
    rows = told(header, put_off(records, within(records, place, place)[0], seconds))
    assert [row for row in rows if (row["id"], row["client_id"], row["broker"]) not in known
            and row["severity"] != "info"] == []  # fmt: skip
    (one,) = (row for row in rows if row["id"] == "broker_stalled")
    assert (one["severity"], one["cause"], one["broker"]) == ("info", "unknown", None)
    assert "No client and no broker sent anything" in one["text"]


@pytest.mark.parametrize("kind", ["broker_stalled", *sorted(WAITS)])
def test_no_single_broker_is_the_cause_of_a_standstill(kind: str) -> None:
    """Where another client went on in its midst each broker stood still by itself."""
    assert edges.told(edges.at_a_standstill(), kind) == (["info"] if kind == "broker_stalled" else [])
    assert len(edges.told(edges.at_a_standstill(between=True), kind)) == 2


def test_a_request_that_the_network_had_stays_slow() -> None:
    assert len(edges.told(edges.at_a_standstill(lost=2000.0), "slow_requests")) == 2


def test_brokers_that_answer_at_the_edges_of_a_silence_did_not_answer_in_it() -> None:
    """Broker 2 answers 0.2 s later than broker 1 before both stand still, so its answers lie within the silence of
    broker 1."""
    rows = edges.at_a_standstill(between=True)
    moved = [
        one | {"response_first_at": one["response_first_at"] + 200_000}
        if one["broker"] == "2" and one["latency_ms"] == 0
        else one
        for one in rows["exchanges"]
    ]
    found = edges.found_in({**rows, "exchanges": moved}, "broker_stalled")
    assert [row["broker"] for row in found] == ["1", "2"]
    assert not any("Meanwhile" in row["text"] for row in found)
