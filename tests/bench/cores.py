"""`python -m tests.bench.cores`: what a second core is worth to kdissect, and what it is worth on this machine at all.

    python -m tests.bench.cores chatter --sizes 300MB 2GB --what exchanges analysed screen parquet --times 3

Three ways, one after the other, `--times` times: one thread on one core; as many threads as cores; and as many
processes as cores, each with one thread, a core, and the whole capture for itself. The last ones share nothing but the
machine: its memory, its caches, and the host below it, which lends its cores to others. How much more they get done
together than one alone is the most that threads can gain. All are slopes between two captures by the clock, of the
least times.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.bench.__main__ import OURS, asked, size_of
from tests.bench.workloads import WORKLOADS


def once(what: str, path: Path, places: list[list[int]], threads: int, folder: Path) -> float:
    """Seconds until a process for each of these sets of cores has done it. Raises SystemExit where one fails."""
    begun = time.perf_counter()
    running = []
    for number, cores in enumerate(places):
        pinned = ["taskset", "-c", ",".join(map(str, cores))]
        command = asked(path, what, folder / f"tables-{number}", threads)
        running.append(subprocess.Popen([*pinned, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    failed = [process.args for process in running if process.wait()]
    spent = time.perf_counter() - begun
    for number in range(len(places)):
        shutil.rmtree(folder / f"tables-{number}", ignore_errors=True)
    if failed:
        raise SystemExit(f"failed: {failed[0]}")
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cores", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--sizes", type=size_of, nargs=2, default=[size_of("300MB"), size_of("2GB")])
    parser.add_argument("--what", nargs="+", choices=OURS, default=["exchanges", "analysed", "screen", "parquet"])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where captures and tables are made (they are deleted afterwards)")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    ways = {"one": ([cores[:1]], 1), "threads": ([cores], len(cores)), "processes": ([[core] for core in cores], 1)}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kdissect-bench-") as folder:
        made = [WORKLOADS[options.workload][1](Path(folder, f"{size}.pcap"), size) for size in sorted(options.sizes)]
        gigabytes = (made[1].size - made[0].size) / 1e9
        for what in options.what:
            least = {way: [float("inf")] * len(made) for way in ways}
            for _ in range(options.times):
                for way, (places, threads) in ways.items():
                    for number, capture in enumerate(made):
                        spent = once(what, capture.path, places, threads, Path(folder))
                        least[way][number] = min(least[way][number], spent)
            one, threads, processes = ((least[way][1] - least[way][0]) / gigabytes for way in ways)
            print(
                f"{what:<10} {one:5.2f} s/GB, with {len(cores)} threads {threads:5.2f}: {one / threads:4.2f} times; "
                f"{len(cores)} processes at once {processes:5.2f}: {len(cores) * one / processes:4.2f} times at most",
                flush=True,
            )


if __name__ == "__main__":
    main()
