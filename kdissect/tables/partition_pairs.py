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
           used: Flags, shift: Scalar) -> Scalar:  # fmt: skip
    """The first of a stretch that names this partition and is not taken yet, -1 for none; it is taken then."""
    for i in range(begin, end):
        if partitions[i] == partition and topics[i] == topic and not used[shift + i]:
            used[shift + i] = True
            return i
    return -1


@kernel(
    "const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] "
    "b1[:] i8[:,:] -> i8"
)
def pair(
    requested: Int64s, requested_topic: Int64s, requested_partition: Int64s, forgotten: Int64s,
    forgotten_topic: Int64s, forgotten_partition: Int64s, returned: Int64s, returned_topic: Int64s,
    returned_partition: Int64s, used: Flags, pairs: Int64s,
) -> Scalar:  # fmt: skip
    """Rows of `partitions.matched` into `pairs` [4, n], exchange by exchange; how many. -1 where the rows of a side do
    not rise, or an exchange names so many that comparing each with each is not the way."""
    a, g, v, out = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    last = np.int64(-1)
    while a < requested.size or g < forgotten.size or v < returned.size:
        row = np.int64(2**62)
        if a < requested.size:
            row = requested[a]
        if g < forgotten.size:
            row = min(row, forgotten[g])
        if v < returned.size:
            row = min(row, returned[v])
        if row <= last:
            return -1
        last = row
        a_end, g_end, v_end = a, g, v
        while a_end < requested.size and requested[a_end] == row:
            a_end += 1
        while g_end < forgotten.size and forgotten[g_end] == row:
            g_end += 1
        while v_end < returned.size and returned[v_end] == row:
            v_end += 1
        if (a_end - a) + (g_end - g) + (v_end - v) > EACH_WITH_EACH:
            return -1
        for i in range(v, v_end):
            pairs[0, out] = row
            pairs[1, out] = _first(
                returned_topic[i], returned_partition[i], requested_topic, requested_partition, a, a_end, used, 0
            )
            pairs[2, out] = _first(
                returned_topic[i],
                returned_partition[i],
                forgotten_topic,
                forgotten_partition,
                g,
                g_end,
                used,
                requested.size,
            )
            pairs[3, out] = i
            out += 1
        for i in range(a, a_end):
            if not used[i]:
                pairs[0, out], pairs[1, out], pairs[3, out] = row, i, -1
                pairs[2, out] = _first(
                    requested_topic[i],
                    requested_partition[i],
                    forgotten_topic,
                    forgotten_partition,
                    g,
                    g_end,
                    used,
                    requested.size,
                )
                out += 1
        for i in range(g, g_end):
            if not used[requested.size + i]:
                pairs[0, out], pairs[1, out], pairs[2, out], pairs[3, out] = row, -1, i, -1
                out += 1
        a, g, v = a_end, g_end, v_end
    return out
