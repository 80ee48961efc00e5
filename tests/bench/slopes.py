"""`python -m tests.bench.slopes`: what more bytes cost with Spark and with the local engine, and the memory of it.

    python -m tests.bench.slopes chatter 1GB 4GB
    python -m tests.bench.slopes chatter 1GB 4GB --warm --times 3
    python -m tests.bench.slopes bulk 1GB 4GB --warm --times 3 --tshark
    python -m tests.bench.slopes bulk 1GB 4GB --tables
    python -m tests.bench.slopes chatter 300MB 1GB --warm --partitions 4 --tables exchanges
    python -m tests.bench.slopes chatter 100MB 6GB --warm --partitions 8 --tables exchanges --no-local --tasks 1
    python -m tests.bench.slopes chatter 500MB 1GB 2GB 4GB --no-local
    python -m tests.bench.slopes chatter 300MB --brokers 50 --no-local
    python -m tests.bench.slopes bulk 3GB --connections 1 --no-local
    python -m tests.bench.slopes partitions 300MB --no-local
    python -m tests.bench.slopes short 30MB --files 100 1000 10000 --apart --no-local

Each size is a rotated set of files, read by a process of its own: `exchanges` with all columns, or every table as
Parquet (`--tables`, `kdissect spark -o DIR` against `kdissect -o DIR/`), or one (`--tables NAME`, against `--table NAME
-o FILE`). The first makes rows of the JVM of what Python has made, and drops them; files are written by Python, which
is what `kdissect spark` does. CPU seconds are those of the whole tree of
processes, the JVM among them; memory is the largest resident size of any Python worker, and of the driver's Python.
Starting costs the same at any size and goes into no slope; where there are three sizes or more the line through them
is printed too. Of several numbers of files it is the line through those, and what planning took before there was a
job. `--apart`: each file is a capture of its own. `--partitions`: connections are spread over so many, as on a cluster,
where `local[2]` would do the job by one task. `--tasks`: so many at a time, instead of as many as there are cores.

Spark's JVM compiles its own code for many seconds after a session's begin, longer for a large set than for a small one,
so some of it is in the slope. `--warm`: one session reads all sizes, the smallest first, after it has read that
`WARM` times. What is measured is each job alone, from its planning to its last row, with its part of the session's CPU
seconds; the JVM's memory is that of the jobs before too. Nothing is kept with `--tables`. The local engine has nothing
to warm, and is measured as always. Captures are read once before each measurement, so that they are in memory.

`--times`: of so many runs of each job, Spark and the engine by turns, the least time counts, and the most memory.

`--tshark`: one tshark for each file, all of them at once (`-T fields`, five Kafka fields), is run too, but only
once. Eight of them take 6 GB of memory for 1 GB of small frames.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import psutil

from kdissect.cli.subcommands.bulk import LIGHT
from tests.bench.__main__ import size_of
from tests.bench.peers import PEERS
from tests.bench.spark import CYCLES, rotated

EVERY = 0.1
"""Seconds between two looks at the processes."""
WARM = 3
"""Jobs that a warm session has done before one counts."""
DONE = "done"
"""The line that a session says after each job."""
JOBS = """
import itertools, os, shutil, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
import kdissect.spark
from kdissect.spark.job import prepare
from kdissect.spark.writing.saving import write
cores, partitions, options, out, table, *given = sys.argv[1:]
made = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
made = made.config("spark.driver.extraJavaOptions", options) if options else made
spark = made.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
def exchanges(path):
    tables = kdissect.spark.dissect(spark, path, ["exchanges"], partitions=int(partitions) or None)
    tables["exchanges"].write.format("noop").mode("overwrite").save()
    tables.unpersist()
def whole(path):
    write(prepare(path, [table] if table else None).on(spark, int(partitions) or None), out)
for path in itertools.chain(given, map(str.strip, sys.stdin)):
    (whole if out else exchanges)(path)
    print("done", flush=True)
    shutil.rmtree(out, ignore_errors=True)
spark.stop()
"""

PLAN = """
import sys, time
from kdissect.spark.job import prepare
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


class Tree:
    """A command and all processes that come of it: their CPU seconds so far, MB of the largest."""

    def __init__(self, command: list[str], told: int = subprocess.DEVNULL, asked: int = subprocess.DEVNULL) -> None:
        self.command = command
        self.process = psutil.Popen(command, stdin=asked, stdout=told, stderr=subprocess.DEVNULL, text=True)
        self._cpu: dict[int, float] = {}
        self.driver = self.worker = 0.0

    @property
    def cpu(self) -> float:
        """CPU seconds, those of processes that have ended among them."""
        return sum(self._cpu.values())

    def look(self) -> None:
        """Look at the processes that there are."""
        try:
            tree = [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for one in tree:
            try:
                times = one.cpu_times()
                self._cpu[one.pid] = times.user + times.system
                if "java" not in one.name():
                    memory = one.memory_info().rss / 1e6
                    if one.pid == self.process.pid:
                        self.driver = max(self.driver, memory)
                    else:
                        self.worker = max(self.worker, memory)
            except psutil.NoSuchProcess:
                continue

    def ended(self) -> None:
        """Wait for the command's end. Raises SystemExit where it has failed."""
        with self.process:  # which closes its pipes too
            failed = self.process.wait()
        if failed:
            raise SystemExit(f"{' '.join(self.command)} failed")


def measured(command: list[str]) -> Spent:
    """Run a command, which has to succeed, and look at its processes meanwhile."""
    begun = time.perf_counter()
    tree = Tree(command)
    while tree.process.poll() is None:
        tree.look()
        time.sleep(EVERY)
    tree.ended()
    return Spent(time.perf_counter() - begun, tree.cpu, tree.driver, tree.worker)


class Session:
    """A command that does a job for each line it is given, and says DONE after each."""

    def __init__(self, command: list[str]) -> None:
        self._tree = Tree(command, subprocess.PIPE, subprocess.PIPE)

    def job(self, line: str) -> Spent:
        """What a job takes, beside what the ones before took. Raises SystemExit where the command fails."""
        tree, process = self._tree, self._tree.process
        tree.look()
        begun, before = time.perf_counter(), tree.cpu
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        said = ""
        while said.strip() != DONE:
            if not select.select([process.stdout], [], [], EVERY)[0]:
                tree.look()
                continue
            said = process.stdout.readline()  # it says nothing between two jobs
            if not said:
                tree.ended()
                raise SystemExit(f"{' '.join(tree.command)} ended before its job")
        wall = time.perf_counter() - begun
        tree.look()
        return Spent(wall, tree.cpu - before, tree.driver, tree.worker)

    def close(self) -> None:
        """Let it end."""
        self._tree.process.stdin.close()
        self._tree.ended()


def commands(
    target: Path, written_tables: str | None, cores: int, folder: Path, partitions: int
) -> dict[str, list[str]]:
    """The same with Spark and with the local engine. `written_tables`: the table that is written, empty for all, None
    where none is; `partitions`: of the decoding stage, 0 for as Spark likes."""
    ours, out = [sys.executable, "-m", "kdissect"], folder / "out"
    if written_tables is not None:
        spark = [*ours, "spark", str(target), "-o", str(out / "spark"), "--master", f"local[{cores}]"]
        spark += ["--partitions", str(partitions)] if partitions else []
        if not written_tables:
            return {"Spark": spark, "local": [*ours, str(target), "-o", f"{out / 'local'}/"]}
        out.mkdir(exist_ok=True)
        local = [*ours, str(target), "--table", written_tables, "-o", str(out / "local.parquet")]
        return {"Spark": [*spark, "--tables", written_tables], "local": local}
    local = [*ours, str(target), "--table", "exchanges", "--format", "arrow", "-o", os.devnull]
    return {"Spark": [*session(cores, partitions), str(target)], "local": local}


def tsharks(target: Path) -> list[str]:
    """A command that reads each file of a set by a tshark of its own, all at once."""
    each = [shlex.join(PEERS["tshark"].command(path)) for path in sorted(target.iterdir())]
    waiting = "for one in $(jobs -p); do wait $one || exit 1; done"
    return ["bash", "-c", f"{{ {' & '.join(each)} & }} >/dev/null; {waiting}"]


def session(cores: int, partitions: int, out: Path | None = None, table: str = "") -> list[str]:
    """The command of a session, which writes a table, or all, where `out` is given."""
    light = " ".join(LIGHT) if out is not None else ""
    return [sys.executable, "-c", JOBS, str(cores), str(partitions), light, str(out or ""), table]


def warmed(target: Path, cores: int, partitions: int, out: Path | None, table: str) -> Session:
    """A session that has read the set `WARM` times."""
    made = Session(session(cores, partitions, out, table))
    for _ in range(WARM):
        made.job(str(target))
    return made


def cached(target: Path) -> None:
    """Read the files of a set."""
    for path in target.iterdir():
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def least(each: Sequence[Spent]) -> Spent:
    """The least time and CPU time of several runs of one job, and the most memory."""
    return Spent(
        min(one.wall for one in each), min(one.cpu for one in each),
        max(one.driver for one in each), max(one.worker for one in each),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.slopes", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("workload", choices=CYCLES)
    parser.add_argument("sizes", type=size_of, nargs="+")
    parser.add_argument("--tables", nargs="?", const="", metavar="NAME")
    parser.add_argument("--files", type=int, nargs="+", default=[8])
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--connections", type=int)
    parser.add_argument("--partitions", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--no-local", action="store_true")
    parser.add_argument("--tshark", action="store_true")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    found: dict[str, list[Spent]] = {}
    sizes, counted = [], len(options.files) > 1
    warm: Session | None = None
    written = Path(options.folder or tempfile.gettempdir(), f"kdissect-bench-{os.getpid()}")
    several = product(sorted(options.sizes) if options.warm else options.sizes, options.files)
    for wanted, files in several:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="kdissect-bench-") as folder:
            target, _ = rotated(
                Path(folder), options.workload, wanted, files, options.connections, options.brokers, options.apart
            )
            size = sum(path.stat().st_size for path in target.iterdir()) / 1e9
            sizes.append(files / 1000 if counted else size)
            if counted:
                subprocess.run([sys.executable, "-c", PLAN, str(target)], check=True)
            ways = commands(target, options.tables, options.tasks, Path(folder), options.partitions)
            if options.tshark:
                ways["tshark"] = tsharks(target)
            several_times: dict[str, list[Spent]] = {
                name: [] for name in ways if name != "local" or not options.no_local
            }
            by_turns = [name for name in several_times if name != "tshark"]
            for name in by_turns * options.times + ["tshark"] * options.tshark:
                cached(target)
                if name == "Spark" and options.warm:
                    if warm is None:
                        out = None if options.tables is None else written
                        warm = warmed(target, options.tasks, options.partitions, out, options.tables or "")
                    several_times[name].append(warm.job(str(target)))
                else:
                    several_times[name].append(measured(ways[name]))
                    shutil.rmtree(Path(folder, "out"), ignore_errors=True)
                    Path(folder, "out").mkdir()
            for name, each in several_times.items():
                spent = least(each)
                found.setdefault(name, []).append(spent)
                memory = f"driver {spent.driver:,.0f} MB, largest worker {spent.worker:,.0f} MB"
                print(
                    f"{name:<6}{files:6} files{size:6.2f} GB{spent.wall:8.1f} s{spent.cpu:8.1f} CPU s   {memory}",
                    flush=True,
                )
    if warm is not None:
        warm.close()
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
    for what, other in product(("CPU seconds", "seconds"), ("local", "tshark")):
        if (other, what) in slopes and ("Spark", what) in slopes:
            share = slopes[other, what] / slopes["Spark", what]
            print(f"Spark has {share:.2f} times the throughput of {other} by {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
