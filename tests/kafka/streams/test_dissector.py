"""Segments in, exchanges out: the order of flows, frames' bytes, and dissectors that go on from another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdissect.capture.window import Window
from kdissect.kafka.streams.connection_kernel import LINGER_NS
from kdissect.kafka.streams.dissector import Dissector, by_flow
from kdissect.net.segment import SEGMENT, SEGMENT_COLUMNS, SYN
from tests.kafka.streams.playbook import (
    ISN,
    Step,
    opening,
    programs,
    request,
    request_bytes,
    reset,
    response,
    segments_of,
)

STEPS: list[Step] = [*opening(), *[step for n in range(6) for step in (request(n), response(n))]]


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(10, 2_000))
def test_rows_come_flow_by_flow_as_they_came(flows: list[int], known: int) -> None:
    rows = np.zeros((len(flows), SEGMENT_COLUMNS), np.int64)
    rows[:, SEGMENT.flow] = [2 * flow for flow in flows]
    assert by_flow(rows, known).tolist() == sorted(range(len(flows)), key=lambda row: flows[row])


def _fed(steps: list[Step]) -> tuple[Window, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    data = bytearray()
    rows = segments_of(steps, data, list(ISN))
    window = Window(1 << 16, 2)
    window.reset()
    window.advance(0, 0, 0)
    window.data[: len(data)] = np.frombuffer(bytes(data), np.uint8)
    window.grow(len(data))
    return window, rows


def _ids(dissector: Dissector, rows: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> list[int]:
    found = []
    for harvest in dissector.feed(rows, 1):
        found += harvest.exchanges["correlation"].tolist()
        dissector.used()
    return found


def _last(dissector: Dissector) -> list[int]:
    found = []
    for harvest in dissector.finish():
        found += harvest.exchanges["correlation"].tolist()
        dissector.used()
    return found


@pytest.mark.parametrize("cut", range(1, 15))
def test_another_goes_on_from_what_one_carried(cut: int) -> None:
    window, rows = _fed(STEPS)
    first = Dissector(window, programs())
    found = _ids(first, rows[:cut])
    first.settle()
    second = Dissector(window, programs())
    second.go_on({name: part.copy() for name, part in first.carried().items()})
    assert found + _ids(second, rows[cut:]) + _last(second) == list(range(6))


def test_the_bytes_of_a_frame() -> None:
    window, rows = _fed(STEPS)
    dissector = Dissector(window, programs())
    told = []
    for harvest in dissector.feed(rows, 1):
        told += [dissector.frame(row.request) for row in harvest.exchanges]
        dissector.used()
    assert told == [request_bytes(n)[4:] for n in range(6)]


def test_a_flow_is_free_again_when_its_connection_is_finished() -> None:
    window, rows = _fed(STEPS)
    dissector = Dissector(window, programs())
    _ids(dissector, rows)
    assert dissector.free_flows().tolist() == []
    _last(dissector)
    assert dissector.free_flows().tolist() == [0]


def test_now_is_the_latest_time_of_the_segments_fed_last() -> None:
    """Whatever their order; a block without any is no news."""
    window, rows = _fed(STEPS)
    dissector = Dissector(window, programs())
    early, late = rows[:4], rows[4:].copy()
    late[[0, -1], SEGMENT.time] = late[[-1, 0], SEGMENT.time]
    for fed in (early, late, late[:0]):
        _ids(dissector, fed)
        assert dissector.now == max((fed if len(fed) else late)[:, SEGMENT.time].tolist())


def test_what_the_last_block_finishes_comes_with_the_end() -> None:
    window, rows = _fed([*STEPS, request(6)])
    dissector = Dissector(window, programs())
    assert list(dissector.feed(rows, 1, last=True)) == []
    harvest = next(dissector.finish())
    assert harvest.exchanges["correlation"].tolist() == list(range(7))
    assert len(harvest.ended) == 1


def test_nothing_is_put_off_while_connections_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may come back in the midst of it, and room that is made for them takes away what was put off."""
    window, rows = _fed([*STEPS, request(6)])
    dissector = Dissector(window, programs())
    monkeypatch.setattr(dissector._parked, "count", 1)
    (harvest,) = dissector.feed(rows, 1, last=True)
    assert harvest.exchanges["correlation"].tolist() == list(range(6))


def test_it_comes_where_the_end_finishes_nothing() -> None:
    """The only connection ended long before a packet that begins none."""
    window, rows = _fed([*STEPS, reset(0)])
    later = rows[:1].copy()
    later[0, SEGMENT.time] = rows[-1, SEGMENT.time] + LINGER_NS + 1
    later[0, SEGMENT.flow], later[0, SEGMENT.flags], later[0, SEGMENT.len] = 2, SYN, 0
    dissector = Dissector(window, programs())
    assert list(dissector.feed(np.concatenate([rows, later]), 2, last=True)) == []
    first, silent = dissector.finish()
    assert first.exchanges["correlation"].tolist() == list(range(6))
    assert (len(first.ended), len(silent.silent)) == (1, 1)
