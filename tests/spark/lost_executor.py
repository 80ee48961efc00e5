"""Tables of a capture set from a small cluster that loses an executor: `lost_executor.py FOLDER OUT.json ROWS`.

A process of its own, for a session's master is settled when its JVM starts. ROWS is the number of rows of a broker that
one span of its time has. Writes the rows of each table, sorted, how many executors were lost, and the number of spans.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path

import psutil


def executors() -> list[psutil.Process]:
    """The executors that this process started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def main(folder: str, out: str, span_rows: str) -> None:
    import pyspark

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    import kdissect.spark
    from kdissect.spark import time_spans

    time_spans.SPAN_ROWS = int(span_rows)
    built = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    built = built.config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    built = built.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", "false")
    spark = built.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    names = ["exchanges", "connections", "fetches", "fetch_sessions", "problems", "findings"]
    made = kdissect.spark.dissect(spark, folder, names, partitions=4)
    rows = {"exchanges": sorted(map(repr, made["exchanges"].toArrow().to_pylist()))}
    made["fetch_sessions"].count()  # all spans are analysed
    before = executors()
    before[0].kill()  # and with it what it has decoded, and its part of the shuffle
    before[0].wait(30)
    time.sleep(1)
    for name in names:
        rows[name] = sorted(map(repr, made[name].toArrow().to_pylist()))
    after = {process.pid for process in executors()}
    lost = [process.pid for process in before if process.pid not in after]
    told = {"rows": rows, "executors": len(before), "lost": len(lost), "spans": len(made._spans)}
    Path(out).write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
