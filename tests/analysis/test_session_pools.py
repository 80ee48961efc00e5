"""Pools of the session tracker: rows that are free, live or ended, and the tables that find them."""

from __future__ import annotations

import numpy as np
import pytest

from kdissect.analysis.sessions import session_layout as c
from kdissect.analysis.sessions import session_pools as pools

NAME_BYTES = 5


def with_partitions(count: int) -> tuple[c.State, int]:
    """A state with a session of so many partitions of two topics, and the session's row."""
    state = c.State()
    state.reserve(1, count, 0)
    session = int(state.M[c.M_FREE_S])
    state.S[session] = 0
    state.S[session, c.S_FIRST_PARTITION] = -1
    for number in range(count):
        pools.add_partition(
            state.S, state.P, state.V, state.T, state.PH, state.TH, state.M, session, number % 2, number, 3, NAME_BYTES
        )
    return state, session


@pytest.mark.parametrize("count", [1, 7, 300])
def test_partitions_are_found_until_they_leave(count: int) -> None:
    state, session = with_partitions(count)
    assert state.S[session, c.S_SIZE] == state.M[c.M_LIVE_P] == count
    for number in range(count):
        at = pools.find_partition(state.P, state.PH, session, number % 2, number)
        assert state.P[at, c.P_PARTITION] == number
        assert pools.find_partition(state.P, state.PH, session, 1 - number % 2, number) == -1
    names = np.full(2, NAME_BYTES)
    pools.release_set(state.S, state.P, state.T, state.PH, state.TH, state.M, session, names)
    assert state.S[session, c.S_SIZE] == state.S[session, c.S_TOPICS] == state.M[c.M_LIVE_P] == 0
    assert state.S[session, c.S_PLAIN] == state.S[session, c.S_COMPACT] == state.S[session, c.S_COUNTS] == 0
    assert pools.find_partition(state.P, state.PH, session, 0, 0) == -1


def test_ended_rows_are_listed_once_and_are_free_again() -> None:
    state, session = with_partitions(20)
    left = int(state.M[c.M_LEFT_P])
    pools.release_set(state.S, state.P, state.T, state.PH, state.TH, state.M, session, np.full(2, NAME_BYTES))
    rows = np.empty(4, np.int64)
    assert pools.chain(state.P, int(state.M[c.M_ENDED_P]), c.P_NEXT, rows) == 20  # more than there is room for
    rows = np.empty(20, np.int64)
    pools.chain(state.P, int(state.M[c.M_ENDED_P]), c.P_NEXT, rows)
    assert len(set(rows.tolist())) == 20
    pools.free_ended(state.S, state.P, state.N, state.M)
    assert state.M[c.M_LEFT_P] == left + 20
    assert state.M[c.M_ENDED_P] == -1


def test_a_larger_table_finds_the_same_partitions() -> None:
    state, session = with_partitions(100)
    larger = np.full(1 << 10, -1, np.int32)
    pools.rehash_partitions(state.P, state.PH, larger)
    for number in range(100):
        old = pools.find_partition(state.P, state.PH, session, number % 2, number)
        assert pools.find_partition(state.P, larger, session, number % 2, number) == old >= 0


def test_members_are_listed_once_up_to_a_bound() -> None:
    state = c.State()
    state.reserve(0, 0, 100)
    state.S[0, c.S_CLIENTS] = -1
    for value in [*range(90), 3, 3]:
        pools.note_member(state.S, state.N, state.M, 0, c.S_CLIENTS, value)
    rows = np.empty(100, np.int64)
    count = pools.chain(state.N, int(state.S[0, c.S_CLIENTS]), c.N_NEXT, rows)
    assert state.N[rows[:count], c.N_VALUE].tolist() == list(range(pools.MAX_NAMES))


@pytest.mark.parametrize(("value", "size"), [(0, 1), (127, 1), (128, 2), (16383, 2), (16384, 3)])
def test_varints(value: int, size: int) -> None:
    assert pools.varint_bytes(value) == size
