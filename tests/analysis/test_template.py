"""Templates of findings' texts: forms of values, sections that are left out, items of lists."""

from __future__ import annotations

from typing import Any

import pytest

from kdissect.analysis.findings.template import fields, fill

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("template", "values", "text"),
    [
        ("broker {broker}", {"broker": None}, "broker (none)"),
        ("broker {broker}", {"broker": ""}, 'broker ""'),
        ("{n:n} requests", {"n": 1234.4}, "1,234 requests"),
        ("{took:ms}", {"took": 3000.0}, "3.0 s"),
        ("for {took:ms} from {at:clock} on", {"took": None, "at": None}, "for a while from an unknown time on"),
        ("{at:clock}, {at:time}", {"at": 3 * SECOND + 45_000}, "00:00:03.045, 00:00:03"),
        ("{n:times}, {two:times}, {many:times}", {"n": 1, "two": [7, 8], "many": 3}, "once, twice, 3 times"),
        ("{n:#batch|batches} {n:?is|are}", {"n": 1}, "1 batch is"),
        ("{n:#batch|batches} {n:?is|are}", {"n": ["a", "b"]}, "2 batches are"),
        ("{client:who} and {other:who}", {"client": "c", "other": None}, "client c and a client without an id"),
        ("{client:who} and {names:list}", {"client": "", "names": ["", "b"]}, 'client "" and "" and b'),
        ("{client:Who} came", {"client": "c"}, "Client c came"),
        ("{names:list}", {"names": ["a", "b", None]}, "a, b and a client without an id"),
        ("{names:list} {names:list2} {names:all}", {"names": list("abcdef")},
         "a, b, c, d and 2 more a, b and 4 more a, b, c, d, e and f"),
        ("moved[ for {took:ms}].", {"took": None}, "moved."),
        ("moved[ for {took:ms}].", {}, "moved."),
        ("moved[ for {took:ms}].", {"took": 0.0}, "moved for 0.0 ms."),
        ("[group {group}|its group]", {"group": ""}, "its group"),
        ("[group {group}|its group]", {"group": "g"}, "group g"),
        ("[{names:?broker|brokers} {names:list}|none]", {"names": ["1", "2"]}, "brokers 1 and 2"),
        ("[{names:?broker|brokers} {names:list}|none]", {"names": []}, "none"),
        ("it ended[?late: late].", {"late": True}, "it ended late."),
        ("it ended[?late: late].", {"late": False}, "it ended."),
        ("a [?sharded:shard|broker]", {"sharded": False}, "a broker"),
    ],
)  # fmt: skip
def test_forms(template: str, values: dict[str, Any], text: str) -> None:
    assert fill(template, values, {}) == text


def test_items_have_templates_of_their_own() -> None:
    parts = {"node": "broker {node} ({waits:times})", "instant": "{it:time}"}
    items = [{"node": 1, "waits": 2}, {"node": 3, "waits": 9}]
    assert fill("{nodes:list node}", {"nodes": items}, parts) == "broker 1 (twice) and broker 3 (9 times)"
    assert fill("{when:list instant}", {"when": [0, SECOND]}, parts) == "00:00:00 and 00:00:01"


def test_values_are_not_read_as_templates() -> None:
    """Names come from the capture."""
    assert fill("topic {topic}[ of {group}]", {"topic": "{x}[?y:z]", "group": "{topic}"}, {}) == (
        "topic {x}[?y:z] of {topic}"
    )


@pytest.mark.parametrize("template", ["{missing}", "{items:list nosuch}", "{n:nosuch}"])
def test_what_is_not_there_is_an_error(template: str) -> None:
    with pytest.raises(KeyError):
        fill(template, {"items": [1], "n": 1}, {})


def test_fields_are_named() -> None:
    assert fields("{a:n} of {b}[?late: {c:list part}]") == {"a", "b", "c", "late"}
