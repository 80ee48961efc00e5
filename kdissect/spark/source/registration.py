"""Making the data source known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark refuses readers that take filters while this is not set (4.1 and later know it)."""


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kdissect")` known to this session; see `kdissect.spark.source.datasource`.

    Filters are pushed down where the session's `spark.sql.python.filterPushdown.enabled` is true by now.
    """
    from kdissect.spark.source.datasource import FilteringFormat, Format

    pushed = str(spark.conf.get(PUSHDOWN, "false")).lower() == "true"
    spark.dataSource.register(FilteringFormat if pushed else Format)
