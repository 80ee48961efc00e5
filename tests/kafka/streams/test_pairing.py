"""Requests and responses, rule by rule of `pairing`."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kdissect.kafka.streams.pairing import HELD, HOLD_PACKETS, MAX_WAITING
from kdissect.tcp.layout import NULL
from tests.kafka.streams.playbook import (
    BROKER,
    CLIENT,
    CONTROLLED_SHUTDOWN,
    HANDSHAKE,
    PRODUCE,
    Packet,
    acknowledges,
    closing,
    framed,
    hole,
    late,
    lost,
    opening,
    play,
    quiet,
    request,
    request_bytes,
    response,
    response_bytes,
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


def test_requests_in_front_of_an_answered_one_are_not_answered_any_more() -> None:
    assert talk(request(1), request(2), request(3), response(3)) == ["unanswered", "unanswered", "ok"]


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


def test_a_response_captured_before_its_request_finds_it() -> None:
    played = play(opening(), request(1), response(1), request(2), late(2), response(2), request(3), response(3))
    assert played.statuses == ["ok"] * 3


def test_held_responses_in_their_order() -> None:
    """Two are held; the second request comes first, then the first."""
    steps = [request(1), response(1), request(2), late(5), request(3), late(2), response(2), response(3), quiet(3)]
    assert sorted(talk(*steps)) == ["ok", "ok", "ok"]


def test_a_response_held_too_long_is_an_orphan() -> None:
    played = play(opening(), request(1), response(1), response(9), quiet(HOLD_PACKETS), finish=False)
    assert (played.statuses, played.kinds) == (["ok", "orphan"], ["orphan_response"])
    row = played.exchanges[1]
    assert (int(row["orphan"]), int(row["n"]), int(row["correlation"]), int(row["api"])) == (1, 0, 9, -1)


def test_too_many_held_responses_become_orphans() -> None:
    many = b"".join(response_bytes(100 + k) for k in range(HELD + 1))
    played = play(opening(), request(1), response(1), sends(BROKER, many), finish=False)
    assert played.statuses == ["ok", "orphan"]


def test_a_response_is_held_while_earlier_requests_wait_behind_a_hole() -> None:
    """The request came behind a hole that is not given up yet: 64 packets more do not make an orphan of its answer."""
    steps = [request(0), response(0), request(1), lost(), request(2), response(2), quiet(HOLD_PACKETS)]
    played = play(opening(), steps, finish=False)
    assert "orphan" not in played.statuses
    assert play(opening(), steps).statuses == ["ok", "ok"]


def test_all_held_at_the_end_are_orphans() -> None:
    assert talk(request(1), response(1), response(5)) == ["ok", "orphan"]


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


def test_unanswered_before_a_loss_is_partial() -> None:
    """The answer may be among the bytes that were lost."""
    steps = [request(0), response(0), request(1), response(1), lost(), request(2), response(2), quiet(70)]
    assert talk(*steps) == ["ok", "partial", "ok"]


def test_the_last_byte_of_a_torn_frame_has_no_time() -> None:
    played = play(opening(), request(1), hole(3), request(2), response(1), response(2), quiet(70))
    assert played.statuses == ["partial", "ok"]
    assert played.exchanges[0]["request"]["last"] == NULL
    played = play(opening(), request(1), snapped(20), response(1))
    assert played.exchanges[0]["request"]["last"] != NULL


def test_what_waits_at_the_end_is_pending_or_unanswered() -> None:
    assert talk(request(1), acknowledges(BROKER)) == ["pending"]
    assert talk(request(1), acknowledges(BROKER), closing(CLIENT), closing(BROKER)) == ["unanswered"]
    assert play(opening(broker=False), request(1)).statuses == ["one_way"]


def test_too_many_waiting() -> None:
    """The oldest is finished as never answered; a window of frames at a time."""
    frames = [b"".join(request_bytes(n) for n in range(k, k + 512)) for k in range(0, MAX_WAITING + 512, 512)]
    played = play(opening(), sends(CLIENT, *frames), acknowledges(BROKER), finish=False)
    assert played.statuses == ["unanswered"] * 512


def test_in_flight_and_queueing() -> None:
    played = play(opening(), request(1), request(2), response(1), response(2), request(3), response(3))
    assert [int(row["in_flight"]) for row in played.exchanges] == [1, 2, 1]
    rows = played.exchanges
    assert [int(row["queued_from"]) for row in rows] == [NULL, rows[0]["response"]["last"], rows[1]["response"]["last"]]


def test_client_ids_are_told_apart() -> None:
    names = ["a", "b", "a", None, "long" * 40]
    played = play(
        opening(), [[request(n, client=name), response(n)][k] for n, name in enumerate(names) for k in (0, 1)]
    )
    ids = played.dissector.client_ids if played.dissector else []
    assert [ids[int(row["client"])] if row["client"] >= 0 else None for row in played.exchanges] == names


def test_a_header_that_cannot_be_read() -> None:
    """A request too short to have one within the window, and a frame whose head is missing."""
    cut = [Packet(CLIENT, request_bytes(2)), snapped(8)]
    played = play(opening(), request(1), response(1), cut, request(3), response(3))
    assert played.statuses == ["ok", "ok"]
    assert played.kinds == ["bad_header"]
    played = play(opening(), request(1), response(1), request(2), response(2), snapped(6))
    assert "bad_header" in played.kinds


def test_controlled_shutdown_zero_has_no_client_id() -> None:
    old = framed(struct.pack(">hhi", CONTROLLED_SHUTDOWN, 0, 2) + struct.pack(">i", 1))
    assert talk(request(1), response(1), sends(CLIENT, old), response(2, b"\0\0\0\0\0\0")) == ["ok", "ok"]


def test_flexible_headers_have_tags() -> None:
    """Heartbeat 4: a tag in the header, then compact strings; torn tags leave the body unknown."""
    body = b"\x01\x05\x02xy" + b"\x06group" + struct.pack(">i", 5) + b"\x07member" + b"\0" + b"\0"
    answer = b"\0" + b"\0\0\0\0\0\0" + b"\0"
    played = play(opening(), request(1), response(1), request(2, version=4, body=body), response(2, answer))
    assert played.statuses == ["ok", "ok"]
    assert int(played.exchanges[1]["request"]["body"]) == 8 + 5 + 5
    for torn in (b"\x01", b"\x01\x05", b"\x01\x05\x09xy", b"\xff\xff\xff\xff\xff\xff"):
        played = play(opening(), request(1), response(1), request(2, version=4, body=torn), response(2, answer))
        assert int(played.exchanges[1]["request"]["body"]) == -1


def test_a_null_response_body_and_large_ids() -> None:
    assert talk(request(-5), response(-5)) == ["ok"]
    assert talk(request(2**31 - 1), response(2**31 - 1)) == ["ok"]


def test_descending_ids_are_found_too() -> None:
    assert talk(request(9), request(3), response(9), response(3)) == ["ok", "ok"]


def test_rows_of_an_orphan_have_no_request() -> None:
    row = play(opening(), request(1), response(1), response(5)).exchanges[1]
    assert (int(row["request"]["first"]), int(row["request"]["bytes"])) == (NULL, -1)
    assert int(row["response"]["bytes"]) == len(response_bytes(5))
    assert np.int64(row["queued_from"]) == NULL
