"""Starts a small HDFS, and reads captures from it and writes tables to it, twice; run by test_hdfs.py.

python hdfs_job.py JAR FOLDER CAPTURE CAPTURE
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import kdissect


def there_and_back(session: Any, root: str, first: str, second: str) -> None:
    """A capture, then another one, are put into a file system below `root`, read from it, and their tables are written
    there; says what was read, and whether the tables are those of the local engine."""
    from kdissect.spark.file_system import HadoopFiles
    from kdissect.spark.job import prepare
    from kdissect.spark.writing.saving import write

    tables = ["exchanges", "groups"]
    for turn, (capture, place) in enumerate(((first, "/in/day/base_tiny.pcap"), (second, "/in/raw_ids.pcap")), 1):
        HadoopFiles(session).write(f"{root}{place}", Path(capture).read_bytes())
        job = prepare([f"{root}/in"], tables, session)
        print("ranged", [source.ranged for source in job.sources])
        write(job.on(session, 2), f"{root}/out")
        local = kdissect.open([first, second][:turn]).table("exchanges")
        found = session.read.parquet(f"{root}/out/exchanges").select(local.column_names).toArrow()
        print(sorted(map(repr, found.to_pylist())) == sorted(map(repr, local.to_pylist())))


def main(jar: str, folder: str, first: str, second: str) -> None:
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    built = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    built = built.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2")
    built = built.config("spark.locality.wait", "0")  # as `kdissect spark` has it
    session = built.config("spark.driver.extraClassPath", jar).getOrCreate()
    hadoop = session._jvm.org.apache.hadoop
    settings = hadoop.conf.Configuration()
    settings.set("hdfs.minidfs.basedir", folder)
    cluster = hadoop.hdfs.MiniDFSCluster.Builder(settings).numDataNodes(1).build()
    try:
        cluster.waitActive()
        there_and_back(session, f"hdfs://localhost:{cluster.getNameNodePort()}", first, second)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
