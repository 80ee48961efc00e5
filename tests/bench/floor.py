"""The least that reading a capture can cost: `python -m tests.bench.floor CAPTURE`.

One fused pass over the bytes of a file as they come from the operating system: packet headers, addresses, ports, TCP,
a hash to the direction's own state, whether the packet is next in order, the lengths of the frames that begin in it,
and one row a frame. It understands only what `tests.bench` generates (classic pcap, Ethernet, IPv4, TCP), forgives
nothing and pairs nothing.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np

BLOCK = 16 << 20
SLOTS = 1 << 16
"""Of the table of directions; a generated capture has some ten thousand."""
KEY, NEXT, LEFT = range(3)
"""Of a direction: what it is known by, its next sequence number, bytes that are missing of its last frame."""


@dataclass(frozen=True, slots=True)
class Floor:
    """CPU seconds for a file of so many bytes."""

    size: int
    read: float
    fused: float
    packets: int
    frames: int

    @property
    def slope(self) -> float:
        """Bytes a second of CPU, read and passed once."""
        return self.size / (self.read + self.fused)


def _number(data: Any, at: int) -> int:
    return (np.int64(data[at]) << 24) | (np.int64(data[at + 1]) << 16) | (np.int64(data[at + 2]) << 8) | data[at + 3]


_inlined = numba.njit(_number, inline="always")


def _fused(data: Any, end: int, at: int, state: Any, rows: Any, totals: Any) -> int:
    """From `at` to the last whole packet before `end`; where the next one begins."""
    packets, frames = totals[0], totals[1]
    while at + 16 <= end:
        held = data[at + 8] | np.int64(data[at + 9]) << 8 | np.int64(data[at + 10]) << 16
        if at + 16 + held > end:
            break
        ip = at + 30
        tcp = ip + 4 * (data[ip] & 15)
        source, target = _inlined(data, ip + 12), _inlined(data, ip + 16)
        ports, sequence = _inlined(data, tcp), _inlined(data, tcp + 4)
        payload = tcp + 4 * (data[tcp + 12] >> 4)
        after = ip + ((np.int64(data[ip + 2]) << 8) | data[ip + 3])
        key = (source * 2654435761 ^ target * 40503 ^ ports * 97 + 1) & 0x7FFFFFFFFFFFFFFF
        slot = (key ^ key >> 17 ^ key >> 33) & (SLOTS - 1)
        while state[slot, KEY] != key and state[slot, KEY] != 0:
            slot = (slot + 1) & (SLOTS - 1)
        state[slot, KEY] = key
        if after > payload and (state[slot, NEXT] == sequence or state[slot, NEXT] == 0):
            place = payload + state[slot, LEFT]
            while place + 4 <= after:
                length = 4 + _inlined(data, place)
                row = frames % len(rows)
                rows[row, 0] = slot
                rows[row, 1] = sequence + place - payload
                rows[row, 2] = length
                rows[row, 3] = packets
                rows[row, 4] = _inlined(data, place + 4)
                rows[row, 5] = _inlined(data, place + 8)
                frames += 1
                place += length
            state[slot, LEFT] = place - after
            state[slot, NEXT] = (sequence + after - payload) & 0xFFFFFFFF
        packets += 1
        at += 16 + held
    totals[0], totals[1] = packets, frames
    return at


def floor(path: Path, times: int = 3) -> Floor:
    """The least of so many runs, compiled before."""
    kernel = numba.njit(_fused, boundscheck=True)
    data = np.zeros(BLOCK + (1 << 20), np.uint8)
    rows = np.zeros((1 << 16, 6), np.int64)
    kernel(data, 0, 0, np.zeros((SLOTS, 3), np.int64), rows, np.zeros(2, np.int64))
    least: tuple[float, float] | None = None
    totals = np.zeros(2, np.int64)
    for _ in range(times):
        state, totals, left = np.zeros((SLOTS, 3), np.int64), np.zeros(2, np.int64), 0
        read = fused = 0.0
        with path.open("rb", buffering=0) as file:
            file.seek(24)
            while True:
                started = time.process_time()
                got = file.readinto(memoryview(data)[left : left + BLOCK]) or 0
                read += time.process_time() - started
                if not got:
                    break
                started = time.process_time()
                after = kernel(data, left + got, 0, state, rows, totals)
                fused += time.process_time() - started
                left = left + got - after
                data[:left] = data[after : after + left]
        if least is None or read + fused < sum(least):
            least = read, fused
    assert least is not None
    return Floor(path.stat().st_size, *least, int(totals[0]), int(totals[1]))


def main() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    found = floor(Path(sys.argv[1]))
    each, gb = 1e9 / found.packets, found.size / 1e9
    print(
        f"{found.packets:,} packets, {found.frames:,} frames; read {found.read / gb:.3f} s/GB, one pass "
        f"{found.fused / gb:.3f} s/GB ({found.fused * each:.0f} ns a packet)"
    )


if __name__ == "__main__":
    main()
