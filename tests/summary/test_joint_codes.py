"""Codes of combinations, against numpy's own sorting of rows."""

from __future__ import annotations

import numpy as np
import pytest

from kdissect.summary import pace
from kdissect.summary.joint_codes import DENSE, combined, compressed, joint, tallied


@pytest.mark.parametrize("space", [10, DENSE, 50 * DENSE, 1 << 60])
def test_codes_are_as_small_as_they_can_be(space: int) -> None:
    values = np.random.default_rng(1).integers(0, space, 3000)
    codes, kept = compressed(values, space)
    assert np.array_equal(kept, np.unique(values))
    assert np.array_equal(kept[codes], values)
    codes, kept = compressed(values[:0], space)
    assert not len(codes)
    assert not len(kept)


@pytest.mark.parametrize("far", [3, 1 << 31, 1 << 62])
def test_rows_that_are_equal_have_one_code(far: int) -> None:
    random = np.random.default_rng(2)
    columns = [random.integers(-1, 4, 500), random.integers(0, 3, 500) * (far // 2) - far, random.integers(-9, 9, 500)]
    codes, rows = joint(columns)
    table = np.stack(columns, axis=1)
    assert len(rows) == len({tuple(row) for row in table.tolist()})
    assert np.array_equal(table[rows][codes], table)
    assert [codes.tolist().index(code) for code in range(len(rows))] == rows.tolist()
    assert [len(one) for one in joint([column[:0] for column in columns])] == [0, 0]


@pytest.mark.parametrize("size", [0, 1, 2000])
def test_combinations_stand_in_the_order_of_their_columns(size: int) -> None:
    """By the first column, then by the second: values as they come."""
    columns = np.random.default_rng(size).integers(-1, 4, (3, size))
    codes, firsts = combined(columns)
    rows = [tuple(row) for row in columns.T.tolist()]
    ranks = [list(dict.fromkeys(column)) for column in columns.tolist()]
    expected = sorted(set(rows), key=lambda row: [rank.index(one) for rank, one in zip(ranks, row, strict=True)])
    assert [rows[at] for at in firsts.tolist()] == expected
    assert codes.tolist() == [expected.index(row) for row in rows]
    assert firsts.tolist() == [rows.index(row) for row in expected]


def test_what_clients_exchanges_come_to() -> None:
    """One that is left out, errors, one without a status, and two that are equally slow."""
    marks = np.array([[True, False, False, False], [False, True, False, False], [False, True, True, False]])
    status, clients = np.array([0, 1, 2, 3, 2, 2]), np.array([0, 0, 1, 1, 1, 1])
    slow, at = np.array([900.0, 150.0, np.nan, 20.0, 30.0, 30.0]), np.array([1, 2, 3, 4, 9, 5])
    counts, times = np.zeros((4, 3), np.int64), np.zeros((2, 3))
    counts[3], times[1] = 99, -np.inf
    tallied(status, clients, slow, at, marks, 100.0, counts, times)
    assert counts.tolist() == [[1, 4, 0], [1, 0, 0], [1, 3, 0], [2, 5, 99]]
    assert times.tolist() == [[150.0, 0.0, 0.0], [150.0, 30.0, -np.inf]]


@pytest.mark.parametrize("spread", [10**6, 10**9, 10**13])
def test_buckets_near_each_other_and_far_apart(spread: int) -> None:
    """However they are counted, and cut."""
    random = np.random.default_rng(3)
    at, slow = random.integers(0, spread, 700) + 10**15, random.random(700) * 50
    slow[::7] = np.nan
    found, apart = pace.Buckets(), pace.Buckets()
    found.add(at, slow)
    for one in range(len(at)):
        apart.add(at[one : one + 1], slow[one : one + 1])
    made = found.finish()
    assert made == apart.finish()
    assert made is not None
    assert sum(made.exchanges) == 700
    assert max(made.slowest_ms) == np.nanmax(slow)
