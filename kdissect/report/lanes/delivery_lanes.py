"""Deliveries of records and transactions as rows for the page's time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.deliveries.delivery_summary import first_known, without_followers
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import NULL_TIME, instants, ints, numbers, reals, times
from kdissect.report.figure_rows import CELLS, NONE, SERIES, find_steps, step_edges

READ: Mapping[str, Sequence[str]] = {
    "deliveries": ("produced_at", "delivery_ms", "waited_for", "is_follower", "topic", "topic_id", "client_id",
                   "group_id", "fetch_exchange_id"),
    "transactions": ("transactional_id", "client_id", "began_at", "ended_at", "outcome", "open_ms", "records",
                     "first_exchange_id"),
}  # fmt: skip
"""Tables and columns that are read."""
TRANSACTIONS = 200
"""Transactions that are drawn, those that were open longest."""


def slow_deliveries(table: pa.Table, every: float) -> pa.Table:
    """Per stretch of `every` seconds in which records were produced: at, until, deliveries, p50_ms, max_ms, and of the
    slowest waited_for, topic, client_id and fetch_exchange_id. Followers do not count, nor do deliveries of
    unknown duration. Stretches without a delivery have no row.

    `table`: rows of `deliveries`.
    """
    known = _of_readers(table)
    width = max(1, round(every * 1e6))
    took, bucket = reals(known, "delivery_ms"), times(known, "produced_at") // width
    order = np.lexsort((took, bucket))
    took, bucket = took[order], bucket[order]
    first = np.flatnonzero(np.append(True, bucket[1:] != bucket[:-1])) if len(bucket) else np.zeros(0, np.int64)
    last = np.append(first[1:], len(bucket))[: len(first)] - 1
    slowest = known.take(pa.array(order[last] if len(order) else np.zeros(0, np.int64)))
    begin = bucket[first] * width
    return pa.table(
        {
            "at": instants(begin),
            "until": instants(begin + width),
            "deliveries": pa.array(last - first + 1),
            "p50_ms": pa.array(took[(first + last) // 2]),
            "max_ms": pa.array(took[last] if len(took) else np.zeros(0)),
            **{name: slowest[name] for name in ("waited_for", "topic", "client_id", "fetch_exchange_id")},
        }
    )


def delivery_heat(table: pa.Table, every: float) -> pa.Table:
    """Deliveries by topic and reader (its group, else its client id), stretch of `every` seconds in which records were
    produced, and step of their duration. Columns: name, at, until, from_ms, to_ms, deliveries.

    Of the SERIES topics and readers with the most deliveries; followers do not count. `table`: rows of `deliveries`."""
    known = _of_readers(table)
    width = max(1, round(every * 1e6))
    topic, reader = (pc.fill_null(first_known(known, name), NONE) for name in ("topic", "reader"))
    cells = pa.table(
        {
            "name": pc.binary_join_element_wise(topic, reader, " to "),
            "bucket": pa.array(times(known, "produced_at") // width),
            "step": pa.array(np.floor(find_steps(reals(known, "delivery_ms"))).astype(np.int64)),
        }
    )
    names = group(cells, ["name"])
    busiest = np.argsort(-names.count(), kind="stable")[:SERIES]
    cells = cells.filter(pa.array(np.isin(names.code, busiest)))
    found = group(cells, ["name", "bucket", "step"])
    keys = found.keys.append_column("deliveries", pa.array(found.count()))
    rank = pc.index_in(keys["name"], names.keys["name"].take(pa.array(busiest)).combine_chunks())
    order = np.lexsort([ints(keys, "step"), ints(keys, "bucket"), numbers(rank)])
    keys = keys.take(pa.array(order[:CELLS]))
    bucket = ints(keys, "bucket")
    return pa.table(
        {
            "name": keys["name"],
            "at": instants(bucket * width),
            "until": instants((bucket + 1) * width),
            **step_edges(ints(keys, "step")),
            "deliveries": keys["deliveries"],
        }
    )


def _of_readers(table: pa.Table) -> pa.Table:
    """Deliveries of known duration to others than followers."""
    return without_followers(table.filter(pc.is_valid(table["delivery_ms"])))


def long_transactions(table: pa.Table, last_us: int) -> pa.Table:
    """The TRANSACTIONS transactions that were open longest, in order of time: at, until, outcome, transactional_id,
    client_id, open_ms, records, first_exchange_id. One that is open lasts until `last_us`. `table`: `transactions`."""
    begin, end = times(table, "began_at"), times(table, "ended_at")
    known = np.flatnonzero(begin != NULL_TIME)
    end = np.where(end == NULL_TIME, np.maximum(last_us, begin), end)
    longest = known[np.argsort(begin[known] - end[known], kind="stable")][:TRANSACTIONS]
    rows = longest[np.argsort(begin[longest], kind="stable")]
    shown = table.take(pa.array(rows))
    names = ("outcome", "transactional_id", "client_id", "open_ms", "records", "first_exchange_id")
    return pa.table(
        {"at": instants(begin[rows]), "until": instants(end[rows]), **{name: shown[name] for name in names}}
    )
