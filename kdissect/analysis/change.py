"""Whether durations changed between two captures, with counts and a rank test. It compares the time that no client had
asked to wait for, and names the part of it that grew. Waits that were asked for are counted apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.grouping import Float64s, figures, group
from kdissect.arrays.arrow import one, reals

SURE = 0.01
"""A change of which chance would make one as large in fewer than so many of cases is called sure."""
LEAST = 5
"""Durations on either side below which a rank test says nothing."""
WAITS = ("timeout", "data", "rebalance")
"""Values of `hold` with which a request waited because that was asked for; of a fetch its `excess_ms` counts alone."""
PARTS = ("broker", "queued", "transfer")
FIGURES = ("own_p50_ms", "own_p99_ms")


def with_changes(grouped: pa.Table, a: Mapping[str, pa.Table], b: Mapping[str, pa.Table],
                 columns: Sequence[str]) -> pa.Table:  # fmt: skip
    """`grouped` (a row a group of `columns`) with further columns. The counts are counted_a and counted_b (exchanges
    with a duration of their own), waits_a and waits_b (waited as asked, and no more). The durations are own_p50_ms and
    own_p99_ms of either side, and change_own_ms (of the medians). The last ones are part (of PARTS whose mean grew
    most; null where none did) and p_value (Mann and Whitney's rank test, two sides). Null where a group is by topic,
    which exchanges share, and where nothing is known."""
    sides = [_durations(tables) for tables in (a, b)]
    found: dict[tuple[object, ...], dict[str, object]] = {}
    if all(name in a["exchanges"].column_names for name in columns):
        both = pa.concat_tables([t["exchanges"].select(list(columns)) for t in (a, b)], promote_options="permissive")
        groups = group(both, columns) if columns else None
        code = (
            np.zeros(both.num_rows or sum(len(own) for own, *_ in sides), np.int64) if groups is None else groups.code
        )
        keys = [()] if groups is None else [tuple(row.values()) for row in groups.keys.to_pylist()]
        edge = len(sides[0][0])
        for number, key in enumerate(keys):
            mine = [code[:edge] == number, code[edge:] == number]
            found[key] = _changed([tuple(values[rows] for values in side)
                                   for side, rows in zip(sides, mine, strict=True)])  # fmt: skip
    rows = [found.get(tuple(row.values()), {}) for row in grouped.select(list(columns)).to_pylist()] if columns else [
        found.get((), {}) for _ in range(grouped.num_rows)
    ]  # fmt: skip
    for name in ("counted", "waits"):
        for side in "ab":
            counts = [row.get(f"{name}_{side}") for row in rows]
            grouped = grouped.append_column(f"{name}_{side}", pa.array(counts, pa.int64()))
    for name in (*(f"{figure}_{side}" for figure in FIGURES for side in "ab"), "change_own_ms", "p_value"):
        values = np.array([row.get(name, math.nan) for row in rows], np.float64)
        grouped = grouped.append_column(name, figures(values))
    return grouped.append_column("part", pa.array([row.get("part") for row in rows], pa.string()))


def _durations(tables: Mapping[str, pa.Table]) -> tuple[Float64s, Float64s, Float64s, Float64s]:
    """Of each exchange: its own duration, and the broker's, queue's and transfer's part of it; NaN where it waited as
    asked, or where that is unknown."""
    exchanges, fetches = tables["exchanges"], tables.get("fetches")
    hold = one(exchanges, "hold")
    waiting = np.zeros(exchanges.num_rows, np.bool_)
    if hold is not None:
        waiting = np.asarray(pc.fill_null(pc.is_in(hold.cast(pa.string()), pa.array(WAITS)), False))
    excess = np.full(exchanges.num_rows, np.nan)
    if fetches is not None and fetches.num_rows and exchanges.num_rows:
        excess = np.append(reals(fetches, "excess_ms"), np.nan)[locate(keys_of(exchanges), keys_of(fetches))]
    excess = np.where(excess > 0, excess, np.nan)
    queued = np.nan_to_num(reals(exchanges, "queued_ms"))
    latency = reals(exchanges, "latency_ms")
    transfer = np.nan_to_num(reals(exchanges, "request_transfer_ms")) + np.nan_to_num(
        reals(exchanges, "response_transfer_ms")
    )
    own = np.where(waiting, excess, latency)
    broker = np.where(waiting, excess, reals(exchanges, "broker_ms"))
    return own, broker, np.where(np.isnan(own), np.nan, queued), np.where(np.isnan(own), np.nan, transfer)


def _changed(sides: Sequence[tuple[Float64s, ...]]) -> dict[str, object]:
    out: dict[str, object] = {}
    known = [side[0][~np.isnan(side[0])] for side in sides]
    for side, own, values in zip("ab", known, sides, strict=True):
        out[f"counted_{side}"] = len(own)
        out[f"waits_{side}"] = len(values[0]) - len(own)
        for name, share in zip(FIGURES, (0.5, 0.99), strict=True):
            out[f"{name}_{side}"] = float(np.quantile(own, share)) if len(own) else math.nan
    if len(known[0]) and len(known[1]):
        out["change_own_ms"] = float(np.median(known[1]) - np.median(known[0]))
        means = [[float(np.nanmean(part)) if np.any(~np.isnan(part)) else 0.0 for part in side[1:]] for side in sides]
        growth = [late - early for early, late in zip(*means, strict=True)]
        out["part"] = PARTS[int(np.argmax(growth))] if max(growth) > 0 else None
        out["p_value"] = rank_test(*known)
    return out


def rank_test(x: Float64s, y: Float64s) -> float:
    """Mann and Whitney's test (1947) that two samples come from one distribution: the two-sided p, by the normal
    approximation with ties and continuity corrected; NaN where either sample is smaller than LEAST."""
    n, m = len(x), len(y)
    if min(n, m) < LEAST:
        return math.nan
    _, place, counts = np.unique(np.concatenate([x, y]), return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    statistic = ranks[place[:n]].sum() - n * (n + 1) / 2
    ties = float((counts.astype(np.float64) ** 3 - counts).sum()) / ((n + m) * (n + m - 1))
    spread = math.sqrt(n * m / 12 * (n + m + 1 - ties))
    if spread == 0:
        return 1.0
    z = (abs(statistic - n * m / 2) - 0.5) / spread
    return min(1.0, math.erfc(max(z, 0.0) / math.sqrt(2)))
