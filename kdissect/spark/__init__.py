"""Captures that do not fit one machine: the same tables from Spark, through PySpark.

    import kdissect.spark
    tables = kdissect.spark.dissect(spark, "/captures/*.pcap")
    tables["exchanges"].where("latency_ms > 500").show()

    kdissect.spark.register(spark)
    spark.read.format("kdissect").option("table", "segments").load("/captures/*.pcap")

Needs `pip install '.[spark]'`, Java, and kdissect on the executors.
"""

from __future__ import annotations

from kdissect.spark.analytics import latency
from kdissect.spark.dataset import Dataset
from kdissect.spark.job import dissect
from kdissect.spark.message_rows import messages
from kdissect.spark.source.registration import register
from kdissect.spark.source.streaming import stream
from kdissect.spark.views import views, with_late_names
from kdissect.spark.workers import own_python
from kdissect.spark.writing.saving import write
from kdissect.spark.writing.streamed_tables import follow, lag

own_python()

__all__ = [
    "Dataset", "dissect", "follow", "lag", "latency", "messages", "register", "stream", "views", "with_late_names",
    "write",
]  # fmt: skip
