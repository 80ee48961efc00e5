"""Codes of combinations of values: as small as they can be, found without sorting where that is possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kdissect.arrays.arrow import Int64s
from kdissect.tables.identity import recoded

DENSE = 1 << 16
"""Codes that are looked up in a list however few rows there are; more, up to four a row."""


def compressed(codes: Int64s, space: int) -> tuple[Int64s, Int64s]:
    """Codes below `space` (none negative) as codes 0..k-1 in the same order, and the k codes that occur."""
    if space <= max(DENSE, 4 * len(codes)):
        indices, kept = recoded(codes, space)
        return indices.to_numpy().astype(np.int64), kept.astype(np.int64)
    distinct, inverse = np.unique(codes, return_inverse=True)
    return inverse.astype(np.int64), distinct


def joint(columns: Sequence[Int64s]) -> tuple[Int64s, Int64s]:
    """Codes 0..k-1 of the distinct rows of some columns of one length, and a row of each."""
    codes = np.zeros(len(columns[0]), np.int64)
    count = 1
    for column in columns:
        if not len(column):
            break
        least, most = int(column.min()), int(column.max())
        local, values, size = column - least, None, most - least + 1
        if size > len(column):
            local, values = compressed(local, size)
            size = len(values)
        codes, kept = compressed(codes * size + local, count * size)
        count = len(kept)
    rows = np.empty(count if len(codes) else 0, np.int64)
    rows[codes[::-1]] = np.arange(len(codes))[::-1]
    return codes, rows
