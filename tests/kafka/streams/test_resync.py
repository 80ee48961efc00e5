"""Where frames begin, rule by rule of `resync`."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kdissect.kafka.protocols import name_of
from kdissect.kafka.streams.resync import ENOUGH, GIVE_UP, NEAR
from kdissect.kafka.streams.state import WINDOW
from tests.kafka.streams.playbook import (
    BROKER,
    CLIENT,
    CONTROLLED_SHUTDOWN,
    PRODUCE,
    Packet,
    acknowledges,
    changed,
    closing,
    cut_up,
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
)

ONE = [request(1), response(1)]
API_VERSIONS = 18


def middle(*steps: Any) -> list[str]:
    """Statuses on a connection whose beginning was not captured."""
    return play(*steps).statuses


def large(n: int, size: int, *, version: int = 0, client: str | None = "app") -> bytes:
    """A Produce request of about `size` bytes, acks 1: one topic, one partition, records of any kind."""
    records = b"\0" * size
    topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", 1) + struct.pack(">ii", 0, len(records)) + records
    return request_bytes(n, api=PRODUCE, version=version, client=client, body=struct.pack(">hii", 1, 1000, 1) + topic)


def pieces(side: int, data: bytes, size: int = 60_000) -> list[Packet]:
    """As offloads hand bytes to tcpdump."""
    return [Packet(side, data[at : at + size]) for at in range(0, len(data), size)]


def test_a_request_is_known_by_key_version_client_id_and_body() -> None:
    assert middle(ONE) == ["ok"]


@pytest.mark.parametrize(
    "body",
    [
        request_bytes(1, api=12, version=99),
        request_bytes(1, api=300),
        request_bytes(1, client="\x01\x02"),
        request_bytes(1, body=b"\0\x05group\0"),
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
        b"\0\0\0\x05\0\x0c\0\0\0",
    ],
)
def test_what_is_no_request_is_not_found_in_the_middle(body: bytes) -> None:
    assert middle(sends(CLIENT, body), acknowledges(BROKER), ONE) == ["ok"]
    played = play(sends(CLIENT, body), sends(BROKER, b"\0\0\0\x06\0\0\0\x01\0\0"))
    assert played.statuses == []
    assert int(played.connection["kafka"]) == 0


def test_junk_before_the_first_request_is_skipped() -> None:
    played = play(sends(CLIENT, b"\0\0\0\x10junk"), ONE, request(2), response(2))
    assert played.statuses[-1] == "ok"
    assert played.problems[0] == (2, 8)


def test_a_request_split_within_its_header_waits() -> None:
    for size in (1, 3, 5, 7, 9, 11, 13, 20):
        assert middle(cut_up(request(1), size), response(1)) == ["ok"]


@pytest.mark.parametrize("begin", [b"\x7f", b"\0\0\0\x20\0\xff", b"\0\0\0\x20\0\x0c"])
def test_too_few_bytes_to_tell(begin: bytes) -> None:
    assert play(sends(CLIENT, begin), acknowledges(BROKER)).statuses == []
    assert play(opening(), sends(CLIENT, begin), acknowledges(BROKER)).statuses == []


def test_a_first_request_without_client_id_needs_a_second_sign() -> None:
    """As small numbers in any protocol might be one: an answer to it, or a request behind it."""
    bare = request(1, client=None)
    assert middle(bare, request(2, client=None), [response(1), response(2)]) == ["ok", "ok"]
    assert middle(bare, response(1)) == ["ok"]
    assert play(opening(), bare, response(1)).statuses == ["ok"]
    assert play(opening(), bare, response(7)).statuses == []
    two = sends(CLIENT, request_bytes(1, client=None) + b"\0\0\0\x30" + b"\xff" * 30)
    assert play(two, response(1)).statuses == []


def test_a_response_is_known_by_a_waiting_id_and_its_body() -> None:
    steps = [ONE, request(2), request(3), response(2), lost(), response(3), acknowledges(CLIENT), quiet(70)]
    played = play(opening(), steps)
    assert played.statuses == ["ok", "partial", "ok"]


def test_a_response_that_does_not_fit_is_passed_over() -> None:
    """Bytes that look like its beginning stand before it."""
    steps = [ONE, request(2), request(3), response(2), lost(), sends(BROKER, struct.pack(">ii", 40, 3) + b"\xee" * 6)]
    played = play(opening(), steps, response(3), acknowledges(CLIENT), quiet(70))
    assert played.statuses[-1] == "ok"


@pytest.mark.parametrize("below", [1, NEAR])
def test_a_response_just_below_the_first_request(below: int) -> None:
    """Its own request came before the capture; the next response follows."""
    first = 1000
    steps = [request(first), response(first - below), response(first), request(first + 1), response(first + 1)]
    assert middle(steps) == ["ok", "ok", "orphan"]
    both = sends(BROKER, response_bytes(first - below) + response_bytes(first))
    assert middle(request(first), both, request(first + 1), response(first + 1)) == ["ok", "ok", "orphan"]


def test_a_response_far_below_is_none() -> None:
    steps = [request(1000), response(1000 - NEAR - 1), response(1000)]
    assert middle(steps) == ["ok"]
    both = sends(BROKER, response_bytes(999) + b"\0\0\0\x08\x11\x11\x11\x11\0\0\0\0")
    assert middle(request(1000), both, response(1000)) == ["ok"]
    cut = sends(BROKER, response_bytes(999) + b"\0\0\0")
    assert middle(request(1000), cut, [Packet(BROKER, response_bytes(1000)[3:])]) == ["ok", "orphan"]


@pytest.mark.parametrize("size", [WINDOW, 3 * WINDOW])
def test_a_request_larger_than_the_window(size: int) -> None:
    data = large(1, size)
    answer = response(1, struct.pack(">ih", 1, 1) + b"t" + struct.pack(">iihq", 1, 0, 0, 5))
    assert play(opening(), pieces(CLIENT, data), answer).statuses == ["ok"]
    assert play(pieces(CLIENT, data), answer).statuses == ["ok"]


def test_a_large_request_again_after_a_loss() -> None:
    """A client id vouches for it."""
    answer = response(3, struct.pack(">ih", 1, 1) + b"t" + struct.pack(">iihq", 1, 0, 0, 5))
    steps = [ONE, request(2), lost(), pieces(CLIENT, large(3, 2 * WINDOW)), answer, quiet(70)]
    assert play(opening(), steps).statuses == ["ok", "ok"]


def test_a_large_request_cut_by_the_snap_length() -> None:
    data = large(1, 4000)
    played = play(Packet(CLIENT, data), snapped(ENOUGH + 100), acknowledges(BROKER), request(2), response(2))
    assert played.statuses[-1] == "ok"


def test_a_large_response_after_a_loss() -> None:
    """All of it that is there fits and a waiting id vouches."""
    answer = framed(
        struct.pack(">i", 3)
        + struct.pack(">i", 1)
        + struct.pack(">h", 1)
        + b"t"
        + struct.pack(">i", 1)
        + struct.pack(">ihqi", 0, 0, 9, 2 * WINDOW)
        + b"\0" * 2 * WINDOW
    )
    asked = request(3, api=1, body=struct.pack(">iii", -1, 500, 1) + struct.pack(">i", 0)[:4])
    steps = [ONE, request(2), response(2), lost(), asked, pieces(BROKER, answer), acknowledges(CLIENT), quiet(70)]
    played = play(opening(), steps)
    assert played.statuses == ["ok", "partial", "ok"]


def test_an_api_versions_answer_may_have_the_layout_of_version_zero() -> None:
    refused = b"\0\x23\0\0\0\0"
    asked = request(3, api=API_VERSIONS, version=3, body=b"\0\x04app\x021")
    steps = [ONE, request(2), response(2), lost(), asked, response(3, refused), acknowledges(CLIENT), quiet(70)]
    assert play(opening(), steps).statuses[-1] == "ok"


def test_the_first_frame_of_a_connection_must_be_a_request() -> None:
    played = play(opening(), sends(CLIENT, b"SSH-2.0-OpenSSH_9\r\n"), sends(BROKER, b"SSH-2.0-OpenSSH_9\r\n"), ONE)
    assert (played.statuses, int(played.connection["kafka"])) == ([], -1)
    begins = played.connection["directions"][["begin16a", "begin16b"]].tolist()
    assert name_of(*begins[0], *begins[1]) == 4


def test_a_first_body_that_fits_no_layout_is_believed_where_its_segment_ends() -> None:
    odd = request_bytes(1, body=b"\xee" * 9)
    assert play(opening(), sends(CLIENT, odd), response(1)).statuses == ["ok"]
    newer = request_bytes(1, api=12, version=90)
    assert play(opening(), sends(CLIENT, newer), response(1)).statuses == ["ok"]
    assert play(opening(), sends(CLIENT, newer + b"\0\0"), response(1)).statuses == []


def test_an_unknown_version_after_a_loss_is_vouched_for_by_the_client_id() -> None:
    newer = sends(CLIENT, request_bytes(3, api=12, version=90))
    assert play(opening(), ONE, request(2), lost(), newer, response(3), quiet(70)).statuses == ["ok", "ok"]


def test_while_one_offset_waits_later_ones_are_tried() -> None:
    """Data that looks like the beginning of a large request stands before a real one."""
    fake = struct.pack(">ihhih", 5000, 12, 0, 9, 3) + b"app"
    steps = [ONE, request(2), lost(), sends(CLIENT, fake), request(3), response(3), quiet(70)]
    played = play(opening(), steps)
    assert played.statuses == ["ok", "ok"]
    assert (2, len(fake)) in played.problems


def test_what_fits_behind_the_first_that_waits_must_begin_a_segment() -> None:
    fake = struct.pack(">ihhih", 5000, 12, 0, 9, 3) + b"app"
    steps = [ONE, request(2), lost(), sends(CLIENT, fake + request_bytes(3)), response(3), quiet(70)]
    assert play(opening(), steps).statuses[0] == "ok"


def test_controlled_shutdown_zero_is_found() -> None:
    old = framed(struct.pack(">hhi", CONTROLLED_SHUTDOWN, 0, 3) + struct.pack(">i", 1))
    steps = [
        ONE,
        request(2),
        lost(),
        sends(CLIENT, old),
        response(3, b"\0\0\0\0\0\0"),
        request(4),
        response(4),
        quiet(70),
    ]
    assert "ok" in play(opening(), steps).statuses[1:]


def test_a_direction_that_is_never_found_again_is_a_problem() -> None:
    played = play(opening(), ONE, request(2), lost(), sends(CLIENT, b"\x41" * 200), acknowledges(BROKER), quiet(70))
    assert "not_resynchronised" in played.kinds


def test_a_connection_that_never_shows_a_frame_is_left_alone() -> None:
    data = b"\x11\x22" * (GIVE_UP // 2 + 300_000)
    played = play(
        sends(BROKER, b"\x33"), [Packet(CLIENT, data[at : at + 60_000]) for at in range(0, len(data), 60_000)]
    )
    assert (played.statuses, int(played.connection["kafka"])) == ([], -1)


def test_searching_is_bounded_by_a_budget() -> None:
    """Sizes at every offset that wait: the window is read again only when it has doubled."""
    data = (struct.pack(">ihhih", 90_000, 12, 0, 9, 3) + b"app") * 1500
    played = play(
        ONE,
        request(2),
        lost(),
        [Packet(CLIENT, data[at : at + 200]) for at in range(0, len(data), 200)],
        request(3),
        response(3),
        quiet(70),
    )
    assert played.statuses[0] == "ok"


def test_both_directions_are_settled_by_what_one_shows() -> None:
    """The response came first: it waits until the request tells which side asks."""
    assert middle(request(1), late(1), response(1), quiet(40)) == ["ok"]
    assert middle(response(0), request(1), response(1), request(2), response(2))[:2] == ["ok", "ok"]


def test_requests_behind_a_gap_tell_the_sides_at_the_end() -> None:
    steps = [sends(CLIENT, b"\0\0\0\x09\xee"), sends(CLIENT, b"xx"), lost(), request(1), response(1)]
    assert play(steps).statuses == ["ok"]


def test_a_response_waits_while_its_request_may_lie_behind_a_hole() -> None:
    """A response direction that is searched while requests wait."""
    steps = [ONE, response(5), lost(), request(2), lost(), request(3), response(3), changed(acknowledges=False)]
    played = play(opening(), steps, closing(CLIENT), closing(BROKER))
    assert played.statuses[0] == "ok"
    assert talk(request(1), hole(2), response(1)) == ["partial"]


def test_a_snap_length_within_what_is_searched() -> None:
    steps = [Packet(CLIENT, b"\x0a" * 30), snapped(9), request(1), response(1), request(2), response(2)]
    assert play(steps).statuses[-1:] == ["ok"]
    steps = [ONE, request(2), lost(), request(3), request(4), snapped(20), request(5), response(5), quiet(70)]
    assert play(opening(), steps).statuses[-1] == "ok"


def test_a_response_is_not_passed_over_while_its_request_waits_behind_a_hole() -> None:
    """Met in its middle: the request of id 3 came, but bytes before it did not."""
    steps = [request(1), [acknowledges(BROKER) for _ in range(40)], request(2), lost(), request(3), response(3)]
    assert play(steps).statuses[-1] == "ok"


def test_a_version_that_is_not_known_in_two_packets() -> None:
    newer = cut_up(request(3, api=12, version=90), 30)
    assert play(opening(), ONE, request(2), lost(), newer, response(3), quiet(70)).statuses == ["ok", "ok"]


@pytest.mark.parametrize("body", [b"\xee" * 9, b"\0" * 2 * WINDOW])
def test_a_first_response_is_believed_whatever_it_holds(body: bytes) -> None:
    assert play(opening(), request(1), pieces(BROKER, response_bytes(1, body))).statuses == ["ok"]


def test_a_response_to_an_unknown_version_is_only_believed_whole() -> None:
    asked = request(3, api=12, version=90)
    before = [ONE, request(2), response(2), lost()]
    whole = play(opening(), before, asked, response(3, b"\0\0\0"), acknowledges(CLIENT), quiet(70))
    assert whole.statuses == ["ok", "partial", "ok"]
    torn = play(opening(), before, asked, pieces(BROKER, response_bytes(3, b"\0" * 2 * WINDOW)), acknowledges(CLIENT))
    assert torn.statuses[:2] == ["ok", "partial"]
    assert "ok" not in torn.statuses[2:]


def test_a_budget_that_is_spent_tries_nothing_more() -> None:
    """Bytes that look like responses to the request that waits, again and again: each is one trial."""
    data = struct.pack(">ii", 600, 3) * 20_000
    steps = [ONE, request(2), response(2), lost(), request(3), pieces(BROKER, data, 1400), acknowledges(CLIENT)]
    played = play(opening(), steps, response(3), quiet(70))
    assert played.statuses[:2] == ["ok", "partial"]
