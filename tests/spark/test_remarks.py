"""What a job says where its tables are knowingly not those of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kdissect.spark
from kdissect.problems import Kind
from kdissect.spark.remarks import Remark, rows_of
from kdissect.spark.stages import analysing
from kdissect.tables.declaration import SCHEMAS

WARNED = "ignore:PySpark does not yet fully support pandas:FutureWarning"


def test_remarks_are_rows_of_problems() -> None:
    table = rows_of([Remark(Kind.CAPTURE, "here", "so")])
    assert table.schema == SCHEMAS["problems"]
    row = {name: value for name, value in table.to_pylist()[0].items() if value is not None}
    assert row == {"kind": "capture", "where": "here", "detail": "so"}
    assert rows_of([]).num_rows == 0


@pytest.mark.spark
@pytest.mark.filterwarnings(WARNED)
def test_findings_of_spans(spark: Any, captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysing, "EVIDENCE_ROWS", 100)
    path = captures / "k4_mtu1500.pcap"
    made = kdissect.spark.dissect(spark, path, ["findings", "problems"], partitions=2)
    said = [row.detail for row in made["problems"].where("where = 'findings'").collect()]
    assert len(said) == 1
    assert said[0].startswith("findings about connections, groups and producers are those of what came before '20")
    assert said == [one.detail for one in made.remarks]
