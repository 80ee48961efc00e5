"""Exchanges of captures, and views of a folder, through Spark Connect; run by test_cluster.py.

    python connect_job.py CAPTURES

Brokers are analysed in spans of time. Says whether the rows are those of the local engine, and which
views are made of a folder that lacks tables.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import kdissect
import kdissect.spark
from kdissect.spark import time_spans


def main(captures: str) -> None:
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    time_spans.SPAN_ROWS = 100
    session = SparkSession.builder.remote("local[2]").getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    tables = ["exchanges", "fetch_sessions", "findings"]
    made = kdissect.spark.dissect(session, captures, tables, partitions=2)
    for name, local in kdissect.open(captures).tables(tables).items():
        print(name, sorted(map(repr, made[name].toArrow().to_pylist())) == sorted(map(repr, local.to_pylist())))
    folder = Path("tables").absolute()
    made["exchanges"].write.parquet(str(folder / "exchanges"))
    print(*kdissect.spark.views(session, folder))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
