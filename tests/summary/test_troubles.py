"""What is not right, and what a late start or a broker's down-conversion explains."""

from __future__ import annotations

from typing import Any

import pytest

import kdissect
from kdissect.cli.printing import screen
from kdissect.summary import Summary, summarize
from tests.cli.standin import rows
from tests.conftest import ROOT

CONNECTION = f"{1:016x}"


def summed(*problems: dict[str, Any], cut: float = 0.0, **connection: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Problems that are not right, and explained ones, by kind."""
    one = {"connection_id": CONNECTION, "is_kafka": True, "start_seen": False, "missing_bytes": 0, "exchanges": 9}
    listed = [{"capture": "a", "connection_id": CONNECTION, "detail": "d", "bytes": 3} | more for more in problems]
    quality = {"capture": "a", "measure": "snapped_packets", "value": cut}
    found = summarize({"problems": rows("problems", listed), "connections": rows("connections", [one | connection]),
                       "capture_quality": rows("capture_quality", [quality])})  # fmt: skip
    return {line.kind: line.count for line in found.problems}, {line.kind: line.count for line in found.explained}


ORPHAN = {"kind": "orphan_response"}
INFERRED = {"kind": "ambiguous", "exchange_id": f"{CONNECTION}:r0"}


def test_a_late_start_explains_answers_to_what_was_asked_before() -> None:
    explained = {"orphan_response": 1, "ambiguous": 1, "resynchronised": 1}
    assert summed(ORPHAN, INFERRED, {"kind": "resynchronised"}) == ({}, explained)


@pytest.mark.parametrize(
    "connection",
    [{"start_seen": True}, {"missing_bytes": 1}, {"exchanges": 1}, {"is_kafka": False}, {"cut": 1.0}],
    ids=["began within the capture", "bytes are missing", "no request was captured", "no Kafka", "packets were cut"],
)
def test_nothing_else_does(connection: dict[str, Any]) -> None:
    assert summed(ORPHAN, **connection) == ({"orphan_response": 1}, {})


def test_other_kinds_stay_what_they_are() -> None:
    asked = {"kind": "ambiguous", "exchange_id": f"{CONNECTION}:0"}
    assert summed({"kind": "bad_length"}, asked) == ({"bad_length": 1, "ambiguous": 1}, {})


def test_padding_is_no_trouble_and_a_wrong_checksum_is() -> None:
    padding = {"kind": "records", "detail": "padding of a down-converted response"}
    assert summed(padding, {"kind": "records", "detail": "checksum is wrong"}) == ({"records": 1}, {"records": 1})


def recorded(name: str) -> Summary:
    return kdissect.open(next(iter(sorted((ROOT / "captures").glob(f"{name}.pcap*"))))).summary()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "field_midstream",
            "only the end of what was under way: 1 answer to requests sent before it, 16.4 kB of frames",
        ),
        ("downconv_282", "11 record sets padded by down-conversion: nothing is lost."),
    ],
)
def test_the_first_screen_does_not_call_them_wrong(name: str, says: str) -> None:
    summary = recorded(name)
    text = "\n".join(line.plain for line in screen.render(summary, [name], 400))
    assert summary.problems == []
    assert "Not read or not right" not in text
    assert says in text


def test_one_direction_alone_is_not_a_late_start() -> None:
    summary = recorded("field_to_client")
    assert summary.explained == []
    assert {line.kind for line in summary.problems} == {"orphan_response", "ambiguous"}
