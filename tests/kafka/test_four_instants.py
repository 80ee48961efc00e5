"""The four instants of an exchange and the latencies made of them, on conversations whose every packet is known."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import kdissect
from tests.oracle.pcap import (
    START,
    Talk,
    api_versions_request,
    api_versions_response,
    metadata_request,
    metadata_response,
    pcap,
    produce_request,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def exchanges(*talks: Talk, order: bool = True) -> list[dict[str, Any]]:
    """Rows of `exchanges`, by ordinal, of the capture that holds these conversations."""
    packets = [p for talk in talks for p in talk.packets]
    if order:
        packets.sort(key=lambda p: p[0])
    rows = kdissect.open(io.BytesIO(pcap(packets))).table("exchanges").to_pylist()
    return sorted(rows, key=lambda r: int(r["exchange_id"].partition(":")[2].lstrip("r")))


def at(ms: float) -> datetime:
    return EPOCH + timedelta(microseconds=START // 1000 + round(ms * 1000))


def check(
    row: dict[str, Any], request: tuple[float, float], response: tuple[float, float], queued: float = 0.0
) -> None:
    """All instants and durations of an answered exchange: (first, last) of either side in ms, and the queueing."""
    assert (row["request_first_at"], row["request_last_at"]) == (at(request[0]), at(request[1]))
    assert (row["response_first_at"], row["response_last_at"]) == (at(response[0]), at(response[1]))
    want = {
        "request_transfer_ms": request[1] - request[0],
        "queued_ms": queued,
        "broker_ms": response[0] - request[1] - queued,
        "response_transfer_ms": response[1] - response[0],
        "latency_ms": response[1] - request[0],
    }
    assert {name: row[name] for name in want} == pytest.approx(want, abs=1e-9)


def test_one_packet_each_way() -> None:
    talk = Talk()
    talk.handshake()
    talk.put(10, 0, 0, api_versions_request(1))
    talk.put(12.5, 1, 0, api_versions_response(1))
    (row,) = exchanges(talk)
    check(row, (10, 10), (12.5, 12.5))
    assert (row["status"], row["api"], row["client_id"]) == ("ok", "ApiVersions", "c")


def test_nanoseconds_count_in_durations() -> None:
    talk = Talk()
    talk.handshake()
    talk.put(10.000001, 0, 0, api_versions_request(1))
    talk.put(10.000004, 1, 0, api_versions_response(1))
    (row,) = exchanges(talk)
    assert row["latency_ms"] == pytest.approx(0.000003, abs=1e-12)


def test_frames_over_many_packets() -> None:
    """Request in three packets, the length prefix itself cut; response in four."""
    ask, answer = api_versions_request(7, "x" * 100), api_versions_response(7, 40)
    talk = Talk()
    talk.handshake()
    for ms, (start, stop) in zip((5, 6, 8), ((0, 2), (2, 60), (60, len(ask))), strict=True):
        talk.put(ms, 0, start, ask[start:stop])
    for ms, (start, stop) in zip((20, 21, 22, 25), ((0, 3), (3, 100), (100, 101), (101, len(answer))), strict=True):
        talk.put(ms, 1, start, answer[start:stop])
    (row,) = exchanges(talk)
    check(row, (5, 8), (20, 25))
    assert (row["request_bytes"], row["response_bytes"]) == (len(ask), len(answer))


def test_a_retransmission_moves_nothing() -> None:
    ask, answer = api_versions_request(7, "x" * 50), api_versions_response(7, 20)
    talk = Talk()
    talk.handshake()
    talk.put(5, 0, 0, ask[:30])
    talk.put(6, 0, 30, ask[30:])
    talk.put(9, 0, 0, ask[:30])  # again, and more of it than was lost
    talk.put(10, 0, 0, ask)
    talk.put(20, 1, 0, answer[:50])
    talk.put(21, 1, 50, answer[50:])
    talk.put(40, 1, 0, answer)
    (row,) = exchanges(talk)
    check(row, (5, 6), (20, 21))


def test_overlap_brings_only_its_new_bytes() -> None:
    answer = api_versions_response(7, 20)
    talk = Talk()
    talk.handshake()
    talk.put(5, 0, 0, api_versions_request(7))
    talk.put(20, 1, 0, answer[:50])
    talk.put(23, 1, 30, answer[30:90])
    talk.put(27, 1, 80, answer[80:])
    (row,) = exchanges(talk)
    check(row, (5, 5), (20, 27))


def test_out_of_order_the_last_arrival_counts() -> None:
    """A packet late by network: the bytes after it were there before; the frame is complete when the hole is filled."""
    answer = api_versions_response(7, 40)
    talk = Talk()
    talk.handshake()
    talk.put(5, 0, 0, api_versions_request(7))
    talk.put(20, 1, 0, answer[:50])
    talk.put(21, 1, 150, answer[150:])
    talk.put(29, 1, 50, answer[50:150])
    (row,) = exchanges(talk)
    check(row, (5, 5), (20, 29))


def test_a_first_packet_that_comes_late() -> None:
    """First means the frame's first byte, even when later bytes arrived before it."""
    answer = api_versions_response(7, 40)
    talk = Talk()
    talk.handshake()
    talk.put(5, 0, 0, api_versions_request(7))
    talk.put(20, 1, 100, answer[100:])
    talk.put(24, 1, 0, answer[:100])
    (row,) = exchanges(talk)
    assert row["response_first_at"] == at(24)
    assert row["response_last_at"] == at(24)


def test_two_frames_in_a_packet_and_a_boundary_inside_one() -> None:
    """Pipelining: the second request lies behind the first until that is answered."""
    asks = api_versions_request(1) + metadata_request(2, ["topic"])
    answers = api_versions_response(1, 12) + metadata_response(2)
    cut = len(api_versions_response(1, 12)) + 5
    talk = Talk()
    talk.handshake()
    talk.put(10, 0, 0, asks)
    talk.put(30, 1, 0, answers[:cut])
    talk.put(31, 1, cut, answers[cut:])
    first, second = exchanges(talk)
    check(first, (10, 10), (30, 30))
    check(second, (10, 10), (30, 31), queued=20)
    assert (first["in_flight"], second["in_flight"]) == (1, 2)


def test_queueing_behind_a_slow_predecessor() -> None:
    talk = Talk()
    talk.handshake()
    one, two, three = api_versions_request(1), api_versions_request(2), api_versions_request(3)
    a, b, c = (api_versions_response(n) for n in (1, 2, 3))
    talk.put(10, 0, 0, one)
    talk.put(12, 0, len(one), two)
    talk.put(100, 1, 0, a)
    talk.put(103, 1, len(a), b)
    talk.put(110, 0, len(one) + len(two), three)
    talk.put(111, 1, len(a) + len(b), c)
    first, second, third = exchanges(talk)
    check(first, (10, 10), (100, 100))
    check(second, (12, 12), (103, 103), queued=88)
    check(third, (110, 110), (111, 111))


def test_after_a_request_without_an_answer() -> None:
    """Produce with acks=0 gets none: the response before it is what the next request lay behind."""
    one, silent, two = api_versions_request(1), produce_request(2, acks=0), api_versions_request(3)
    a, b = api_versions_response(1), api_versions_response(3)
    talk = Talk()
    talk.handshake()
    talk.put(10, 0, 0, one + silent + two)
    talk.put(15, 1, 0, a)
    talk.put(18, 1, len(a), b)
    first, middle, last = exchanges(talk)
    check(first, (10, 10), (15, 15))
    assert (middle["api"], middle["status"]) == ("Produce", "no_response")
    assert middle["queued_ms"] is None
    assert middle["latency_ms"] is None
    check(last, (10, 10), (18, 18), queued=5)


def test_ids_that_repeat_pair_in_order() -> None:
    asks = [api_versions_request(0), metadata_request(0, ["a"]), api_versions_request(0)]
    answers = [api_versions_response(0, 3), metadata_response(0), api_versions_response(0, 5)]
    talk = Talk()
    talk.handshake()
    talk.put(10, 0, 0, b"".join(asks))
    position = 0
    for n, answer in enumerate(answers):
        talk.put(20 + n, 1, position, answer)
        position += len(answer)
    rows = exchanges(talk)
    assert [r["response_bytes"] for r in rows] == [len(a) for a in answers]
    assert [r["api"] for r in rows] == ["ApiVersions", "Metadata", "ApiVersions"]
    assert [r["response_first_at"] for r in rows] == [at(20), at(21), at(22)]


def test_keep_alives_are_no_bytes() -> None:
    ask = api_versions_request(1)
    talk = Talk()
    talk.handshake()
    talk.put(10, 0, 0, ask)
    for ms in (1000, 2000, 3000):
        talk.put(ms, 0, len(ask) - 1, ask[-1:])
        talk.put(ms + 0.1, 1, 0, b"")
    talk.put(3500, 1, 0, api_versions_response(1))
    (row,) = exchanges(talk)
    check(row, (10, 10), (3500, 3500))


def test_two_connections_interleaved() -> None:
    one, two = Talk(), Talk(client=("10.0.0.3", 50000), client_isn=77, broker_isn=5)
    for talk, shift in ((one, 0.0), (two, 0.5)):
        talk.handshake(shift)
        talk.put(10 + shift, 0, 0, api_versions_request(9))
        talk.put(20 + 4 * shift, 1, 0, api_versions_response(9))
    rows = {r["client_ip"]: r for r in exchanges(one, two)}
    check(rows["10.0.0.1"], (10, 10), (20, 20))
    check(rows["10.0.0.3"], (10.5, 10.5), (22, 22))


def test_answer_captured_before_its_request() -> None:
    """The capture swapped two packets: times go backwards in the file, the pair is still a pair."""
    talk = Talk()
    talk.handshake()
    talk.put(12, 1, 0, api_versions_response(1))
    talk.put(10, 0, 0, api_versions_request(1))
    talk.put(13, 0, len(api_versions_request(1)), b"")
    (row,) = exchanges(talk, order=False)
    check(row, (10, 10), (12, 12))


def test_a_byte_that_never_came() -> None:
    """Of a response with a hole, the first instant is known and the last is not."""
    answer, after = api_versions_response(1, 40), api_versions_response(2)
    one, two = api_versions_request(1), api_versions_request(2)
    talk = Talk()
    talk.handshake()
    talk.put(10, 0, 0, one)
    talk.put(20, 1, 0, answer[:50])
    talk.put(22, 1, 100, answer[100:])
    talk.put(30, 0, len(one), two)
    talk.put(31, 1, len(answer), after)
    talk.put(32, 0, len(one) + len(two), b"", 1 | 16)
    talk.put(33, 1, len(answer) + len(after), b"", 1 | 16)
    first, second = exchanges(talk)
    assert first["status"] == "partial"
    assert first["response_first_at"] == at(20)
    assert first["response_last_at"] is None
    assert first["latency_ms"] is None
    assert first["response_bytes"] == len(answer)
    assert (second["response_first_at"], second["response_last_at"]) == (at(31), at(31))
    assert second["status"] == "ok"
