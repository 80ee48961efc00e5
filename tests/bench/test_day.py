"""A day of live traffic in some minutes: a capture again and again, each time later and from other client ports.

    pytest -m bench tests/bench/test_day.py -s

Prints memory by the simulated hour and CPU by Mbit/s. Memory must not grow by 5 % after the first hour; figures of time
never fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import kdissect
from kdissect.capture import open_captures
from kdissect.capture.pcap import PACKET
from tests.conftest import ROOT

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

CAPTURE = ROOT / "captures" / "k4_session_eviction.pcap"
BROKERS = (19091, 19092, 19093)
HOUR_S = 3600
HOURS = 24
GROWTH = 1.05
"""Of the last hour over the end of the first one, by the medians of what was resident every two minutes."""
END = 7
"""Copies of the capture that make the last quarter of an hour."""


class Days:
    """The capture as numpy arrays; `copy(n)` is its records for the n-th time."""

    def __init__(self) -> None:
        (capture,) = open_captures(CAPTURE)
        window = capture.window()
        (block,) = capture.blocks(window)
        rows = block.packets
        data = window.data[block.start : block.end]
        self.header = CAPTURE.read_bytes()[:24]
        self._data = data.copy()
        at = rows[:, 1] - block.start
        self._seconds = at - 16  # where each record's seconds stand
        self.span_s = int(rows[:, PACKET.time].max() - rows[:, PACKET.time].min()) // 1_000_000_000 + 1
        self.bits = 8 * int(rows[:, PACKET.captured].sum())
        tcp = at + 14 + 4 * (self._data[at + 14] & 15).astype(np.int64)
        ports = np.stack([tcp, tcp + 2])
        value = self._data[ports].astype(np.int64) << 8 | self._data[ports + 1]
        mine = ~np.isin(value, BROKERS)
        self._ports, self._values = ports[mine], value[mine]
        self._before = np.frombuffer(self._data[self._seconds[:, None] + np.arange(4)].tobytes(), "<u4").astype(
            np.int64
        )

    def copy(self, n: int, begin_s: int | None = None) -> bytes:
        """`begin_s`: when the copy numbered 0 begins, seconds since the epoch; as it was captured, if not said."""
        moved = 0 if begin_s is None else begin_s - int(self._before.min())
        later = (self._before + moved + n * self.span_s).astype("<u4")
        self._data[self._seconds[:, None] + np.arange(4)] = later.view(np.uint8).reshape(-1, 4)
        port = 20_000 + (self._values + 37 * n) % 40_000
        self._data[self._ports], self._data[self._ports + 1] = port >> 8, port & 255
        return self._data.tobytes()


def minutes(days: Days, running: subprocess.Popen[bytes]) -> Iterator[tuple[int, float]]:
    """Feeds a day; after each copy the hour (1 to 24) and MB resident."""
    assert running.stdin is not None
    process = psutil.Process(running.pid)
    running.stdin.write(days.header)
    for n in range(HOURS * HOUR_S // days.span_s + 1):
        running.stdin.write(days.copy(n))
        yield min(HOURS, n * days.span_s // HOUR_S + 1), process.memory_info().rss / 1e6


def test_memory_is_flat_for_a_day(tmp_path: Path) -> None:
    days = Days()
    command = [sys.executable, "-m", "kdissect", "top", "-", "--every", "2s", "--format", "jsonl", "--no-findings"]
    with tempfile.TemporaryFile() as out:
        running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, cwd=ROOT)
        memory: dict[int, list[float]] = {}
        for hour, resident in minutes(days, running):
            memory.setdefault(hour, []).append(resident)
        assert running.stdin is not None
        cpu = psutil.Process(running.pid).cpu_times()
        running.stdin.close()
        running.wait(600)
        out.seek(0)
        last = json.loads(out.read().splitlines()[-1])
    copies = HOURS * HOUR_S // days.span_s + 1
    megabits = copies * days.bits / 1e6
    print("\n| hour | resident, MB: median | least | most |\n|---|---|---|---|")
    for hour in (1, 2, 6, 12, 18, 24):
        print(f"| {hour} | {np.median(memory[hour]):.1f} | {min(memory[hour]):.1f} | {max(memory[hour]):.1f} |")
    print(f"{megabits:,.0f} Mbit, {last['packets']:,} packets, {last['exchanges']:,} exchanges, "
          f"{last['connections']:,} connections in {cpu.user + cpu.system:.0f} s of CPU: "
          f"{(cpu.user + cpu.system) / megabits:.4f} s of CPU for each Mbit/s")  # fmt: skip
    one = kdissect.open(CAPTURE).table("exchanges", ["status"]).num_rows
    assert last["packets"] == copies * 6685
    assert abs(last["exchanges"] - copies * one) <= 0.001 * copies * one
    early, late = float(np.median(memory[1][-END:])), float(np.median(memory[HOURS]))
    print(f"resident at the end of hour 1: {early:.1f} MB, in hour {HOURS}: {late:.1f} MB, {late / early - 1:+.1%}")
    assert late <= GROWTH * early
