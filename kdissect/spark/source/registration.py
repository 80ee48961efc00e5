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
"""Spark refuses readers that take filters while this is not true (4.1 and later know it)."""


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kdissect")` known to this session; see `kdissect.spark.source.datasource`.

    Where PySpark can push filters down, sets the session's `spark.sql.python.filterPushdown.enabled` to true, unless it
    has been set to false. Other Python data sources are as before: Spark refuses those that take filters without it.
    Its settings of storage (`fs.s3a...`) are the session's of this moment. Raises UsageError where PySpark has no data
    sources in Python.
    """
    if importlib.util.find_spec("pyspark.sql.datasource") is None:
        told = f"data sources and streams need PySpark 4.0 or newer, and this is {spark.version}"
        raise UsageError(f"{told}: {install_command('spark')}")
    from pyspark.sql.datasource import DataSourceReader

    from kdissect.spark.source.datasource import FilteringFormat, Format

    settings = storage_settings(spark)
    if not hasattr(DataSourceReader, "pushFilters"):
        spark.dataSource.register(Format.with_settings(settings))
        return
    pushed = str(spark.conf.get(PUSHDOWN, "true")).lower() == "true"  # the default counts where nobody has set it
    if pushed:
        spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register((FilteringFormat if pushed else Format).with_settings(settings))
