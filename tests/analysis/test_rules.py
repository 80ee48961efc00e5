"""Each kind of finding has a recording that fires it, and one that nearly does and must not."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kdissect
from kdissect.analysis.findings.catalogue import KINDS
from tests.analysis.test_judged import place, said

RULES: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "rules.toml").read_text())


def told(kind: str, where: dict[str, Any]) -> list[str]:
    """Sentences of a kind, of those that the entry is about."""
    if "slow" in where or "until" in where:
        capture = kdissect.open(place(where["in"]), slow=where.get("slow"), end=where.get("until"))
        rows = capture.table("findings").to_pylist()
    else:
        rows = said(where["in"])
    about = where.get("about", {}).items()
    return [row["text"] for row in rows if row["id"] == kind and all(row[name] == value for name, value in about)]


def test_each_rule_has_both() -> None:
    assert set(RULES) == set(KINDS)
    assert {name: one["fires"]["in"] for name, one in RULES.items()} == {k: one.example for k, one in KINDS.items()}


@pytest.mark.parametrize("kind", sorted(RULES))
def test_the_recording_fires_it_and_the_near_miss_does_not(kind: str) -> None:
    assert told(kind, RULES[kind]["fires"])
    assert told(kind, RULES[kind]["misses"]) == []


@pytest.mark.parametrize("kind", sorted(name for name, one in RULES.items() if "about" in one["misses"]))
def test_those_whom_it_must_not_be_said_of_are_there(kind: str) -> None:
    """A near miss of a client that is not in the recording would be none."""
    miss = RULES[kind]["misses"]
    tables = kdissect.open(place(miss["in"])).tables(
        {"connections": ["client_id", "broker"], "groups": ["group_id"], "exchanges": ["client_id"]}
    )
    for column, value in miss["about"].items():
        found = [table for table in tables.values() if column in table.column_names]
        assert any(pc.any(pc.equal(table[column].cast(pa.string()), value)).as_py() for table in found)
