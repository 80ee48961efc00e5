"""Rows of matrices that lie behind one another in memory, and room behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kdissect.arrays.arrow import Growing, Int64s, Room, in_one_piece

ROWS = np.arange(30).reshape(10, 3)


def test_neighbours_in_memory_are_a_view_and_others_a_copy() -> None:
    memory = ROWS.copy()
    none = memory[:0]
    for parts, shared in (
        ([memory[2:4], memory[4:5]], True),
        ([none, memory[2:4], none, memory[4:5], memory[5:9]], True),
        ([memory[3:8]], True),
        ([memory[2:4], memory[5:6]], False),
        ([memory[4:5], memory[2:4]], False),
        ([memory[2:4], memory[4:5].copy()], False),
    ):
        found = in_one_piece(parts)
        assert found.tolist() == np.concatenate(parts).tolist()
        assert np.shares_memory(found, memory) == shared
    assert in_one_piece([none, none]).shape == (0, 3)


def test_rows_that_wait_stay_where_they_are_as_long_as_there_is_room() -> None:
    """Kept rows and those behind them move only when the end is reached; then they may overlap themselves."""
    room = Room(3)
    expected: list[list[int]] = []
    kept = left = np.zeros((0, 3), np.int64)
    moved = 0
    for step in range(40):
        before = in_one_piece([kept, left])
        rows = room.behind([kept, left], 7)
        assert rows[: len(expected)].tolist() == expected
        moved += not (len(before) and before.ctypes.data == rows.ctypes.data)
        rows[len(expected) :] = np.arange(21).reshape(7, 3) + 100 * step
        kept, left = rows[-5:-3], rows[-3:]
        expected = rows[-5:].tolist()
    assert 1 < moved < 40


def test_of_lists_that_grow_only_what_is_new_is_looked_at() -> None:
    """Of a few lists by turns, by what they hold; a list that begins otherwise is looked at whole."""
    looked: list[str] = []

    def work(values: Sequence[str]) -> Int64s:
        looked.extend(values)
        return np.array([[len(value) for value in values], [ord(value[0]) for value in values]], np.int64)

    growing = Growing()
    assert growing.of([], work).tolist() == [[-1], [-1]]
    assert growing.of(["a", "bb"], work).tolist() == [[1, 2, -1], [97, 98, -1]]
    assert growing.of(["c"], work).tolist() == [[1, -1], [99, -1]]
    assert growing.of(["a", "bb", "d"], work).tolist() == [[1, 2, 1, -1], [97, 98, 100, -1]]
    assert growing.of(["c", "e"], work).tolist() == [[1, 1, -1], [99, 101, -1]]
    assert looked == ["a", "bb", "c", "d", "e"]
    assert growing.of(["a", "f"], work).tolist() == [[1, 1, -1], [97, 102, -1]]
    growing.forget()
    assert growing.of(["c"], work).tolist() == [[1, -1], [99, -1]]
    assert looked[5:] == ["a", "f", "c"]
