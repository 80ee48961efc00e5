"""Latency as tables: exact quantiles by API, client, broker and topic, and over time.

All durations are the contract's (milliseconds): `latency_ms` from the request's first byte to the response's last,
`broker_ms` without transfer and queueing, `excess_ms` (fetches) without the wait that was agreed to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.grouping import Float64s, Groups, figures, group
from kdissect.analysis.topic_traffic import topics_of
from kdissect.arrays.arrow import NULL_TIME, Int64s, instants, ints, reals, times, with_columns
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import CLUSTER
from kdissect.tables.suggestion import near

DIMENSIONS = {
    "api": "api",
    "version": "api_version",
    "client": "client_id",
    "broker": "broker",
    "topic": "topic",
    "status": "status",
    "hold": "hold",
    "capture": "capture",
    "cluster": "cluster",
}
"""What latencies can be grouped by, and the column that it stands for."""
NAMED_IN_CLUSTER = frozenset({"broker", "topic", "group_id", "reader"})
"""Columns whose names another cluster may have too: who groups by one of them groups by `cluster` as well."""
SHARES = (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p999_ms", 0.999))
"""Quantile columns; their counts stand beside them, so that a p999 of ten values is seen for what it is."""
SECOND = 1_000_000
"""In microseconds."""


def latency(
    exchanges: pa.Table,
    fetch_partitions: pa.Table | None = None,
    by: Sequence[str] = ("api",),
    every: float | None = None,
    fetches: pa.Table | None = None,
    session_partitions: pa.Table | None = None,
    record_batches: pa.Table | None = None,
) -> pa.Table:
    """Counts, quantiles and rates of exchanges, one row per group (and bucket of time).

    `exchanges`: rows of that table. `by`: any of DIMENSIONS; a broker or topic is one of its cluster
    (NAMED_IN_CLUSTER). With "topic" an exchange counts once for each topic that it is about
    (`topic_traffic.topics_of`; null for exchanges without), by its id where no name is known. Topics come from
    `fetch_partitions`, `record_batches` and, for fetches that name none, `session_partitions`. `every`: length of time
    buckets in seconds, by when the request began; column `at` is the bucket's begin, buckets without exchanges have no
    row. `fetches`: gives `excess_ms`.

    Columns: those grouped by, `at`, exchanges, answered, errors, p50_ms, p90_ms, p99_ms, p999_ms, max_ms, mean_ms (of
    latency_ms), broker_p50_ms, broker_p99_ms, excess_count, excess_p50_ms, excess_p99_ms, excess_max_ms, throttled_ms
    (sum), request_bytes, response_bytes, per_second. The last one counts exchanges over the bucket or the whole time
    that was seen. Quantiles are exact, by linear interpolation; null where nothing is known. Raises UsageError for an
    unknown dimension.
    """
    columns = checked(by, every)
    table = exchanges
    excess = np.full(table.num_rows, np.nan)
    if fetches is not None and fetches.num_rows and table.num_rows:
        at = locate(keys_of(table), keys_of(fetches))
        excess = np.append(reals(fetches, "excess_ms"), np.nan)[at]
    if "topic" in columns:
        told = (fetches, fetch_partitions, session_partitions, record_batches)
        table, excess = _per_topic(table, excess, told)
    begun = begun_at(table)
    known = begun[begun != NULL_TIME]
    span = (int(known.max()) - int(known.min())) / SECOND if len(known) else 0.0
    if every is not None:
        table, columns = with_buckets(table, begun, every), [*columns, "at"]
        span = every
    return _figures(table, columns, excess, span)


def begun_at(exchanges: pa.Table) -> Int64s:
    """When each began, microseconds since the epoch: an answer without its request by its own first byte."""
    begun = times(exchanges, "request_first_at")
    found: Int64s = np.where(begun == NULL_TIME, times(exchanges, "response_first_at"), begun)
    return found


def checked(by: Sequence[str], every: float | None = None) -> list[str]:
    """The columns to group by. Raises UsageError for an unknown dimension, or buckets of no length."""
    return grouped_by("latencies", DIMENSIONS, by, every)


def grouped_by(subject: str, dimensions: Mapping[str, str], by: Sequence[str], every: float | None) -> list[str]:
    """The columns to group `subject` by. Raises UsageError for an unknown dimension, or buckets of no length."""
    unknown = [name for name in by if name not in dimensions]
    if unknown:
        meant = near(unknown[0], list(dimensions))
        raise UsageError(f"cannot group {subject} by {unknown[0]!r}{meant}; choose from: {', '.join(dimensions)}")
    if every is not None and not every > 0:
        raise UsageError("time buckets must be longer than nothing, such as 1 (second)")
    columns = dict.fromkeys(dimensions[name] for name in by)
    return list(columns if NAMED_IN_CLUSTER.isdisjoint(columns) else columns | {CLUSTER.name: None})


def with_buckets(table: pa.Table, starts: Int64s, every: float) -> pa.Table:
    """The table with `at`, the begin of each row's bucket of so many seconds. `starts`: microseconds since the
    epoch."""
    width = max(1, round(every * SECOND))
    return with_columns(table, {"at": pa.array(np.where(starts == NULL_TIME, NULL_TIME, starts // width * width))})


def group_keys(groups: Groups, columns: Sequence[str]) -> dict[str, pa.Array]:
    """The columns grouped by, a row for each group; `at` as instants."""
    keys = {name: groups.keys[name].combine_chunks() for name in columns}
    return keys | ({"at": instants(np.asarray(keys["at"]))} if "at" in keys else {})


def duration_figures(groups: Groups, durations: Float64s, size: int) -> dict[str, pa.Array]:
    """SHARES, max_ms and mean_ms of durations (NaN: unknown) in the first `size` groups."""
    quantiles = groups.quantiles(durations, [share for _, share in SHARES])
    out = {name: figures(values[:size]) for (name, _), values in zip(SHARES, quantiles, strict=True)}
    out["max_ms"] = figures(groups.quantiles(durations, [1.0])[0][:size])
    known = groups.count(~np.isnan(durations))
    with np.errstate(invalid="ignore", divide="ignore"):
        out["mean_ms"] = figures((groups.total(durations) / np.where(known > 0, known, np.nan))[:size])
    return out


def _per_topic(table: pa.Table, excess: Float64s, tables: tuple[pa.Table | None, ...]) -> tuple[pa.Table, Float64s]:
    """A row for each topic of an exchange."""
    names = ("fetches", "fetch_partitions", "session_partitions", "record_batches")
    given = [SCHEMAS[name].empty_table() if one is None else one for name, one in zip(names, tables, strict=True)]
    topics, row, topic = topics_of(table, *given)
    without = np.setdiff1d(np.arange(table.num_rows), row)
    rows = np.concatenate([row, without])
    code = np.concatenate([topic, np.full(len(without), -1)])
    named = pa.array(topics, pa.string()).take(pa.array(code, mask=code < 0))
    return with_columns(table.take(pa.array(rows)), {"topic": named}), excess[rows]


def _figures(table: pa.Table, columns: Sequence[str], excess: Float64s, span: float) -> pa.Table:
    groups = group(table, columns)
    size = len(groups) if columns else min(table.num_rows, 1)
    durations, broker = reals(table, "latency_ms"), reals(table, "broker_ms")
    out = group_keys(groups, columns)
    counts = groups.count()[:size]
    out["exchanges"] = pa.array(counts)
    out["answered"] = pa.array(groups.count(~np.isnan(durations))[:size])
    out["errors"] = pa.array(groups.count(ints(table, "error_code", 0) != 0)[:size])
    out |= duration_figures(groups, durations, size)
    for name, values in zip(("broker_p50_ms", "broker_p99_ms"), groups.quantiles(broker, [0.5, 0.99]), strict=True):
        out[name] = figures(values[:size])
    out["excess_count"] = pa.array(groups.count(~np.isnan(excess))[:size])
    names = ("excess_p50_ms", "excess_p99_ms", "excess_max_ms")
    for name, values in zip(names, groups.quantiles(excess, [0.5, 0.99, 1.0]), strict=True):
        out[name] = figures(values[:size])
    out["throttled_ms"] = pa.array(groups.total(reals(table, "throttle_ms"))[:size])
    for name in ("request_bytes", "response_bytes"):
        out[name] = pa.array(groups.total(np.maximum(ints(table, name, 0), 0)).astype(np.int64)[:size])
    out["per_second"] = figures(counts / span if span > 0 else np.full(size, np.nan))
    return pa.table(out)
