"""Latencies of more exchanges than memory holds: `kdissect.analysis.latency` block by block, quantiles from counts.

Sums, counts and largest values are exact. Quantiles are those of a histogram whose edges are RATIO apart, so that they
are right to half a percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.grouping import Float64s, figures, group
from kdissect.analysis.latency import SECOND, SHARES, begun_at
from kdissect.arrays.arrow import NULL_TIME, Int64s, equal, instants, ints, reals
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.apinames import api_name

RATIO = 1.01
SMALLEST_MS = 1e-4
"""Shorter ones, below the resolution of clocks, count as this."""
BUCKETS = 2600
"""Edges at RATIO up to half a year."""
DURATIONS = ("latency_ms", "broker_ms", "excess_ms")
LATENCY, BROKER, EXCESS = range(len(DURATIONS))
SUMS = ("exchanges", "errors", "throttled_ms", "request_bytes", "response_bytes", "took")
"""Figures that add up; `took`: all latencies together."""
MOST_WAITING = 1 << 17
"""Exchanges that wait for their fetch, some MB; of more the earliest have no excess."""


class LatencyCounts:
    """Counts of exchanges by `columns` (of `exchanges`) and, if `every` says seconds, by when they began."""

    def __init__(self, columns: Sequence[str], every: float | None = None) -> None:
        self._columns = list(columns)
        self._width = None if every is None else max(1, round(every * SECOND))
        self._codes: dict[tuple[Any, ...], int] = {}
        self._like: pa.Schema | None = None
        """Types of the columns grouped by."""
        self._sums: npt.NDArray[np.float64] = np.zeros((0, len(SUMS)))
        self._largest: npt.NDArray[np.float64] = np.zeros((0, len(DURATIONS)))
        self._buckets: Int64s = np.zeros(0, np.int64)
        """(group, duration, bucket of the histogram) in one number, ascending, and how many of each."""
        self._counts: Int64s = np.zeros(0, np.int64)
        self._waiting: Int64s = np.zeros((3, 0), np.int64)
        """Exchanges whose fetch has not come: the two numbers of their keys, and their group."""
        self._first, self._last = 2**63 - 1, NULL_TIME

    def feed(self, exchanges: pa.Table, fetches: pa.Table) -> None:
        """Rows of `exchanges` (as `latency` reads them), and those of `fetches` that are about them or earlier ones."""
        self._feed_late(fetches)
        if not exchanges.num_rows:
            return
        keys = keys_of(exchanges)
        at = locate(keys, keys_of(fetches)) if fetches.num_rows else np.full(exchanges.num_rows, -1)
        values = np.empty((len(DURATIONS), exchanges.num_rows))
        values[LATENCY], values[BROKER] = reals(exchanges, "latency_ms"), reals(exchanges, "broker_ms")
        values[EXCESS] = np.append(reals(fetches, "excess_ms"), np.nan)[at]
        begun = begun_at(exchanges)
        known = begun[begun != NULL_TIME]
        if len(known):
            self._first, self._last = min(self._first, int(known.min())), max(self._last, int(known.max()))
        columns = self._columns
        if self._width is not None:
            bucket = np.where(begun == NULL_TIME, NULL_TIME, begun // self._width * self._width)
            exchanges, columns = exchanges.append_column("at", pa.array(bucket)), [*columns, "at"]
        code = self._coded(exchanges, columns)
        added = np.zeros_like(self._sums)
        for n, weights in enumerate(self._added(exchanges, values)):
            added[:, n] = np.bincount(code, weights=np.nan_to_num(weights), minlength=len(added))
        self._sums += added
        for duration in range(len(DURATIONS)):
            self._add_durations(duration, code, values[duration])
        later = equal(exchanges, "api", api_name(ApiKey.FETCH)) & (at < 0)
        waiting = np.stack([*keys, code])[:, later]
        self._waiting = np.concatenate([self._waiting, waiting], axis=1)[:, -MOST_WAITING:]

    def _feed_late(self, fetches: pa.Table) -> None:
        """Add the excess of exchanges that came without their fetch."""
        if not fetches.num_rows or not self._waiting.size:
            return
        high, n, code = np.ascontiguousarray(self._waiting)
        at = locate((high, n), keys_of(fetches))
        self._add_durations(EXCESS, code[at >= 0], reals(fetches, "excess_ms")[at[at >= 0]])
        self._waiting = self._waiting[:, at < 0]

    def _add_durations(self, duration: int, code: Int64s, values: Float64s) -> None:
        """Count one of DURATIONS of rows of these groups; NaN: unknown."""
        there = ~np.isnan(values)
        code, values = code[there], values[there]
        np.maximum.at(self._largest[:, duration], code, values)
        self._count(code * len(DURATIONS) + duration, values)

    def _added(self, exchanges: pa.Table, values: npt.NDArray[np.float64]) -> list[Float64s | Int64s]:
        """The values that each exchange adds to SUMS."""
        return [
            np.ones(exchanges.num_rows), (ints(exchanges, "error_code", 0) != 0).astype(np.int64),
            reals(exchanges, "throttle_ms"), np.maximum(ints(exchanges, "request_bytes", 0), 0),
            np.maximum(ints(exchanges, "response_bytes", 0), 0), values[LATENCY],
        ]  # fmt: skip

    def _coded(self, exchanges: pa.Table, columns: Sequence[str]) -> Int64s:
        """The group of each row; new ones get room."""
        if not columns:
            codes, local = [self._codes.setdefault((), 0)], np.zeros(exchanges.num_rows, np.int64)
        else:
            groups = group(exchanges, columns)
            rows = zip(*(groups.keys[name].to_pylist() for name in columns), strict=True)
            codes, local = [self._codes.setdefault(row, len(self._codes)) for row in rows], groups.code
            self._like = groups.keys.schema
        more = len(self._codes) - len(self._sums)
        if more:
            self._sums = np.concatenate([self._sums, np.zeros((more, len(SUMS)))])
            self._largest = np.concatenate([self._largest, np.full((more, len(DURATIONS)), -np.inf)])
        found: Int64s = np.array(codes, np.int64)[local]
        return found

    def _count(self, row_groups: Int64s, values: Float64s) -> None:
        bucket = np.log(np.maximum(values, SMALLEST_MS) / SMALLEST_MS) / np.log(RATIO)
        fresh = row_groups * BUCKETS + np.minimum(bucket, BUCKETS - 1).astype(np.int64)
        fresh, counts = np.unique(fresh, return_counts=True)
        keys = np.concatenate([self._buckets, fresh])
        self._buckets, place = np.unique(keys, return_inverse=True)
        self._counts = np.bincount(
            place, weights=np.concatenate([self._counts, counts]), minlength=len(self._buckets)
        ).astype(np.int64)

    def table(self) -> pa.Table:
        """Columns as of `latency`, a row a group, in its order."""
        names = [*self._columns, *(["at"] if self._width is not None else [])]
        keys = sorted(self._codes, key=lambda row: tuple((value is None, value) for value in row))
        order = np.array([self._codes[key] for key in keys], np.int64)
        sums = dict(zip(SUMS, self._sums[order].T, strict=True))
        out: dict[str, pa.Array] = {}
        for n, name in enumerate(names):
            column = [key[n] for key in keys]
            kind = pa.string() if self._like is None else self._like.field(name).type
            out[name] = instants(np.array(column, np.int64)) if name == "at" else pa.array(column, kind)
        answered, latencies = self._quantiles(LATENCY, [share for _, share in SHARES])
        _, of_brokers = self._quantiles(BROKER, (0.5, 0.99))
        beyond, excesses = self._quantiles(EXCESS, (0.5, 0.99))
        answered = answered[order]
        out["exchanges"] = pa.array(sums["exchanges"].astype(np.int64))
        out["answered"] = pa.array(answered)
        out["errors"] = pa.array(sums["errors"].astype(np.int64))
        for (name, _), values in zip(SHARES, latencies, strict=True):
            out[name] = figures(values[order])
        largest = np.where(np.isinf(self._largest), np.nan, self._largest)[order]
        out["max_ms"] = figures(largest[:, LATENCY])
        with np.errstate(invalid="ignore", divide="ignore"):
            out["mean_ms"] = figures(sums["took"] / np.where(answered > 0, answered, np.nan))
        for name, values in zip(("broker_p50_ms", "broker_p99_ms"), of_brokers, strict=True):
            out[name] = figures(values[order])
        out["excess_count"] = pa.array(beyond[order])
        for name, values in zip(("excess_p50_ms", "excess_p99_ms"), excesses, strict=True):
            out[name] = figures(values[order])
        out["excess_max_ms"] = figures(largest[:, EXCESS])
        out["throttled_ms"] = pa.array(sums["throttled_ms"])
        for name in ("request_bytes", "response_bytes"):
            out[name] = pa.array(sums[name].astype(np.int64))
        span = (self._last - self._first) / SECOND if self._last > self._first else 0.0
        span = span if self._width is None else self._width / SECOND
        out["per_second"] = figures(sums["exchanges"] / span if span > 0 else np.full(len(order), np.nan))
        return pa.table(out)

    def _quantiles(self, duration: int, shares: Sequence[float]) -> tuple[Int64s, list[Float64s]]:
        """Of one of DURATIONS by group: of how many exchanges it is known, and for each share the quantile, linear
        between the two durations that the share lies between; NaN where nothing is known."""
        which, bucket = self._buckets // BUCKETS, self._buckets % BUCKETS
        mine = which % len(DURATIONS) == duration
        code, bucket, counts = which[mine] // len(DURATIONS), bucket[mine], self._counts[mine]
        total = np.bincount(code, weights=counts, minlength=len(self._sums)).astype(np.int64)
        before, upto = np.cumsum(total) - total, np.cumsum(counts)

        def value(rank: Float64s) -> Float64s:
            place = np.searchsorted(upto, before + rank + 1)
            middle = SMALLEST_MS * RATIO ** (np.append(bucket, 0)[np.minimum(place, len(bucket))] + 0.5)
            return np.minimum(middle, self._largest[:, duration])

        found: list[Float64s] = []
        for share in shares:
            at = share * np.maximum(total - 1, 0)
            low, high = (np.where(total > 0, value(rank), np.nan) for rank in (np.floor(at), np.ceil(at)))
            found.append(low + (high - low) * (at - np.floor(at)))
        return total, found
