"""Writes exchanges of a directory that captures are rotated into, by a stream of Spark's own (`stream`) or with other
tables by one query (`follow`); run by test_lake_tables.py with the settings of Spark that the format asks for.

python lake_writer.py FORMAT stream|follow INPUT OUTPUT STATE [KEY=VALUE...]
"""

from __future__ import annotations

import sys
import warnings


def main(form: str, how: str, folder: str, output: str, state: str, *settings: str) -> None:
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    import kdissect.spark

    built = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    built = built.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2")
    built = built.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    for setting in settings:
        built = built.config(*setting.split("=", 1))
    session = built.getOrCreate()
    print("begun", file=sys.stderr, flush=True)
    if how == "follow":
        tables = ["groups", "exchanges", "problems"]
        query = kdissect.spark.follow(session, folder, output, tables, form=form).trigger(availableNow=True).start()
        query.awaitTermination()
        return
    rows = kdissect.spark.stream(session, folder).writeStream.format(form).option("checkpointLocation", state)
    rows = rows.trigger(availableNow=True)
    if form == "iceberg":
        query = rows.toTable("lake.exchanges")
    else:
        query = rows.start(f"{output}/exchanges")
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
