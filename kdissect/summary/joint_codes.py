"""Codes of combinations of values: as small as they can be, found without sorting where that is possible."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import Flags, Int64s, Scalar
from kdissect.kernels.kernel import kernel
from kdissect.tables.identity import recoded

DENSE = 1 << 16
"""Codes that are looked up in a list however few rows there are; more, up to four a row."""


def compressed(codes: Int64s, space: int) -> tuple[Int64s, Int64s]:
    """Codes below `space` (none negative) as codes 0..k-1 in the same order, and the k codes that occur."""
    if space <= max(DENSE, 4 * len(codes)):
        indices, kept = recoded(codes, space)
        return indices.to_numpy().astype(np.int64), kept.astype(np.int64)
    distinct, inverse = np.unique(codes, return_inverse=True)
    return inverse.astype(np.int64), distinct


def joint(columns: Sequence[Int64s]) -> tuple[Int64s, Int64s]:
    """Codes 0..k-1 of the distinct rows of some columns of one length, and a row of each."""
    codes = np.zeros(len(columns[0]), np.int64)
    count = 1
    for column in columns:
        if not len(column):
            break
        least, most = int(column.min()), int(column.max())
        local, values, size = column - least, None, most - least + 1
        if size > len(column):
            local, values = compressed(local, size)
            size = len(values)
        codes, kept = compressed(codes * size + local, count * size)
        count = len(kept)
    rows = np.empty(count if len(codes) else 0, np.int64)
    rows[codes[::-1]] = np.arange(len(codes))[::-1]
    return codes, rows


class Counted(NamedTuple):
    """The counts of exchanges with the same values: how many they are, and the latencies that are known. Of those that
    did not wait because they were asked to also the slowest, the first of several: its milliseconds and its row."""

    values: tuple[Any, ...]
    exchanges: int
    latencies: npt.NDArray[np.float64]
    slowest_ms: float | None
    row: int


@kernel("const i8[:,:] i8[:] i8[:] i8[:] -> i8")
def _distinct(columns: Int64s, table: Int64s, codes: Int64s, firsts: Int64s) -> Scalar:
    mask, count = table.size - 1, np.int64(0)
    for i in range(codes.size):
        at = np.int64(0)
        for k in range(columns.shape[0]):
            at = (at ^ columns[k, i]) * np.int64(1099511628211)
            at ^= at >> 29
        at &= mask
        code: Scalar = np.int64(-1)
        while table[at] >= 0 and code < 0:
            same = True
            for k in range(columns.shape[0]):
                same = same and columns[k, i] == columns[k, firsts[table[at]]]
            if same:
                code = table[at]
            else:
                at = (at + 1) & mask
        if code < 0:
            code = count
            table[at] = code
            firsts[code] = i
            count += 1
        codes[i] = code
    return count


def combined(columns: Int64s) -> tuple[Int64s, Int64s]:
    """Codes 0..k-1 of the distinct columns of a matrix [m, n], and where each stands first. They are in the order of
    the first row of the matrix, then of the second, and so on, where a value comes before those that stand behind it.
    """
    n = columns.shape[1]
    codes, firsts = np.empty(n, np.int64), np.empty(n, np.int64)
    count = _distinct(columns, np.full(2 << n.bit_length(), -1, np.int64), codes, firsts)
    firsts = firsts[:count]
    order = in_rank(columns[:, firsts])
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    return place[codes], firsts[order]


def in_rank(columns: Int64s) -> list[int]:
    """The distinct columns of a matrix [m, n] in the order of its first row, then of the second, and so on. A value
    comes before those that stand behind it."""
    ranks: list[dict[int, int]] = [{} for _ in columns]
    rows = columns.T.tolist()
    places = [[rank.setdefault(value, len(rank)) for rank, value in zip(ranks, row, strict=True)] for row in rows]
    return sorted(range(len(rows)), key=places.__getitem__)


@kernel("const i8[:] const i8[:] const f8[:] const i8[:] const b1[:,:] f8 i8[:,:] f8[:,:]")
def tallied(
    status: Int64s, clients: Int64s, slow: npt.NDArray[np.float64], at: Int64s, marks: Flags, least: Scalar,
    counts: Int64s, times: npt.NDArray[np.float64],
) -> None:  # fmt: skip
    """Exchanges by client: `counts` [4, clients] of exchanges, errors and judged ones, zero before, and when the
    slowest began first; `times` [2, clients] what was lost, zero before, and the slowest, -inf before. `clients` are
    codes from 0 on. `marks` [3, statuses + 1]: which statuses are left out, errors, and judged, those of none last;
    `slow`: ms, NaN where it does not count, lost from `least` on."""
    for i in range(status.size):
        which, client = status[i], clients[i]
        if marks[0, which]:
            continue
        counts[0, client] += 1
        if marks[1, which]:
            counts[1, client] += 1
        if marks[2, which]:
            counts[2, client] += 1
        spent = slow[i]
        if spent >= least:
            times[0, client] += spent
        if spent > times[1, client]:
            times[1, client], counts[3, client] = spent, at[i]
        elif spent == times[1, client]:
            counts[3, client] = min(counts[3, client], at[i])


@kernel("const i8[:] const f8[:] i8 i8 i8[:] f8[:]")
def bucketed(
    at: Int64s, slow: npt.NDArray[np.float64], first: Scalar, width: Scalar, counts: Int64s,
    most: npt.NDArray[np.float64],
) -> None:  # fmt: skip
    """Count what begins in each bucket of this width from the bucket `first` on, and keep the largest of `slow`."""
    for i in range(at.size):
        place = at[i] // width - first
        counts[place] += 1
        if slow[i] > most[place]:
            most[place] = slow[i]
