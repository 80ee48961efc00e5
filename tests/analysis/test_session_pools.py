"""Pools of the session tracker: rows that are free, live or ended, and the tables that find them."""

from __future__ import annotations

import numpy as np

from kdissect.analysis.sessions import session_layout as c
from kdissect.analysis.sessions import session_pools as pools
from kdissect.kernels.structs import rows_of


def linked(state: c.State, rows: list[int]) -> None:
    """Link rows of partitions as ended ones."""
    for row, following in zip(rows, [*rows[1:], -1], strict=True):
        c.stay_at(state.stays, row).next = following
    state.count.ended_stays = len(rows)
    state.count.ended_stay, state.count.last_ended_stay = (rows[0], rows[-1]) if rows else (-1, -1)


def free(state: c.State) -> list[int]:
    """How many rows of partitions, sessions and lists are free."""
    return [int(count) for count in (state.count.stays_left, state.count.sessions_left, state.count.listed_left)]


def test_rows_that_ended_are_listed_in_their_order() -> None:
    state = c.State()
    linked(state, [5, 3, 9, 4])
    sessions, stays = np.zeros(0, np.int64), np.full(4, -7, np.int64)
    pools.list_ended(state.pools, sessions, stays)
    assert stays.tolist() == [5, 3, 9, 4]


def test_collected_rows_are_free_again_with_the_members_of_their_lists() -> None:
    state = c.State()
    before = free(state)
    linked(state, [5, 3, 9])
    session = c.session_at(state.sessions, 2)
    session.next, session.clients, session.connections = -1, 8, -1
    c.listed_at(state.listed, 8).next, c.listed_at(state.listed, 6).next = 6, -1
    state.count.ended_session = state.count.last_ended_session = 2
    state.count.ended_sessions = 1
    pools.free_ended(state.pools)
    assert [after - had for after, had in zip(free(state), before, strict=True)] == [3, 1, 2]
    following = rows_of(c.Stay, state.stays)["next"]
    assert (state.count.free_stay, following[9], following[3]) == (9, 3, 5)
    assert state.count.free_session == 2
    assert (state.count.ended_stays, state.count.ended_sessions, state.count.ended_stay) == (0, 0, -1)


def test_a_larger_table_has_the_same_partitions() -> None:
    state = c.State()
    stays = rows_of(c.Stay, state.stays)
    stays["session"][:100], stays["topic"][:100], stays["partition"][:100] = 1, 2, np.arange(100)
    stays["chain"][:100] = [*range(1, 100), -1]  # all in one bucket
    old, new = np.array([0, -1], np.int32), np.full(256, -1, np.int32)
    pools.rehash_stays(state.stays, old, new)
    found: list[int] = []
    for at in new[new >= 0].tolist():
        while at >= 0:
            found.append(at)
            at = int(stays["chain"][at])
    assert sorted(found) == list(range(100))
    assert (new >= 0).sum() > 60  # and they are spread


def test_remembered_ids_move_to_a_larger_table() -> None:
    old, new = c.empty_table(c.Remembered, 8), c.empty_table(c.Remembered, 32)
    old[[1, 4, 7]] = [[11, 1], [22, 2], [33, 3]]
    pools.rehash_remembered(old, new)
    assert sorted(new[new[:, 0] >= 0].tolist()) == [[11, 1], [22, 2], [33, 3]]
