"""Connections from their first packet to their last, rule by rule of `connection_kernel`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdissect.kafka.streams import dissector, state
from kdissect.kafka.streams.connection_kernel import LINGER_NS
from kdissect.kernels.structs import offsets
from kdissect.net.segment import ACK_FLAG, FIN, SEGMENT_COLUMNS, SYN, segment_at
from kdissect.tcp.assembly import SETTLE_PACKETS
from kdissect.tcp.layout import CONTROL, UNTOLD, Control, End, control_at
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
    late,
    lost,
    opening,
    play,
    quiet,
    request,
    request_bytes,
    reset,
    response,
    sends,
)

ONE = [request(1), response(1)]
LINGER = LINGER_NS / MS
K = offsets(Control)


def ends(*steps: Any) -> list[int]:
    """How each connection ended."""
    return [int(row["end"]) for row in play(*steps).connections]


def test_the_handshake_tells_the_client() -> None:
    first = play(opening(), ONE).connection
    assert (int(first["client"]), int(first["start_seen"])) == (CLIENT, 1)
    other = play(Packet(BROKER, flags=SYN), Packet(CLIENT, flags=SYN | ACK_FLAG), Packet(BROKER)).connection
    assert int(other["client"]) == BROKER


def test_only_the_answering_syn_was_captured() -> None:
    one = play(
        Packet(CLIENT, flags=SYN), changed(seen=False), Packet(BROKER, flags=SYN | ACK_FLAG), Packet(CLIENT), ONE
    )
    assert (one.statuses, int(one.connection["client"]), int(one.connection["start_seen"])) == (["ok"], CLIENT, 0)


def test_a_syn_captured_late_still_says_where_the_stream_begins() -> None:
    one = play(Packet(CLIENT, flags=SYN), late(3), Packet(BROKER, flags=SYN | ACK_FLAG), Packet(CLIENT), ONE)
    assert (one.statuses, len(one.connections)) == (["ok"], 1)


@pytest.mark.parametrize(
    ("last", "end"),
    [
        ([closing(CLIENT), closing(BROKER)], End.FIN),
        ([closing(CLIENT)], End.OPEN),
        ([reset(BROKER)], End.RST),
        ([], End.OPEN),
    ],
)
def test_how_a_connection_ends(last: list[Packet], end: int) -> None:
    assert ends(opening(), ONE, last) == [end]


def test_both_fins_end_a_connection_that_was_met_in_its_middle() -> None:
    bare = [Packet(side, flags=FIN | ACK_FLAG) for side in (BROKER, CLIENT)]
    assert ends(ONE[0], bare[0], closing(CLIENT)) == [End.FIN]
    assert ends(bare) == [End.FIN]
    assert ends(bare[0], bare[0]) == [End.OPEN]


def test_a_syn_after_both_fins_begins_a_new_connection() -> None:
    before = [Packet(side, seq=ISN[side] + 5_000_000, flags=FIN | ACK_FLAG) for side in (BROKER, CLIENT)]
    played = play(before, opening(), ONE, closing(CLIENT), closing(BROKER))
    assert [int(row["end"]) for row in played.connections] == [End.FIN, End.FIN]
    assert [int(row["start_seen"]) for row in played.connections] == [0, 1]
    assert [int(row["closer"]) for row in played.connections] == [UNTOLD, 1 + CLIENT]


def test_a_reset_after_both_fins_changes_nothing() -> None:
    assert ends(opening(), ONE, closing(CLIENT), closing(BROKER), reset(CLIENT)) == [End.FIN]


def test_a_syn_of_another_number_begins_a_new_connection() -> None:
    again = Packet(CLIENT, flags=SYN, seq=ISN[CLIENT] + 5_000_000)
    played = play(opening(), ONE, request(2), again)
    assert [int(row["end"]) for row in played.connections] == [End.REPLACED, End.OPEN]
    assert played.statuses == ["ok", "unanswered"]
    assert [int(row["number"]) for row in played.connections] == [0, 1]


def test_the_same_syn_again_does_not() -> None:
    assert ends(opening(), ONE, Packet(CLIENT, flags=SYN, seq=ISN[CLIENT], after=500)) == [End.OPEN]


def test_a_syn_where_none_was_captured() -> None:
    """Late, it belongs to the connection if it can be the one that began it; a far one begins another."""
    body = [ONE, [acknowledges(BROKER) for _ in range(SETTLE_PACKETS + 2)]]
    began = Packet(CLIENT, flags=SYN, seq=ISN[CLIENT] - 1, viewpoint=4)
    assert ends(*body, began) == [End.OPEN]
    assert ends(*body, Packet(CLIENT, flags=SYN, seq=ISN[CLIENT] - 1)) == [End.REPLACED, End.OPEN]
    assert ends(*body, Packet(CLIENT, flags=SYN, seq=ISN[CLIENT] + 9_000_000, viewpoint=4)) == [End.REPLACED, End.OPEN]


def test_a_packet_long_after_the_end_begins_a_new_connection() -> None:
    over = [opening(), ONE, closing(CLIENT), closing(BROKER)]
    assert ends(over, acknowledges(CLIENT, after=LINGER + 5)) == [End.FIN, End.OPEN]
    assert ends(over, acknowledges(CLIENT, after=LINGER - 5)) == [End.FIN]
    assert ends(opening(), ONE, acknowledges(CLIENT, after=2 * LINGER)) == [End.OPEN]


def test_an_ended_connection_is_finished_once_it_lingered() -> None:
    over = [*opening(), *ONE, closing(CLIENT), closing(BROKER)]
    played = play(blocks=[over, [acknowledges(BROKER, after=LINGER + 9, flags=ACK_FLAG)]], finish=False)
    assert [int(row["end"]) for row in played.connections] == [End.FIN]


def test_finishing_gives_up_holes_and_frames_that_were_begun() -> None:
    played = play(opening(), ONE, request(2), lost(), request(3), cut_up(request(4), 20)[0], acknowledges(BROKER))
    assert played.kinds == ["missing_bytes", "unfinished_frame"]
    assert played.statuses[0] == "ok"


def test_what_was_held_comes_in_order_of_arrival_until_the_sides_are_known() -> None:
    """Both directions are met in their middle, the responses' first bytes are early ones."""
    steps = [response(0), late(3), request(1), late(1), response(1), request(2), response(2)]
    assert play(steps, quiet(SETTLE_PACKETS)).statuses[:2] == ["ok", "ok"]


def test_rows_are_the_same_however_the_input_is_cut_into_blocks() -> None:
    steps = [*opening(), *[step for n in range(6) for step in (request(n), response(n))]]
    whole = play(steps).exchanges
    for at in range(1, len(steps)):
        rows = play(blocks=[steps[:at], steps[at:]]).exchanges
        assert [row.tolist() for row in rows] == [row.tolist() for row in whole]


@pytest.mark.parametrize("margin", ["X", "NODES"])
def test_a_kernel_stops_where_room_runs_out_and_goes_on(margin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dissector whose rows are almost full: each step is told to wait, and nothing is lost."""
    steps = [
        *opening(),
        *[step for n in range(40) for step in (request(n), response(n))],
        request(99),
        lost(),
        request(100),
    ]
    expected = play(steps, acknowledges(BROKER), quiet(70)).statuses
    real = dissector.run
    calls = []

    def tight(M: Any, *rest: Any) -> Any:
        word = K.out if margin == "X" else K.nodes_left
        kept = M[word]
        calls.append(int(kept))
        if len(calls) % 2:
            M[word] = state.X_ROWS if margin == "X" else 0
            done = real(M, *rest)
            M[word] = kept
            return done
        return real(M, *rest)

    monkeypatch.setattr(dissector, "run", tight)
    assert play(steps, acknowledges(BROKER), quiet(70)).statuses == expected
    assert len(calls) > 2


def test_room_that_runs_out_in_the_middle_of_a_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits behind a hole makes more than fits: the packet is taken once, and what it set free comes later."""
    frames = [Packet(CLIENT, request_bytes(n)) for n in range(2, 40)]
    steps = [*opening(), *ONE, request(1), late(60), *frames, acknowledges(BROKER)]
    expected = play(steps, quiet(30)).statuses
    real = dissector.run

    def tight(M: Any, *rest: Any) -> Any:
        control = control_at(M, CONTROL)
        kept = int(control.requests_left)
        control.requests_left = state.MARGIN + 2
        done = real(M, *rest)
        control.requests_left += kept - state.MARGIN - 2
        return done

    monkeypatch.setattr(dissector, "run", tight)
    played = play(steps, quiet(30))
    assert played.statuses == expected


class Opener:
    """An unsealer that opens nothing, or gives each piece back as it is."""

    def __init__(self, opens: bool) -> None:
        self.opens = opens
        self.rows: list[Any] = []

    def open(self, rows: Any, pieces: Any, M: Any, window: Any) -> Any:
        self.rows += rows.tolist()
        if self.opens:
            for row, data in zip(rows, pieces, strict=True):
                if data.startswith(HELLO):
                    continue
                at = window.extra(data) if row["at"] >= 0 else -1
                size = int(row["wire"])
                have = len(data) if at >= 0 else 0
                plain = np.zeros((1, SEGMENT_COLUMNS), np.int64)
                segment = segment_at(plain, 0)
                segment.time, segment.flow = row["time"], row["connection"] << 1 | row["direction"]
                segment.seq, segment.packet = row["packets"], row["packet"]
                segment.at, segment.len, segment.wire = at, have, size
                yield plain


HELLO = b"\x16\x03\x01\0\x40\x01" + b"\0" * 63


def test_a_sealed_connection_goes_to_the_host_and_comes_back() -> None:
    host = Opener(True)
    hello = [*sends(CLIENT, HELLO), *sends(BROKER, HELLO)]
    played = play(opening(), hello, ONE, request(2), lost(), request(3), acknowledges(BROKER), quiet(70), unsealer=host)
    assert played.statuses[0] == "ok"
    assert int(played.connection["sealed"]) == 1
    assert [row[3] for row in host.rows].count(-1) == 1


def test_a_sealed_connection_that_stays_closed() -> None:
    host = Opener(False)
    played = play(opening(), sends(CLIENT, HELLO), sends(BROKER, HELLO), ONE, unsealer=host)
    assert (played.statuses, len(host.rows)) == ([], 4)
    without = play(opening(), sends(CLIENT, HELLO), sends(BROKER, HELLO), ONE)
    assert (without.statuses, int(without.connection["sealed"])) == ([], 0)


def test_tls_met_in_its_middle_is_only_named() -> None:
    data = b"\x17\x03\x03\0\x20" + b"\xaa" * 32
    played = play(sends(CLIENT, data, data), sends(BROKER, data), unsealer=Opener(False))
    assert int(played.connection["sealed"]) == 0
    assert int(played.connection["directions"][0]["begin16a"]) >> 40 == 0x170303
