"""Frames out of bytes in order, rule by rule of `framing`."""

from __future__ import annotations

import struct

import pytest

from kdissect.kafka.streams.framing import MAX_REQUEST
from tests.kafka.streams.playbook import (
    BROKER,
    CLIENT,
    HANDSHAKE,
    Packet,
    acknowledges,
    changed,
    cut_up,
    framed,
    hole,
    lost,
    opening,
    play,
    quiet,
    request,
    request_bytes,
    response,
    sends,
    snapped,
    talk,
    text,
)

LENGTH = len(request_bytes(1))


@pytest.mark.parametrize("size", range(1, LENGTH))
def test_a_frame_is_its_length_and_that_many_bytes_however_they_come(size: int) -> None:
    played = play(opening(), cut_up(request(1), size), response(1))
    assert (played.statuses, played.kinds) == (["ok"], [])
    assert played.exchanges[0]["request"]["bytes"] == LENGTH
    assert played.exchanges[0]["request"]["packet"] == 5


def test_a_length_in_single_bytes() -> None:
    assert talk(cut_up(request(1), 1, 1, 1, 1, 1), cut_up(response(1), 1, 1, 1)) == ["ok"]


def test_several_frames_in_a_packet_and_one_that_goes_on() -> None:
    both = request_bytes(1) + request_bytes(2) + request_bytes(3)
    played = play(opening(), cut_up(Packet(CLIENT, both), 2 * LENGTH + 9), response(1), response(2), response(3))
    assert played.statuses == ["ok"] * 3
    assert [int(row["request"]["packet"]) for row in played.exchanges] == [4, 4, 5]
    assert [int(row["request"]["last"] - row["request"]["first"]) for row in played.exchanges] == [0, 0, 1_000_000]


def test_missing_bytes_cost_their_frame_alone() -> None:
    """The length says where the next one begins."""
    two = sends(CLIENT, request_bytes(1)[:20], request_bytes(1)[20:28])
    rest = sends(CLIENT, request_bytes(1)[28:] + request_bytes(2))
    steps = [request(0), response(0), two, lost(), rest, quiet(70), response(1), response(2)]
    assert talk(*steps) == ["ok", "partial", "ok"]


def test_a_hole_over_the_end_of_a_frame_loses_the_place() -> None:
    """The length of the second one is missing; it is found again by the third, which begins a segment."""
    data = request_bytes(1) + request_bytes(2)
    pieces = sends(CLIENT, data[: LENGTH - 5], data[LENGTH - 5 : LENGTH + 6])
    rest = sends(CLIENT, data[LENGTH + 6 :], request_bytes(3))
    played = play(
        opening(), request(0), response(0), pieces, lost(), rest, response(3), acknowledges(BROKER), quiet(70)
    )
    assert played.statuses == ["ok", "partial", "ok"]
    assert played.kinds == ["missing_bytes", "resynchronised"]


def test_a_hole_between_frames_loses_the_place() -> None:
    played = play(opening(), request(0), response(0), request(1), lost(), request(2), response(2), quiet(70))
    assert played.statuses == ["ok", "ok"]
    assert "missing_bytes" in played.kinds


def test_a_hole_that_ends_with_its_frame_is_counted_through() -> None:
    assert talk(request(1), hole(9), request(2), response(1), response(2), quiet(70)) == ["partial", "ok"]


@pytest.mark.parametrize("length", [MAX_REQUEST + 1, 2**31, 3, 1])
def test_a_length_that_no_request_can_have(length: int) -> None:
    wrong = struct.pack(">I", length) + b"\xff" * 30
    played = play(opening(), request(1), response(1), sends(CLIENT, wrong), request(2), response(2))
    assert played.statuses == ["ok", "ok"]
    assert played.kinds == ["bad_length", "resynchronised"]


def test_a_length_that_no_response_can_have() -> None:
    played = play(
        opening(), request(0), response(0), request(1), sends(BROKER, b"\x7f\xff\xff\xff\0\0\0\0"), response(1)
    )
    assert "bad_length" in played.kinds


def test_an_empty_frame_is_a_problem_and_no_loss() -> None:
    played = play(opening(), request(1), response(1), sends(CLIENT, b"\0\0\0\0"), request(2), response(2))
    assert (played.statuses, played.kinds) == (["ok", "ok"], ["bad_length"])


def test_an_empty_answer_to_a_bare_token_is_none() -> None:
    shake = [request(1, api=HANDSHAKE, body=text("PLAIN")), response(1, b"\0\0" + b"\0\0\0\0")]
    played = play(
        opening(), shake, sends(CLIENT, framed(b"\0u\0p")), sends(BROKER, framed(b"")), request(2), response(2)
    )
    assert (played.statuses, played.kinds, len(played.tokens)) == (["ok", "ok"], [], 1)


def test_a_snap_length_cuts_a_frame_and_its_last_byte_still_arrived() -> None:
    played = play(opening(), request(1), snapped(20), response(1), request(2), response(2))
    assert played.statuses == ["partial", "ok"]
    frame = played.exchanges[0]["request"]
    assert (int(frame["cut"]), int(frame["missing"]), int(frame["bytes"])) == (LENGTH - 20, 0, LENGTH)
    assert frame["last"] == frame["first"]


def test_a_snap_length_within_the_next_length_loses_the_place() -> None:
    two = Packet(CLIENT, request_bytes(1) + request_bytes(2))
    played = play(opening(), two, changed(captured=LENGTH + 2), response(1), request(3), response(3))
    assert played.statuses[0] == "ok"
    assert played.kinds[0] == "snapped"


def test_a_snap_length_before_the_next_length_loses_the_place() -> None:
    two = Packet(CLIENT, request_bytes(1) + request_bytes(2))
    played = play(opening(), two, snapped(LENGTH), response(1), request(3), response(3))
    assert (played.statuses, played.kinds[0]) == (["ok", "ok"], "snapped")


def test_a_stream_that_begins_cut_off() -> None:
    """Nothing of the first packet but its headers was captured."""
    played = play(opening(), request(1), snapped(0), request(2), response(2))
    assert "ok" in played.statuses


def test_pieces_with_a_hole_keep_their_order() -> None:
    """A frame of five pieces, of which the third is missing and the fourth is cut."""
    data = request_bytes(1)
    pieces = [*sends(CLIENT, data[:8], data[8:14], data[14:18]), lost(), Packet(CLIENT, data[18:24]), snapped(3)]
    played = play(opening(), pieces, sends(CLIENT, data[24:]), response(1), quiet(70))
    assert played.statuses == ["partial"]
    frame = played.exchanges[0]["request"]
    assert (int(frame["missing"]), int(frame["cut"])) == (4, 3)


def test_a_frame_that_never_ends_is_unfinished() -> None:
    played = play(opening(), request(1), response(1), sends(CLIENT, request_bytes(2)[:-4]))
    assert played.statuses == ["ok", "partial"]
    assert played.problems == [(5, 4)]


def test_an_unfinished_length_is_nothing() -> None:
    played = play(opening(), request(1), response(1), sends(CLIENT, request_bytes(2)[:3]))
    assert (played.statuses, played.kinds) == (["ok"], [])


def test_a_hole_before_anything_was_searched() -> None:
    """The stream does not begin with its beginning then."""
    played = play(opening(), request(1), lost(), request(2), response(2), quiet(70))
    assert played.statuses == ["ok"]
