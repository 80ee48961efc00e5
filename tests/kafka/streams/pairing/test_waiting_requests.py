"""The requests that wait for their answers, and which of them an answer belongs to."""

from __future__ import annotations

from kdissect.kafka.streams.pairing.waiting_requests import MAX_WAITING
from tests.kafka.streams.playbook import (
    BROKER,
    CLIENT,
    acknowledges,
    closing,
    lost,
    opening,
    play,
    quiet,
    request,
    request_bytes,
    response,
    sends,
    talk,
)


def test_requests_in_front_of_an_answered_one_are_not_answered_any_more() -> None:
    assert talk(request(1), request(2), request(3), response(3)) == ["unanswered", "unanswered", "ok"]


def test_unanswered_before_a_loss_is_partial() -> None:
    """The answer may be among the bytes that were lost."""
    steps = [request(0), response(0), request(1), response(1), lost(), request(2), response(2), quiet(70)]
    assert talk(*steps) == ["ok", "partial", "ok"]


def test_what_waits_at_the_end_is_pending_or_unanswered() -> None:
    assert talk(request(1), acknowledges(BROKER)) == ["pending"]
    assert talk(request(1), acknowledges(BROKER), closing(CLIENT), closing(BROKER)) == ["unanswered"]
    assert play(opening(broker=False), request(1)).statuses == ["one_way"]


def test_too_many_waiting() -> None:
    """The oldest is finished as never answered; a window of frames at a time."""
    frames = [b"".join(request_bytes(n) for n in range(k, k + 512)) for k in range(0, MAX_WAITING + 512, 512)]
    played = play(opening(), sends(CLIENT, *frames), acknowledges(BROKER), finish=False)
    assert played.statuses == ["unanswered"] * 512


def test_a_null_response_body_and_large_ids() -> None:
    assert talk(request(-5), response(-5)) == ["ok"]
    assert talk(request(2**31 - 1), response(2**31 - 1)) == ["ok"]


def test_descending_ids_are_found_too() -> None:
    assert talk(request(9), request(3), response(9), response(3)) == ["ok", "ok"]
