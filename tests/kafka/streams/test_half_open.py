"""Connections without a payload byte: what is remembered of them, and that waiting changes nothing."""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams.half_open import CHUNK, MOST, HalfOpen
from kdissect.kernels.structs import record
from kdissect.net.segment import ACK_FLAG, FLOW, RST, SEGMENT_COLUMNS, SYN, TIME, Segment
from kdissect.tcp.layout import End
from tests.kafka.streams.playbook import MS, Packet, opening, play, request, response


def packets(count: int, flags: int = SYN, first: int = 0, begin: int = 0) -> np.ndarray:
    """A packet without payload for each of so many flows."""
    rows = np.zeros(count, record(Segment))
    rows["flow"] = (first + np.arange(count)) * 2 + 1
    rows["time"] = 10**18 + (begin + np.arange(count)) * MS
    rows["seq"] = np.arange(count) * 7919 % (1 << 32)
    rows["flags"] = flags | 1024 << 8
    rows["packet"] = begin + 1 + np.arange(count)
    rows["viewpoint"] = np.where(np.arange(count) % 3 == 0, -5, 0)
    return rows.view(np.int64).reshape(count, SEGMENT_COLUMNS)


def test_what_waits_comes_back_as_it_was_from_packed_chunks_too() -> None:
    count = CHUNK + 1000
    conn_of = np.full(count, -1, np.int64)
    waiting = HalfOpen()
    syn, reset = packets(count), packets(count, RST | ACK_FLAG, begin=count)
    for rows in (syn, reset):
        left, order = waiting.sort_out(rows, np.arange(count), conn_of)
        assert left is rows
        assert not len(order)
    flows = np.array([count - 1, 0, 5])
    back = waiting.take(flows, conn_of)
    want = np.concatenate([[syn[flow], reset[flow]] for flow in sorted(flows.tolist())])
    assert (back == want).all()
    assert (conn_of[flows] == -1).all()
    carried = waiting.carried(conn_of)
    assert len(carried) == 2 * (count - 3)
    other, known = HalfOpen(), conn_of.copy()
    other.go_on(carried, known)
    assert (other.carried(known) == carried).all()
    taken = [flow for lot in waiting.lots(conn_of) for flow in waiting.take(lot, conn_of)[:, FLOW].tolist()]
    assert len(taken) == 2 * (count - 3)
    assert (conn_of == -1).all()


def test_those_without_packets_since_then() -> None:
    conn_of = np.full(20, -1, np.int64)
    waiting = HalfOpen()
    early, late = packets(15), packets(10, first=10, begin=100)  # flows 10 to 14 have packets of both times
    for rows in (early, late):
        waiting.sort_out(rows, np.arange(len(rows)), conn_of)
    found = np.concatenate(
        [lot for lot in waiting.lots(conn_of, int(late[0, TIME])) if len(waiting.take(lot, conn_of))]
    )
    assert sorted(found.tolist()) == list(range(10))
    assert (conn_of[10:] <= -2).all()


def test_payload_or_many_packets_end_the_waiting() -> None:
    conn_of = np.full(2, -1, np.int64)
    waiting = HalfOpen()
    one = packets(1)
    for n in range(MOST):
        _, order = waiting.sort_out(one + 0, np.arange(1), conn_of)
        assert not len(order), n
    rows, order = waiting.sort_out(one, np.arange(1), conn_of)
    assert rows[order, TIME].tolist() == [one[0, TIME]] * (MOST + 1)


def test_one_packet_tells_who_asked() -> None:
    conn_of = np.full(8, -1, np.int64)
    waiting = HalfOpen()
    rows = np.concatenate([packets(1, flags, i) for i, flags in enumerate([SYN, SYN | ACK_FLAG, RST, ACK_FLAG])])
    waiting.sort_out(rows, np.arange(4), conn_of)
    found, others = waiting.single(np.arange(4), conn_of)
    assert not len(others)
    assert found["client"].tolist() == [1, 0, -1, -1]
    assert found["start_seen"].tolist() == [1, 0, 0, 0]
    assert found["end"].tolist() == [End.OPEN, End.OPEN, End.RST, End.OPEN]


def test_a_handshake_in_a_block_of_its_own_changes_nothing() -> None:
    exchange = [request(1), response(1)]
    together, apart = play(*opening(), *exchange), play(*opening(), blocks=[exchange])
    assert apart.statuses == together.statuses == ["ok"]
    assert [row.tobytes() for row in apart.connections] == [row.tobytes() for row in together.connections]


def test_a_silent_connection_takes_no_struct() -> None:
    played = play(Packet(0, flags=SYN), finish=False)
    assert (played.dissector.conn_of[:1] <= -2).all()
