"""How much findings are looked for in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kdissect.analysis.findings import Found, findings
from kdissect.spark.cells.table_cells import Cell, cell, rows
from kdissect.spark.stages import analysing
from kdissect.spark.stages.analysing import ALWAYS, EVIDENCE, find, searched
from kdissect.tables.declaration.model import TIME_KEY


def test_findings_are_looked_for_in_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysing, "EVIDENCE_ROWS", 100)
    assert searched([(5, 60), (3, 40)]) is None
    assert searched([(7, 60), (5, 60), (3, 40)]) == 7
    assert searched([(3, 101)]) == 3
    assert searched([(ALWAYS, 500)]) is None  # what has no time is looked at in any case
    assert searched([]) is None


def test_rows_behind_the_first_ones_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, pa.Table] = {}

    def looked(tables: dict[str, pa.Table], given: Any) -> Found:
        seen.update(tables)
        return findings({})

    monkeypatch.setattr(analysing, "findings", looked)
    timed = pa.table({"exchange_id": ["a", "b", "c"], TIME_KEY: [7, 3, 5]})
    others = pa.table({"session_key": ["1/2/0"]})
    cells = [Cell(EVIDENCE + "produces", "", cell(timed), 3, 3), Cell(EVIDENCE + "share_sessions", "", cell(others))]
    nobody = SimpleNamespace(table=lambda *topics: None)
    names: Any = SimpleNamespace(builder=lambda plan: None, topics=nobody, leaders=nobody)
    plan: Any = SimpleNamespace(settings=SimpleNamespace(slow=None), tables={"findings": ["id"]})
    list(find([rows([one]) for one in cells], plan, names, before=7))
    assert seen["produces"][TIME_KEY].to_pylist() == [3, 5]
    assert seen["share_sessions"].num_rows == 1
    list(find([rows([one]) for one in cells], plan, names))
    assert seen["produces"].num_rows == 3
