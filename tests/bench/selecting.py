"""`python -m tests.bench.selecting`: what a part of a capture costs through Spark's data source, as a share of all.

    python -m tests.bench.selecting chatter --size 300MB 1GB
    python -m tests.bench.selecting chatter --size 1GB --table fetches --brokers 3

Two columns of a tenth of the time, at one broker, at four places of a capture, next to every row with all columns. Rows
go to Spark's `noop` sink. The least of several runs counts, in seconds by the clock and of CPU of the JVM and all
Python processes; the session and its workers are warm.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import kdissect
import kdissect.spark
from tests.bench.__main__ import size_of
from tests.bench.spark import CYCLES, cpu, rotated

PLACES = (0.0, 0.1, 0.45, 0.9)
SHARE = 0.1
"""How much of a capture's time is asked for."""
TIMES = {"exchanges": "request_first_at", "fetches": "requested_at", "produces": "requested_at"}
COLUMNS = ("client_id", "broker_ms")


def least(times: int, work: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU: the least of so many runs."""
    walls, cpus = [], []
    for _ in range(times):
        before, begin = cpu(), time.perf_counter()
        work()
        walls.append(time.perf_counter() - begin)
        cpus.append(cpu() - before)
    return min(walls), min(cpus)


def measure(spark: Any, path: Path, size: int, table: str, times: int) -> None:
    """Print a line for all rows, and one for each part."""
    column = TIMES[table]
    shown = kdissect.open(path).table(table, [column, "broker"])
    instants, broker = shown[column].drop_null(), shown["broker"][0].as_py()
    first, last = min(instants.to_pylist()), max(instants.to_pylist())

    def part(place: float) -> Callable[[], None]:
        begin = first + (last - first) * place
        end = begin + (last - first) * SHARE + timedelta(microseconds=1)
        where = f"{column} >= '{begin.isoformat()}' and {column} < '{end.isoformat()}' and broker = '{broker}'"
        return lambda: sink(source().option("where", where).load(str(path)).select(*COLUMNS))

    def source() -> Any:
        return spark.read.format("kdissect").option("table", table).option("per_capture", "true")

    def sink(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def everything() -> None:
        sink(source().load(str(path)))

    for work in (everything, part(PLACES[-1])):  # workers and kernels are there afterwards
        work()
    whole = least(times, everything)
    print(f"{size / 1e9:.1f} GB, {table}: all rows {whole[0]:.2f} s, {whole[1]:.2f} CPU s", flush=True)
    for place in PLACES:
        wall, spent = least(times, part(place))
        shares = f"{wall / whole[0]:.2f} by the clock, {spent / whole[1]:.2f} of the CPU"
        print(f"  from {place:.0%}: {wall:.2f} s, {spent:.2f} CPU s: {shares}", flush=True)


def main() -> None:
    """Make captures, measure, delete them."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.selecting", description=__doc__.split("\n")[0])
    parser.add_argument("workload", choices=sorted(CYCLES))
    parser.add_argument("--size", type=size_of, nargs="+", default=[300 << 20])
    parser.add_argument("--table", choices=sorted(TIMES), default="exchanges")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    built = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
    spark = built.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    kdissect.spark.register(spark)
    for size in options.size:
        with tempfile.TemporaryDirectory() as folder:
            path, _ = rotated(Path(folder), options.workload, size, 1, None, options.brokers)
            measure(spark, path, size, options.table, options.times)
    spark.stop()


if __name__ == "__main__":
    main()
