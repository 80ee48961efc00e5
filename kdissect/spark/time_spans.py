"""The analysis of brokers that have very many rows, one span of time after the other, each by tasks of its own.

What a task of a later span needs of earlier ones is the state of the broker's analysis (`analysing.STATE`): watermarks,
sessions, rows that wait. It comes with the span's rows, before them. Brokers' tasks run beside each other, those of one
broker do not; but each is short, and what a lost one had done is done again for its span alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kdissect.spark.stages.analysing import STATE, Ends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPAN_ROWS = 1 << 28
"""Rows of a broker that one task analyses, or a few more: 50 GB of small frames, some two minutes."""
MOST_SPANS = 8
"""Spans at most; brokers with more rows have longer ones. Spark's plan of a span has the plans of all before it inside,
and its texts for the UI and the log have each of them twice: with 16 the driver runs out of memory."""
ACCURACY = 1 << 14
"""Of the instants at which spans end; see `percentile_approx`."""


def span_ends(rows: DataFrame, weights: Mapping[str, int]) -> list[Ends]:
    """Where spans end, but for the last one, which has no end. `rows`: staged, their brokers resolved; `weights`: what
    brokers have of what these hold."""
    from pyspark.sql.functions import percentile_approx

    count = min(-(-max(weights.values(), default=0) // SPAN_ROWS), MOST_SPANS)
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
    """What `analysed` makes of the rows of each span, and of the state before it, up to its end: None in the last one.
    `rows` have their broker's place, by which states come to them."""
    from pyspark.sql.functions import broadcast

    if not ending:
        return [analysed(rows, None)]
    spark, columns = rows.sparkSession, rows.columns
    listed = [(broker, place, [end[broker] for end in ending if broker in end]) for broker, place in places.items()]
    known = broadcast(spark.createDataFrame(listed, "broker string, place int, ends array<bigint>"))
    spread = (
        rows.drop("place").join(known, "broker").selectExpr(*columns, "size(filter(ends, one -> one <= at)) as span")
    )
    parts: list[DataFrame] = []
    for number, end in enumerate([*ending, None]):
        mine = spread.where(f"span = {number}").select(*columns)
        if parts:
            mine = mine.unionByName(parts[-1].where(f"table = '{STATE}'").join(known, "broker").select(*columns))
        parts.append(analysed(mine, end))
    return parts
