"""What one fetch alone decides of a session (KIP-227), and the codes that rows get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdissect.analysis.sessions import session_rules as r
from kdissect.analysis.sessions.fetch_rules import enter
from kdissect.arrays.arrow import NULL_TIME
from kdissect.arrays.codes import NULL
from kdissect.tables.fetch_rows import (
    ASKED,
    FETCH_WIDTH,
    FORGOTTEN,
    GIVEN,
    PARTITION_WIDTH,
    fetches_of,
    partitions_of,
)

NONE = np.zeros(0, np.int64)
PLAIN = {
    "version": 12, "used": 5, "session": 0, "epoch": -1, "error": 0, "given_session": 0, "returned": 1,
    "throttle": np.nan, "broker": 0, "client": 0, "partitions": 0,
}  # fmt: skip


def entered(*rows: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Rows of fetches after `enter`."""
    fetches = np.zeros((len(rows), FETCH_WIDTH), np.int64)
    found = fetches_of(fetches)
    for at, row in enumerate(rows):
        for name, value in (PLAIN | row).items():
            found[name][at] = value
    enter(fetches, np.zeros((0, PARTITION_WIDTH), np.int64), NONE, NONE, NONE, NONE)
    return found


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
    enter(fetches, partitions, *(np.array(codes) for codes in ([5, 6, -1], [9, -1], [20, 30], [200, 300])))
    assert (row["broker"].tolist(), row["client"].tolist()) == ([6, -1], [9, -1])
    assert (part["topic"].tolist(), part["log"].tolist()) == ([30, 20, 30], [300, 200, 300])
    assert part["reason"].tolist() == [r.FULL, -1, r.UNKNOWN_REASON]
    assert part["session_offset"].tolist() == [-1, -1, -1]
