"""What a small capture costs, as a multiple of what loading numpy and pyarrow costs: `python -m tests.bench.startup
PYTHON [ARGUMENT ...]`.

PYTHON is that of an environment where kdissect is installed from its wheel; ARGUMENTs are kdissect's (a small capture
of the repository). CPU seconds of both, in pairs that follow each other: on a machine with other work a pair says more
than its figures.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from tests.conftest import CAPTURES

PAIRS = 7
LIBRARIES = ("-c", "import numpy, pyarrow")


def cpu_seconds(*command: str) -> float:
    """User and system time of a process. Raises CalledProcessError where it fails."""
    variables = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime


def main(python: str, *arguments: str) -> None:
    """Measure after one run of each, which brings the files into memory, and print the ratio."""
    asked = ("-P", "-m", "kdissect", *(arguments or [str(CAPTURES / "base_tiny.pcap")]))
    pairs = [(cpu_seconds(python, *asked), cpu_seconds(python, *LIBRARIES)) for _ in range(PAIRS + 1)][1:]
    ratios = sorted(ours / libraries for ours, libraries in pairs)
    ours, libraries = (1000 * statistics.median(of) for of in zip(*pairs, strict=True))
    print(f"{ours:.0f} ms, numpy and pyarrow {libraries:.0f} ms")
    print(f"{statistics.median(ratios):.2f} times (median of {PAIRS} pairs, {ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
