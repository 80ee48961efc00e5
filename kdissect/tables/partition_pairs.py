"""The kernel that puts the partitions of a request and of its response together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import Scalar
from kdissect.kernels.kernel import kernel, part

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
EACH_WITH_EACH = 64
"""Partitions of an exchange of which each is compared with each; more are sorted."""


@part
def _first(topic: Scalar, partition: Scalar, topics: Int64s, partitions: Int64s, begin: Scalar, end: Scalar,
           taken: Flags, shift: Scalar) -> Scalar:  # fmt: skip
    """The first of a stretch that names this partition and is not taken yet, -1 for none; it is taken then."""
    for i in range(begin, end):
        if partitions[i] == partition and topics[i] == topic and not taken[shift + i]:
            taken[shift + i] = True
            return i
    return -1


@kernel(
    "const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] "
    "b1[:] i8[:,:] -> i8"
)
def pair(
    asked: Int64s, asked_topic: Int64s, asked_partition: Int64s, gone: Int64s, gone_topic: Int64s,
    gone_partition: Int64s, given: Int64s, given_topic: Int64s, given_partition: Int64s, taken: Flags, found: Int64s,
) -> Scalar:  # fmt: skip
    """Rows of `partitions.matched` into `found` [4, n], exchange by exchange; how many. -1 where the rows of a side do
    not rise, or an exchange names so many that comparing each with each is not the way."""
    a, g, v, out = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    last = np.int64(-1)
    while a < asked.size or g < gone.size or v < given.size:
        row = np.int64(2**62)
        if a < asked.size:
            row = asked[a]
        if g < gone.size:
            row = min(row, gone[g])
        if v < given.size:
            row = min(row, given[v])
        if row <= last:
            return -1
        last = row
        a_end, g_end, v_end = a, g, v
        while a_end < asked.size and asked[a_end] == row:
            a_end += 1
        while g_end < gone.size and gone[g_end] == row:
            g_end += 1
        while v_end < given.size and given[v_end] == row:
            v_end += 1
        if (a_end - a) + (g_end - g) + (v_end - v) > EACH_WITH_EACH:
            return -1
        for i in range(v, v_end):
            found[0, out] = row
            found[1, out] = _first(given_topic[i], given_partition[i], asked_topic, asked_partition, a, a_end, taken, 0)
            found[2, out] = _first(
                given_topic[i], given_partition[i], gone_topic, gone_partition, g, g_end, taken, asked.size
            )
            found[3, out] = i
            out += 1
        for i in range(a, a_end):
            if not taken[i]:
                found[0, out], found[1, out], found[3, out] = row, i, -1
                found[2, out] = _first(
                    asked_topic[i], asked_partition[i], gone_topic, gone_partition, g, g_end, taken, asked.size
                )
                out += 1
        for i in range(g, g_end):
            if not taken[asked.size + i]:
                found[0, out], found[1, out], found[2, out], found[3, out] = row, -1, i, -1
                out += 1
        a, g, v = a_end, g_end, v_end
    return out
