"""How long deliveries took, by topic, group and more, and over time: exact quantiles of `delivery_ms`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kdissect.analysis.deliveries.delivery_summary import MADE_OF, first_known, without_followers
from kdissect.analysis.grouping import figures, group
from kdissect.analysis.latency import duration_figures, group_keys, grouped_by, with_buckets
from kdissect.arrays.arrow import NULL_TIME, encoded, ints, reals, times, with_columns, words

DIMENSIONS = {
    "topic": "topic",
    "partition": "partition",
    "reader": "reader",
    "group": "group_id",
    "client": "client_id",
    "producer": "producer_client_id",
    "broker": "broker",
    "follower": "is_follower",
    "waited_for": "waited_for",
    "cluster": "cluster",
}
"""What deliveries can be grouped by, and the column that it stands for."""
USUAL = ("topic", "reader")
FIGURES = ("is_follower", "records", "produced_at", "delivered_at", "delivery_ms", "buffered_ms", "waited_for")
"""Columns of `deliveries` that are read, next to those grouped by."""


def columns_read(by: Sequence[str]) -> list[str]:
    """The columns of `deliveries` that `delivery_latency` reads. Raises UsageError for an unknown dimension."""
    read = [name for column in checked(by) for name in MADE_OF.get(column, (column,))]
    return list(dict.fromkeys([*read, *FIGURES]))


def checked(by: Sequence[str], every: float | None = None) -> list[str]:
    """The columns to group by. Raises UsageError for an unknown dimension, or buckets of no length."""
    return grouped_by("deliveries", DIMENSIONS, by, every)


def delivery_latency(deliveries: pa.Table, by: Sequence[str] = USUAL, every: float | None = None) -> pa.Table:
    """Counts and quantiles of deliveries, one row per group (and bucket of time).

    `deliveries`: `columns_read` of it. `by`: any of DIMENSIONS; a topic, group or broker is one of its cluster. Without
    "follower" deliveries to followers are left out. `every`: length of time buckets in seconds, by when the record
    batch was sent (where that is unknown, delivered). Column `at` is the bucket's begin; buckets without deliveries
    have no row.

    Columns: those grouped by, `at`, deliveries, timed, records, p50_ms, p90_ms, p99_ms, p999_ms, max_ms, mean_ms (of
    delivery_ms), buffered_p50_ms and `waited_for`. The column timed counts those whose duration is known, and the times
    are theirs. `waited_for` is what most of the time of all of them was spent on, the producer's buffer included.
    Quantiles are exact, by linear interpolation; null where nothing is known. Raises UsageError for an unknown
    dimension.
    """
    columns = checked(by, every)
    table = deliveries
    table = with_columns(table, {name: first_known(table, name) for name in columns if name in MADE_OF})
    if "is_follower" not in columns:
        table = without_followers(table)
    if every is not None:
        sent = times(table, "produced_at")
        begun = np.where(sent == NULL_TIME, times(table, "delivered_at"), sent)
        table, columns = with_buckets(table, begun, every), [*columns, "at"]
    groups = group(table, columns)
    size = len(groups) if columns else min(table.num_rows, 1)
    took, buffered = reals(table, "delivery_ms"), reals(table, "buffered_ms")
    known = ~np.isnan(took)
    out = group_keys(groups, columns)
    out["deliveries"] = pa.array(groups.count()[:size])
    timed = groups.count(known)
    out["timed"] = pa.array(timed[:size])
    out["records"] = pa.array(groups.total(np.maximum(ints(table, "records", 0), 0)).astype(np.int64)[:size])
    out |= duration_figures(groups, took, size)
    out["buffered_p50_ms"] = figures(groups.quantiles(buffered, [0.5])[0][:size])
    if "waited_for" not in columns:
        cause, names = encoded(table["waited_for"].combine_chunks())
        spent = np.where(known & (cause >= 0), took + np.nan_to_num(buffered), 0)
        totals = np.zeros((len(timed), len(names) + 1))
        np.add.at(totals, (groups.code, cause), spent)
        told = totals[:size, :-1]
        most = np.where((timed[:size] > 0) & (len(names) > 0), told.argmax(axis=1) if len(names) else 0, -1)
        out["waited_for"] = words(most, names)
    return pa.table(out)
