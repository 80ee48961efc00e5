"""Starts a small HDFS, and reads captures from it and writes tables to it, twice; run by test_hdfs.py.

python hdfs_job.py JAR FOLDER CAPTURE CAPTURE
"""

from __future__ import annotations

import sys
import warnings

import kdissect


def main(jar: str, folder: str, first: str, second: str) -> None:
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    from kdissect.spark.dataset import prepare
    from kdissect.spark.writing.saving import write

    built = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    built = built.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2")
    session = built.config("spark.driver.extraClassPath", jar).getOrCreate()
    hadoop = session._jvm.org.apache.hadoop
    settings = hadoop.conf.Configuration()
    settings.set("hdfs.minidfs.basedir", folder)
    cluster = hadoop.hdfs.MiniDFSCluster.Builder(settings).numDataNodes(1).build()
    try:
        cluster.waitActive()
        root = f"hdfs://localhost:{cluster.getNameNodePort()}"
        files, path, tables = cluster.getFileSystem(), hadoop.fs.Path, ["exchanges", "groups"]
        for turn, (capture, place) in enumerate(((first, "/in/day/base_tiny.pcap"), (second, "/in/raw_ids.pcap")), 1):
            files.copyFromLocalFile(path(capture), path(place))
            made = prepare([f"{root}/in"], tables, session).on(session, 2, f"{root}/kept", placed=True)
            write(made, f"{root}/out")
            print(made.reused)
            local = kdissect.open([first, second][:turn]).table("exchanges")
            found = session.read.parquet(f"{root}/out/exchanges").select(local.column_names).toArrow()
            print(sorted(map(repr, found.to_pylist())) == sorted(map(repr, local.to_pylist())))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
