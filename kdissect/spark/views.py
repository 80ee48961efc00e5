"""`kdissect.spark.views`: what is asked of a fleet day after day, as SQL views over the tables.

    kdissect.spark.views(spark, "tables/")
    spark.sql("select * from latency_by_part where api = 'Fetch' order by broker_p99_ms desc").show()

Quantiles are Spark's `percentile_approx` with the accuracy of ACCURACY: one of the values, whose rank is off by a
thousandth of the rows at most.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from kdissect.engine.resumption import STREAMED, columns
from kdissect.problems import UsageError
from kdissect.spark.file_system import HadoopFiles
from kdissect.spark.schemas import spark_schema
from kdissect.spark.source.late_names import BROKER, CLUSTER, LATE_NAMES, TOPIC
from kdissect.spark.source.remote_captures import escape_pattern
from kdissect.spark.writing.placed_tables import written_schema
from kdissect.spark.writing.streamed_tables import CHECKPOINT
from kdissect.tables.declaration import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAMES = (*TABLES, LATE_NAMES)
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
        f"select to_date({_BEGUN}) as date, date_trunc('hour', {_BEGUN}) as hour, e.cluster, e.broker, e.api, "
        "count(*) as exchanges, count(e.latency_ms) as answered, count_if(coalesce(e.error_code, 0) <> 0) as errors, "
        + ", ".join(_quantiles(part, f"e.{part}_ms") for part in _PARTS)
        + ", " + ", ".join(f"sum(e.{part}_ms) as {part}_sum_ms" for part in _PARTS[:-1])
        + " from {exchanges} e group by all",
    ),
    "latency_by_hold": (
        ("exchanges",),
        f"select to_date({_BEGUN}) as date, e.cluster, e.broker, e.api, e.hold, count(*) as exchanges, "
        + _quantiles("broker_ms", "e.broker_ms")
        + " from {exchanges} e where e.hold is not null group by all",
    ),
    "sessions_by_hour": (
        ("fetch_sessions",),
        "select date_trunc('hour', s.opened_at) as hour, s.cluster, s.broker, s.end_reason, count(*) as sessions, "
        "sum(s.requests) as requests, sum(s.epoch_gaps) as epoch_gaps, "
        "sum(s.epochs_not_captured) as epochs_not_captured, sum(s.epoch_repeats) as epoch_repeats, "
        "max(s.max_partitions) as max_partitions, sum(s.full_request_bytes_avoided) as bytes_avoided "
        "from {fetch_sessions} s group by all",
    ),
    "findings_by_day": (
        ("findings",),
        "select to_date(f.first_at) as date, f.cluster, f.severity, f.cause, count(*) as findings, "
        "count(distinct {incident}) as incidents, sum(f.count) as count, "
        "sort_array(collect_set(f.broker)) as brokers, sort_array(collect_set(f.client_id)) as clients, "
        "min(f.first_at) as first_at, max(f.last_at) as last_at, min_by(f.text, f.first_at) as first "
        "from {findings} f group by all",
    ),
    "lag_by_hour": (
        ("fetches", "fetch_partitions"),
        "select date_trunc('hour', f.requested_at) as hour, p.cluster, p.topic, f.client_id, f.is_follower, "
        "count(distinct p.partition) as partitions, count(p.lag) as fetches, "
        + _quantiles("lag", "p.lag").replace("lag_p50_ms", "lag_p50").replace("lag_p99_ms", "lag_p99")
        + ", max(p.lag) as lag_max from {fetch_partitions} p join {fetches} f on p.exchange_id = f.exchange_id "
        "where p.lag is not null group by all",
    ),
}  # fmt: skip
"""View -> tables that it reads, its query with these tables' names in braces, and `incident` for what tells incidents
apart."""


_CAPTURE = "_capture"
_KEY = "^(.*/)?([^/]*)(/[^/]*/[^/]*)$"


def _named_key(column: str) -> str:
    """The key of a session, `<cluster>/<broker>/<session id>/<incarnation>`, with its broker's names."""
    cluster, broker, rest = (f"regexp_extract({column}, '{_KEY}', {number})" for number in (1, 2, 3))
    told = f"coalesce(nullif({cluster}, ''), try_element_at(_cluster, {broker}) || '/', '')"
    return f"{told} || coalesce(try_element_at(_broker, {broker}), {broker}) || {rest}"


_READS: Mapping[str, tuple[str, ...]] = {
    "broker": (), "cluster": ("broker",), "topic": ("topic_id",), "topics": (), "session_key": (), "predecessor": (),
}  # fmt: skip
"""Columns that late names fill, and what else of a row it takes."""
_TOLD = {
    "broker": "coalesce(try_element_at(_broker, broker), broker)",
    "cluster": "coalesce(cluster, try_element_at(_cluster, broker))",
    "topic": "coalesce(topic, try_element_at(_topic, topic_id))",
    "topics": "transform(topics, one -> coalesce(try_element_at(_topic, one), one))",
} | {key: _named_key(key) for key in ("session_key", "predecessor")}


def views(
    spark: SparkSession,
    tables: str | os.PathLike[str] | Mapping[str, DataFrame] | None = None,
    *,
    form: str = "parquet",
) -> list[str]:
    """Make temporary views of the session, as far as their tables are there; the names of those of VIEWS.

    `latency_by_part` (by hour, broker and API, the parts of the time as in docs/times.md), `latency_by_hold`,
    `sessions_by_hour`, `findings_by_day`, `lag_by_hour` (by topic and client), each by cluster. `tables`: a folder that
    `kdissect spark` or `write` has written, in the format `form`; a mapping such as `dissect` returns; None: tables of
    these names in the session's catalog. All tables of the first two become views of their own names too. Times are in
    the session's time zone. Raises UsageError where no table is there.
    """
    if isinstance(tables, Mapping):
        found = {name: tables[name] for name in _NAMES if name in tables}
    else:
        found = _read_tables(spark, None if tables is None else os.fspath(tables).rstrip("/"), form)
    names = found.pop(LATE_NAMES, None)
    there = set(found)
    for name, frame in found.items() if tables is not None else ():
        (frame if names is None else with_late_names(frame, names)).createOrReplaceTempView(name)
    if not there:
        raise UsageError("no table is there of those that kdissect spark writes")
    made = [name for name, (reads, _) in VIEWS.items() if there.issuperset(reads)]
    incident = "f.incident" if names is None else "f.capture, f.incident"  # a stream numbers those of each set
    for name in made:
        reads, query = VIEWS[name]
        views_read = {table: f"`{table}`" for table in reads}
        spark.sql(query.format(**views_read, incident=incident)).createOrReplaceTempView(name)
    return made


def _read_tables(spark: SparkSession, folder: str | None, form: str) -> dict[str, DataFrame]:
    """The tables that are there, of the catalog or of a folder."""
    from pyspark.errors import AnalysisException

    # It lists the folder, where it can, because Spark writes a traceback for a table that is not there.
    there = None if folder is None or getattr(spark, "_jvm", None) is None else HadoopFiles(spark).names(folder)
    found: dict[str, DataFrame] = {}
    for name in _NAMES if there is None else [name for name in _NAMES if name in there]:
        with suppress(AnalysisException):
            if folder is None:
                frame = spark.table(name)
            else:
                read = spark.read.format(form)
                if form == "parquet" and name in STREAMED and CHECKPOINT in (there or ()):
                    # Files of a version that knew fewer columns may be among them, and Spark looks at one file.
                    read = read.schema(spark_schema(written_schema(name, columns(name))))
                frame = read.load(f"{escape_pattern(folder) if form == 'parquet' else folder}/{name}")
            frame.columns  # noqa: B018  # through Spark Connect it raises not before
            found[name] = frame
    return found


def with_late_names(frame: DataFrame, names: DataFrame) -> DataFrame:
    """Rows of a table that a stream has written, by all names that messages gave until now: `names` is `late_names`.

    Brokers that are `ip:port`, clusters and topics that are null, in lists of topics and keys of sessions too. It joins
    one row for each capture, which all tasks get.
    """
    from pyspark.sql import functions as f

    if "capture" not in frame.columns:
        return frame
    once = names.groupBy(f.col("capture").alias(_CAPTURE), "kind", "written").agg(f.max("name").alias("name"))
    of_kind = (
        f.map_from_entries(f.collect_list(f.when(f.col("kind") == kind, f.struct("written", "name")))).alias(f"_{kind}")
        for kind in (BROKER, CLUSTER, TOPIC)
    )
    of_capture = once.groupBy(_CAPTURE).agg(*of_kind)
    told = {name: f.expr(sql) for name, sql in _TOLD.items() if set(frame.columns).issuperset({name, *_READS[name]})}
    joined = frame.join(f.broadcast(of_capture), frame["capture"] == f.col(_CAPTURE), "left")
    return joined.select(*(told.get(name, f.col(name)).alias(name) for name in frame.columns))
