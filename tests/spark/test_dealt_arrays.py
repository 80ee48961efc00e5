"""Arrays that are dealt out to tasks."""

from __future__ import annotations

import numpy as np

from kdissect.analysis.sights.both_ends import Removed
from kdissect.spark.stages.matching.dealt_arrays import split_rows


def test_each_target_has_its_rows_in_their_order() -> None:
    rows = Removed(np.array([7, 8, 9, 7], np.uint64), np.arange(4))
    found = split_rows(rows, np.array([5, 0, 5, 5]))
    assert {target: (part.id.tolist(), part.key.tolist()) for target, part in found.items()} == {
        0: ([8], [1]), 5: ([7, 9, 7], [0, 2, 3]),
    }  # fmt: skip
    assert split_rows(Removed(rows.id[:0], rows.key[:0]), np.zeros(0, np.int64)) == {}
