"""`kdissect.spark.views`: what is asked of a fleet day after day, as SQL views over the tables.

    kdissect.spark.views(spark, "tables/")
    spark.sql("select * from latency_by_part where api = 'Fetch' order by broker_p99_ms desc").show()

Quantiles are Spark's `percentile_approx` with the accuracy of ACCURACY: one of the values, whose rank is off by a
thousandth of the rows at most.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kdissect.problems import UsageError
from kdissect.spark.file_system import HadoopFiles
from kdissect.tables.declaration import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ACCURACY = 1000
_PARTS = ("latency", "request_transfer", "network", "queued", "broker", "response_transfer", "think")
_BEGUN = "coalesce(e.request_first_at, e.response_first_at)"


def _quantiles(column: str, of: str) -> str:
    return ", ".join(
        f"percentile_approx({of}, {share}, {ACCURACY}) as {column.replace('_ms', '')}_{name}_ms"
        for name, share in (("p50", 0.5), ("p99", 0.99))
    )


VIEWS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "latency_by_part": (
        ("exchanges",),
        f"select to_date({_BEGUN}) as date, date_trunc('hour', {_BEGUN}) as hour, e.broker, e.api, "
        "count(*) as exchanges, count(e.latency_ms) as answered, count_if(coalesce(e.error_code, 0) <> 0) as errors, "
        + ", ".join(_quantiles(part, f"e.{part}_ms") for part in _PARTS)
        + ", " + ", ".join(f"sum(e.{part}_ms) as {part}_sum_ms" for part in _PARTS[:-1])
        + " from {exchanges} e group by all",
    ),
    "latency_by_hold": (
        ("exchanges",),
        f"select to_date({_BEGUN}) as date, e.broker, e.api, e.hold, count(*) as exchanges, "
        + _quantiles("broker_ms", "e.broker_ms")
        + " from {exchanges} e where e.hold is not null group by all",
    ),
    "sessions_by_hour": (
        ("fetch_sessions",),
        "select date_trunc('hour', s.opened_at) as hour, s.broker, s.end_reason, count(*) as sessions, "
        "sum(s.requests) as requests, sum(s.epoch_gaps) as epoch_gaps, "
        "sum(s.epochs_not_captured) as epochs_not_captured, sum(s.epoch_repeats) as epoch_repeats, "
        "max(s.max_partitions) as max_partitions, sum(s.full_request_bytes_avoided) as bytes_avoided "
        "from {fetch_sessions} s group by all",
    ),
    "findings_by_day": (
        ("findings",),
        "select to_date(f.first_at) as date, f.severity, f.cause, count(*) as findings, "
        "count(distinct f.incident) as incidents, sum(f.count) as count, "
        "sort_array(collect_set(f.broker)) as brokers, sort_array(collect_set(f.client_id)) as clients, "
        "min(f.first_at) as first_at, max(f.last_at) as last_at, min_by(f.text, f.first_at) as first "
        "from {findings} f group by all",
    ),
    "lag_by_hour": (
        ("fetches", "fetch_partitions"),
        "select date_trunc('hour', f.requested_at) as hour, p.topic, f.client_id, f.is_follower, "
        "count(distinct p.partition) as partitions, count(p.lag) as fetches, "
        + _quantiles("lag", "p.lag").replace("lag_p50_ms", "lag_p50").replace("lag_p99_ms", "lag_p99")
        + ", max(p.lag) as lag_max from {fetch_partitions} p join {fetches} f on p.exchange_id = f.exchange_id "
        "where p.lag is not null group by all",
    ),
}  # fmt: skip
"""View -> tables that it reads, its query with these tables' names in braces."""


def views(
    spark: SparkSession,
    tables: str | os.PathLike[str] | Mapping[str, DataFrame] | None = None,
    *,
    form: str = "parquet",
) -> list[str]:
    """Make temporary views of the session, as far as their tables are there; the names of those of VIEWS.

    `latency_by_part` (by hour, broker and API, the parts of the time as in docs/times.md), `latency_by_hold`,
    `sessions_by_hour`, `findings_by_day`, `lag_by_hour` (by topic and client). `tables`: a folder that `kdissect spark`
    or `write` has written, in the format `form`; a mapping such as `dissect` returns; None: tables of these names in
    the session's catalog. All tables of the first two become views of their own names too. Times are in the session's
    time zone. Raises UsageError where no table is there.
    """
    from pyspark.errors import AnalysisException

    there: set[str] = set()
    for name in _list_tables(spark, tables):
        try:
            if isinstance(tables, Mapping):
                frame = tables[name]
            elif tables is None:
                frame = spark.table(name)
            else:
                frame = spark.read.format(form).load(f"{os.fspath(tables).rstrip('/')}/{name}")
        except AnalysisException:
            continue
        if tables is not None:
            frame.createOrReplaceTempView(name)
        there.add(name)
    if not there:
        raise UsageError("no table is there of those that kdissect spark writes")
    made = [name for name, (reads, _) in VIEWS.items() if there.issuperset(reads)]
    for name in made:
        reads, query = VIEWS[name]
        spark.sql(query.format(**{table: f"`{table}`" for table in reads})).createOrReplaceTempView(name)
    return made


def _list_tables(spark: SparkSession, tables: str | os.PathLike[str] | Mapping[str, DataFrame] | None) -> list[str]:
    """Tables that may be there, in the declaration's order: those of a mapping, or of a folder that it can list; else
    all. It lists the folder because Spark writes a traceback for one that is not there."""
    if tables is None or (not isinstance(tables, Mapping) and getattr(spark, "_jvm", None) is None):
        return list(TABLES)
    names = set(tables) if isinstance(tables, Mapping) else set(HadoopFiles(spark).names(os.fspath(tables)))
    return [name for name in TABLES if name in names]
