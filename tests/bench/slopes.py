"""`python -m tests.bench.slopes`: what more bytes cost with Spark and with the local engine, and the memory of it.

    python -m tests.bench.slopes chatter 1GB 4GB
    python -m tests.bench.slopes bulk 1GB 4GB --tables
    python -m tests.bench.slopes chatter 500MB 1GB 2GB 4GB --no-local
    python -m tests.bench.slopes chatter 300MB --brokers 50 --no-local
    python -m tests.bench.slopes bulk 3GB --connections 1 --no-local
    python -m tests.bench.slopes partitions 300MB --no-local
    python -m tests.bench.slopes short 30MB --files 100 1000 10000 --apart --no-local

Each size is a rotated set of files, read by a process of its own: `exchanges` with all columns, or every table as
Parquet (`--tables`, `kdissect spark -o DIR` against `kdissect -o DIR/`). CPU seconds are those of the whole tree of
processes, the JVM among them; memory is the largest resident size of any Python worker, and of the driver's Python.
Starting costs the same at any size and goes into no slope; where there are three sizes or more the line through them
is printed too. Of several numbers of files it is the line through those, and what planning took before there was a
job. `--apart`: each file is a capture of its own. `--partitions`: connections are spread over so many, as on a cluster,
where `local[2]` would do the job by one task.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import psutil

from tests.bench.__main__ import size_of
from tests.bench.spark import CYCLES, rotated

EVERY = 0.1
"""Seconds between two looks at the processes."""
JOB = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
import kdissect.spark
made = SparkSession.builder.master(f"local[{sys.argv[2]}]").config("spark.ui.enabled", "false")
spark = made.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
tables = kdissect.spark.dissect(spark, sys.argv[1], ["exchanges"], partitions=int(sys.argv[3]) or None)
tables["exchanges"].write.format("noop").mode("overwrite").save()
spark.stop()
"""

PLAN = """
import sys, time
from kdissect.spark.dataset import prepare
begun, before = time.perf_counter(), time.process_time()
job = prepare(sys.argv[1], ["exchanges"])
files = sum(len(source.files) for source in job.sources)
print(f"{files:,} files planned in {time.perf_counter() - begun:.1f} s, {time.process_time() - before:.1f} CPU s")
"""


@dataclass(slots=True)
class Spent:
    """What a tree of processes took: seconds, CPU seconds, MB of its largest processes."""

    wall: float
    cpu: float
    driver: float
    worker: float


def measured(command: list[str]) -> Spent:
    """Run a command, which has to succeed, and look at its processes meanwhile."""
    begun = time.perf_counter()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cpu: dict[int, float] = {}
    peak = {"driver": 0.0, "worker": 0.0}
    while process.poll() is None:
        try:
            tree = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        for one in tree:
            try:
                times = one.cpu_times()
                cpu[one.pid] = times.user + times.system
                if "java" not in one.name():
                    kind = "driver" if one.pid == process.pid else "worker"
                    peak[kind] = max(peak[kind], one.memory_info().rss / 1e6)
            except psutil.NoSuchProcess:
                continue
        time.sleep(EVERY)
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed")
    return Spent(time.perf_counter() - begun, sum(cpu.values()), peak["driver"], peak["worker"])


def commands(target: Path, tables: bool, cores: int, folder: Path, partitions: int) -> dict[str, list[str]]:
    """The same with Spark and with the local engine. `partitions`: of the decoding stage, 0 for as Spark likes."""
    ours, out = [sys.executable, "-m", "kdissect"], folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    if tables:
        spark = [*ours, "spark", str(target), "-o", str(out / "spark"), "--master", f"local[{cores}]"]
        spark += ["--partitions", str(partitions)] if partitions else []
        return {"Spark": spark, "local": [*ours, str(target), "-o", f"{out / 'local'}/"]}
    local = [*ours, str(target), "--table", "exchanges", "--format", "arrow", "-o", os.devnull]
    return {"Spark": [sys.executable, "-c", JOB, str(target), str(cores), str(partitions)], "local": local}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.slopes", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("workload", choices=CYCLES)
    parser.add_argument("sizes", type=size_of, nargs="+")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--files", type=int, nargs="+", default=[8])
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--connections", type=int)
    parser.add_argument("--partitions", type=int, default=0)
    parser.add_argument("--no-local", action="store_true")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    found: dict[str, list[Spent]] = {}
    sizes, counted = [], len(options.files) > 1
    for wanted, files in product(options.sizes, options.files):
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="kdissect-bench-") as folder:
            target, _ = rotated(
                Path(folder), options.workload, wanted, files, options.connections, options.brokers, options.apart
            )
            size = sum(path.stat().st_size for path in target.iterdir()) / 1e9
            sizes.append(files / 1000 if counted else size)
            if counted:
                subprocess.run([sys.executable, "-c", PLAN, str(target)], check=True)
            for name, command in commands(target, options.tables, cores, Path(folder), options.partitions).items():
                if name == "local" and options.no_local:
                    continue
                spent = measured(command)
                found.setdefault(name, []).append(spent)
                memory = f"driver {spent.driver:,.0f} MB, largest worker {spent.worker:,.0f} MB"
                print(
                    f"{name:<6}{files:6} files{size:6.2f} GB{spent.wall:8.1f} s{spent.cpu:8.1f} CPU s   {memory}",
                    flush=True,
                )
    slopes, unit = {}, "1,000 files" if counted else "GB"
    for name, spents in found.items():
        for what, values in (("CPU seconds", [s.cpu for s in spents]), ("seconds", [s.wall for s in spents])):
            if len(values) < 2:
                continue
            slope, start = np.polyfit(sizes, values, 1)
            off = abs(np.array(values) / (start + slope * np.array(sizes)) - 1).max()
            share = np.corrcoef(sizes, values)[0, 1] ** 2
            slopes[name, what] = slope
            line = f"{start:.1f} + {slope:.2f} {what} for each {unit}"
            print(f"{name}: {line}; r2 {share:.4f}, off that line by {off:.0%} at most")
    for what in ("CPU seconds", "seconds"):
        if ("local", what) in slopes and ("Spark", what) in slopes:
            print(f"Spark has {slopes['local', what] / slopes['Spark', what]:.2f} of the local throughput by {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
