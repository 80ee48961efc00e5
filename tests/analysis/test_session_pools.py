"""Pools of the session tracker: rows that are free, live or ended, and the tables that find them."""

from __future__ import annotations

import numpy as np
import pytest

from kdissect.analysis.sessions import session_layout as c
from kdissect.analysis.sessions import session_pools as pools


def linked(state: c.State, rows: list[int]) -> None:
    """Link rows of partitions as ended ones."""
    for row, following in zip(rows, [*rows[1:], -1], strict=True):
        state.P[row, c.P_NEXT] = following
    state.M[c.M_ENDED_P], state.M[c.M_ENDED_P_LAST] = (rows[0], rows[-1]) if rows else (-1, -1)


@pytest.mark.parametrize("room", [0, 2, 4, 9])
def test_rows_of_a_list_are_written_as_far_as_there_is_room_and_all_are_counted(room: int) -> None:
    state, rows = c.State(), np.full(room, -7, np.int64)
    linked(state, [5, 3, 9, 4])
    assert pools.chain(state.P, 5, c.P_NEXT, rows) == 4
    assert rows.tolist() == ([5, 3, 9, 4] + [-7] * room)[:room]


def test_collected_rows_are_free_again_with_the_members_of_their_lists() -> None:
    state = c.State()
    before = state.M[[c.M_LEFT_P, c.M_LEFT_S, c.M_LEFT_N]].copy()
    linked(state, [5, 3, 9])
    state.S[2, [c.S_NEXT, c.S_CLIENTS, c.S_CONNECTIONS]] = -1, 8, -1
    state.N[8, c.N_NEXT], state.N[6, c.N_NEXT] = 6, -1
    state.M[c.M_ENDED_S] = state.M[c.M_ENDED_S_LAST] = 2
    pools.free_ended(state.S, state.P, state.N, state.M)
    assert (state.M[[c.M_LEFT_P, c.M_LEFT_S, c.M_LEFT_N]] - before).tolist() == [3, 1, 2]
    assert (state.M[c.M_FREE_P], state.P[9, c.P_NEXT], state.P[3, c.P_NEXT]) == (9, 3, 5)
    assert state.M[c.M_FREE_S] == 2
    assert state.M[[c.M_ENDED_P, c.M_ENDED_P_LAST, c.M_ENDED_S, c.M_ENDED_S_LAST]].tolist() == [-1] * 4


def test_a_larger_table_has_the_same_partitions() -> None:
    state = c.State()
    state.P[:100, c.P_SESSION], state.P[:100, c.P_TOPIC], state.P[:100, c.P_PARTITION] = 1, 2, np.arange(100)
    state.P[:100, c.P_CHAIN] = [*range(1, 100), -1]  # all in one bucket
    old, new = np.array([0, -1], np.int32), np.full(256, -1, np.int32)
    pools.rehash_partitions(state.P, old, new)
    found: list[int] = []
    for first in new[new >= 0].tolist():
        rows = np.empty(100, np.int64)
        found += rows[: pools.chain(state.P, first, c.P_CHAIN, rows)].tolist()
    assert sorted(found) == list(range(100))
    assert (new >= 0).sum() > 60  # and they are spread


def test_remembered_ids_move_to_a_larger_table() -> None:
    old, new = np.full((8, 2), -1, np.int64), np.full((32, 2), -1, np.int64)
    old[[1, 4, 7]] = [[11, 1], [22, 2], [33, 3]]
    pools.rehash_remembered(old, new)
    assert sorted(new[new[:, 0] >= 0].tolist()) == [[11, 1], [22, 2], [33, 3]]
