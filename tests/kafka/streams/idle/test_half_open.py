"""Half-open connections: what is remembered of them, and that waiting changes nothing."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import kdissect
from kdissect.capture.window import Window
from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.idle import half_open
from kdissect.kafka.streams.idle.byte_store import STORED
from kdissect.kafka.streams.idle.half_open import ALL, MOST, HalfOpen
from kdissect.kafka.streams.idle.waiting_packets import CHUNK, silent_rows
from kdissect.kernels.structs import record
from kdissect.net.segment import ACK_FLAG, RST, SEGMENT, SEGMENT_COLUMNS, SYN, Segment
from kdissect.tcp.layout import End
from tests.fuzz.metamorphic import small_blocks
from tests.kafka.streams.playbook import (
    MS,
    Packet,
    opening,
    play,
    programs,
    request,
    request_bytes,
    response,
)
from tests.oracle.pcap import (
    Talk,
    api_versions_request,
    api_versions_response,
    metadata_request,
    metadata_response,
    pcap,
    produce_request,
)


def packets(count: int, flags: int = SYN, first: int = 0, begin: int = 0) -> np.ndarray:
    """A packet without payload for each of so many flows."""
    rows = np.zeros(count, record(Segment))
    rows["flow"] = (first + np.arange(count)) * 2 + 1
    rows["time"] = 10**18 + (begin + np.arange(count)) * MS
    rows["seq"] = np.arange(count) * 7919 % (1 << 32)
    rows["flags"] = flags | 1024 << 8
    rows["packet"] = begin + 1 + np.arange(count)
    rows["viewpoint"] = np.where(np.arange(count) % 3 == 0, -5, 0)
    rows["stamp"] = 1 + np.arange(count) * 10
    return rows.view(np.int64).reshape(count, SEGMENT_COLUMNS)


def put(waiting: HalfOpen, rows: np.ndarray, conn_of: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort rows out, in each of which no request is."""
    order = np.argsort(rows[:, SEGMENT.flow] >> 1, kind="stable")
    return waiting.sort_out(rows, order, conn_of, lambda asked: np.zeros(len(asked), np.bool_))


def back(waiting: HalfOpen, flows: np.ndarray, conn_of: np.ndarray) -> np.ndarray:
    """Rows of flows that come back."""
    return np.concatenate(list(waiting.back(flows, conn_of, Window(1 << 12, 2), 1 << 10)))


class Speakers:
    """A dissector, and flows of one packet with a payload each, of their own bytes, which lie in its window."""

    def __init__(self, sizes: list[int], repeated: int = 1) -> None:
        self.payloads = [bytes([65 + i % 26]) * size for i, size in enumerate(sizes * repeated)]
        data = b"".join(self.payloads)
        self.window = Window(max(len(data), 1 << 12), 2)
        self.window.advance(0, 0, 0)
        self.window.data[: len(data)] = np.frombuffer(data, np.uint8)
        self.window.grow(len(data))
        self.dissector = Dissector(self.window, programs())
        self.rows = packets(len(self.payloads), ACK_FLAG)
        length = np.array([len(payload) for payload in self.payloads])
        self.rows[:, SEGMENT.len] = self.rows[:, SEGMENT.wire] = length
        self.rows[:, SEGMENT.at] = np.cumsum(length) - length

    def feed(self) -> HalfOpen:
        """Give the dissector all of them, which it lays aside."""
        assert not [row for harvest in self.dissector.feed(self.rows, len(self.rows)) for row in harvest.ended]
        return self.dissector._half_open

    def bytes_of(self, rows: np.ndarray) -> list[bytes]:
        """The payloads of segment rows."""
        return [self.dissector._bytes(*one) for one in rows[:, [SEGMENT.at, SEGMENT.len]].tolist()]


def test_what_waits_comes_back_as_it_was_from_packed_chunks_too() -> None:
    count = CHUNK + 1000
    conn_of = np.full(count, -1, np.int64)
    waiting = HalfOpen()
    nothing = np.zeros(0, np.uint8)
    syn, reset = packets(count), packets(count, RST | ACK_FLAG, begin=count)
    for rows in (syn, reset):
        left, order, later = put(waiting, rows, conn_of)
        assert left is rows
        assert not len(order)
        assert not len(later)
        waiting.leave(np.zeros(0, np.int64), nothing, nothing, 0, 0)
    flows = np.array([0, 5, count - 1])
    found = back(waiting, flows, conn_of)
    want = np.concatenate([[syn[flow], reset[flow]] for flow in flows.tolist()])
    assert (found == want).all()
    assert (conn_of[flows] == -1).all()
    carried, stored = waiting.carried(conn_of)
    assert len(carried) == 2 * (count - 3)
    other, known = HalfOpen(), conn_of.copy()
    other.go_on(carried, stored, known)
    assert (other.carried(known)[0] == carried).all()
    taken = [flow for lot in waiting.lots(conn_of) for flow in back(waiting, lot, conn_of)[:, SEGMENT.flow].tolist()]
    assert len(taken) == 2 * (count - 3)
    assert (conn_of == -1).all()


def test_those_without_packets_since_then() -> None:
    conn_of = np.full(20, -1, np.int64)
    waiting = HalfOpen()
    early, late = packets(15), packets(10, first=10, begin=100)  # flows 10 to 14 have packets of both times
    for rows in (early, late):
        put(waiting, rows, conn_of)
    found = np.concatenate(
        [lot for lot in waiting.lots(conn_of, int(late[0, SEGMENT.time])) if len(back(waiting, lot, conn_of))]
    )
    assert sorted(found.tolist()) == list(range(10))
    assert (conn_of[10:] <= -2).all()


def test_many_packets_end_the_waiting() -> None:
    conn_of = np.full(2, -1, np.int64)
    waiting = HalfOpen()
    one = packets(1)
    for n in range(MOST):
        _, order, _ = put(waiting, one + 0, conn_of)
        assert not len(order), n
    rows, order, _ = put(waiting, one, conn_of)
    assert rows[order, SEGMENT.time].tolist() == [one[0, SEGMENT.time]] * (MOST + 1)
    assert rows[order, SEGMENT.stamp].tolist() == [one[0, SEGMENT.stamp]] * (MOST + 1)


def test_one_packet_tells_who_asked() -> None:
    conn_of = np.full(8, -1, np.int64)
    waiting = HalfOpen()
    rows = np.concatenate([packets(1, flags, i) for i, flags in enumerate([SYN, SYN | ACK_FLAG, RST, ACK_FLAG])])
    put(waiting, rows, conn_of)
    found, others = waiting.single(np.arange(4), conn_of)
    assert not len(others)
    assert found["client"].tolist() == [1, 0, -1, -1]
    assert found["start_seen"].tolist() == [1, 0, 0, 0]
    assert found["end"].tolist() == [End.OPEN, End.OPEN, End.RST, End.OPEN]
    assert (found == silent_rows(rows)).all()


def test_payloads_are_stored_when_the_window_forgets_them() -> None:
    """Until then they stay where they are: who comes back meanwhile has them there."""
    all_of = Speakers([100, 200, 300])
    waiting, conn_of = all_of.feed(), all_of.dissector.conn_of
    assert waiting.earliest() == all_of.rows[0, SEGMENT.time]
    dissector = all_of.dissector
    waiting.leave(dissector.M, all_of.window.data, dissector.A, 0, 150)
    near = np.concatenate(list(waiting.back(np.array([2]), conn_of, all_of.window, 1 << 10)))
    assert near[:, SEGMENT.at].tolist() == all_of.rows[2:, SEGMENT.at].tolist()
    waiting.leave(dissector.M, all_of.window.data, dissector.A, 0, 700)
    assert waiting.carried(conn_of)[0][:, SEGMENT.at].min() >= STORED
    all_of.window.data[:700] = 0
    stored = np.concatenate(list(waiting.back(np.array([0, 1]), conn_of, all_of.window, 1 << 10)))
    dissector._aim()
    assert all_of.bytes_of(stored) == all_of.payloads[:2]
    assert (
        stored[:, [SEGMENT.time, SEGMENT.wire, SEGMENT.len, SEGMENT.stamp]]
        == all_of.rows[:2][:, [SEGMENT.time, SEGMENT.wire, SEGMENT.len, SEGMENT.stamp]]
    ).all()
    assert waiting.earliest() == ALL


def test_stored_bytes_come_back_some_at_a_time_and_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdissect.kafka.streams.idle.byte_store.IN_MEMORY", 1 << 20)
    all_of = Speakers([60_000, 1, 40_000], 100)
    waiting, dissector = all_of.feed(), all_of.dissector
    dissector.settle()
    flows = np.arange(len(all_of.rows))
    assert sum(len(rows) for rows, _ in [waiting.carried(dissector.conn_of)]) == len(flows)
    lots = []
    for rows in waiting.back(flows, dissector.conn_of, all_of.window, 1 << 10):
        lots.append(rows)
        first, last = rows[[0, -1], SEGMENT.flow] >> 1
        assert all_of.bytes_of(rows) == all_of.payloads[first : last + 1]
    assert len(lots) > 5
    assert (np.concatenate(lots)[:, SEGMENT.flow] == all_of.rows[:, SEGMENT.flow]).all()


def test_a_carried_payload_goes_on() -> None:
    all_of = Speakers([60_000, 1, 40_000], 100)
    waiting, dissector = all_of.feed(), all_of.dissector
    dissector.settle()
    carried = waiting.carried(dissector.conn_of)
    other, known = HalfOpen(), dissector.conn_of.copy()
    other.go_on(*carried, known)
    rows = np.concatenate(list(other.back(np.arange(3), known, all_of.window, 1 << 10)))
    assert all_of.bytes_of(rows) == all_of.payloads[:3]


def test_a_second_payload_ends_the_waiting() -> None:
    all_of = Speakers([10, 20])
    waiting, conn_of = all_of.feed(), all_of.dissector.conn_of
    assert (conn_of[:2] <= -2).all()
    rows, order, later = put(waiting, all_of.rows[1:], conn_of)
    assert rows[order].tolist() == [all_of.rows[1].tolist()] * 2
    assert not len(later)
    assert (conn_of[0] <= -2, conn_of[1]) == (True, -1)


def test_a_request_is_followed_at_once() -> None:
    """Somebody waits for its answer; what only looks like the beginning of one waits."""
    for packet, waits in ((request(1), False), (Packet(0, request_bytes(1)[:20]), True), (response(1), True)):
        played = play(packet, finish=False)
        assert played.dissector is not None
        assert (played.dissector.conn_of[0] <= -2) == waits


def few_words(chance: random.Random) -> bytes:
    """A payload as a scanner, a client or a broker sends it, or nearly so."""
    messages = (
        api_versions_request(chance.randrange(99)), metadata_request(7, ["orders"]), produce_request(3, 1),
        api_versions_response(chance.randrange(99)), metadata_response(7), b"GET / HTTP/1.1\r\n\r\n",
        bytes.fromhex("160301003a010000360303") + bytes(50), bytes(40), chance.randbytes(chance.randrange(1, 1400)),
    )  # fmt: skip
    payload = bytearray(chance.choice(messages))
    how = chance.randrange(6)
    if how == 0:
        payload = payload[: chance.randrange(1, len(payload) + 1)]
    elif how == 1:
        payload[chance.randrange(len(payload))] = chance.randrange(256)
    elif how == 2:
        payload = bytearray(chance.randbytes(chance.randrange(1, 30))) + payload
    elif how == 3:
        payload += chance.choice(messages)
    return bytes(payload)


def short_talks(count: int, seed: int) -> bytes:
    """A capture of connections with few packets each, in an order of their own, far apart."""
    chance = random.Random(seed)
    packets: list[tuple[int, bytes]] = []
    for number in range(count):
        talk = Talk(("10.0.1.1", 1024 + number), client_isn=chance.randrange(1 << 32))
        now = chance.random() * 1000
        if chance.random() < 0.4:
            talk.handshake(now)
        at = [0, 0]
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            now += chance.choice((1, 1, 300))
            side, payload = chance.randrange(2), few_words(chance)
            talk.put(now, side, at[side], payload)
            at[side] += len(payload)
            if chance.random() < 0.2:
                talk.put(now + 0.5, 1 - side, at[1 - side], b"", chance.choice((16, 17, 4)))
        packets += talk.packets
    return pcap(sorted(packets))


@pytest.mark.parametrize("jobs", [1, 2])
def test_payloads_that_wait_change_no_table(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "talks.pcap"
    path.write_bytes(short_talks(600, jobs))
    with small_blocks():
        waited = kdissect.open(path, jobs=jobs).tables()
        monkeypatch.setattr(half_open, "MOST_BYTES", 0)
        followed = kdissect.open(path, jobs=jobs).tables()
    assert waited["exchanges"].num_rows > 60
    assert [name for name, table in waited.items() if not table.equals(followed[name])] == []


def test_a_handshake_in_a_block_of_its_own_changes_nothing() -> None:
    exchange = [request(1), response(1)]
    together, apart = play(*opening(), *exchange), play(*opening(), blocks=[exchange])
    assert apart.statuses == together.statuses == ["ok"]
    assert [row.tobytes() for row in apart.connections] == [row.tobytes() for row in together.connections]


def test_a_silent_connection_takes_no_struct() -> None:
    played = play(Packet(0, flags=SYN), finish=False)
    assert (played.dissector.conn_of[:1] <= -2).all()
