"""The client's own time between an answer and its next request."""

from __future__ import annotations

import pytest

from tests.oracle.pcap import MS, START, api_versions_request, api_versions_response
from tests.tcp.wire import BROKER, CLIENT, Wire, message


def think_times(wire: Wire) -> dict[int, float | None]:
    """`think_ms` by when the request came, ms after START."""
    rows = [row for row in wire.table("exchanges") if row["request_first_at"] is not None]
    return {round(row["request_first_at"].timestamp() * 1000 - START / MS): row["think_ms"] for row in rows}


def test_requests_behind_a_lost_answer_keep_the_clients_time() -> None:
    wire = Wire()
    wire.begin()
    wire.ask(20)
    wire.answer(21)
    wire.uncaptured()
    for n in range(6):  # their answers wait for the missing one; it may still come
        wire.ask(30 + 10 * n)
        wire.answer(31 + 10 * n)
    found = think_times(wire)
    assert found[30] is None  # the answer before it is missing
    assert [found[30 + 10 * n] for n in range(1, 6)] == [9.0] * 5


@pytest.mark.parametrize("between", [False, True])
def test_a_request_that_asks_for_no_answer_leaves_the_clients_time_until_the_next_unknown(between: bool) -> None:
    """Also where the answer before it lies behind a hole: the client may have waited for nothing since."""
    wire = Wire()
    wire.begin()
    wire.ask(20)
    wire.answer(21)
    wire.uncaptured()
    wire.ask(30)
    wire.answer(31)
    if between:
        wire.say(35, CLIENT, message(b"\0\0\0\3\0\0\0\x63\xff\xff", b"\xff\xff" + bytes(10)))
    wire.ask(40)
    wire.answer(41)
    assert think_times(wire)[40] == (None if between else 9.0)


def test_the_brokers_time_for_a_bare_sasl_token_is_not_the_clients() -> None:
    """SaslHandshake v0 is followed by tokens, which are no exchanges."""
    wire = Wire()
    wire.begin()
    wire.say(20, CLIENT, message(b"\0\x11\0\0\0\0\0\x63\xff\xff", b"\0\5PLAIN"))
    wire.say(21, BROKER, message(b"\0\0\0\x63", b"\0\0\0\0\0\1\0\5PLAIN"))
    wire.say(22, CLIENT, message(b"\0user\0secret"))
    wire.say(122, BROKER, message(b"welcome!"))
    wire.ask(125)
    wire.answer(126)
    assert think_times(wire)[125] == 3.0


def test_requests_behind_a_lost_request_keep_the_clients_time() -> None:
    wire = Wire()
    wire.begin()
    wire.ask(20)
    wire.uncaptured()
    wire.answer(21)
    for n in range(6):
        wire.ask(30 + 10 * n)
        wire.answer(31 + 10 * n)
    found = think_times(wire)
    assert found[30] is None  # another request may have been lost with the one that is
    assert [found[30 + 10 * n] for n in range(1, 6)] == [9.0] * 5


@pytest.mark.parametrize("sooner", [False, True])
def test_an_answer_behind_a_hole_that_reached_the_client_sooner_tells_no_client_time(sooner: bool) -> None:
    """The client echoes a timestamp that no captured packet had: another copy of the answer."""
    wire = Wire(stamps=True)
    wire.begin()
    wire.ask(20)
    wire.answer(21)
    wire.uncaptured()
    wire.ask(30)
    wire.answer(31)
    wire.ask(40)
    wire.answer(46)
    if sooner:
        wire.stamped[BROKER] = 7_000_043
    wire.ask(50)
    wire.answer(51)
    assert think_times(wire)[50] == (None if sooner else 4.0)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_round_trip_to_the_client_that_may_have_risen_unseen(lost: int) -> None:
    """Captured at the broker; the way to the client and back takes 10 ms, and then 25. Eight in a row raise it. Six
    came, so two may be among those that are missing."""
    wire = Wire()
    wire.handshake_at_broker(10)
    for n in range(12):
        wire.ask(100 * n + 20)
        wire.answer(100 * n + 21)
        wire.bare(100 * n + (31 if n < 6 else 46), CLIENT)
    for n in range(lost):
        wire.bare(1170 + n, CLIENT)
        wire.uncaptured()
    wire.ask(1221)
    wire.answer(1222)
    found = think_times(wire)
    assert found[1120] == 89.0
    assert found[1221] == (None if lost == 2 else 90.0)


def test_of_a_connection_met_in_its_middle_the_way_may_take_less_than_it_did_since() -> None:
    wire = Wire()
    wire.said[:] = [api_versions_request(0), api_versions_response(0)]
    for n in range(20):
        wire.ask(100 * n + 20)
        wire.answer(100 * n + 21)
        wire.bare(100 * n + 31, CLIENT)
    wire.ask(1951)
    wire.answer(1952)
    wire.bare(1962, CLIENT)
    wire.ask(2152)
    found = think_times(wire)
    assert found[1920] is None  # 10 of 99 ms may have been less
    assert found[2152] == 190.0


@pytest.mark.parametrize("again", [False, True])
def test_an_answer_that_was_sent_again_tells_no_client_time(again: bool) -> None:
    """Captured at the broker: the client may have had it only then."""
    wire = Wire()
    wire.handshake_at_broker(10)
    wire.ask(20)
    wire.answer(21)
    if again:
        wire.packet(231, BROKER, 0, wire.said[BROKER], len(wire.said[CLIENT]))
    wire.bare(241, CLIENT)
    wire.ask(261)
    wire.answer(262)
    assert think_times(wire)[261] == (None if again else 230.0)
