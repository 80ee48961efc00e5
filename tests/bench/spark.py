"""`python -m tests.bench.spark`: one rotated set of captures read by the local engine, by Spark, and by tshark.

    python -m tests.bench.spark bulk --size 2GB --files 8
    python -m tests.bench.spark chatter --size 500MB --files 8 --no-tshark
    python -m tests.bench.spark bulk --size 3GB --connections 1 --no-tshark

Each makes the table `exchanges`, without the column that takes the analysis of every fetch. Spark runs as local[N] and
is warm: its session, its workers and their kernels are started before the clock is. tshark prints five fields, a
process for each file, as many at once as there are cores. CPU seconds are those of the whole tree of processes.
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
from pathlib import Path
from typing import Any

import psutil

from kdissect.capture import open_captures
from tests.bench.__main__ import TSHARK_FIELDS, WIRE, size_of
from tests.bench.measure import run
from tests.bench.packets import write
from tests.bench.workloads import bulk, chatter, mixed

CYCLES = {"bulk": (bulk, 16), "chatter": (chatter, 4000), "mixed": (mixed, 64)}
"""Workload -> what a connection does in turn, and how many connections."""
COLUMNS = {"exchanges": WIRE.split(",")}
SMALL = Path(__file__).parents[2] / "captures" / "base_tiny.pcap"


def rotated(folder: Path, name: str, size: int, files: int, connections: int | None) -> tuple[Path, int]:
    """A set of so many files; its folder and its packets."""
    cycle, usual = CYCLES[name]
    whole = folder / "whole.pcap"
    made = write(whole, cycle(), size, connections or usual)
    (capture,) = open_captures(whole)
    edges, wanted = [24], made.size / files
    for block in capture.blocks(capture.window()):
        starts = block.packets[:, 1] + block.delta - 16
        while len(edges) < files and (later := starts[starts >= wanted * len(edges)]).size:
            edges.append(int(later[0]))
    capture.close()
    target = folder / "set"
    target.mkdir()
    with whole.open("rb") as source:
        head = source.read(24)
        for i, (begin, end) in enumerate(zip(edges, [*edges[1:], made.size], strict=True)):
            with (target / ("set.pcap" + (str(i) if i else ""))).open("wb") as out:
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


def on_spark(target: Path, cores: int, partitions: int | None) -> dict[str, Any]:
    """Seconds, CPU seconds, shuffled bytes and peak memory of the Spark job."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    import kdissect.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    built = SparkSession.builder.master(f"local[{cores}]").config("spark.driver.memory", "2g")
    built = built.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
    session = built.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")

    def job(paths: Path) -> None:
        made = kdissect.spark.dissect(session, paths, COLUMNS, partitions=partitions)
        made["exchanges"].write.format("noop").mode("overwrite").save()
        made.unpersist()

    job(SMALL)
    before = _shuffled(session)
    started, spent = time.perf_counter(), cpu()
    job(target)
    wall, spent = time.perf_counter() - started, cpu() - spent
    found = {"wall": wall, "cpu": spent, "shuffled": _shuffled(session) - before, "workers": workers()}
    session.stop()
    return found


def _shuffled(session: Any) -> int:
    url = f"{session.sparkContext.uiWebUrl}/api/v1/applications/{session.sparkContext.applicationId}/stages"
    with urllib.request.urlopen(url) as answer:
        return sum(stage["shuffleWriteBytes"] for stage in json.load(answer))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", choices=CYCLES)
    parser.add_argument("--size", type=size_of, default=size_of("2GB"))
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--connections", type=int)
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--no-tshark", action="store_true")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kdissect-bench-") as folder:
        target, packets = rotated(Path(folder), options.workload, options.size, options.files, options.connections)
        files = sorted(target.iterdir())
        size = sum(path.stat().st_size for path in files)
        print(f"{options.workload}: {size / 1e6:,.0f} MB, {packets:,} packets, {len(files)} files, {cores} cores")
        base = [sys.executable, "-m", "kdissect"]
        rest = ["--table", "exchanges", "--columns", WIRE, "--format", "arrow", "-o", "/dev/null"]
        startup = run([*base, str(SMALL), *rest], times=2)
        local = run([*base, str(target), *rest], times=2)
        row(
            "local engine", size, local.wall - startup.wall, local.cpu - startup.cpu, f"peak {local.peak / 1e6:,.0f} MB"
        )
        found = on_spark(target, cores, options.partitions)
        peak = max(found["workers"], default=0)
        note = f"{found['shuffled'] / packets:.1f} B/packet shuffled, worker peak {peak:,.0f} MB"
        row("Spark", size, found["wall"], found["cpu"], note)
        if not options.no_tshark and shutil.which("tshark"):
            fields = [word for name in TSHARK_FIELDS for word in ("-e", name)]
            started, spent = time.perf_counter(), os.times()
            with ThreadPoolExecutor(cores) as pool:
                list(pool.map(lambda path: run(["tshark", "-n", "-r", str(path), "-T", "fields", *fields]), files))
            now = os.times()
            used = now.children_user + now.children_system - spent.children_user - spent.children_system
            row("tshark", size, time.perf_counter() - started, used, "a process for each file")
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
