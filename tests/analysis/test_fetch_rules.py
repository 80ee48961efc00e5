"""What one fetch alone decides of a session (KIP-227), and the codes that rows get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kdissect.analysis.sessions import session_layout as c
from kdissect.analysis.sessions import session_rules as r
from kdissect.analysis.sessions.fetch_rules import enter
from kdissect.arrays.arrow import NULL_TIME
from kdissect.arrays.rows import NULL
from kdissect.tables.fetch_rows import (
    ASKED,
    FETCH_WIDTH,
    FORGOTTEN,
    GIVEN,
    PARTITION_WIDTH,
    fetches_of,
    partitions_of,
)
from kdissect.tables.order import NEVER

Array = np.ndarray[Any, Any]
NONE = np.zeros(0, np.int64)
PLAIN = {
    "version": 12, "used": 5, "session": 0, "epoch": -1, "error": 0, "given_session": 0, "returned": 1,
    "throttle": np.nan, "broker": 0, "client": 0, "partitions": 0,
}  # fmt: skip


def enter_all(
    fetches: Array, partitions: Array, codes: Sequence[Array] = (NONE,) * 4, first: int = 0
) -> tuple[Array, Array, Array, Array, Array, bool]:
    """(fetches, partitions, where partitions begin, uses, instants, whether they are in order) after `enter`, of which
    the first one's partitions begin at `first`."""
    n = len(fetches)
    rows, inner = np.full_like(fetches, 99), np.full_like(partitions, 99)
    firsts, uses, done = np.full(n + 1, first), np.full((n, c.USE_WIDTH), 99), np.full((2, n), 99)
    in_order = enter(fetches, partitions, *codes, rows, inner, firsts, uses, *done)
    return rows, inner, firsts, uses, done, in_order


def entered(*rows: dict[str, Any]) -> Array:
    """Rows of fetches after `enter`."""
    fetches = np.zeros((len(rows), FETCH_WIDTH), np.int64)
    found = fetches_of(fetches)
    for at, row in enumerate(rows):
        for name, value in (PLAIN | row).items():
            found[name][at] = value
    return fetches_of(enter_all(fetches, np.zeros((0, PARTITION_WIDTH), np.int64))[0])


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({}, r.SESSIONLESS),
        ({"version": 6, "session": NULL, "epoch": NULL}, r.SESSIONLESS),
        ({"version": 6, "session": NULL, "epoch": NULL, "used": NULL_TIME}, -1),
        ({"version": -1, "session": NULL}, -1),
        ({"epoch": NULL}, -1),
        ({"epoch": 0}, r.CREATE),
        ({"session": 7, "epoch": 0}, r.REPLACE),
        ({"session": 7, "epoch": -1}, r.CLOSE),
        ({"session": 7, "epoch": 1}, r.INCREMENTAL),
        ({"session": 0, "epoch": 3}, r.INCREMENTAL),
    ],
)
def test_what_a_request_does_with_a_session(row: dict[str, Any], kind: int) -> None:
    found = entered(row)
    assert found["kind"].tolist() == [kind]
    assert found["implied"].tolist() == [-1 if kind in (-1, r.INCREMENTAL) else 0]


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        ({}, r.NO_OUTCOME),
        ({"session": 7, "epoch": 1, "error": NULL}, r.NO_OUTCOME),
        ({"session": 7, "epoch": 1, "error": 70}, r.EVICTED_OR_UNKNOWN),
        ({"session": 7, "epoch": 1, "error": 71}, r.EPOCH_ERROR),
        ({"session": 7, "epoch": 1, "error": 106}, r.TOPIC_ID_ERROR),
        ({"session": 7, "epoch": 1, "error": 3}, r.ERROR),
        ({"epoch": 0, "given_session": 9}, r.CREATED),
        ({"epoch": 0}, r.REFUSED),
        ({"epoch": 0, "returned": 0, "throttle": 5.0}, r.THROTTLED),
        ({"epoch": 0, "returned": 0}, r.REFUSED),
        ({"session": 7, "epoch": -1, "given_session": 7}, r.CLOSED),
        ({"session": 7, "epoch": 2}, r.CLOSED),
        ({"session": 7, "epoch": 2, "given_session": 7}, r.CONTINUED),
    ],
)
def test_what_an_answer_says_of_a_session(row: dict[str, Any], outcome: int) -> None:
    assert entered(row)["outcome"].tolist() == [outcome]


def test_rows_get_other_codes_and_answers_a_first_reason() -> None:
    """Of an incremental fetch the tracker finds the reason; a full answer has everything."""
    fetches, partitions = np.zeros((2, FETCH_WIDTH), np.int64), np.zeros((3, PARTITION_WIDTH), np.int64)
    row, part = fetches_of(fetches), partitions_of(partitions)
    for name, value in PLAIN.items():
        row[name] = value
    row["broker"], row["client"], row["partitions"] = [1, -1], [0, -1], [2, 1]
    row["session"], row["epoch"] = [0, 7], [0, 4]
    part["topic"], part["flags"] = [1, 0, 1], [ASKED | GIVEN, FORGOTTEN, GIVEN]
    before = fetches.copy(), partitions.copy()
    codes = [np.array(codes) for codes in ([5, 6, -1], [9, -1], [20, 30], [200, 300])]
    rows, inner, firsts, uses, done, _ = enter_all(fetches, partitions, codes, 100)
    assert all(map(np.array_equal, before, (fetches, partitions)))
    row, part, use = fetches_of(rows), partitions_of(inner), c.uses_of(uses)
    assert (row["broker"].tolist(), row["client"].tolist()) == ([6, -1], [9, -1])
    assert (part["topic"].tolist(), part["log"].tolist()) == ([30, 20, 30], [300, 200, 300])
    assert part["reason"].tolist() == [r.FULL, -1, r.UNKNOWN_REASON]
    assert part["session_offset"].tolist() == [-1, -1, -1]
    assert firsts.tolist() == [100, 102, 103]
    assert (use["serial"].tolist(), use["added"].tolist()) == ([-1, -1], [0, -1])
    assert done.tolist() == [[NEVER, 5], [NEVER, NEVER]]


def test_rows_in_another_order_than_their_requests_are_known() -> None:
    """By time, then the connection without a sign, then the ordinal as text, orphans last; no time stands last."""
    keys = [(1, 5, 2), (1, 5, 10), (1, 5, 9), (1, -5, 0), (1, -5, -1), (2, 0, 0), (NULL_TIME, 0, 0)]
    for begin, end, expected in ((0, 2, False), (1, 7, True), (0, 7, False), (0, 1, True), (6, 7, True)):
        fetches = np.zeros((end - begin, FETCH_WIDTH), np.int64)
        row = fetches_of(fetches)
        row["time"], row["connection"], row["ordinal"] = np.array(keys[begin:end]).T
        assert enter_all(fetches, np.zeros((0, PARTITION_WIDTH), np.int64))[-1] == expected
    late = np.array(keys[::-1][:2])
    fetches = np.zeros((2, FETCH_WIDTH), np.int64)
    fetches_of(fetches)["time"] = late[:, 0]
    assert not enter_all(fetches, np.zeros((0, PARTITION_WIDTH), np.int64))[-1]
