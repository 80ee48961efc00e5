"""Reads a large capture from local disks and from an S3 server, each in a session of its own; run by test_s3.py.

python s3_large.py ENDPOINT S3_PATH LOCAL_PATH

Prints a line of JSON for each: the rows of `exchanges`, the bytes shuffled (those of the index, and all), and the peaks
of resident memory of Spark's Python workers in MB.
"""

from __future__ import annotations

import json
import sys
import urllib.request
import warnings

import kdissect.spark
from kdissect.spark.stages.plan import MOST_READERS
from tests.bench.spark import workers

SETTINGS = {"endpoint.region": "us-east-1", "path.style.access": "true", "access.key": "anyone", "secret.key": "any"}


def measure(endpoint: str, path: str) -> None:
    """Read one."""
    from pyspark.sql import SparkSession

    built = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC")
    built = built.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "2g")
    built = built.config("spark.python.unix.domain.socket.enabled", "true")
    for name, value in {"endpoint": endpoint, **SETTINGS}.items():
        built = built.config(f"spark.hadoop.fs.s3a.{name}", value)
    session = built.getOrCreate()
    made = kdissect.spark.dissect(session, path, {"exchanges": None}, partitions=MOST_READERS)
    rows = made["exchanges"].count()
    context = session.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages"
    with urllib.request.urlopen(url) as answer:
        stages = sorted(json.load(answer), key=lambda stage: stage["stageId"])
    written = [stage["shuffleWriteBytes"] for stage in stages if stage["shuffleWriteBytes"]]
    print(
        json.dumps(
            {"rows": rows, "index": written[0], "shuffled": sum(written), "peaks": [round(one) for one in workers()]}
        ),
        flush=True,
    )
    session.stop()


def main(endpoint: str, far: str, near: str) -> None:
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    for path in (near, far):
        measure(endpoint, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
