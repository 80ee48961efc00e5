"""One packet at a time into a byte stream, rule by rule of `kdissect.tcp.assembly`, as exchanges show it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdissect.net.segment import ACK_FLAG, FIN, SYN
from kdissect.tcp.assembly import (
    AHEAD_SEGMENTS,
    DUPLICATE_BARE_NS,
    FILLED_LATE_NS,
    GAP_PACKETS,
    MAX_AHEAD,
    SETTLE_PACKETS,
)
from kdissect.tcp.layout import NULL, End
from tests.kafka.streams.playbook import (
    BROKER,
    CLIENT,
    ISN,
    MS,
    Packet,
    acknowledges,
    changed,
    closing,
    cut_up,
    field_of,
    hole,
    late,
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

SIZE = len(request_bytes(1))
ONE = [request(1), response(1)]


def counted(*steps: Any, side: int = CLIENT) -> dict[str, int]:
    """Counters of a direction."""
    played = play(opening(), *steps)
    layout = played.connection["directions"].dtype
    found = {name: field_of(played.connection, side, name) for name in layout.names if layout[name] == np.int64}
    return {**found, "duplicates": int(played.connection["duplicates"])}


@pytest.mark.parametrize("isn", [2**32 - 1, 2**32 - 5, 2**32 - SIZE - 1, 2**31 - 3])
def test_sequence_numbers_come_round(isn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kafka.streams.playbook.ISN", (isn, isn))
    assert talk(ONE, request(2), response(2), request(3), response(3)) == ["ok"] * 3


def test_the_first_copy_of_a_byte_wins_and_bytes_seen_are_sent_again() -> None:
    other = Packet(CLIENT, request_bytes(9), again=SIZE, after=500)
    played = play(opening(), request(1), other, response(1))
    assert [int(row["correlation"]) for row in played.exchanges] == [1]
    assert field_of(played.connection, CLIENT, "retransmitted") == SIZE


def test_a_segment_that_repeats_some_and_goes_on() -> None:
    both = Packet(CLIENT, request_bytes(1) + request_bytes(2))
    found = counted(request(1), changed(after=1), [Packet(CLIENT, both.data, again=SIZE)], quiet(1))
    assert found["retransmitted"] == SIZE


def test_a_keep_alive_is_neither() -> None:
    found = counted(ONE, Packet(CLIENT, b"\0", again=1), acknowledges(BROKER), Packet(CLIENT, b"", again=1))
    assert (found["retransmitted"], found["duplicates"]) == (0, 0)


def test_a_packet_seen_elsewhere_without_news_is_a_copy() -> None:
    first = request(1)
    copy = Packet(CLIENT, first.data, again=SIZE, viewpoint=7, after=900)
    found = counted(first, copy, response(1))
    assert (found["duplicates"], found["retransmitted"], found["packets"]) == (1, 0, 3)


def test_a_copy_that_brings_bytes_of_a_hole_is_taken() -> None:
    """Seen elsewhere, it brings what the first place did not."""
    played = play(
        opening(),
        request(0),
        response(0),
        request(1),
        lost(),
        request(2),
        changed(viewpoint=0),
        Packet(CLIENT, request_bytes(1), again=2 * SIZE, viewpoint=7),
        response(1),
        response(2),
    )
    assert played.statuses == ["ok"] * 3


def test_news_of_copies_elsewhere() -> None:
    """A SYN of another number, the first FIN and the first RST are news wherever they were seen."""
    played = play(
        opening(), ONE, Packet(CLIENT, flags=FIN | ACK_FLAG, viewpoint=3), Packet(BROKER, flags=FIN | ACK_FLAG)
    )
    assert played.connection["end"] == End.FIN
    played = play(opening(), ONE, acknowledges(CLIENT), changed(viewpoint=3, flags=4))
    assert played.connection["end"] == End.RST


def test_an_ip_id_that_is_not_beyond_the_latest_is_a_copys() -> None:
    """Where ids count up; sent again it gets the next one."""
    up = [request(n, client="x") for n in range(4)]
    ids = [step for n, one in enumerate(up) for step in (one, changed(ident=100 + n))]
    size = len(request_bytes(0, client="x"))
    copy = Packet(CLIENT, request_bytes(3, client="x"), again=size, ident=103, after=800)
    sent_again = Packet(CLIENT, request_bytes(3, client="x"), again=size, ident=104, after=300)
    assert counted(ids, copy)["duplicates"] == 1
    found = counted(ids, sent_again)
    assert (found["duplicates"], found["retransmitted"]) == (0, size)


def test_a_late_first_copy_is_none() -> None:
    """Bare acknowledgements with an id a little below the latest may be late."""
    ids = [step for n in range(6) for step in (request(n), changed(ident=100 + n))]
    assert counted(ids, Packet(CLIENT, ident=104))["duplicates"] == 0
    assert counted(ids, Packet(CLIENT, ident=40))["duplicates"] == 1


def test_a_syn_again_once_bytes_went_on_is_a_copy() -> None:
    found = counted(ONE, Packet(CLIENT, flags=SYN, seq=ISN[CLIENT], ident=0, after=400))
    assert found["duplicates"] == 1


@pytest.mark.parametrize(
    ("ident", "after", "copies"), [(0, 0.5, 1), (0, DUPLICATE_BARE_NS / MS + 1, 0), (77, 50, 1), (77, 200, 0)]
)
def test_a_copy_by_header_fields_and_id(ident: int, after: float, copies: int) -> None:
    first = [Packet(CLIENT, request_bytes(1), ident=ident), response(1)]
    again = Packet(CLIENT, request_bytes(1), again=SIZE, ident=ident, after=after, acknowledges=False)
    first[0] = Packet(CLIENT, request_bytes(1), ident=ident, acknowledges=False)
    assert counted(first[0], again)["duplicates"] == copies


def test_bytes_ahead_wait_in_order() -> None:
    pieces = cut_up(request(1), 10, 10)
    played = play(opening(), pieces[0], late(2), pieces[1], pieces[2], response(1), finish=False)
    assert played.statuses == ["ok"]


def test_segments_ahead_that_overlap_wait_once() -> None:
    data = request_bytes(1) + request_bytes(2) + request_bytes(3)
    head = Packet(CLIENT, data[:10])
    parts = [Packet(CLIENT, data[10:])]
    ahead = [
        Packet(CLIENT, data[20:40], again=len(data) - 20),
        Packet(CLIENT, data[50:60], again=len(data) - 50),
        Packet(CLIENT, data[15:70], again=len(data) - 15),
        Packet(CLIENT, data[15:30], again=len(data) - 15),
    ]
    played = play(
        opening(),
        request(0),
        response(0),
        head,
        late(6),
        parts,
        lost(),
        ahead,
        Packet(CLIENT, data[5:], again=len(data) - 5),
        response(1),
        response(2),
        response(3),
    )
    assert played.statuses == ["ok"] * 4


def test_a_hole_is_given_up_after_gap_packets_once_it_was_acknowledged() -> None:
    steps = [ONE, request(2), lost(), request(3), acknowledges(BROKER)]
    early = play(opening(), steps, quiet(GAP_PACKETS - 4), finish=False)
    assert early.kinds == []
    assert "missing_bytes" in play(opening(), steps, quiet(GAP_PACKETS), finish=False).kinds


def test_a_hole_that_nobody_acknowledged_is_kept_open() -> None:
    steps = [ONE, request(2), lost(), request(3), quiet(4 * GAP_PACKETS)]
    assert play(opening(), steps, finish=False).kinds == []


def test_holes_that_were_acknowledged_together_wait_together() -> None:
    steps = [
        ONE,
        request(2),
        lost(),
        request(3),
        request(4),
        lost(),
        request(5),
        acknowledges(BROKER),
        quiet(GAP_PACKETS),
    ]
    assert play(opening(), steps, finish=False).kinds.count("missing_bytes") == 2


def test_a_hole_with_too_many_segments_behind_it() -> None:
    many = sends(CLIENT, *[request_bytes(n) for n in range(3, 3 + AHEAD_SEGMENTS + 1)])
    played = play(
        opening(),
        ONE,
        request(2),
        lost(),
        [step for one in many for step in (one, changed(acknowledges=False))],
        finish=False,
    )
    assert played.kinds[0] == "missing_bytes"


def test_a_stream_met_in_its_middle_begins_with_its_lowest_bytes() -> None:
    """Its first packets were captured out of order."""
    pieces = cut_up(request(1), 12)
    played = play(pieces[0], late(3), pieces[1], response(1), quiet(SETTLE_PACKETS))
    assert (played.statuses, played.kinds) == (["ok"], [])


def test_a_wild_sequence_number_costs_nothing() -> None:
    wild = Packet(CLIENT, b"x" * 40, seq=ISN[CLIENT] + 2 * MAX_AHEAD)
    assert talk(ONE, wild, request(2), response(2)) == ["ok", "ok"]


def test_a_far_sequence_number_is_believed_when_the_next_continues_it() -> None:
    far = ISN[CLIENT] + 2 * MAX_AHEAD
    two = [Packet(CLIENT, request_bytes(2 + n), seq=far + n * SIZE) for n in range(3)]
    played = play(opening(), ONE, two, [response(2 + n) for n in range(1, 3)], quiet(70))
    assert "missing_bytes" in played.kinds
    assert played.statuses[-2:] == ["ok", "ok"]


def test_a_filled_hole_was_reordering_or_a_retransmission() -> None:
    quick = counted(ONE, request(2), late(2), changed(after=0.1), request(3), changed(after=0.1), response(2))
    assert (quick["out_of_order"], quick["retransmitted"]) == (1, 0)
    slow = counted(
        ONE,
        request(2),
        lost(),
        request(3),
        Packet(CLIENT, request_bytes(2), again=2 * SIZE, after=FILLED_LATE_NS / MS + 1),
    )
    assert (slow["out_of_order"], slow["retransmitted"]) == (0, SIZE)


def test_zero_windows() -> None:
    found = counted(ONE, Packet(CLIENT, window=0), Packet(CLIENT, window=0, after=5), Packet(CLIENT, window=9, after=7))
    assert found["zero_total"] == 12 * MS
    still = counted(ONE, Packet(CLIENT, window=0))
    assert still["zero_since"] != NULL


def test_a_reset_brings_no_bytes() -> None:
    assert talk(ONE, Packet(CLIENT, request_bytes(2), flags=4 | ACK_FLAG)) == ["ok"]


def test_bytes_in_a_syn_come_behind_it() -> None:
    """TCP Fast Open (RFC 7413)."""
    played = play(
        Packet(CLIENT, request_bytes(1), flags=SYN), Packet(BROKER, flags=SYN | ACK_FLAG), Packet(CLIENT), response(1)
    )
    assert played.statuses == ["ok"]


def test_what_was_acknowledged_unseen_is_missing_at_the_end() -> None:
    played = play(opening(), ONE, request(2), lost(), acknowledges(BROKER), closing(CLIENT), lost(), closing(BROKER))
    assert "missing_bytes" in played.kinds


def test_a_hole_is_an_event_of_known_length() -> None:
    played = play(opening(), ONE, request(2), hole(7), response(2), quiet(70))
    assert (1, 7) in played.problems
    assert field_of(played.connection, CLIENT, "missing_total") == 7
