"""Runs a command and says what it cost: wall time, CPU, peak memory. Warm or cold page cache."""

from __future__ import annotations

import os
import subprocess
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


def _once(command: list[str], cold: Path | None, limit: float, cores: int) -> Cost:
    if cold:
        forget(cold)
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=(lambda: os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))) if cores else None,
    )
    deadline = started + limit
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.perf_counter() > deadline:
            process.kill()
            _, status, usage = os.wait4(process.pid, 0)
            break
        time.sleep(0.002)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024, process.returncode)


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
