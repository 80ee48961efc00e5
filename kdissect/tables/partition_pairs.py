"""The kernel that puts the partitions of a request and of its response together."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import Scalar
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.signature import fields

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
EACH_WITH_EACH = 64
"""Partitions of an exchange of which each is compared with each; more are sorted."""


class NamedSide(NamedTuple):
    """Partitions that one side names, columns of the same length: rows of exchanges rise."""

    row: Int64s
    """Row of the exchange."""
    topic: Int64s
    """Code of the topic."""
    partition: Int64s
    """Its number."""


class Pairs(NamedTuple):
    """Partitions put together, columns of the same length."""

    row: Int64s
    """Row of the exchange."""
    asked: Int64s
    """Place among those that requests ask for, -1: not there."""
    gone: Int64s
    """The same of those that requests forget."""
    given: Int64s
    """The same of those that answers give."""


SIDE = fields(NamedSide, "const i8[:] const i8[:] const i8[:]")
PAIRS = fields(Pairs, "i8[:] i8[:] i8[:] i8[:]")
"""What kernels that take them declare."""


@part
def _first(
    topic: Scalar, partition: Scalar, side: NamedSide, begin: Scalar, end: Scalar, used: Flags, shift: Scalar
) -> Scalar:
    """The first of a stretch that names this partition and is not taken yet, -1 for none; it is taken then."""
    for i in range(begin, end):
        if side.partition[i] == partition and side.topic[i] == topic and not used[shift + i]:
            used[shift + i] = True
            return i
    return -1


@kernel("SIDE SIDE SIDE b1[:] PAIRS -> i8")
def pair(
    requested: NamedSide, forgotten: NamedSide, returned: NamedSide, used: Flags, pairs: Pairs
) -> Scalar:  # fmt: skip
    """Rows of `partitions.matched` into `pairs`, exchange by exchange; how many. -1 where the rows of a side do not
    rise, or an exchange names so many that comparing each with each is not the way. `used`: False, for each that is
    `requested` or `forgotten`."""
    a, g, v, out = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    last = np.int64(-1)
    shift = requested.row.size
    while a < requested.row.size or g < forgotten.row.size or v < returned.row.size:
        row = np.int64(2**62)
        if a < requested.row.size:
            row = requested.row[a]
        if g < forgotten.row.size:
            row = min(row, forgotten.row[g])
        if v < returned.row.size:
            row = min(row, returned.row[v])
        if row <= last:
            return -1
        last = row
        a_end = _end_of_row(requested.row, a, row)
        g_end = _end_of_row(forgotten.row, g, row)
        v_end = _end_of_row(returned.row, v, row)
        if (a_end - a) + (g_end - g) + (v_end - v) > EACH_WITH_EACH:
            return -1
        for i in range(v, v_end):
            topic, partition = returned.topic[i], returned.partition[i]
            pairs.row[out], pairs.given[out] = row, i
            pairs.asked[out] = _first(topic, partition, requested, a, a_end, used, 0)
            pairs.gone[out] = _first(topic, partition, forgotten, g, g_end, used, shift)
            out += 1
        for i in range(a, a_end):
            if not used[i]:
                pairs.row[out], pairs.asked[out], pairs.given[out] = row, i, -1
                pairs.gone[out] = _first(requested.topic[i], requested.partition[i], forgotten, g, g_end, used, shift)
                out += 1
        for i in range(g, g_end):
            if not used[shift + i]:
                pairs.row[out], pairs.asked[out], pairs.gone[out], pairs.given[out] = row, -1, i, -1
                out += 1
        a, g, v = a_end, g_end, v_end
    return out


@part
def _end_of_row(rows: Int64s, begin: Scalar, row: Scalar) -> Scalar:
    """The place behind those from `begin` on that are of this row."""
    end = begin
    while end < rows.size and rows[end] == row:
        end += 1
    return end
