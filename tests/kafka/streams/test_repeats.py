"""Bytes that are sent again with another content are told with both places; the first copy is read."""

from __future__ import annotations

import io
from typing import Any

import pytest

import kdissect
from tests.conftest import CAPTURES
from tests.fuzz.metamorphic import packets_of, small_blocks, written
from tests.oracle.pcap import ACK, FIN, Talk, api_versions_request, api_versions_response, pcap

QUESTION, ANSWER = api_versions_request(1), api_versions_response(1)
OTHER = QUESTION[:-1] + b"z"
FLIPPED = 1 << 4


def told(*extra: tuple[float, int, int, bytes]) -> list[tuple[int, str, str]]:
    """Frame, place and detail of the conflicts where these packets come between a request and its answer."""
    talk = Talk()
    talk.handshake()
    talk.put(1, 0, 0, QUESTION)
    for packet in extra:
        talk.put(*packet)
    talk.put(2, 1, 0, ANSWER)
    talk.put(5, 0, len(QUESTION), b"", FIN | ACK)
    talk.put(5.1, 1, len(ANSWER), b"", FIN | ACK)
    tables = kdissect.open(io.BytesIO(pcap(talk.packets))).tables(["problems", "exchanges"])
    assert tables["exchanges"]["status"].to_pylist() == ["ok"]
    assert tables["exchanges"]["client_id"].to_pylist() == ["c"]
    return [
        (row["frame"], row["where"], row["detail"]) for row in tables["problems"].to_pylist()
        if row["kind"] == "conflicting_retransmission"
    ]  # fmt: skip


def of(size: int, frame: int = 4) -> str:
    return f"{size} bytes differ from those of frame {frame}, which are read"


def test_the_same_again_is_none() -> None:
    assert told((1.2, 0, 0, QUESTION), (1.3, 0, 3, QUESTION[3:9]), (1.4, 0, len(QUESTION) - 1, b"\0")) == []


@pytest.mark.parametrize(
    ("again", "what"),
    [
        ((1.2, 0, 0, OTHER), (5, "request stream, sequence number 1001", of(15))),
        ((1.2, 0, 4, OTHER[4:]), (5, "request stream, sequence number 1005", of(11))),
        ((1.2, 0, len(QUESTION) - 3, b"xyz and more"), (5, "request stream, sequence number 1013", of(3))),
        ((1.2, 0, 0, OTHER + b"more"), (5, "request stream, sequence number 1001", of(15))),
    ],
    ids=["all", "its end", "its end and more", "all and more"],
)
def test_what_differs(again: Any, what: Any) -> None:
    assert told(again) == [what]


def test_what_waits_behind_a_hole() -> None:
    at = len(QUESTION) + 5
    found = told((1.2, 0, at, b"hello"), (1.3, 0, at, b"heLlo"), (1.4, 0, at + 2, b"XXo"), (1.5, 0, at + 3, b"lo, you"))
    assert found == [
        (6, "request stream, sequence number 1021", of(5, 5)), (7, "request stream, sequence number 1023", of(3, 5)),
    ]  # fmt: skip


def test_each_of_many_repeated_packets() -> None:
    """A byte in the second copy of every segment that was captured twice; through blocks of every size."""
    packets = packets_of((CAPTURES / "field_duplicates.pcap").read_bytes())
    assert not conflicts(written(packets))
    seen: set[bytes] = set()
    changed = 0
    for n, (when, data, size) in enumerate(packets):
        begin = 14 + (data[14] & 15) * 4 + (data[14 + (data[14] & 15) * 4 + 12] >> 4) * 4
        if data in seen and size > begin + 1:
            packets[n] = when, data[:-1] + bytes([data[-1] ^ FLIPPED]), size
            changed += 1
        seen.add(data)
    assert changed > 50
    found = conflicts(written(packets))
    assert len(found) == changed
    with small_blocks():
        assert conflicts(written(packets)) == found


@pytest.mark.parametrize("resting", [False, True])
def test_long_after_the_window_forgot_it(resting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that left the window, also of a connection that was packed meanwhile, are compared all the same."""
    if resting:
        monkeypatch.setattr("kdissect.kafka.streams.idle.resting.LIVE", 1)
    talk, other = Talk(), Talk(client=("10.0.0.3", 50001))
    for one in (talk, other):
        one.handshake()
    talk.put(1, 0, 0, QUESTION)
    talk.put(2, 1, 0, ANSWER)
    filler = api_versions_request(1, "x" * 1000)
    for i in range(700):
        other.put(10 + 5 * i, 0, i * len(filler), filler)
    again = Talk()
    again.put(4000, 0, 0, QUESTION)
    again.put(4001, 0, 0, OTHER)
    packets = talk.packets + other.packets + again.packets
    with small_blocks():
        found = conflicts(pcap(sorted(packets, key=lambda packet: packet[0])))
    assert [(row["where"], row["detail"]) for row in found] == [
        ("request stream, sequence number 1001", of(len(QUESTION), 7)),
    ]


def conflicts(data: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        kdissect.open(io.BytesIO(data)).table("problems", where="kind = 'conflicting_retransmission'").to_pylist()
    )
    return rows
