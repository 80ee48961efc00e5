"""Responses that were captured before their requests, or whose requests never come."""

from __future__ import annotations

from kdissect.kafka.streams.pairing.held_responses import HELD, HOLD_PACKETS
from tests.kafka.streams.playbook import (
    BROKER,
    late,
    lost,
    opening,
    play,
    quiet,
    request,
    response,
    response_bytes,
    sends,
    talk,
)


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
