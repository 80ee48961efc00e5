"""Whose time a wait was, rule by rule, on wires whose every packet and acknowledgement is known."""

from __future__ import annotations

import pytest

from tests.oracle.pcap import ACK, FIN, MS, START, SYN, api_versions_request, api_versions_response
from tests.tcp.wire import BROKER, CLIENT, Wire


def test_the_handshake_tells_the_first_round_trip() -> None:
    wire = Wire()
    wire.handshake(0.4)
    wire.ask(10)
    wire.answer(15)
    assert wire.shares() == [(0.4, "handshake", 4.6)]


def test_an_acknowledgement_that_was_faster_is_the_floor_at_once() -> None:
    wire = Wire()
    wire.handshake(0.4)
    wire.ask(10)
    wire.bare(10.25)
    wire.answer(15)
    assert wire.shares() == [(0.25, "ack", 4.75)]


def test_a_broker_that_becomes_slow_is_not_the_network() -> None:
    """Its answers are the acknowledgements, and come 50 ms later: no host needs a proof for that."""
    wire = Wire()
    wire.handshake(0.4)
    for n in range(20):
        wire.ask(100 * n + 10)
        wire.answer(100 * n + 60)
    assert wire.shares() == [(0.4, "handshake", 49.6)] * 20


def test_a_broker_that_takes_long_acknowledges_all_the_same() -> None:
    wire = Wire()
    wire.handshake(0.4)
    wire.ask(10)
    wire.bare(50.4)  # the delayed-acknowledgement timer
    wire.answer(3010)
    assert wire.shares() == [(0.4, "handshake", 2999.6)]


def test_silence_far_beyond_the_timer_proves_the_rise() -> None:
    wire = Wire()
    wire.begin()
    wire.ask(10)
    wire.answer(140)
    wire.ask(200)
    wire.answer(282)
    wire.ask(300)
    wire.answer(385)
    assert wire.shares()[3:] == [(130, "proven", 0), (82, "proven", 0), (82, "proven", 3)]


def test_two_late_acknowledgements_prove_what_one_does_not() -> None:
    """Each is beyond the timer, none beyond twice that: the smaller of both is the new floor."""
    wire = Wire()
    wire.begin()
    for n in range(3):
        wire.ask(200 * n + 10)
        wire.answer(200 * n + 10 + (80, 90, 84)[n])
    assert [kind for _, kind, _ in wire.shares()[3:]] == ["silence", "proven", "proven"]
    assert wire.shares()[5] == (80, "proven", 4)


def test_a_run_of_bare_acknowledgements_raises_the_floor() -> None:
    wire = Wire()
    wire.handshake(0.4)
    for n in range(10):
        wire.ask(100 * n + 10)
        wire.bare(100 * n + 30)
        wire.answer(100 * n + 50)
    found = wire.shares()
    assert found[0] == (0.4, "handshake", 39.6)
    assert found[9] == (20, "ack", 20)


def test_a_request_that_was_lost_lost_the_time_to_its_copy() -> None:
    wire = Wire()
    wire.handshake(0.4)
    wire.ask(10)
    wire.again(211)
    wire.answer(213)
    (row,) = wire.table("exchanges")
    assert (row["request_resent_ms"], row["network_ms"], row["network_kind"]) == (201, 201.4, "resent")
    assert row["broker_ms"] == pytest.approx(1.6)
    (connection,) = wire.table("connections")
    assert connection["lost_segments"] == 1


@pytest.mark.parametrize(("copy", "kind"), [(211, "resent"), (30, "bound")])
@pytest.mark.parametrize("missing", [False, True])
def test_whether_a_copy_was_needed_is_unknown_where_an_acknowledgement_may_be_missing(
    missing: bool, copy: int, kind: str
) -> None:
    """It may have said that the request had come twice. A segment was lost either way where a timer had run down; a
    probe may have been sent for nothing."""
    wire = Wire()
    wire.begin()
    wire.ask(10)
    wire.again(copy)
    wire.bare(copy + 0.5)
    if missing:
        wire.uncaptured()
    wire.answer(copy + 2)
    row = wire.table("exchanges")[3]
    assert row["network_ms"] == pytest.approx(copy - 10 + 0.4)
    assert row["request_resent_ms"] == (None if missing else copy - 10)
    assert row["network_kind"] == (kind if missing else "resent")


def test_a_copy_too_late_to_have_been_answered_lost_nothing() -> None:
    """A tail-loss probe crossed its acknowledgement: that came sooner than a round trip after it."""
    wire = Wire()
    wire.handshake(20)
    wire.ask(50)
    wire.again(68)
    wire.answer(75)
    (row,) = wire.table("exchanges")
    assert (row["network_ms"], row["network_kind"], row["broker_ms"]) == (20, "handshake", 5)


def test_met_in_the_middle_nothing_is_guessed() -> None:
    wire = Wire()
    wire.ask(10)
    wire.answer(15)
    assert wire.shares() == [(None, None, 5)]
    wire.ask(20)
    wire.bare(20.5)
    wire.answer(30)
    assert wire.shares()[1] == (0.5, "ack", 9.5)


def test_what_the_network_took_is_never_more_than_the_wait() -> None:
    wire = Wire()
    wire.handshake(30)
    wire.ask(100)
    wire.answer(112)
    assert wire.shares() == [(12, "handshake", 0)]


def test_think_time_and_answers_that_nobody_waited_for() -> None:
    wire = Wire()
    wire.handshake(0.4)
    wire.ask(10)
    wire.answer(15)
    wire.ask(40)
    wire.packet(90, CLIENT, len(wire.said[CLIENT]), b"", len(wire.said[BROKER]), FIN | ACK)
    wire.answer(5700)
    first, second = wire.table("exchanges")
    assert (first["think_ms"], first["abandoned"]) == (None, False)
    assert second["think_ms"] == pytest.approx(25, abs=0.5)
    assert (second["abandoned"], second["status"]) == (True, "ok")


def test_a_connection_has_the_median_and_the_extremes() -> None:
    wire = Wire()
    wire.handshake(2)
    for n, trip in enumerate((1.5, 1.0, 1.0)):
        wire.ask(100 * n + 10)
        wire.bare(100 * n + 10 + trip)
        wire.answer(100 * n + 50)
    (row,) = wire.table("connections")
    assert [row[name] for name in ("rtt_ms", "rtt_min_ms", "rtt_max_ms", "rtt_kind")] == [1.0, 1.0, 1.5, "ack"]


def test_a_lost_acknowledgement_of_a_long_poll_says_nothing() -> None:
    """The broker's host acknowledged after 40 ms; the capture lost that: an IP id is missing, nothing was resent."""
    wire = Wire()
    wire.begin()
    wire.ask(10)
    wire.sent[BROKER] += 1
    wire.answer(310)
    wire.ask(320)
    wire.answer(321)
    assert wire.shares()[3] == (None, None, 300)
    assert wire.shares()[4] == (0.4, "handshake", 0.6)


def test_silence_next_to_a_copy_is_the_networks_though_ids_are_missing() -> None:
    """The client sent its request again: it had no acknowledgement either."""
    wire = Wire()
    wire.begin()
    wire.ask(10)
    wire.again(211)
    wire.sent[BROKER] += 1
    wire.answer(300)
    assert wire.shares()[3][1] == "silence"


@pytest.mark.parametrize("bare", [False, True])
def test_where_ids_do_not_count_up_only_the_second_silence_in_a_row_proves(bare: bool) -> None:
    """And only where a bare acknowledgement of that end was seen: else a filter may have removed them."""
    wire = Wire(counts=False)
    wire.handshake(0.4)
    if bare:
        wire.ask(1)
        wire.bare(1.5)
        wire.answer(2)
    for n in range(3):
        wire.ask(200 * n + 10)
        wire.answer(200 * n + 10 + 90)
    found = [kind for _, kind, _ in wire.shares()[-3:]]
    assert found == ([None, "bound", "proven"] if bare else [None, None, None])


def test_both_ends_on_one_host_have_no_network() -> None:
    wire = Wire(broker=b"\x0a\0\0\1")
    wire.begin()
    wire.ask(10)
    wire.answer(400)
    assert wire.shares()[3] == (0.4, "handshake", 389.6)


def test_removed_acknowledgements_are_said() -> None:
    """Eight long polls, of which a filter left the bytes alone."""
    wire = Wire()
    wire.handshake(0.4)
    wire.packets = []
    for n in range(12):
        wire.ask(1000 * n + 10)
        wire.sent[BROKER] += 1
        wire.answer(1000 * n + 310)
    assert wire.shares() == [(None, None, 300)] * 12
    quality = {row["measure"]: row["value"] for row in wire.table("capture_quality")}
    assert quality["connections_without_acks"] == 1
    assert [row["id"] for row in wire.table("findings") if "acks" in row["id"]] == ["capture_without_acks"]


def test_timestamps_tell_the_way_back() -> None:
    """From half a second on answers take 20 ms longer on their way here; what the broker takes stays."""
    wire = Wire(stamps=True)
    wire.handshake(0.4)
    for n in range(40):
        wire.slower = 20 if n >= 20 else 0
        wire.ask(50 * n + 10)
        wire.answer(50 * n + 15 + wire.slower)
    rows = wire.table("exchanges")
    assert {row["network_kind"] for row in rows[:20]} == {"handshake"}
    assert {row["network_kind"] for row in rows[20:]} == {"timestamps"}
    for row in rows[20:]:
        assert row["network_ms"] == pytest.approx(20.4, abs=1.1)
        assert row["network_down_ms"] == pytest.approx(20, abs=1.1)
        assert row["broker_ms"] == pytest.approx(4.6, abs=1.1)
    assert {row["network_down_ms"] for row in rows[:20]} == {None}


def test_a_clock_that_is_set_is_no_network() -> None:
    """The capture's clock jumps by 50 ms: packets of both ends seem later by the same."""
    wire = Wire(stamps=True)
    wire.handshake(0.4)
    for n in range(40):
        wire.ask(50 * n + 10)
        wire.answer(50 * n + 15)
    wire.packets = [(at + 50 * MS if at > START + 1000 * MS else at, data) for at, data in wire.packets]
    assert {row["network_kind"] for row in wire.table("exchanges")} == {"handshake"}


def test_a_request_behind_a_hole_keeps_what_it_was_acknowledged_by() -> None:
    """A request before it was not captured: it waits, while it is sent again and acknowledged."""
    wire = Wire()
    wire.begin()
    wire.ask(100)
    wire.uncaptured()
    wire.answer(101)
    wire.ask(200)
    wire.again(450)
    wire.answer(455)
    row = next(row for row in wire.table("exchanges") if row["correlation_id"] == 4)
    assert (row["network_ms"], row["network_kind"]) == (250.4, "resent")
    assert row["request_resent_ms"] == 250
    assert row["broker_ms"] == pytest.approx(4.6)


def test_an_answer_behind_a_hole_keeps_the_round_trip_and_the_way_of_then() -> None:
    """An answer before it was not captured. Afterwards, while it still waits, the network becomes faster."""
    wire = Wire(stamps=True)
    wire.handshake(10)
    for n in range(20):
        wire.ask(50 * n + 20)
        wire.answer(50 * n + 35)
    wire.ask(1100)
    wire.answer(1115)
    wire.uncaptured()
    wire.ask(1150)
    wire.answer(1165)
    wire.slower = 20
    wire.ask(1200)
    wire.answer(1235)
    wire.slower = 0
    for n in range(30):
        wire.ask(1300 + 50 * n)
        wire.bare(1302 + 50 * n)
        wire.answer(1315 + 50 * n)
    row = next(row for row in wire.table("exchanges") if row["latency_ms"] == 35)
    assert row["network_kind"] == "timestamps"
    assert row["network_ms"] == pytest.approx(30, abs=1.1)
    assert row["network_down_ms"] == pytest.approx(20, abs=1.1)


def test_an_answer_that_fills_a_hole_behind_another_one() -> None:
    """The answer before it was not captured; its own first copy was lost, and the next one came before the second."""
    wire = Wire()
    wire.begin()
    wire.ask(10)
    wire.answer(11)
    wire.uncaptured()
    wire.ask(20)
    wire.answer(21)
    wire.ask(100)
    wire.ask(101)
    size = len(api_versions_response(0))
    at = len(wire.said[BROKER])
    first, second = (api_versions_response(n) for n in (5, 6))
    wire.packet(105, BROKER, at + size, second, len(wire.said[CLIENT]))
    wire.packet(305, BROKER, at, first, len(wire.said[CLIENT]))
    wire.said[BROKER] += first + second
    row = next(row for row in wire.table("exchanges") if row["correlation_id"] == 5)
    assert (row["network_ms"], row["network_kind"]) == (200.4, "resent")


def test_an_echo_of_a_copy_that_was_not_captured_proves_that_one_is_missing() -> None:
    """The answer echoes the timestamp of the request's copy: whether the network or the broker took so long is not
    known. Where it echoes that of the request itself, the broker did."""
    wire, plain = Wire(stamps=True), Wire(stamps=True)
    for one in (wire, plain):
        one.begin()
        one.ask(100)
    wire.again(120)
    wire.uncaptured()
    for one in (wire, plain):
        one.answer(125)
    assert wire.shares()[-1] == (None, None, 25)
    assert plain.shares()[-1] == (0.4, "handshake", 24.6)


def test_answers_in_one_packet_do_not_wait_for_one_another_behind_a_hole() -> None:
    """Requests wait behind one that was not captured, and their answers for them: the second answer, of the same
    packet, did not come before the first."""
    wire = Wire()
    wire.begin()
    wire.ask(100)
    wire.uncaptured()
    wire.answer(101)
    wire.ask(200)
    wire.bare(200.4)
    wire.ask(300)
    wire.bare(300.4)
    both = b"".join(api_versions_response(n) for n in (4, 5))
    wire.packet(700, BROKER, len(wire.said[BROKER]), both, len(wire.said[CLIENT]))
    wire.said[BROKER] += both
    row = next(row for row in wire.table("exchanges") if row["correlation_id"] == 4)
    assert row["queued_ms"] == 0
    assert row["broker_ms"] == pytest.approx(499.6)


def test_a_run_of_bare_acknowledgements_raises_nothing_on_one_host() -> None:
    wire = Wire(broker=b"\x0a\0\0\1")
    wire.handshake(0.4)
    for n in range(10):
        wire.ask(100 * n + 10)
        wire.bare(100 * n + 15)
        wire.answer(100 * n + 30)
    assert wire.shares()[-1] == (0.4, "handshake", 19.6)


def test_a_copy_next_to_a_hole_is_no_packet_out_of_order() -> None:
    """Bytes that wait behind a hole are sent again, shortly after later ones: that is a copy."""
    wire = Wire()
    wire.begin()
    wire.ask(100)
    wire.uncaptured()
    wire.answer(101)
    wire.ask(200)
    size = len(api_versions_request(0))
    at, data = len(wire.said[CLIENT]) - size, wire.said[CLIENT][-size:]
    wire.ask(220)
    wire.packet(220.5, CLIENT, at, data, len(wire.said[BROKER]))
    wire.answer(225)
    row = next(row for row in wire.table("exchanges") if row["correlation_id"] == 4)
    assert (row["network_ms"], row["network_kind"]) == (pytest.approx(20.9), "resent")


def test_an_acknowledgement_of_a_copy_that_was_not_captured_is_no_sample() -> None:
    """At the broker: its first answer was not captured, the second one was, and the next request comes soon after that.
    It echoes the first one's timestamp."""
    wire = Wire(stamps=True)
    wire.packet(0, CLIENT, -1, b"", 0, SYN)
    wire.packet(0.01, BROKER, -1, b"", 0, SYN | ACK)
    wire.packet(40, CLIENT, 0, b"", 0)
    wire.ask(50)
    wire.answer(55)
    wire.uncaptured()
    echoed = wire.stamped[BROKER]
    size = len(api_versions_response(0))
    wire.packet(280, BROKER, len(wire.said[BROKER]) - size, wire.said[BROKER][-size:], len(wire.said[CLIENT]))
    wire.stamped[BROKER] = echoed
    wire.ask(300)
    wire.answer(305)
    assert wire.table("connections")[0]["client_rtt_ms"] == pytest.approx(39.99)


def shaken(acknowledged: bool, stamps: bool = False) -> Wire:
    """A wire of 20 ms. The client's acknowledgement of the handshake was captured or not."""
    wire = Wire(stamps=stamps)
    wire.packet(0, CLIENT, -1, b"", 0, SYN)
    wire.packet(20, BROKER, -1, b"", 0, SYN | ACK)
    wire.packet(20, CLIENT, 0, b"", 0)
    if not acknowledged:
        wire.uncaptured()
    return wire


def test_without_any_bare_acknowledgement_they_were_removed_and_no_floor_is_in_force() -> None:
    """A floor of a capture without acknowledgements may have fallen or risen since."""
    for acknowledged, share in ((True, (20, "handshake", 10)), (False, (None, None, 30))):
        wire = shaken(acknowledged)
        wire.ask(30)
        wire.answer(60)
        wire.ask(100)
        wire.answer(130)
        assert wire.shares() == [share] * 2
        thinks = [row["think_ms"] for row in wire.table("exchanges")]
        assert (thinks[1] is not None) == acknowledged


def test_a_handshakes_floor_is_a_bound_where_the_first_bare_acknowledgement_may_be_missing() -> None:
    """It may have been faster. Once the direction sent one, what is missing is no sooner than that."""
    wire = shaken(True)
    wire.ask(30)
    wire.bare(50)
    wire.uncaptured()
    wire.answer(60)
    assert wire.shares() == [(20, "bound", 10)]
    plain = shaken(True)
    plain.ask(30)
    plain.bare(55)
    plain.answer(60)
    plain.ask(100)
    plain.bare(120)
    plain.uncaptured()
    plain.answer(130)
    assert plain.shares() == [(20, "handshake", 10)] * 2


def test_an_acknowledgement_captured_behind_the_answer_that_came_after_it_is_a_sample() -> None:
    wire = shaken(True)
    wire.ask(30)
    wire.bare(45)
    wire.answer(60)
    wire.packets[-2:] = wire.packets[:-3:-1]
    wire.ask(100)
    wire.answer(130)
    assert wire.shares() == [(20, "bound", 10), (15, "ack", 15)]


def test_a_copy_was_not_needed_if_what_acknowledges_it_echoes_an_earlier_one() -> None:
    """The network's way up was gone, or its way down: the answer that comes at the moment of the last copy answers the
    one before it."""
    for echoed, resent in ((300, 200), (700, 600)):
        wire = Wire(stamps=True)
        wire.begin()
        wire.ask(100)
        wire.again(300)
        wire.again(700)
        wire.stamped[CLIENT] = 7_000_000 + echoed
        wire.answer(700.5)
        assert wire.table("exchanges")[-1]["request_resent_ms"] == resent


def test_the_way_back_is_unknown_where_a_connection_is_met_until_its_least_is_known() -> None:
    """Its first packets may all have been slow. After some more the least is known, and drift explains small rises."""
    met, begun = Wire(stamps=True), Wire(stamps=True)
    begun.handshake(0.4)
    for wire in (met, begun):
        for n in range(20):
            wire.ask(50 * n + 50)
            wire.bare(50 * n + 50.3)
            wire.answer(50 * n + 60)
        wire.slower = 3
        wire.ask(2000)
        wire.answer(2013)
    found = met.shares()
    assert found[0] == (None, None, 10)
    assert found[-2][1] == "ack"
    assert found[-1][1] == "bound"
    assert begun.shares()[0][1] == "ack"
    assert begun.shares()[-1][1] == "timestamps"
