"""Codes of combinations, against numpy's own sorting of rows."""

from __future__ import annotations

import numpy as np
import pytest

from kdissect.summary.joint_codes import DENSE, compressed, joint


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
