"""What a job says where its tables are knowingly not those of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
import kdissect.spark
from kdissect.problems import Kind
from kdissect.spark.remarks import Remark, rows_of
from kdissect.spark.source import remote_captures
from kdissect.spark.stages import analysing
from kdissect.spark.stages.plan import Plan, Source
from kdissect.tables.declaration import SCHEMAS

WARNED = "ignore:PySpark does not yet fully support pandas:FutureWarning"


def test_remarks_are_rows_of_problems() -> None:
    table = rows_of([Remark(Kind.CAPTURE, "here", "so")])
    assert table.schema == SCHEMAS["problems"]
    row = {name: value for name, value in table.to_pylist()[0].items() if value is not None}
    assert row == {"kind": "capture", "where": "here", "detail": "so"}
    assert rows_of([]).num_rows == 0


def test_what_is_decoded_to_hold_captures_against_each_other() -> None:
    here = Source("a", [("a", "/a")], [1], True, [])
    far = Source("b", [("b", "s3a://b")], [0], False, [], stamps=[(1, 1)])
    tables = {"exchanges": ["api"]}
    assert Plan([here, here], tables, None, [0]).decoded == tables  # type: ignore[arg-type]
    assert Plan([far], tables, None, [0]).decoded == tables  # type: ignore[arg-type]
    assert "ended_at" in Plan([here, far], tables, None, [0]).decoded["connections"]  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.filterwarnings(WARNED)
def test_captures_that_only_spark_reads(
    spark: Any, captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What two of them saw has two rows, and a row of `problems` says so; nothing is said of others."""
    monkeypatch.setattr(remote_captures, "_LOCAL", remote_captures.re.compile("never:"))  # as if it were far away
    for end in ("client", "broker"):
        with pa.input_stream(captures / "stories" / f"net_delay_{end}.pcap.zst") as stream:
            (tmp_path / f"{end}.pcap").write_bytes(stream.read())
    ends = [(tmp_path / f"{end}.pcap").as_uri() for end in ("client", "broker")]
    made = kdissect.spark.dissect(spark, ends, ["exchanges", "problems"], partitions=2)
    connections = kdissect.open(tmp_path / "client.pcap").table("connections", ["is_kafka"])
    told = [row.detail for row in made["problems"].where("where = 'captures'").collect()]
    assert told == [one.detail for one in made.remarks]
    assert told[0].startswith(f"{sum(connections['is_kafka'].to_pylist())} connections seem to be in several captures")
    others = [(captures / name).as_uri() for name in ("base_tiny.pcap", "raw_ids.pcap")]
    assert kdissect.spark.dissect(spark, others, ["exchanges", "problems"], partitions=2).remarks == []


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
