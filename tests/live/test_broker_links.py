"""Connections that are refused, and connections that their broker closed."""

from __future__ import annotations

import numpy as np
import pytest

from kdissect.live.brokers.broker_links import CLOSING_NS, IDLE_NS, STROKE_NS, Refusals, links_of
from kdissect.live.moment import Links
from kdissect.net.segment import ACK_FLAG, FIN, FLOW_COLUMNS, RST, SEGMENT, SEGMENT_COLUMNS

SECOND_NS = 1_000_000_000


def flow(client: str, broker: str) -> np.ndarray:
    """A row of flows of IPv4 endpoints `ip:port`, the client first."""

    def halves(place: str) -> tuple[int, int]:
        ip, port = place.split(":")
        return 0xFFFF << 32 | int.from_bytes(bytes(map(int, ip.split("."))), "big"), int(port)

    (a, a_port), (b, b_port) = halves(client), halves(broker)
    return np.array([[0, a, 0, b, a_port << 16 | b_port]], np.int64)


def segment(flags: int, seq: int = 0, time_ns: int = 7, side: int = 1) -> np.ndarray:
    rows = np.zeros((1, SEGMENT_COLUMNS), np.int64)
    rows[0, [SEGMENT.time, SEGMENT.flow, SEGMENT.seq, SEGMENT.flags]] = time_ns, side, seq, flags
    return rows


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (segment(RST | ACK_FLAG), {"10.0.0.9:9092": 7}),
        (segment(RST | ACK_FLAG, seq=12), {}),
        (segment(RST), {}),
        (segment(FIN | ACK_FLAG), {}),
        (segment(RST | ACK_FLAG, side=0), {}),
    ],
)
def test_what_refuses_a_connection(row: np.ndarray, found: dict[str, int]) -> None:
    refusals = Refusals()
    refusals.learn([("10.0.0.9:9092", "10.0.0.9", 9092)])
    refusals.read_segments(row, flow("10.0.0.1:40000", "10.0.0.9:9092"))
    assert refusals.latest_ns == found


def test_others_that_refuse_are_nobody() -> None:
    refusals = Refusals()
    refusals.learn([("[fd00::9]:9092", "fd00::9", 9092), ("10.0.0.9:9092", "10.0.0.9", 9092)])
    refusals.read_segments(segment(RST | ACK_FLAG), flow("10.0.0.1:40000", "10.0.0.8:9092"))
    assert not refusals.latest_ns


def test_an_ipv6_broker() -> None:
    refusals = Refusals()
    refusals.learn([("[fd00::9]:9092", "fd00::9", 9092)])
    high, low = int.from_bytes(bytes([0xFD, *[0] * 7]), "big", signed=True), 9
    row = np.array([[1, 2, high, low, 40000 << 16 | 9092]], np.int64)
    assert row.shape[1] == FLOW_COLUMNS
    refusals.read_segments(segment(RST | ACK_FLAG), row)
    assert refusals.latest_ns == {"[fd00::9]:9092": 7}


def test_links_of_a_broker() -> None:
    last = 100 * SECOND_NS
    rows = np.array(
        [
            [0, 1, 0, 1, -1, last], [1, 0, last, 0, 0, last - IDLE_NS], [2, 0, last - CLOSING_NS, 1, 1, last],
            [3, 0, last - CLOSING_NS - 1, 1, 1, last], [4, 0, last - STROKE_NS, 0, 1, 0],
            [5, 0, last - STROKE_NS, 0, -1, 0],
        ], np.int64,
    )  # fmt: skip
    names = ["shop", "till"]
    both = frozenset(names)
    assert links_of(rows, 5000, names) == Links(1, 4, last // 1000, 5, closed=3, left=both)
    assert links_of(rows[:2], 0, names) == Links(1, 0, last // 1000, 0, closed=1, left=frozenset({"shop"}))
    rows[1, 5] -= 1
    assert links_of(rows[:2], 0, names).left == frozenset(), "it was idle"
    assert links_of(rows[:0], 0, names) == Links(0, 0, 0, 0)
