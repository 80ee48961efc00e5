"""Who writes and reads which topic, for the first screen: sums by client, topic and partition, part by part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import Coder, Int64s, ints
from kdissect.arrays.from_numpy import arrow_array
from kdissect.summary.client_summaries import broker_itself
from kdissect.summary.joint_codes import joint
from kdissect.summary.model import TopicLine
from kdissect.tables.declaration import SCHEMAS

if TYPE_CHECKING:
    from kdissect.tables.traffic_sums import Sums

CLIENT, TOPIC, PARTITION, WRITTEN, READ, LAG, AT, CLUSTER = range(8)
"""Columns of sums, -1 where unknown: codes of the client and of the topic, bytes, the lag that was told last, and when,
as `kdissect.tables.traffic_sums` has them, and the code of the cluster."""
LAST = 2**63 - 1
"""When a lag of unknown time was told."""
COMPACT = 1 << 16
"""Rows of sums that are kept before equal ones are added up."""
MOST = 100_000
"""Clients x topics x partitions that are counted, some 20 MB: a capture that has more shows no topics."""
AT_A_TIME = 1 << 17
"""Rows that are added up at once, and that wait for their request: some tens of MB. Older ones are not counted."""
OWNERS = {"produce_partitions": "produces", "fetch_partitions": "fetches"}
"""Tables that are added up, and the one that says who asked, in the same part."""
READS = {
    "produces": ("exchange_id", "client_id", "requested_at", "cluster"),
    "fetches": ("exchange_id", "client_id", "requested_at", "cluster"),
    "produce_partitions": ("exchange_id", "topic", "topic_id", "partition", "record_bytes"),
    "fetch_partitions": ("exchange_id", "topic", "topic_id", "partition", "record_bytes", "lag"),
}
"""Tables and columns that `take` reads."""


class TopicTraffic:
    """Adds up bytes of record batches, and keeps the last lag of each reader."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._clients = Coder()
        self._topics = Coder()
        self._clusters = Coder()
        self._sums: list[Int64s] = []
        """[n, 8] each."""
        self._rows = 0
        self._full = False
        self._early: dict[str, pa.Table] = {}

    def add_rows(self, part: Mapping[str, pa.Table]) -> None:
        """Rows of tables of `READS` whose topics have their names, other tables aside."""
        for name, owner in OWNERS.items():
            rows = [table for table in (self._early.pop(name, None), part.get(name)) if table is not None]
            if self._full or not any(table.num_rows for table in rows):
                continue
            table = pa.concat_tables(rows, promote_options="permissive")
            for start in range(0, table.num_rows, AT_A_TIME):
                self._count(name, table.slice(start, AT_A_TIME), part.get(owner))

    def add(self, sums: Sums) -> None:
        """Sums of rows that are not given to `take`."""
        if self._full or not sums.num_rows:
            return
        clusters = self._clusters.taken_over(sums.clusters)
        topics = [name or known for name, known in sums.topics]
        found = np.column_stack([sums.rows[:, : AT + 1], clusters[sums.broker]])
        found[:, CLIENT] = self._clients.taken_over(sums.clients)[sums.client]
        found[:, TOPIC] = self._topics.taken_over(topics)[found[:, TOPIC]]
        self._add(_summed(found))

    def _count(self, name: str, rows: pa.Table, owners: pa.Table | None) -> None:
        """Add up rows; those whose request comes in a later part (it waits for followers' fetches) are kept."""
        if owners is None or not owners.num_rows:
            at = np.full(rows.num_rows, -1)
            owners = SCHEMAS[OWNERS[name]].empty_table()
        else:
            at = locate(keys_of(rows), keys_of(owners))
        if (at < 0).any():
            early = [rows.filter(arrow_array(at < 0)), *([self._early[name]] if name in self._early else [])]
            self._early[name] = pa.concat_tables(early, promote_options="permissive").slice(0, AT_A_TIME)
            rows, at = rows.filter(arrow_array(at >= 0)), at[at >= 0]
        if not rows.num_rows:
            return
        read = name == "fetch_partitions"
        topic, topic_id = (self._topics.column(rows, which) for which in ("topic", "topic_id"))
        found = np.full((rows.num_rows, 8), -1, np.int64)
        found[:, CLIENT] = self._clients.column(owners, "client_id")[at]
        found[:, TOPIC] = np.where(topic < 0, topic_id, topic)
        found[:, PARTITION] = ints(rows, "partition")
        found[:, READ if read else WRITTEN] = ints(rows, "record_bytes")
        if read:
            found[:, LAG] = ints(rows, "lag")
        found[:, AT] = ints(owners, "requested_at", LAST)[at]
        found[:, CLUSTER] = self._clusters.column(owners, "cluster")[at]
        self._add(_summed(found))

    def _add(self, sums: Int64s) -> None:
        self._sums.append(sums)
        self._rows += len(sums)
        if self._rows > COMPACT:
            self._sums = [_summed(np.concatenate(self._sums))]
            self._rows = len(self._sums[0])
            self._full = self._rows > self._most
            if self._full:
                self._sums.clear()

    def lines(self) -> list[TopicLine] | None:
        """A line for each topic that a client writes or reads, those with most bytes first; None where there are more
        than can be counted. Fetches between brokers are left out. Topics of one name are several if several clusters
        are known."""
        if self._full:
            return None
        of: defaultdict[tuple[str, str | None], list[dict[str, Any]]] = defaultdict(list)
        if self._sums:
            clients, topics, clusters = (*self._clients.texts, None), self._topics.texts, (*self._clusters.texts, None)
            sums = np.concatenate(self._sums)
            if len(self._clusters.texts) < 2:
                sums[:, CLUSTER] = -1
            for row in _summed(sums).tolist():
                client = clients[row[CLIENT]]
                if row[TOPIC] >= 0 and not broker_itself(client):
                    written, read, lag = (None if row[at] < 0 else row[at] for at in (WRITTEN, READ, LAG))
                    of[topics[row[TOPIC]], clusters[row[CLUSTER]]].append(
                        {"client_id": client, "partition": row[PARTITION], "written": written, "read": read, "lag": lag}
                    )
        lines = [_line(topic, cluster, rows) for (topic, cluster), rows in of.items()]
        return sorted(lines, key=lambda line: (
            -(line.written_bytes or 0) - (line.read_bytes or 0), line.topic, line.cluster or "",
        ))  # fmt: skip


def _summed(rows: Int64s) -> Int64s:
    """A row for each client, topic of a cluster, and partition: sums, and the last lag."""
    codes, firsts = joint([rows[:, at] for at in (CLIENT, CLUSTER, TOPIC, PARTITION)])
    made = rows[firsts]
    for at in (WRITTEN, READ):
        known = rows[:, at] >= 0
        made[:, at] = -1
        made[codes[known], at] = 0
        np.add.at(made[:, at], codes[known], rows[known, at])
    told = np.flatnonzero(rows[:, LAG] >= 0)
    if (rows[told[1:], AT] < rows[told[:-1], AT]).any():
        told = told[np.argsort(rows[told, AT], kind="stable")]
    last = np.full(len(made), -1, np.int64)
    np.maximum.at(last, codes[told], np.arange(len(told)))  # the last of each
    which = slice(LAG, AT + 1)
    made[:, which] = np.where(last[:, None] >= 0, rows[told[last], which], -1) if len(told) else -1
    return made


def _line(topic: str, cluster: str | None, rows: list[dict[str, Any]]) -> TopicLine:
    wrote, read = _by_client(rows, "written"), _by_client(rows, "read")
    behind = {
        client: sum(row["lag"] for row in rows if row["client_id"] == client and row["lag"] is not None)
        for client in read
        if any(row["client_id"] == client and row["lag"] is not None for row in rows)
    }
    return TopicLine(
        topic=topic,
        partitions=len({row["partition"] for row in rows}),
        written_bytes=sum(wrote.values()) if wrote else None,
        writers=sorted(wrote, key=lambda client: (-wrote[client], client or "")),
        read_bytes=sum(read.values()) if read else None,
        readers=sorted(read, key=lambda client: (-behind.get(client, -1), -read[client], client or "")),
        behind=max(behind.values(), default=None),
        cluster=cluster,
    )


def _by_client(rows: list[dict[str, Any]], column: str) -> dict[str | None, int]:
    found: defaultdict[str | None, int] = defaultdict(int)
    for row in rows:
        if row[column] is not None:
            found[row["client_id"]] += row[column]
    return dict(found)
