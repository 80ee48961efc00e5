"""Views and messages of many captures."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import kdissect
import kdissect.spark
from kdissect.engine.resumption import columns
from kdissect.engine.settings import Settings
from kdissect.problems import UsageError
from kdissect.spark.job import prepare
from kdissect.spark.schemas import spark_schema
from kdissect.spark.source.late_names import NAMES
from kdissect.spark.source.streaming import Work
from kdissect.spark.views import VIEWS
from kdissect.spark.writing.placed_tables import written_schema
from kdissect.tables.declaration import SCHEMAS
from tests.conftest import ROOT

AnalysisException = pytest.importorskip("pyspark.errors").AnalysisException
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
    counts = {name: spark.table(name).count() for name in VIEWS}
    kdissect.spark.views(spark, {name: frame.unionByName(_of_other_cluster(frame)) for name, frame in frames.items()})
    assert {name: spark.table(name).where("cluster = 'other'").count() for name in VIEWS} == counts
    sets = "findings cross join values ('a'), ('b') as sets(capture)"
    alike = [spark.sql(f"select * from {sets} where incident = 1"), spark.createDataFrame([], spark_schema(NAMES))]
    kdissect.spark.views(spark, dict(zip(("findings", "late_names"), alike, strict=True)))
    assert {row.incidents for row in spark.table("findings_by_day").collect()} == {2}  # one of each set of a stream


class LateSession:
    """A session of Spark Connect that has one table: a frame of another one raises where its columns are asked for."""

    def __init__(self) -> None:
        self.views: list[str] = []
        self.read = self

    def format(self, name: str) -> LateSession:
        return self

    def load(self, place: str) -> LateFrame:
        return LateFrame(self, place == "tables/exchanges")

    def sql(self, query: str) -> LateFrame:
        return LateFrame(self, True)


class LateFrame:
    def __init__(self, session: LateSession, there: bool) -> None:
        self._session, self._there = session, there

    @property
    def columns(self) -> list[str]:
        if not self._there:
            raise AnalysisException("Path does not exist")
        return []

    def createOrReplaceTempView(self, name: str) -> None:
        assert self.columns == []
        self._session.views.append(name)


def test_views_of_a_folder_that_lacks_tables_through_spark_connect() -> None:
    session: Any = LateSession()
    assert kdissect.spark.views(session, "tables/") == ["latency_by_part", "latency_by_hold"]
    assert session.views == ["exchanges", "latency_by_part", "latency_by_hold"]


def _of_other_cluster(frame: Any) -> Any:
    """The same rows, as if another cluster's."""
    return frame.selectExpr(*("'other' as cluster" if name == "cluster" else name for name in frame.columns))


def test_columns_that_only_later_batches_have(spark: Any, captures: Path, tmp_path: Path) -> None:
    """As an update of kdissect leaves them between two batches of a stream."""
    wanted = {"fetches": columns("fetches")}
    capture = captures / "base_tiny.pcap"
    made = Work(wanted, Settings(dated=True)).do(capture.name, [(capture.name, str(capture))], None)
    (rows,) = (one[1] for one in made if isinstance(one, tuple) and one[0] == "fetches")
    out = tmp_path / "o {a,b}*"
    (out / "_checkpoint").mkdir(parents=True)
    for batch, less in enumerate((2, 0)):
        folder = out / "fetches" / f"batch={batch}"
        folder.mkdir(parents=True)
        pq.write_table(rows.select(rows.column_names[: rows.num_columns - less]), folder / "a.parquet")
    kdissect.spark.views(spark, out)
    found = spark.table("fetches")
    assert found.columns == [*written_schema("fetches", wanted["fetches"]).names, "batch"]
    counted = found.groupBy("batch").agg({"exchange_number": "count"})
    assert sorted(map(tuple, counted.collect())) == [(0, 0), (1, rows.num_rows)]


QUERIED = ("k4_session_eviction", "k4_fetch_sessions_raw", "k4_transactions", "base")
READ = (
    "exchanges", "connections", "fetches", "produces", "fetch_sessions", "list_offsets", "producer_ids",
    "offset_commits", "deliveries", "transactions", "findings",
)  # fmt: skip


def test_ten_queries_to_begin_with(spark: Any, captures: Path, tmp_path: Path) -> None:
    """Each statement of docs/spark.md, on written tables."""
    paths = [captures / f"{name}.pcap" for name in QUERIED]
    kdissect.spark.write(prepare(paths, READ).on(spark), str(tmp_path))
    kdissect.spark.views(spark, tmp_path)
    queries = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "spark.md").read_text(), re.DOTALL)
    assert len(queries) == 10
    latency, evictions, epochs, asked, errors, lag, deliveries, open_longest, unanswered, month = (
        [row.asDict() for row in spark.sql(query).collect()] for query in queries
    )
    local = kdissect.open(paths).tables(READ)
    rows = {name: table.to_pylist() for name, table in local.items()}
    assert {row["topic"] for row in latency} >= {row["topic"] or row["topic_id"] for row in rows["deliveries"]}
    timed = [row for name in ("fetches", "produces") for row in rows[name] if row["latency_ms"] is not None]
    assert sum(row["exchanges"] for row in latency) == sum(len(row["topics"] or ()) for row in timed)
    evicted = Counter(row["broker"] for row in rows["fetch_sessions"] if row["end_reason"] == "evicted")
    assert [(row["broker"], row["evicted"], row["caused_by"]) for row in evictions] == [
        ("1", evicted["1"], "raw-evict-more")
    ]
    wrong = Counter(row["epoch_status"] for row in rows["fetches"])
    assert wrong["gap"] > 0
    found = Counter[str]()
    for row in epochs:
        found[row["epoch_status"]] += row["fetches"]
    assert found == {status: wrong[status] for status in ("gap", "not_captured")}
    assert sum(row["requests"] for row in asked if row["api"] == "InitProducerId") == len(rows["producer_ids"])
    asking = {row["exchange_id"] for row in rows["list_offsets"]}
    assert sum(row["requests"] for row in asked if row["api"] == "ListOffsets") == len(asking)
    assert sum(row["exchanges"] for row in errors) == sum((row["error_count"] or 0) > 0 for row in rows["exchanges"])
    assert {row["group_id"] for row in lag} == {row["group_id"] for row in rows["offset_commits"]}
    read = [row for row in rows["deliveries"] if not row["is_follower"]]
    assert sum(row["deliveries"] for row in deliveries) == len(read)
    assert open_longest[0]["open_ms"] == max(row["open_ms"] or 0 for row in rows["transactions"])
    silent = sum(row["status"] == "unanswered" for row in rows["exchanges"])
    assert sum(row["unanswered"] for row in unanswered) == silent > 0
    assert sum(row["exchanges"] for row in month) == len(rows["exchanges"])
    for name in ("fetches", "offset_commits", "deliveries"):
        frame = spark.table(name)
        frame.unionByName(_of_other_cluster(frame)).createOrReplaceTempView(name)
    for query, alone in ((queries[2], epochs), (queries[5], lag), (queries[6], deliveries)):
        both = [row.asDict() for row in spark.sql(query).where("cluster = 'other'").collect()]
        assert Counter(map(repr, both)) == Counter(repr({**row, "cluster": "other"}) for row in alone)


def test_messages(spark: Any, captures: Path) -> None:
    paths = [captures / "base_tiny.pcap", captures / "raw_ids.pcap"]
    expected = [row for path in paths for row in kdissect.open(path).messages("Metadata", "response").to_pylist()]
    found = kdissect.spark.messages(spark, paths, "Metadata", "response").toArrow().to_pylist()
    assert expected
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    with pytest.raises(UsageError):
        kdissect.spark.messages(spark, paths, "Metadat", "response")
