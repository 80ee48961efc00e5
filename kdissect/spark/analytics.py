"""The analysis of one machine on Spark's DataFrames, by the same definitions.

Sessions, holds and findings are tables of `kdissect.spark.dissect` already. Latencies, which on one machine are
`capture.analysis.latency()`, are made here by Spark itself:

    tables = kdissect.spark.dissect(spark, paths, ["exchanges", "fetches"])
    kdissect.spark.latency(tables, by=["broker", "api"]).show()

They work as well on tables read back from Parquet: any mapping from names to DataFrames will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kdissect.analysis.latency import SHARES, checked
from kdissect.analysis.sessions.session_rules import LAST_EPOCH
from kdissect.problems import UsageError
from kdissect.tables.projection import list_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TOPIC_TABLES = ("exchanges", "fetches", "fetch_partitions", "session_partitions", "record_batches")
"""What tells which topics exchanges are about."""


def latency(
    tables: Mapping[str, DataFrame],
    by: Sequence[str] = ("api",),
    every: float | None = None,
    where: str | None = None,
    *,
    accuracy: int | None = None,
) -> DataFrame:
    """Counts, quantiles and rates of exchanges, one row per group (and bucket of `every` seconds), in no order.

    `tables` has `exchanges`; with `fetches` there are figures of `excess_ms`. "topic" in `by` needs all of
    TOPIC_TABLES: an exchange counts once for each topic that it is about, a fetch that names none for those of its
    session (`kdissect.analysis.topic_traffic`, rules 1 and 2). `by`: api, version, client, broker, topic, status, hold,
    capture, cluster. `where`: a condition on `exchanges` in Spark's SQL. Columns are those of
    `analysis.latency.latency`, with its values: quantiles are exact (Spark's `percentile`, linear interpolation). That
    holds the distinct values of a group in memory. With `accuracy`, such as 10000, quantiles are `percentile_approx`
    instead: one of the values, whose rank is off by 1/accuracy of the group at most. Raises UsageError for an unknown
    dimension or a table that is missing.
    """
    from pyspark.sql import functions as f

    by = list_names(by)
    columns = checked(by, every)
    for name in TOPIC_TABLES if "topic" in columns else TOPIC_TABLES[:1]:
        if name not in tables:
            raise UsageError(f"latencies by {', '.join(by)} need the table {name!r}")
    rows = tables["exchanges"]
    if where is not None:
        rows = rows.where(where)
    if "fetches" in tables:
        rows = rows.join(tables["fetches"].select("exchange_id", "excess_ms"), "exchange_id", "left")
    else:
        rows = rows.withColumn("excess_ms", f.lit(None).cast("double"))
    if "topic" in columns:
        rows = rows.join(find_topics(tables), "exchange_id", "left")
    begun = f.unix_micros(f.coalesce("request_first_at", "response_first_at"))
    rows = rows.withColumn("_begun", begun)
    if every is not None:
        width = max(1, round(every * 1_000_000))
        rows = rows.withColumn("at", f.timestamp_micros(f.floor(rows["_begun"] / width) * width))
        columns = [*columns, "at"]
    span: Column | float = every if every is not None else _span(rows)

    def share(column: str, part: float) -> Column:
        if accuracy is None:
            return f.percentile(column, f.lit(part))
        return f.percentile_approx(column, part, accuracy)

    rate = f.count("*") / f.nullif(f.lit(span), f.lit(0.0))
    return rows.groupBy(*columns).agg(
        f.count("*").alias("exchanges"),
        f.count("latency_ms").alias("answered"),
        f.count_if(f.coalesce("error_code", f.lit(0)) != 0).alias("errors"),
        *(share("latency_ms", part).alias(name) for name, part in SHARES),
        f.max("latency_ms").alias("max_ms"),
        f.avg("latency_ms").alias("mean_ms"),
        share("broker_ms", 0.5).alias("broker_p50_ms"),
        share("broker_ms", 0.99).alias("broker_p99_ms"),
        f.count("excess_ms").alias("excess_count"),
        share("excess_ms", 0.5).alias("excess_p50_ms"),
        share("excess_ms", 0.99).alias("excess_p99_ms"),
        f.max("excess_ms").alias("excess_max_ms"),
        f.coalesce(f.sum("throttle_ms"), f.lit(0.0)).cast("double").alias("throttled_ms"),
        f.coalesce(f.sum("request_bytes"), f.lit(0)).alias("request_bytes"),
        f.coalesce(f.sum("response_bytes"), f.lit(0)).alias("response_bytes"),
        rate.alias("per_second"),
    )


def find_topics(tables: Mapping[str, DataFrame]) -> DataFrame:
    """The topics that exchanges are about, by the rules of `topic_traffic.topics_of`: exchange_id, topic, each pair
    once. `tables`: TOPIC_TABLES but the first."""
    from pyspark.sql import functions as f

    pairs = [
        tables[name].select("exchange_id", _topic_or_id(tables[name]).alias("topic"))
        for name in ("fetch_partitions", "record_batches")
    ]
    named = pairs[0].unionByName(pairs[1]).where("topic is not null").distinct()
    uses = tables["fetches"].select("exchange_id", "session_key", "session_epoch")
    uses = uses.where("session_key is not null and session_epoch is not null").join(named, "exchange_id", "left_anti")
    begin, end = f.coalesce("from_epoch", f.lit(0)).alias("begin"), f.coalesce("to_epoch", f.lit(-1)).alias("end")
    held_topics = tables["session_partitions"]
    stays = held_topics.select("session_key", _topic_or_id(held_topics).alias("topic"), begin, end)
    stays = stays.where("topic is not null").distinct()
    topics = stays.groupBy("session_key").agg(f.count_distinct("topic").alias("topics"))
    # Epochs wrap: `sessions.membership.within`.
    within = f.expr(
        "case when topics = 1 then true "
        f"when end < 0 then session_epoch >= begin or begin - session_epoch > {LAST_EPOCH // 2} "
        "when begin <= end then begin <= session_epoch and session_epoch < end "
        "else session_epoch >= begin or session_epoch < end end"
    )
    held = uses.join(stays.join(topics, "session_key"), "session_key").where(within)
    return named.unionByName(held.select("exchange_id", "topic").distinct())


def _topic_or_id(table: DataFrame) -> Column:
    """The name of each row's topic, its id where no name is known."""
    from pyspark.sql import functions as f

    return f.coalesce("topic", "topic_id") if "topic_id" in table.columns else f.col("topic")


def _span(rows: DataFrame) -> float:
    """Seconds between the first and the last exchange: a small job of its own."""
    from pyspark.sql import functions as f

    first = rows.agg((f.max("_begun") - f.min("_begun")).alias("span")).first()
    return 0.0 if first is None or first["span"] is None else first["span"] / 1e6
