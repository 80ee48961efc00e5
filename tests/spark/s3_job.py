"""Reads captures from an S3 server and writes tables to it, twice; run by test_s3.py.

python s3_job.py JARS ENDPOINT BUCKET CAPTURE CAPTURE
"""

from __future__ import annotations

import sys
import warnings

from tests.spark.hdfs_job import there_and_back


def main(jars: str, endpoint: str, bucket: str, first: str, second: str) -> None:
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


if __name__ == "__main__":
    main(*sys.argv[1:])
