"""`offset_commits` against the messages that it is made of, read one by one."""

from __future__ import annotations

import pytest

import kdissect
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"


@pytest.mark.parametrize("name", ["base", "era_2_4_1", "k4_transactions"])
def test_every_commit_is_a_row(name: str) -> None:
    capture = kdissect.open(CAPTURES / f"{name}.pcap")
    expected = []
    for api in ("OffsetCommit", "TxnOffsetCommit"):
        answers = {one["exchange_id"]: one for one in capture.messages(api, "response").to_pylist()}
        for one in capture.messages(api, "request").to_pylist():
            given = {
                (topic["name"], part["partition_index"]): part["error_code"]
                for topic in answers[one["exchange_id"]]["topics"] for part in topic["partitions"]
            } if one["exchange_id"] in answers else {}  # fmt: skip
            for topic in one["topics"]:
                for part in topic["partitions"]:
                    number = part["partition_index"]
                    error = given.get((topic["name"], number))
                    row = (one["group_id"], one["member_id"] or None, topic["name"], number, part["committed_offset"])
                    expected.append((one["exchange_id"], *row, error))
    columns = ["exchange_id", "group_id", "member_id", "topic", "partition", "offset", "error_code"]
    found = [tuple(row.values()) for row in capture.table("offset_commits", columns).to_pylist()]
    assert expected
    assert sorted(found, key=str) == sorted(expected, key=str)
