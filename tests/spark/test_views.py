"""Views and messages of many captures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kdissect
import kdissect.spark
from kdissect.problems import UsageError
from kdissect.spark.views import VIEWS
from kdissect.tables.declaration import SCHEMAS
from tests.conftest import ROOT

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
TABLES = ("exchanges", "fetches", "fetch_partitions", "fetch_sessions", "findings")


def test_views_and_the_dashboard(spark: Any, captures: Path) -> None:
    local = kdissect.open(captures / "k4_session_eviction.pcap").tables(list(TABLES))
    frames = {name: spark.createDataFrame(table.cast(SCHEMAS[name].remove_metadata())) for name, table in local.items()}
    assert kdissect.spark.views(spark, frames) == list(VIEWS)
    rows = spark.table("latency_by_part").collect()
    assert sum(row.exchanges for row in rows) == local["exchanges"].num_rows
    values = {row["latency_ms"] for row in local["exchanges"].to_pylist()}
    assert {row.latency_p50_ms for row in rows} <= values
    lags = [row["lag"] for row in local["fetch_partitions"].to_pylist() if row["lag"] is not None]
    found = spark.table("lag_by_hour").collect()
    assert (sum(row.fetches for row in found), max(row.lag_max for row in found)) == (len(lags), max(lags))
    ends = Counter(row["end_reason"] for row in local["fetch_sessions"].to_pylist())
    made = Counter[str]()
    for row in spark.table("sessions_by_hour").collect():
        made[row.end_reason] += row.sessions
    assert made == ends
    assert sum(row.findings for row in spark.table("findings_by_day").collect()) == local["findings"].num_rows
    panels = [part for part in (ROOT / "docs" / "dashboard.sql").read_text().split(";") if part.strip()]
    assert len(panels) == 5
    for panel in panels:
        spark.sql(panel).collect()
    with pytest.raises(UsageError, match="no table is there"):
        kdissect.spark.views(spark, {})


def test_messages(spark: Any, captures: Path) -> None:
    paths = [captures / "base_tiny.pcap", captures / "raw_ids.pcap"]
    expected = [row for path in paths for row in kdissect.open(path).messages("Metadata", "response").to_pylist()]
    found = kdissect.spark.messages(spark, paths, "Metadata", "response").toArrow().to_pylist()
    assert expected
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    with pytest.raises(UsageError):
        kdissect.spark.messages(spark, paths, "Metadat", "response")
