"""Deliveries by topic and reader: how long they took, and what most of that time was spent on."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import each_cluster
from kdissect.tables.declaration.model import CLUSTER, COUNT, FLAG, MS, REAL, TEXT

KEYS = ["topic", "reader", "is_follower"]
SUMMARY = pa.schema(
    [
        ("topic", TEXT), ("reader", TEXT), ("is_follower", FLAG), ("deliveries", COUNT), ("records", COUNT),
        ("p50_ms", MS), ("p99_ms", MS), ("max_ms", MS), ("waited_for", TEXT), ("waited_share", REAL), ("again", COUNT),
        (CLUSTER.name, CLUSTER.type),
    ]
)  # fmt: skip
"""`reader`: the group, else the client id. `waited_for`: the part that took most of the time of all deliveries, and
`waited_share` its share of it. `again`: deliveries that the reader was given more than once. Quantiles are of the
deliveries whose time is known, null where none is."""
READ = (
    "topic", "topic_id", "group_id", "client_id", "is_follower", "records", "delivery_ms", "buffered_ms", "waited_for",
    "times", "cluster",
)  # fmt: skip
"""Columns of `deliveries` that are read."""
MADE_OF = {"topic": ("topic", "topic_id"), "reader": ("group_id", "client_id")}
"""Columns that are the first known of others: a topic without a name has its id, a reader without a group
its client id."""


def first_known(deliveries: pa.Table, name: str) -> pa.ChunkedArray:
    """A column in MADE_OF: `topic` or `reader`, as texts."""
    return pc.coalesce(*(deliveries[one].cast(pa.string()) for one in MADE_OF[name]))


def without_followers(deliveries: pa.Table) -> pa.Table:
    """The deliveries to others than followers."""
    return deliveries.filter(pc.invert(pc.fill_null(deliveries["is_follower"], False)))


def summarise(deliveries: pa.Table) -> pa.Table:
    """Rows of SUMMARY: consumers before followers, the slowest p99 first. `deliveries`: READ."""
    rows = each_cluster({"deliveries": deliveries}, lambda part: _summarise(part["deliveries"])).to_pylist()
    names = ("topic", "reader", "cluster")
    rows.sort(key=lambda row: (row["is_follower"], -(row["p99_ms"] or -1.0), *(row[name] or "" for name in names)))
    return pa.Table.from_pylist(rows, SUMMARY)


def _summarise(deliveries: pa.Table) -> pa.Table:
    """The rows of one cluster, in no order."""
    if not deliveries.num_rows:
        return SUMMARY.empty_table()
    spent = pc.add(deliveries["delivery_ms"], pc.fill_null(deliveries["buffered_ms"], 0.0))
    table = pa.table({
        "topic": first_known(deliveries, "topic"), "reader": first_known(deliveries, "reader"),
        "is_follower": deliveries["is_follower"],
        "records": deliveries["records"], "ms": deliveries["delivery_ms"], "spent": spent,
        "waited_for": deliveries["waited_for"], "again": pc.greater(deliveries["times"], 1),
    })  # fmt: skip
    quantiles = pc.TDigestOptions(q=[0.5, 0.99])
    made = table.group_by(KEYS, use_threads=False).aggregate(
        [([], "count_all"), ("records", "sum"), ("ms", "tdigest", quantiles), ("ms", "max"), ("again", "sum"),
         ("spent", "sum")]
    )  # fmt: skip
    parts = table.group_by([*KEYS, "waited_for"], use_threads=False).aggregate([("spent", "sum")])
    most: dict[tuple[object, ...], tuple[float, str]] = {}
    for row in parts.to_pylist():
        if row["waited_for"] is not None:
            key = tuple(row[name] for name in KEYS)
            most[key] = max(most.get(key, (-1.0, "")), (row["spent_sum"] or 0.0, row["waited_for"]))
    rows = []
    for row in made.to_pylist():
        worst = most.get(tuple(row[name] for name in KEYS))
        p50, p99 = row["ms_tdigest"] if row["ms_max"] is not None else (None, None)
        rows.append({
            **{name: row[name] for name in KEYS}, "deliveries": row["count_all"], "records": row["records_sum"],
            "p50_ms": p50, "p99_ms": p99, "max_ms": row["ms_max"], "waited_for": None if worst is None else worst[1],
            "waited_share": None if worst is None else worst[0] / row["spent_sum"] if row["spent_sum"] else 1.0,
            "again": row["again_sum"],
        })  # fmt: skip
    return pa.Table.from_pylist(rows, SUMMARY)
