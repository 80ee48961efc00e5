"""Reads captures from an S3 server and writes tables to it, twice, and makes all tables of captures that are there and
in a folder of this machine; run by test_s3.py.

python s3_job.py JARS ENDPOINT BUCKET CAPTURE CAPTURE PATTERN FOLDER
"""

from __future__ import annotations

import os
import sys
import warnings
from glob import glob
from typing import Any

import kdissect.spark
from kdissect.engine.capture_tables import MADE
from tests.spark.conftest import assert_equal
from tests.spark.hdfs_job import there_and_back


def compare(session: Any, root: str, pattern: str, folder: str) -> None:
    """All tables of the captures that match a pattern below `root` are held against the local engine's."""
    tables = [*MADE, "records", "producers"]
    made = kdissect.spark.dissect(session, f"{root}/{pattern}", tables, partitions=3)
    local = kdissect.open(sorted(glob(os.path.join(folder, pattern)))).tables(tables)
    assert_equal({name: frame.toArrow() for name, frame in made.items()}, local)
    ranged = {source.name: source.ranged for source in made.plan.sources}
    assert sum(table.num_rows > 0 for table in local.values()) > 20
    print("equal", sorted(ranged.items()))


def main(jars: str, endpoint: str, bucket: str, first: str, second: str, pattern: str, folder: str) -> None:
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    built = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    built = built.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2")
    built = built.config("spark.driver.extraClassPath", f"{jars}/*")
    settings = {
        "endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true",
        "connection.ssl.enabled": "false", "connection.expect.continue": "false",  # moto answers 100 as if it were all
        "access.key": "anyone", "secret.key": "anything",
    }  # fmt: skip
    for name, value in settings.items():
        built = built.config(f"spark.hadoop.fs.s3a.{name}", value)
    session = built.getOrCreate()
    there_and_back(session, f"s3a://{bucket}", first, second)
    compare(session, f"s3a://{bucket}", pattern, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
