"""The rows of the page's flow graph: which clients write how much to which topics, and who reads it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import ints, times, with_columns
from kdissect.report.counted import OTHERS, Counted, stretched
from kdissect.report.figure_rows import NONE
from kdissect.summary.client_summaries import broker_itself

WAYS = ("writes", "reads")
"""Ways of data: into a topic, and out of it."""
OWNERS = {"produce_partitions": ("produces", "writes"), "fetch_partitions": ("fetches", "reads")}
"""Tables whose bytes are counted, the one that says who asked, and the way."""
MOST = 8
"""Writers, topics and readers that are drawn by themselves, those with most bytes; the others are drawn together."""
WAITING = 1 << 16
"""Partitions whose request is not known yet that are kept."""
STEPS_OF_FLOWS = 2500
"""Rows by stretch of time: some 15 kB in the page."""
BROKERS = "(brokers)"
"""Followers, controllers: one reader in the graph."""
UNKNOWN = "(unknown)"


class Flows:
    """Bytes of record batches by way, client and topic, over time, part by part. Rows of a request that comes in a
    later part (it waits for followers' fetches) wait for it, at most WAITING of each table."""

    def __init__(self) -> None:
        self.counted = Counted(["way", "topic", "client_id"], ["bytes"])
        self._early: dict[str, pa.Table] = {}

    def add_rows(self, part: Mapping[str, pa.Table]) -> None:
        """Rows of the tables of OWNERS (see READS), topics with their names."""
        for name, (owner, way) in OWNERS.items():
            rows = [table for table in (self._early.pop(name, None), part.get(name)) if table is not None]
            owners = part.get(owner)
            if not any(table.num_rows for table in rows):
                continue
            table = pa.concat_tables(rows, promote_options="permissive")
            at = np.full(table.num_rows, -1)
            if owners is not None and owners.num_rows:
                at = locate(keys_of(table), keys_of(owners))
                self._count(way, table.filter(pa.array(at >= 0)), owners.take(pa.array(at[at >= 0])))
            self._early[name] = table.filter(pa.array(at < 0)).slice(0, WAITING)

    def _count(self, way: str, rows: pa.Table, owners: pa.Table) -> None:
        moved = ints(rows, "record_bytes", 0)
        there = pa.array(moved > 0)
        topic = pc.coalesce(rows["topic"].cast(pa.string()), rows["topic_id"].cast(pa.string()), UNKNOWN)
        table = pa.table(
            {
                "way": pa.array([way] * rows.num_rows, pa.string()),
                "topic": topic,
                "client_id": _clients(owners["client_id"]),
                "bytes": pa.array(moved),
            }
        )
        self.counted.add(table.filter(there), times(owners, "requested_at")[moved > 0])

    def rows(self, every: float) -> pa.Table:
        """Bytes by way, client and topic and stretch of time: way (of WAYS), client_id, topic, at, until, bytes; OTHERS
        stands for clients and topics that are not among the MOST, BROKERS for brokers themselves."""
        moved, bucket, width = self.counted.by_time(every)
        topics = _most(moved, "topic")
        way = moved["way"]
        columns = {"topic": pc.if_else(pc.is_in(moved["topic"], topics), moved["topic"], OTHERS)}
        clients = moved["client_id"]
        for one in WAYS:
            mine = pc.equal(way, one)
            kept = _most(moved.filter(mine), "client_id")
            clients = pc.if_else(pc.and_(mine, pc.invert(pc.is_in(moved["client_id"], kept))), OTHERS, clients)
        columns["client_id"] = clients
        named = with_columns(moved, columns)
        found = stretched(named, bucket, width, ["way", "client_id", "topic"], ["bytes"], STEPS_OF_FLOWS)
        return found.sort_by([("way", "descending"), ("at", "ascending"), ("bytes", "descending")])


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
