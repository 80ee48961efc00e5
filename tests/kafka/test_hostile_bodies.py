"""Bodies that do not fit, through a whole capture: a row of problems each, and the exchange is paired and timed.

Every body is one that kio wrote, cut short at each of its bytes, or with a length in it that lies. Each stands in a
frame of its own with a right length prefix, so the frames around it must come out untouched.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import Any

import pytest

import kdissect
from tests.oracle import kio_messages
from tests.oracle.pcap import Talk, api_versions_request, api_versions_response, framed, pcap

REQUEST, RESPONSE = 0, 1
FLEXIBLE = {(1, 11): 0, (1, 16): 1, (3, 0): 0, (3, 12): 1, (11, 2): 0, (11, 9): 1, (68, 1): 1, (9, 9): 1}
"""(API, version) of the tests -> whether headers and bodies are flexible."""

Rows = list[dict[str, Any]]


def tables(asked: Sequence[tuple[int, int, bytes, bytes]], flexible: bool = True) -> tuple[Rows, Rows]:
    """(exchanges, problems) of a conversation of these (API key, version, request, response) bodies."""
    talk = Talk(broker_isn=0)  # so that its constant acknowledgement acknowledges nothing
    talk.handshake()
    at = [0, 0]

    def send(ms: float, side: int, frame: bytes) -> None:
        for start in range(0, len(frame), 1400):
            talk.put(ms, side, at[side] + start, frame[start : start + 1400])
        at[side] += len(frame)

    send(1, 0, api_versions_request(1))
    send(2, 1, api_versions_response(1))
    for number, (key, version, request, response) in enumerate(asked, 2):
        header = struct.pack(">hhih", key, version, number, 1) + b"c" + b"\0" * flexible
        send(number * 2, 0, framed(header + request))
        send(number * 2 + 1, 1, framed(struct.pack(">i", number) + b"\0" * flexible + response))
    found = kdissect.open(io.BytesIO(pcap(talk.packets))).tables(["exchanges", "problems"])
    rows = [row for row in found["exchanges"].to_pylist() if row["api"] != "ApiVersions"]
    # kio's record sets are random bytes, and said to be no records.
    problems = [row for row in found["problems"].to_pylist() if row["kind"] != "records"]
    return sorted(rows, key=lambda row: row["correlation_id"]), problems


def check_misfits(rows: Rows, problems: Rows, asked: Sequence[Any], side: str) -> None:
    """Each exchange is there, undecodable, with one problem that names its side; nothing else is wrong."""
    assert [row["correlation_id"] for row in rows] == list(range(2, 2 + len(asked)))
    assert {row["status"] for row in rows} == {"undecodable"}
    assert not any(row["decoded"] for row in rows)
    assert {row["latency_ms"] for row in rows} == {1.0}
    assert {problem["kind"] for problem in problems} == {"body_misfit"}
    assert {problem["where"] for problem in problems} == {f"{side} body"}
    assert sorted(problem["exchange_id"] for problem in problems) == sorted(row["exchange_id"] for row in rows)


@pytest.mark.parametrize(("key", "version"), FLEXIBLE)
def test_cut_at_every_byte(key: int, version: int) -> None:
    request, _ = kio_messages.generate(key, REQUEST, version, 0)
    response, _ = kio_messages.generate(key, RESPONSE, version, 0)
    flexible = bool(FLEXIBLE[key, version])
    asked = [(key, version, request, response[:end]) for end in range(len(response))]
    rows, problems = tables(asked, flexible)
    check_misfits(rows, problems, asked, "response")
    asked = [(key, version, request[:end], response) for end in range(len(request))]
    rows, problems = tables(asked, flexible)
    check_misfits(rows, problems, asked, "request")


LIES = (b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xfe", b"\x00\xff\xff\xff")
"""2^31-1, -2^31, -2 and 16 million: lengths and counts."""
VARINTS = (
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 10,
    b"\x80" * 10,
)  # fmt: skip
"""2^32-1, 2^31-1, 2^64-1 in ten bytes, ones that never end."""


@pytest.mark.parametrize("lie", LIES)
def test_lengths_that_lie(lie: bytes) -> None:
    """Metadata v0 and JoinGroup v2 responses: the count of the first array, and the length of the first text."""
    broker = struct.pack(">ih", 1, 2) + b"ab" + struct.pack(">i", 9092)
    counts = lie + broker
    texts = struct.pack(">ii", 1, 1) + lie[:2] + b"ab" + struct.pack(">i", 9092) + struct.pack(">i", 0)
    asked = [(3, 0, struct.pack(">i", 0), body) for body in (counts, lie)]
    if lie[:2] != b"\x00\xff":
        asked.append((3, 0, struct.pack(">i", 0), texts))
    rows, problems = tables(asked, flexible=False)
    check_misfits(rows, problems, asked, "response")


@pytest.mark.parametrize("lie", VARINTS)
def test_varints_that_lie(lie: bytes) -> None:
    """Metadata v12: the count of the brokers, the length of a text, the number of tags, a tag's size."""
    request, _ = kio_messages.generate(3, REQUEST, 12, 0)
    head = struct.pack(">i", 0)
    broker = b"\2" + struct.pack(">i", 1)
    end = b"\0" + struct.pack(">i", -1) + b"\1"
    bodies = [
        head + lie,
        head + lie + b"\0" * 50,
        head + broker + lie + b"abc",
        head + b"\1" + end + lie,
        head + b"\1" + end + b"\1\5" + lie + b"abc",
        head + b"\1" + end + b"\2\1\0" + lie + b"abc",
    ]
    asked = [(3, 12, request, body) for body in bodies]
    rows, problems = tables(asked)
    check_misfits(rows, problems, asked, "response")


def test_a_count_that_fits_in_the_frame_but_not_in_memory() -> None:
    """No element of Kafka's has no bytes: counts are held to the bytes that are left."""
    request, _ = kio_messages.generate(3, REQUEST, 12, 0)
    body = struct.pack(">i", 0) + b"\xff\xff\xff\x7f" + b"\0" * 100_000
    asked = [(3, 12, request, body)]
    rows, problems = tables(asked)
    check_misfits(rows, problems, asked, "response")


def test_a_version_newer_than_known() -> None:
    request, _ = kio_messages.generate(1, REQUEST, 18, 0)
    response, _ = kio_messages.generate(1, RESPONSE, 18, 0)
    fits = (1, 30, request, response)
    does_not = (1, 30, request + b"new", response + b"new")
    rows, problems = tables([fits, does_not, fits])
    assert [row["decoded"] for row in rows] == [True, False, True]
    assert [(row["api"], row["api_version"], row["latency_ms"]) for row in rows] == [("Fetch", 30, 1.0)] * 3
    assert {problem["kind"] for problem in problems} == {"unknown_version"}
    said = [(problem["exchange_id"], problem["where"], problem["detail"]) for problem in problems]
    assert len(said) == 6, "both sides of each"
    for row, how in zip(rows, ("fits", "header only", "fits"), strict=True):
        mine = [detail for exchange, _, detail in said if exchange == row["exchange_id"]]
        assert all(detail.startswith("Fetch version 30 is newer") and how in detail for detail in mine)


def test_an_api_that_is_not_known() -> None:
    rows, problems = tables([(222, 3, b"whatever", b"something")])
    assert [(row["api"], row["api_version"], row["decoded"], row["latency_ms"]) for row in rows] == [
        ("key 222", 3, False, 1.0)
    ]
    (problem,) = problems
    assert problem["kind"] == "unknown_api"
    assert "222" in problem["detail"]


def test_a_body_that_fits_two_layouts_of_one_version() -> None:
    """EndQuorumEpoch v0 of 2.7 had a replica id that later releases do not have."""
    partition = struct.pack(">iiiii", 1, 2, 3, 1, 0)
    body = b"\xff\xff" + struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", 1) + partition
    answer = struct.pack(">hi", 0, 0)
    rows, problems = tables([(54, 0, body, answer)], flexible=False)
    assert [(row["api"], row["status"], row["decoded"]) for row in rows] == [("EndQuorumEpoch", "ok", True)]
    (problem,) = problems
    assert (problem["kind"], problem["where"]) == ("ambiguous", "request body")
    assert problem["exchange_id"] == rows[0]["exchange_id"]
