"""Columns of partitions that were produced to, out of rows read from bodies."""

from __future__ import annotations

import numpy as np

from kdissect.arrays.rows import NULL
from kdissect.kafka.completed import NULL_TIME
from kdissect.tables import sent_rows as s


def test_rows_have_the_keys_and_the_instant_of_their_exchange() -> None:
    """Nanoseconds become microseconds; what no answer has is null."""
    rows = np.zeros((3, s.SENT_WIDTH), np.int64)
    found = s.sent_of(rows)
    found["exchange"], found["topic"], found["partition"] = [2, 2, 0], [1, 0, 1], [7, 8, 9]
    found["base_offset"], found["error"] = [40, NULL, -1], [0, NULL, 6]
    high, n, first = np.array([[5, 6, 7], [50, 60, 70], [1_999, NULL_TIME, -1]], np.int64)
    out = np.empty((len(s.COLUMNS), 3), np.int64)
    s.write_columns(rows, high, n, first, s.SentColumns(*out))
    columns = dict(zip(s.COLUMNS, out.tolist(), strict=True))
    assert list(columns.values()) == [
        [7, 7, 5], [70, 70, 50], [-1, -1, 1], [1, 0, 1], [1, 0, 1], [7, 8, 9], [40, NULL, -1], [0, NULL, 6],
    ]  # fmt: skip
    assert list(columns)[-3:] == ["partition", "base_offset", "error_code"]
