"""Runs a command and says what it cost: wall time, CPU, peak memory. Warm or cold page cache."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and bytes of one process (the best of several runs, by wall time)."""

    wall: float
    user: float
    system: float
    peak: int
    code: int

    @property
    def cpu(self) -> float:
        """CPU seconds."""
        return self.user + self.system


def run(command: list[str], *, cold: Path | None = None, times: int = 1, limit: float = 1800, cores: int = 0) -> Cost:
    """The best of `times` runs. `cold`: a file to drop from the page cache before each; `cores`: pin to so many."""
    return min((_once(command, cold, limit, cores) for _ in range(times)), key=lambda cost: cost.wall)


_LAUNCH = """
import json, os, sys, time
started = time.perf_counter()
null = [(os.POSIX_SPAWN_OPEN, place, os.devnull, os.O_WRONLY, 0) for place in (1, 2)]
process = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=null)
_, status, used = os.wait4(process, 0)
code = os.waitstatus_to_exitcode(status)
print(json.dumps([time.perf_counter() - started, used.ru_utime, used.ru_stime, used.ru_maxrss * 1024, code]))
"""
"""What starts a command: a process' peak begins at that of whoever started it (Linux), and this here is small."""


def _once(command: list[str], cold: Path | None, limit: float, cores: int) -> Cost:
    if cold:
        forget(cold)
    pinned = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))] if cores else []
    launch = subprocess.Popen(
        [*pinned, sys.executable, "-ISc", _LAUNCH, *command], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        told, _ = launch.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(launch.pid, signal.SIGKILL)
        launch.communicate()
        return Cost(limit, 0.0, 0.0, 0, -signal.SIGKILL)
    return Cost(*json.loads(told))


def forget(path: Path) -> None:
    """Drop a file from the page cache (advice; what is dirty is written first)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def memory_bandwidth(size: int = 512 << 20) -> float:
    """Bytes per second of one core copying memory: no dissector can be faster than what moves bytes."""
    source = np.ones(size, np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    started = time.perf_counter()
    np.copyto(target, source)
    return size / (time.perf_counter() - started)
