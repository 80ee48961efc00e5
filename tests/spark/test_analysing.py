"""How much findings are looked for in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kdissect
import kdissect.spark
from kdissect.spark.stages import analysing
from kdissect.spark.stages.analysing import ALWAYS, searched


def test_findings_are_looked_for_in_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysing, "EVIDENCE_ROWS", 100)
    assert searched([(5, 60), (3, 40)]) is None
    assert searched([(7, 60), (5, 60), (3, 40)]) == 7
    assert searched([(3, 101)]) == 3
    assert searched([(ALWAYS, 500)]) is None  # what has no time is looked at in any case
    assert searched([]) is None


@pytest.mark.spark
def test_rows_behind_the_first_ones_are_left_out(spark: Any, captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = captures / "k4_transactions.pcap"
    whole = kdissect.spark.dissect(spark, path, ["findings"])
    assert whole.searched is None
    cells = sorted(tuple(row) for row in whole._evidence.select("at", "lot").collect())
    whole.unpersist()
    monkeypatch.setattr(analysing, "EVIDENCE_ROWS", sum(size for _, size in cells) - 1)
    found = kdissect.spark.dissect(spark, path, ["findings"])
    assert found.searched == cells[-1][0]
    assert found["findings"].toArrow().num_rows <= kdissect.open(path).table("findings").num_rows
    found.unpersist()
