"""Making the data source known to a session."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from kdissect.installed_copy import install_command
from kdissect.problems import UsageError
from kdissect.spark.file_system import storage_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark refuses readers that take filters while this is not true (4.1 and later know it). It is false by default, and
stays so here. Up to 4.3 Spark keeps the filters of a `load()` that were pushed last, and reads by them wherever that
frame is used: without a filter, and on both sides of a join."""


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kdissect")` known to this session; see `kdissect.spark.source.datasource`.

    Filters are pushed down where the session has set `spark.sql.python.filterPushdown.enabled` to true before. Its
    settings of storage (`fs.s3a...`) are the session's of this moment. Raises UsageError where PySpark has no data
    sources in Python.
    """
    check_data_sources(spark.version)
    from kdissect.spark.source.datasource import FilteringFormat, Format

    pushed = str(spark.conf.get(PUSHDOWN, "false")).lower() == "true"
    spark.dataSource.register((FilteringFormat if pushed else Format).with_settings(storage_settings(spark)))


def check_data_sources(version: str) -> None:
    """Raise UsageError where PySpark, of this version, has no data sources in Python. Streams are made of them, too."""
    if importlib.util.find_spec("pyspark.sql.datasource") is None:
        told = f"data sources and streams need PySpark 4.0 or newer, and this is {version}"
        raise UsageError(f"{told}: {install_command('spark')}")
