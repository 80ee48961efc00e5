"""Who writes and reads which topic, for the first screen: sums by client, topic and partition, part by part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.summary.client_summaries import broker_itself
from kdissect.summary.model import TopicLine
from kdissect.tables.declaration import SCHEMAS

KEYS = ("client_id", "topic", "partition")
COMPACT = 1 << 16
"""Rows of sums that are kept before equal ones are added up."""
MOST = 100_000
"""Clients x topics x partitions that are counted, some 20 MB: a capture that has more shows no topics."""
AT_A_TIME = 1 << 17
"""Rows that are added up at once, and that wait for their request: some tens of MB. Older ones are not counted."""
OWNERS = {"produce_partitions": "produces", "fetch_partitions": "fetches"}
"""Tables that are added up, and the one that says who asked, in the same part."""
READS = {
    "produces": ("exchange_id", "client_id", "requested_at"),
    "fetches": ("exchange_id", "client_id", "requested_at"),
    "produce_partitions": ("exchange_id", "topic", "topic_id", "partition", "record_bytes"),
    "fetch_partitions": ("exchange_id", "topic", "topic_id", "partition", "record_bytes", "lag"),
}
"""Tables and columns that `take` reads."""


class TopicTraffic:
    """Adds up bytes of record batches, and keeps the last lag that each reader was told."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._sums: list[pa.Table] = []
        self._rows = 0
        self._full = False
        self._early: dict[str, pa.Table] = {}

    def take(self, part: Mapping[str, pa.Table]) -> None:
        """Rows of tables of `READS` whose topics have their names, other tables aside."""
        for name, owner in OWNERS.items():
            rows = [table for table in (self._early.pop(name, None), part.get(name)) if table is not None]
            if self._full or not any(table.num_rows for table in rows):
                continue
            table = pa.concat_tables(rows, promote_options="permissive")
            for start in range(0, table.num_rows, AT_A_TIME):
                self._count(name, table.slice(start, AT_A_TIME), part.get(owner))

    def _count(self, name: str, rows: pa.Table, owners: pa.Table | None) -> None:
        """Add up rows; those whose request is told in a later part (it waits for followers' fetches) are kept."""
        if owners is None or not owners.num_rows:
            at = np.full(rows.num_rows, -1)
            owners = SCHEMAS[OWNERS[name]].empty_table()
        else:
            at = locate(keys_of(rows), keys_of(owners))
        if (at < 0).any():
            early = [rows.filter(pa.array(at < 0)), *([self._early[name]] if name in self._early else [])]
            self._early[name] = pa.concat_tables(early, promote_options="permissive").slice(0, AT_A_TIME)
            rows, at = rows.filter(pa.array(at >= 0)), at[at >= 0]
        mine = owners.select(["client_id", "requested_at"]).take(pa.array(at))
        nothing = pa.nulls(rows.num_rows, pa.int64())
        read = name == "fetch_partitions"
        size = rows["record_bytes"].cast(pa.int64())
        topic = pc.coalesce(rows["topic"].cast(pa.string()), rows["topic_id"].cast(pa.string()))
        columns = {
            "client_id": mine["client_id"].cast(pa.string()),
            "topic": topic,
            "partition": rows["partition"].cast(pa.int64()),
            "written": nothing if read else size,
            "read": size if read else nothing,
            "lag": rows["lag"].cast(pa.int64()) if read else nothing,
            "at": mine["requested_at"].cast(pa.timestamp("us", "UTC")),
        }
        self._add(_summed(pa.table(columns)))

    def _add(self, sums: pa.Table) -> None:
        self._sums.append(sums)
        self._rows += sums.num_rows
        if self._rows > COMPACT:
            self._sums = [_summed(pa.concat_tables(self._sums))]
            self._rows = self._sums[0].num_rows
            self._full = self._rows > self._most
            if self._full:
                self._sums.clear()

    def lines(self) -> list[TopicLine] | None:
        """A line for each topic that a client writes or reads, those with most bytes first; None where there are more
        than can be counted. What brokers read from each other is left out."""
        if self._full:
            return None
        of: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        if self._sums:
            for row in _summed(pa.concat_tables(self._sums)).to_pylist():
                if row["topic"] is not None and not broker_itself(row["client_id"]):
                    of[row["topic"]].append(row)
        lines = [_line(topic, rows) for topic, rows in of.items()]
        return sorted(lines, key=lambda line: (-(line.written_bytes or 0) - (line.read_bytes or 0), line.topic))


def _summed(rows: pa.Table) -> pa.Table:
    """A row for each client, topic and partition: sums, and the lag that was told last."""
    grouped = rows.sort_by("at").group_by(list(KEYS), use_threads=False)
    made = grouped.aggregate([("written", "sum"), ("read", "sum"), ("lag", "last"), ("at", "max")])
    return made.select([*KEYS, "written_sum", "read_sum", "lag_last", "at_max"]).rename_columns(rows.column_names)


def _line(topic: str, rows: list[dict[str, Any]]) -> TopicLine:
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
    )


def _by_client(rows: list[dict[str, Any]], what: str) -> dict[str | None, int]:
    found: defaultdict[str | None, int] = defaultdict(int)
    for row in rows:
        if row[what] is not None:
            found[row["client_id"]] += row[what]
    return dict(found)
