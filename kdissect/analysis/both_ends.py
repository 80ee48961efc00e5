"""Two captures that saw the same exchanges: what each way took, and how their clocks stand to each other.

An exchange is the same where both captures have its 4-tuple, API, correlation id and sizes, once each. With θ for what
the second clock shows more than the first, the request seen at u later by the second, and the response d later by the
first: u = up + θ, d = down - θ. So u + d, free of clocks, is what both ways took together, and tells which capture is
nearer the client: there the exchange lasted longer.

θ is a straight line. Its slope is that of the way whose least times, stretch by stretch, lie nearest to one (a way that
changed is crooked); its height is where the exchanges with the smallest sums of both ways have them take the same. A
constant difference between the ways cannot be told from an offset: half the smallest sum is the uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import NULL_TIME, Int64s, times
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import MS, TEXT, By
from kdissect.tables.makers import fills

SCHEMA = SCHEMAS["clock_offsets"]
WAYS = pa.schema([("first", TEXT), ("second", TEXT), ("first_exchange_id", TEXT), ("second_exchange_id", TEXT),
                  ("network_up_ms", MS), ("network_down_ms", MS)])  # fmt: skip
"""What a row of `ways` is: an exchange as both captures have it, and what each way took between the two."""
SAME = ("client_ip", "client_port", "broker_ip", "broker_port", "api_key", "correlation_id", "request_bytes",
        "response_bytes")  # fmt: skip
"""What two sights of an exchange share."""
LEAST = 8
"""Exchanges that must be shared: fewer may be so by chance, after a restart."""
STRETCHES = 24
"""Into which the time is cut for the least times of each way."""
LEAST_SPAN_S = 5.0
"""A drift is looked for in no less: 50 ppm are a quarter of a millisecond by then, about what packets jitter."""
SMALLEST = 0.05
"""Share of the exchanges, those with the smallest sums, by which the offset is found."""
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Exchanges that two captures share: `first` is nearer the client; rows of `exchanges`, in order of time."""

    first: str
    second: str
    rows: tuple[Int64s, Int64s]
    at: Reals
    """Seconds since the first of them, by the first capture's clock."""
    up: Reals
    """ms, clocks as they are; later what the way took."""
    down: Reals
    theta: Reals
    drift: float
    """ppm of `theta`."""
    connections: int


def clock_offsets(exchanges: pa.Table) -> pa.Table:
    """The table `clock_offsets`: a row for each two captures that share at least LEAST exchanges.

    `exchanges`: of several captures, with capture, connection_id, SAME, request_last_at and response_first_at.
    """
    made = [
        {
            "first": pair.first, "second": pair.second, "connections": pair.connections, "exchanges": len(pair.at),
            "offset_ms": -float(pair.theta[0]), "drift_ppm": -pair.drift,
            "uncertainty_ms": float((pair.up + pair.down).min()) / 2,
            "up_ms": float(np.median(pair.up)), "down_ms": float(np.median(pair.down)),
        }
        for pair in _pairs(exchanges)
    ]  # fmt: skip
    return pa.Table.from_pylist(made, SCHEMA)


def ways(exchanges: pa.Table) -> pa.Table:
    """Rows of WAYS, for each exchange that two captures share; `exchanges` as for `clock_offsets`, with exchange_id."""
    parts = [WAYS.empty_table()]
    for pair in _pairs(exchanges):
        ids = [exchanges["exchange_id"].take(pa.array(rows)).cast(TEXT).combine_chunks() for rows in pair.rows]
        names = [pa.array([name] * len(pair.at), TEXT) for name in (pair.first, pair.second)]
        parts.append(pa.Table.from_arrays([*names, *ids, pa.array(pair.up), pa.array(pair.down)], schema=WAYS))
    return pa.concat_tables(parts)


def _pairs(exchanges: pa.Table) -> list[_Pair]:
    """Every two captures that share exchanges, with clocks aligned."""
    captures = group(exchanges, ["capture"])
    names = captures.keys["capture"].to_pylist()
    if len(names) < 2:
        return []
    asked, answered = times(exchanges, "request_last_at"), times(exchanges, "response_first_at")
    whole = (asked != NULL_TIME) & (answered != NULL_TIME)
    same = group(exchanges, list(SAME)).code
    found = []
    for one, other in combinations(range(len(names)), 2):
        rows = [_single(same, np.flatnonzero(whole & (captures.code == code))) for code in (one, other)]
        shared, left, right = np.intersect1d(same[rows[0]], same[rows[1]], assume_unique=True, return_indices=True)
        if len(shared) < LEAST:
            continue
        a, b = rows[0][left], rows[1][right]
        if np.median((answered[a] - asked[a]) - (answered[b] - asked[b])) < 0:
            a, b, one, other = b, a, other, one
        order = np.argsort(asked[a], kind="stable")
        a, b = a[order], b[order]
        at = (asked[a] - asked[a[0]]) / 1e6
        up, down = (asked[b] - asked[a]) / 1e3, (answered[a] - answered[b]) / 1e3
        theta, drift = _theta(at, up, down)
        connections = len(pc.unique(exchanges["connection_id"].take(pa.array(a))))
        found.append(_Pair(names[one], names[other], (a, b), at, up - theta, down + theta, theta, drift, connections))
    return found


def _single(same: Int64s, rows: Int64s) -> Int64s:
    """The rows whose code no other of them has."""
    _, places, counts = np.unique(same[rows], return_index=True, return_counts=True)
    found: Int64s = rows[places[counts == 1]]
    return found


def _theta(at: Reals, up: Reals, down: Reals) -> tuple[Reals, float]:
    """What the second clock shows more than the first at each exchange, ms, and how that changes, ppm."""
    slopes = [_slope(at, up), _slope(at, -down, least=False)]
    slope = min(slopes, key=lambda one: one[1])[0]
    sums = up + down
    kept = sums <= np.quantile(sums, SMALLEST)
    height = float(np.median((up - down)[kept] / 2 - slope * at[kept]))
    return height + slope * at, slope * 1e3


def _slope(at: Reals, values: Reals, least: bool = True) -> tuple[float, float]:
    """Slope (ms a second) of the line through the least values of each stretch of time, or the largest, and how far
    they lie from it (mean, ms)."""
    span = float(at[-1])
    if span < LEAST_SPAN_S:
        return 0.0, 0.0
    stretch = np.minimum((at / span * STRETCHES).astype(np.int64), STRETCHES - 1)
    order = np.lexsort((values if least else -values, stretch))
    place = order[np.unique(stretch[order], return_index=True)[1]]
    x, y = at[place], values[place]
    i, j = np.triu_indices(len(x), 1)
    if not len(i):
        return 0.0, 0.0
    slope = float(np.median((y[j] - y[i]) / np.maximum(x[j] - x[i], 1e-9)))
    rest = y - slope * x
    return slope, float(np.mean(np.abs(rest - np.median(rest))))


fills(By.CLOCKS, {"clock_offsets": SCHEMA.names})
