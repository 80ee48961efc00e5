"""The rows of the page's flow graph: which clients write how much to which topics, and who reads it."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.report.rows import NONE, OTHERS
from kdissect.summary.client_summaries import broker_itself

WAYS: Mapping[str, str] = {"writes": "produced_bytes", "reads": "fetched_bytes"}
"""Ways of data, and the column of `topic_traffic` that counts it."""
MOST = 8
"""Writers, topics and readers that are drawn by themselves, those with most bytes; the others are drawn together."""
BROKERS = "(brokers)"
"""Followers, controllers: one reader in the graph."""
UNKNOWN = "(unknown)"


def flows(traffic: pa.Table) -> pa.Table:
    """Bytes by way, client and topic, the most first: way (of WAYS), client_id, topic, bytes; OTHERS stands for those
    that are not among the MOST, BROKERS for brokers themselves. Nothing that moved no bytes.

    `traffic`: rows of `topic_traffic` (client_id topic topic_id produced_bytes fetched_bytes).
    """
    topics = pc.coalesce(traffic["topic"].cast(pa.string()), traffic["topic_id"].cast(pa.string()), UNKNOWN)
    clients = _clients(traffic["client_id"])
    parts = [
        pa.table({"way": pa.array([way] * traffic.num_rows, pa.string()), "client_id": clients, "topic": topics,
                  "bytes": traffic[column].cast(pa.int64())})
        for way, column in WAYS.items()
    ]  # fmt: skip
    moved = pa.concat_tables(parts)
    moved = moved.filter(pc.fill_null(pc.greater(moved["bytes"], 0), False))
    topic = _most(moved, "topic")
    some = []
    for way in WAYS:
        mine = moved.filter(pc.equal(moved["way"], way))
        kept = {"topic": topic, "client_id": _most(mine, "client_id")}
        for name, words in kept.items():
            at = mine.schema.get_field_index(name)
            mine = mine.set_column(at, name, pc.if_else(pc.is_in(mine[name], words), mine[name], OTHERS))
        some.append(mine)
    summed = pa.concat_tables(some).group_by(["way", "client_id", "topic"], use_threads=False)
    found = summed.aggregate([("bytes", "sum")]).rename_columns(["way", "client_id", "topic", "bytes"])
    by = [("way", "descending"), ("bytes", "descending"), ("client_id", "ascending"), ("topic", "ascending")]
    return found.sort_by(by)


def _clients(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Client ids as they are drawn: brokers under one name."""
    ids = pc.fill_null(column.cast(pa.string()), NONE)
    brokers = [one for one in pc.unique(ids).to_pylist() if broker_itself(one)]
    return pc.if_else(pc.is_in(ids, pa.array(brokers, pa.string())), BROKERS, ids)


def _most(moved: pa.Table, column: str) -> pa.Array:
    """The values of a column with most bytes: MOST of them, and one more rather than one alone under another name."""
    sums = moved.group_by(column, use_threads=False).aggregate([("bytes", "sum")])
    ranked = sums.sort_by([("bytes_sum", "descending"), (column, "ascending")])[column].combine_chunks()
    return ranked if len(ranked) == MOST + 1 else ranked.slice(0, MOST)
