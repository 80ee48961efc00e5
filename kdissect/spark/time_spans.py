"""The analysis of brokers that have very many rows, one span of time after the other, each by tasks of its own.

A task of a later span needs only the state of the broker's analysis (`analysing.STATE`) from earlier ones: watermarks,
sessions, rows that wait. It comes with the span's rows, before them. Tasks of several brokers run at the same time,
those of one broker do not. But each is short, and the work of a lost one is done again for its span alone.

States are materialised before the next span is planned, so Spark's plan of a span has none of the spans before it
inside. They go from executor to executor: some megabytes for each broker. The driver takes 2 MB of memory for a span,
mostly for what Spark's UI shows of it, and each span looks through all decoded rows for its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from kdissect.spark.stages.analysing import STATE, Ends
from kdissect.spark.workers import runs_on_this_machine

if TYPE_CHECKING:
    from pyspark import StorageLevel
    from pyspark.sql import Column, DataFrame, SparkSession

SPAN_ROWS = 1 << 28
"""Rows of a broker that one task analyses, or a few more: 50 GB of small frames, some two minutes."""
ACCURACY = 1 << 14
"""Of the instants at which spans end; see `percentile_approx`."""


def span_ends(rows: DataFrame, weights: Mapping[str, int]) -> list[Ends]:
    """Where spans end, but for the last one, which has no end. `rows`: staged, their brokers resolved; `weights`: what
    brokers have of what these hold."""
    from pyspark.sql.functions import percentile_approx

    count = -(-max(weights.values(), default=0) // SPAN_ROWS)
    if count <= 1:
        return []
    shares = [number / count for number in range(1, count)]
    found = rows.groupBy("broker").agg(percentile_approx("at", shares, ACCURACY)).collect()
    return [{row[0]: row[1][number] for row in found} for number in range(count - 1)]


def in_spans(
    rows: DataFrame,
    places: Mapping[str, int],
    ending: Sequence[Ends],
    analysed: Callable[[DataFrame, Ends | None], DataFrame],
) -> list[DataFrame]:
    """The frames that `analysed` makes of the rows of each span, and of the state before it, up to its end: None in the
    last one. `rows` have their broker's place, by which states come to them."""
    level = _state_level(rows.sparkSession)
    parts: list[DataFrame] = []
    states: DataFrame | None = None
    for begin, end in pairwise([None, *ending, None]):
        mine = rows
        if begin is not None:
            mine = mine.where(_of_broker(begin) <= rows["at"])
        if end is not None:
            mine = mine.where(rows["at"] < _of_broker(end))
        if states is not None:
            mine = mine.unionByName(states.withColumn("place", _of_broker(places).cast("int")))
        parts.append(analysed(mine, end))
        if end is not None:
            states = parts[-1].where(f"table = '{STATE}'").localCheckpoint(storageLevel=level)
    return parts


def _of_broker(numbers: Mapping[str, int]) -> Column:
    """The number of each row's broker: a literal, as each broadcast join is one more job, and 8 MB of the driver's
    memory, for each span."""
    from pyspark.sql.functions import col, from_json, lit

    return from_json(lit(json.dumps(dict(numbers))), "map<string, bigint>")[col("broker")]


def _state_level(spark: SparkSession) -> StorageLevel:
    """How states are kept: they are not computed again where a disk is lost, so two executors have each of them. A
    session on this machine has one executor, which is lost only with the driver."""
    from pyspark import StorageLevel

    return StorageLevel.DISK_ONLY if runs_on_this_machine(spark) else StorageLevel.DISK_ONLY_2
