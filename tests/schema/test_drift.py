"""The schema against Kafka's own definitions, where KAFKA_MESSAGES names them: a folder, or a kafka-clients jar."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kdissect.schema import index
from tests.schema import drift, facts
from tests.schema.test_facts import renamed

DEFINITIONS = os.environ.get("KAFKA_MESSAGES")

MADE = {
    "apiKey": 7,
    "type": "request",
    "name": "SampleRequest",
    "validVersions": "0-2",
    "flexibleVersions": "2+",
    "commonStructs": [
        {"name": "Pair", "versions": "0+", "fields": [{"name": "Key", "type": "string", "versions": "0+"}]},
    ],
    "fields": [
        {"name": "Late", "type": "int32", "versions": "2+", "taggedVersions": "2+", "tag": 1, "default": "-1"},
        {"name": "Early", "type": "[]Pair", "versions": "0+", "nullableVersions": "1+"},
        {"name": "Deep", "type": "Deep", "versions": "2+", "taggedVersions": "2+", "tag": 0, "nullableVersions": "2+",
         "default": "null", "fields": [{"name": "Size", "type": "int64", "versions": "2+", "default": "0x10"}]},
        {"name": "Gone", "type": "bool", "versions": "0", "default": "true"},
    ],
}  # fmt: skip
FIELDS = {
    0: ("Early:[]{}", "Early.Key:string", "Gone:bool"),
    1: ("Early:[]{}?", "Early.Key:string"),
    2: ("Early:[]{}?", "Early.Key:string", "Deep:{}?@0=null", "Deep.Size:int64=16", "Late:int32@1=-1"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "SampleRequest.json").write_text("// Licensed\n{\n  // why\n" + json.dumps(MADE)[1:])
    return tmp_path


def test_a_definition_as_facts(folder: Path) -> None:
    found = drift.read(folder).layouts
    assert {which[2]: layout.fields for which, layout in found.items()} == FIELDS
    assert [layout.header for layout in found.values()] == [0, 1, 2]
    assert [layout.flexible for layout in found.values()] == [False, False, True]


def test_what_differs_is_said(folder: Path) -> None:
    expected = drift.read(folder).layouts
    ours = dict(expected)
    assert drift.differences(expected, ours) == []
    ours["7", "request", 1, ""] = facts.Layout(False, 1, ("Early:[]{}?",))
    ours["7", "request", 0, ""] = facts.Layout(True, 0, FIELDS[0])
    del ours["7", "request", 2, ""]
    assert drift.differences(expected, ours) == [
        "7 request v0: flexible is False in Kafka, True in the schema",
        "7 request v1: field 1 is Early.Key:string in Kafka, missing in the schema",
        "7 request v2: is not in the schema",
    ]


def test_facts_are_written_as_they_are_read() -> None:
    lines = [line for line in facts.FILE.read_text().splitlines() if not line.startswith("#")]
    assert list(drift.written(facts.facts())) == lines


@pytest.mark.skipif(DEFINITIONS is None, reason="KAFKA_MESSAGES names no definitions")
def test_the_schema_has_what_kafka_has() -> None:
    found = renamed(facts.ours(index.load()))
    known = {which[0] for which in found}
    expected = drift.read(Path(str(DEFINITIONS))).layouts
    expected = {which: layout for which, layout in expected.items() if which[0] in known or which[0].isdigit()}
    assert len(expected) > 400, "these are not Kafka's definitions"
    wrong = drift.differences(expected, found)
    assert not wrong, "\n".join(["Kafka's definitions say otherwise:", *wrong])
