"""`python -m tests.bench.spark`: one rotated set of captures read by the local engine, by Spark, and by tshark.

    python -m tests.bench.spark bulk --size 2GB --files 8
    python -m tests.bench.spark chatter --size 500MB --files 8 --no-tshark
    python -m tests.bench.spark bulk --size 3GB --connections 1 --no-tshark
    python -m tests.bench.spark bulk --fit 500MB 1GB 2GB 4GB
    python -m tests.bench.spark chatter --size 1GB --whole --no-tshark

Each makes the table `exchanges`, without the columns that take the analysis of every fetch, or with all of its columns
(`--whole`). Spark runs as local[N] and
is warm: its session, its workers and their kernels are started before the clock is, by jobs over the same traffic on a
small scale. What a job costs before it reads is told by one over a tiny capture; shares of the local engine's
throughput are given with it and without. tshark prints five fields, a process for each file, as many at once as there
are cores. CPU seconds are those of the whole tree of processes. `--fit`: Spark alone, over several sizes, and the line
through its times.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.request
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from kdissect.capture import open_captures
from tests.bench.__main__ import TSHARK_FIELDS, WIRE, size_of
from tests.bench.applications import application
from tests.bench.measure import run
from tests.bench.packets import SYN, write
from tests.bench.workloads import bulk, halves, partitions, plain, short

CYCLES = {
    "bulk": (bulk, 16), "chatter": (application, 4000), "plain": (plain, 4000), "halves": (halves, 64),
    "partitions": (partitions, 16), "short": (short, 0),
}  # fmt: skip
"""Workload -> what a connection does in turn, and how many connections; 0: each turn is one of its own."""
COLUMNS = {"exchanges": WIRE.split(",")}
TCP_FLAGS = 14 + 20 + 13
"""Where in a packet of these workloads its TCP flags are."""
WARM, WARM_BYTES = 3, 250 << 20
"""Jobs before anything is measured, and what they read: more than the workers' windows hold, so that every kernel is
there."""
SMALL = Path(__file__).parents[2] / "captures" / "base_tiny.pcap"


def rotated(
    folder: Path, name: str, size: int, files: int, connections: int | None, brokers: int = 1, apart: bool = False
) -> tuple[Path, int]:
    """A set of so many files, or (`apart`) as many captures of their own; its folder and its packets. Captures of their
    own have whole connections, where each turn is one."""
    cycle, usual = CYCLES[name]
    whole = folder / "whole.pcap"
    fresh = not (connections or usual)
    together = None if name == "chatter" else 1 if fresh else 16
    made = write(whole, cycle(), size, connections or usual or 1, interleave=together, fresh=fresh, brokers=brokers)
    (capture,) = open_captures(whole)
    edges, wanted = [24], made.size / files
    for block in capture.blocks(capture.window()):
        packets = block.packets[:, 1]
        if apart and fresh:
            packets = packets[block.window.data[packets + TCP_FLAGS] == SYN]
        starts = packets + block.delta - 16
        while len(edges) < files and (at := int(np.searchsorted(starts, wanted * len(edges)))) < len(starts):
            edges.append(int(starts[at]))
    capture.close()
    target = folder / "set"
    target.mkdir()
    with whole.open("rb") as source:
        head = source.read(24)
        for i, (begin, end) in enumerate(zip(edges, [*edges[1:], made.size], strict=True)):
            with (target / (f"c{i:05d}x.pcap" if apart else f"set.pcap{i or ''}")).open("wb") as out:
                out.write(head)
                source.seek(begin)
                left = end - begin
                while left > 0:
                    left -= out.write(source.read(min(left, 1 << 24)))
    whole.unlink()
    return target, made.packets


def cpu() -> float:
    """CPU seconds of this process and its descendants so far."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def workers() -> list[float]:
    """Peak resident MB of each Python worker of Spark."""
    peaks = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark" in " ".join(process.cmdline()) and "java" not in process.name():
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                peaks += [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")]
        except (psutil.NoSuchProcess, OSError):
            continue
    return peaks


@dataclass(frozen=True, slots=True)
class Job:
    """What one Spark job took: seconds, CPU seconds, bytes shuffled."""

    wall: float
    cpu: float
    shuffled: int


class OnSpark:
    """A session whose workers are warm."""

    def __init__(self, cores: int, options: argparse.Namespace, folder: Path) -> None:
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        built = SparkSession.builder.master(f"local[{cores}]").config("spark.driver.memory", "2g")
        built = built.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
        self.session = built.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
        self.session.sparkContext.setLogLevel("ERROR")
        self._partitions = options.partitions
        self._columns = {"exchanges": None} if options.whole else COLUMNS
        place = folder / "warm"
        place.mkdir()
        target, _ = rotated(place, options.workload, WARM_BYTES, options.files, options.connections)
        for _ in range(WARM):
            self.job(target)
        shutil.rmtree(place)

    def job(self, paths: Path) -> Job:
        """Read and decode, and give every row of the table to Spark."""
        import kdissect.spark

        before, started, spent = self._shuffled(), time.perf_counter(), cpu()
        made = kdissect.spark.dissect(self.session, paths, self._columns, partitions=self._partitions)
        made["exchanges"].write.format("noop").mode("overwrite").save()
        made.unpersist()
        wall, spent = time.perf_counter() - started, cpu() - spent
        return Job(wall, spent, self._shuffled() - before)

    def _shuffled(self) -> int:
        context = self.session.sparkContext
        with urllib.request.urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages") as answer:
            return sum(stage["shuffleWriteBytes"] for stage in json.load(answer))


def compare(options: argparse.Namespace, cores: int, folder: Path) -> None:
    """The three of them over one set."""
    target, packets = rotated(folder, options.workload, options.size, options.files, options.connections)
    files = sorted(target.iterdir())
    size = sum(path.stat().st_size for path in files)
    print(f"{options.workload}: {size / 1e6:,.0f} MB, {packets:,} packets, {len(files)} files, {cores} cores")
    base = [sys.executable, "-m", "kdissect"]
    columns = [] if options.whole else ["--columns", WIRE]
    rest = ["--table", "exchanges", *columns, "--format", "arrow", "-o", "/dev/null"]
    startup = run([*base, str(SMALL), *rest], times=2)
    local = run([*base, str(target), *rest], times=2)
    wall, spent = local.wall - startup.wall, local.cpu - startup.cpu
    row("local engine", size, wall, spent, f"peak {local.peak / 1e6:,.0f} MB")
    spark = OnSpark(cores, options, folder)
    nothing = min((spark.job(SMALL) for _ in range(2)), key=lambda job: job.cpu)
    found = spark.job(target)
    note = f"{found.shuffled / packets:.1f} B/packet shuffled, worker peak {max(workers(), default=0):,.0f} MB"
    row("Spark", size, found.wall, found.cpu, note)
    spark.session.stop()
    print(f"  a job over a tiny capture: {nothing.wall:.2f} s, {nothing.cpu:.2f} CPU s")
    print(
        f"  of the local engine's throughput: {wall / found.wall:.2f} by time, {spent / found.cpu:.2f} by CPU time;"
        f" without a job's start {wall / (found.wall - nothing.wall):.2f}, {spent / (found.cpu - nothing.cpu):.2f}",
        flush=True,
    )
    if not options.no_tshark and shutil.which("tshark"):
        fields = [word for name in TSHARK_FIELDS for word in ("-e", name)]
        started, before = time.perf_counter(), os.times()
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(lambda path: run(["tshark", "-n", "-r", str(path), "-T", "fields", *fields]), files))
        now = os.times()
        used = now.children_user + now.children_system - before.children_user - before.children_system
        row("tshark", size, time.perf_counter() - started, used, "a process for each file")


def fit(options: argparse.Namespace, cores: int, folder: Path) -> None:
    """Spark over sets of several sizes, and how near to a line its times are."""
    spark = OnSpark(cores, options, folder)
    sizes, jobs = [], []
    for number, wanted in enumerate(options.fit):
        place = folder / str(number)
        place.mkdir()
        target, packets = rotated(place, options.workload, wanted, options.files, options.connections)
        sizes.append(sum(path.stat().st_size for path in target.iterdir()))
        jobs.append(min((spark.job(target) for _ in range(2)), key=lambda job: job.wall))
        shutil.rmtree(place)
        note = f"{jobs[-1].shuffled / packets:.1f} B/packet shuffled, worker peak {max(workers(), default=0):,.0f} MB"
        row(f"{options.workload} {sizes[-1] / 1e9:.1f} GB", sizes[-1], jobs[-1].wall, jobs[-1].cpu, note)
    spark.session.stop()
    gigabytes = np.array(sizes) / 1e9
    for name, seconds in (("seconds", [job.wall for job in jobs]), ("CPU seconds", [job.cpu for job in jobs])):
        slope, start = np.polyfit(gigabytes, seconds, 1)
        off = np.array(seconds) / (start + slope * gigabytes) - 1
        share = np.corrcoef(gigabytes, seconds)[0, 1] ** 2
        print(f"{name}: {start:.2f} + {slope:.2f} per GB; r2 {share:.4f}, off the line by {abs(off).max():.0%} at most")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", choices=CYCLES)
    parser.add_argument("--size", type=size_of, default=size_of("2GB"))
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--connections", type=int)
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--no-tshark", action="store_true")
    parser.add_argument("--fit", type=size_of, nargs="+")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kdissect-bench-") as folder:
        (fit if options.fit else compare)(options, cores, Path(folder))
    return 0


def row(name: str, size: int, wall: float, spent: float, note: str) -> None:
    """One line of figures."""
    print(
        f"{name:<13}{wall:7.1f} s {size / 1e6 / wall:8,.0f} MB/s   {spent:6.1f} CPU s"
        f" {size / 1e6 / spent:8,.0f} MB/CPU s   {note}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
