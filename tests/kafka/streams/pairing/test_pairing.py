"""Complete frames as requests, responses and tokens."""

from __future__ import annotations

import struct

import pytest

from tests.kafka.streams.playbook import (
    BROKER,
    CLIENT,
    HANDSHAKE,
    PRODUCE,
    Packet,
    framed,
    opening,
    play,
    request,
    request_bytes,
    response,
    sends,
    snapped,
    talk,
    text,
)

SHAKE = [request(1, api=HANDSHAKE, body=text("PLAIN")), response(1, b"\0\0\0\0\0\0")]


def produce(n: int, acks: int, version: int = 0) -> Packet:
    """A Produce request without topics."""
    head = b"" if version < 3 else (b"\0" if version >= 9 else text(None))
    topics = b"\x01\0" if version >= 9 else b"\0\0\0\0"
    body = head + struct.pack(">hi", acks, 1000) + topics
    return request(n, api=PRODUCE, version=version, body=b"\0" + body if version >= 9 else body)


def test_a_response_belongs_to_the_oldest_request_with_its_id() -> None:
    played = play(opening(), request(7), request(7), response(7), request(7), response(7), response(7))
    assert played.statuses == ["ok"] * 3
    firsts = [(int(row["request"]["packet"]), int(row["response"]["packet"])) for row in played.exchanges]
    assert firsts == [(4, 6), (5, 8), (7, 9)]


@pytest.mark.parametrize("version", [0, 3, 9])
def test_produce_without_acks_is_finished_at_once(version: int) -> None:
    played = play(opening(), produce(1, 0, version), produce(2, 1, version), finish=False)
    assert played.statuses == ["no_response"]
    assert int(played.exchanges[0]["in_flight"]) == 1


def test_produce_whose_acks_were_not_captured_waits() -> None:
    assert talk(produce(1, 0), snapped(18)) == ["partial"]
    assert talk(produce(1, 0, 3), snapped(18)) == ["partial"]
    assert talk(produce(1, 0, 9), snapped(18)) == ["partial"]


def test_a_torn_produce_without_acks_is_partial() -> None:
    assert talk(produce(1, 0), snapped(22)) == ["partial"]


def test_bare_tokens_after_the_old_handshake() -> None:
    played = play(
        opening(),
        SHAKE,
        sends(CLIENT, framed(b"\0user\0password")),
        sends(BROKER, framed(b"granted")),
        request(2),
        response(2),
    )
    assert (played.statuses, len(played.tokens), played.kinds) == (["ok", "ok"], 2, [])
    assert [int(row["orphan"]) for row in played.tokens] == [0, 1]
    assert int(played.connection["exchanges"]) == 2


def test_tokens_end_with_a_frame_that_reads_as_a_request() -> None:
    """A short one, one with an unknown key, one whose id is no text."""
    bad = struct.pack(">hhih", 12, 0, 3, 3) + b"\x01\x02\x03" + b"\0" * 9
    others = [framed(b"abc"), framed(b"\x7f\x7f" + b"x" * 20), framed(bad), framed(b"\0\x0c\0\0\0\0\0\x01\0")]
    played = play(opening(), SHAKE, sends(CLIENT, *others), request(2), response(2))
    assert (played.statuses, len(played.tokens)) == (["ok", "ok"], 4)


def test_a_refused_handshake_brings_no_tokens() -> None:
    steps = [request(1, api=HANDSHAKE, body=text("OLD")), response(1, b"\0\x21\0\0\0\0"), request(2), response(2)]
    assert talk(*steps) == ["ok", "ok"]


def test_a_header_that_cannot_be_read() -> None:
    """A request too short to have one within the window, and a frame whose head is missing."""
    cut = [Packet(CLIENT, request_bytes(2)), snapped(8)]
    played = play(opening(), request(1), response(1), cut, request(3), response(3))
    assert played.statuses == ["ok", "ok"]
    assert played.kinds == ["bad_header"]
    played = play(opening(), request(1), response(1), request(2), response(2), snapped(6))
    assert "bad_header" in played.kinds
