"""Kernels that find stretches of bytes which a person could read, of many payloads at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.capture.pcap import Bytes, Int, Ints
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import copy_bytes

Offsets = npt.NDArray[np.int32]

SHORTEST = 4
"""Characters from which on a stretch of unknown bytes counts as text: shorter ones occur by chance everywhere."""
FILLER = 120
"""The byte `x`, which `redact` writes; SHORTEST of them or more end a stretch."""


@part
def _character_size(data: Bytes, at: Int, end: Int) -> Int:
    """Bytes of the readable character at `at`: printable ASCII, or UTF-8 by its lead byte (RFC 3629); 0 if none is."""
    lead = np.int64(data[at])
    if 0x20 <= lead <= 0x7E:
        return np.int64(1)
    if lead < 0xC2 or lead > 0xF4:
        return np.int64(0)
    size = np.int64(2)
    if lead >= 0xE0:
        size = np.int64(3)
    if lead >= 0xF0:
        size = np.int64(4)
    if end - at < size:
        return np.int64(0)
    for i in range(1, size):
        if data[at + i] & 0xC0 != 0x80:
            return np.int64(0)
    return size


@part
def _run_end(data: Bytes, at: Int, end: Int) -> Int:
    """Where the run of readable characters ends that begins at `at`; `at` if it has fewer than SHORTEST."""
    begin, count = at, np.int64(0)
    size = _character_size(data, at, end)
    while size > 0:
        at += size
        count += 1
        size = _character_size(data, at, end) if at < end else np.int64(0)
    return at if count >= SHORTEST else begin


@part
def _filler_end(data: Bytes, at: Int, end: Int) -> Int:
    """Where the filler ends that begins at `at`."""
    while at < end and data[at] == FILLER:
        at += 1
    return at


@kernel("const u1[:] const i8[:] const i8[:] i8[:,:] i8[:] -> i8")
def find_stretches(data: Bytes, begins: Ints, ends: Ints, stretches: Ints, reached: Ints) -> Int:
    """Find the readable stretches of the ranges of `data` from `begins` to `ends`, without filler around them.

    A row of `stretches` is a stretch: its range, where it begins, where it ends. `reached` is where the search goes on:
    its range, its place in there (-1: the beginning), and the end of the run of characters that it is in (-1: none).
    Returns how many rows were filled: all if `reached[0]` is the number of ranges, else as many as there is room for.
    """
    count = np.int64(0)
    while reached[0] < begins.size:
        row = reached[0]
        at, end = max(reached[1], begins[row]), ends[row]
        run = reached[2]
        while at < end:
            if run <= at:
                run = _run_end(data, at, end)
                if run == at:
                    at += 1
                    continue
            at = _filler_end(data, at, run)
            first = last = at
            while at < run:
                if data[at] != FILLER:
                    at += 1
                    last = at
                    continue
                behind = _filler_end(data, at, run)
                if behind - at >= SHORTEST:
                    break
                at = behind
            if last - first < SHORTEST:
                continue
            if count == stretches.shape[0]:
                reached[1], reached[2] = first, run
                return count
            stretches[count, 0], stretches[count, 1], stretches[count, 2] = row, first, last
            count += 1
        reached[0], reached[1], reached[2] = row + 1, -1, -1
    return count


@kernel("const u1[:] const i8[:,:] i4[:] u1[:] -> i8")
def copy_stretches(data: Bytes, stretches: Ints, offsets: Offsets, out: Bytes) -> Int:
    """Copy the stretches one after the other into `out`, and where each begins into `offsets`. Returns their bytes."""
    at = np.int64(0)
    offsets[0] = 0
    for i in range(stretches.shape[0]):
        size = stretches[i, 2] - stretches[i, 1]
        copy_bytes(out, at, data, stretches[i, 1], size)
        at += size
        offsets[i + 1] = at
    return at
