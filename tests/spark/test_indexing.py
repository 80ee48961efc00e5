"""What the first stage says of files that its executor cannot read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kdissect.capture import open_captures
from kdissect.engine.settings import Settings
from kdissect.problems import CaptureNotFound
from kdissect.spark.cells.table_cells import cells_of
from kdissect.spark.stages import decoding
from kdissect.spark.stages.indexing import index
from kdissect.spark.stages.plan import Plan, source_of
from kdissect.spark.stages.resolving import Outcome, put_together, read_notes
from kdissect.tables.declaration import columns_of


def told(plan: Plan) -> Outcome:
    files = [(n, f) for n, source in enumerate(plan.sources) for f in range(len(source.files))]
    made = cells_of(decoding.decode(index(files, plan), plan))
    return put_together(plan, read_notes((row.table, row.data) for row in made))


def test_files_that_executors_do_not_have(captures: Path, tmp_path: Path) -> None:
    """One that is missing is a problem row; where all are, driver and executors share no disk, and the job says so."""
    for name in ("a.pcap", "b.pcap"):
        shutil.copy(captures / "base_tiny.pcap", tmp_path / name)
    sources = [source_of(capture, False) for capture in open_captures(tmp_path)]
    plan = Plan(sources, {"problems": columns_of("problems")}, Settings(), [0])
    assert told(plan).errors == []
    (tmp_path / "a.pcap").unlink()
    outcome = told(plan)
    (row,) = outcome.tables["problems"].to_pylist()
    assert (row["capture"], row["where"]) == ("a.pcap", "a.pcap")
    assert "not there on" in row["detail"]
    assert "share" in outcome.errors[0]
    (tmp_path / "b.pcap").unlink()
    with pytest.raises(CaptureNotFound, match=r"none of the captures.*share, hdfs:"):
        told(plan)
