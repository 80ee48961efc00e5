"""Rows of figures by stretch of time, so that they follow the time that is looked at: few, however long the capture.

What is counted per bucket of the time axis takes more and more rows the more there is to tell apart; neighbouring
buckets are put together, two by two, until the rows are as few as they may be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kdissect.analysis.grouping import figures, group
from kdissect.arrays.arrow import NULL_TIME, Int64s, instants, ints, reals, with_columns

ROWS = 6000
"""Of a figure at most, where it has several stretches: about 60 kB in the page."""


def stretched(
    table: pa.Table, bucket: Int64s, width: int, keys: Sequence[str], sums: Sequence[str], most: int = ROWS
) -> pa.Table:
    """Sums of rows by `keys` and stretch of time: keys, at, until, sums; at most `most` rows where stretches can be put
    together. `bucket`: the bucket of each row, `width` us long (below 0: unknown, `at` is null)."""
    known = bucket[bucket >= 0]
    first = int(known.min()) if len(known) else 0
    origin = first * width
    bucket = np.where(bucket < 0, -1, bucket - first)
    table = with_columns(table, {"bucket": pa.array(bucket)}).select([*keys, "bucket", *sums])
    while True:
        groups = group(table, [*keys, "bucket"])
        bucket = ints(groups.keys, "bucket")
        columns = {name: groups.keys[name].cast(pa.string()) if _text(groups.keys[name]) else groups.keys[name]
                   for name in keys}  # fmt: skip
        columns["bucket"] = pa.array(bucket)
        for name in sums:
            total = groups.total(np.nan_to_num(reals(table, name)))
            whole = pa.types.is_integer(table[name].type)
            columns[name] = pa.array(total.astype(np.int64)) if whole else figures(total)
        table = pa.table(columns)
        if len(groups) <= most or len(np.unique(bucket[bucket >= 0])) <= 1:
            break
        width *= 2
        table = with_columns(table, {"bucket": pa.array(np.where(bucket < 0, -1, bucket // 2))})
    at = np.where(bucket < 0, NULL_TIME, origin + bucket * width)
    until = np.where(bucket < 0, NULL_TIME, at + width)
    found = with_columns(table, {"at": instants(at), "until": instants(until)})
    return found.select([*keys, "at", "until", *sums])


def _text(column: pa.ChunkedArray) -> bool:
    return not pa.types.is_integer(column.type)
