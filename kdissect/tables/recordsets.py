"""Record sets of a block, and the tables `record_batches` and `records` made of what is found in them.

A record set is the `records` field of one partition of a Fetch or ShareFetch response or a Produce request. This module
says where the sets are and whose; `kdissect.kafka.batches` and `.records` read them and name each row's set as `owner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.kafka.batches import Batches
from kdissect.kafka.batches import Problems as BatchProblems
from kdissect.kafka.completed import Problems
from kdissect.tables.block import TIME_KEY, Block, Column, assemble
from kdissect.tables.declaration.model import CODE, TEXT
from kdissect.tables.nest import Int64s

FETCH = 1

SOURCES: tuple[tuple[int, int, str, str, str, str], ...] = (
    # API key, side, list of topics, field of the name ("" none), list of partitions, field of the number
    (0, 0, "topic_data", "name", "partition_data", "index"),  # Produce
    (1, 1, "responses", "topic", "partitions", "partition_index"),  # Fetch
    (78, 1, "responses", "", "partitions", "partition_index"),  # ShareFetch
)
"""Every message with record sets."""


def wanted() -> dict[tuple[int, int], set[str]]:
    """The message paths by which record sets are found; `@` asks for the position."""
    paths = {}
    for key, side, topics, name, partitions, number in SOURCES:
        below = f"{topics}.{partitions}"
        fields = {f"{topics}.topic_id", f"{below}.{number}", f"{below}.records", f"{below}.records@"}
        paths[key, side] = fields | ({f"{topics}.{name}"} if name else set())
    return paths


@dataclass(slots=True)
class RecordSets:
    """Record sets with anything in them, in order of exchanges: arrays of equal length.

    `row` is the exchange's row of the block; `at` and `size` place the set in the buffer that was decoded; `element`
    is the partition's place among those of all messages of its type (`key`), in wire order.
    """

    row: Int64s
    key: Int64s
    element: Int64s
    topic: pa.Array
    topic_id: pa.Array
    partition: Int64s
    at: Int64s
    size: Int64s

    def __len__(self) -> int:
        return len(self.row)

    @property
    def partial_is_legal(self) -> npt.NDArray[np.bool_]:
        """The last batch of the set may be cut by the sender: in responses, not in Produce requests."""
        flags: npt.NDArray[np.bool_] = self.key != 0
        return flags


def record_sets(block: Block) -> RecordSets:
    """The record sets of a block's messages."""
    parts = []
    for key, side, topics, name, partitions, number in SOURCES:
        outer = block.nest(key, side).each(topics)
        level = outer.each(partitions)
        size = level.ints("records_bytes", 0)
        kept = np.flatnonzero(size > 0).astype(np.int64)
        names = outer.column(name, TEXT) if name else pa.nulls(len(outer), TEXT)
        index = pa.array(level.parent[kept])
        row = block.bodies(key, side)[level.body[kept]]
        ids = outer.column("topic_id", TEXT)
        numbers, places = level.ints(number)[kept], level.ints("records_at")[kept]
        parts.append(
            (row, np.full(len(kept), key), kept, names.take(index), ids.take(index), numbers, places, size[kept])
        )
    columns = [
        pa.concat_arrays(column) if isinstance(column[0], pa.Array) else np.concatenate(column)
        for column in zip(*parts, strict=True)
    ]
    order = np.argsort(columns[0], kind="stable")
    return RecordSets(*(c.take(pa.array(order)) if isinstance(c, pa.Array) else c[order] for c in columns))


def record_rows(
    name: str, block: Block, sets: RecordSets, found: pa.RecordBatch, wanted: Sequence[str]
) -> pa.RecordBatch:
    """The wanted columns of `record_batches` or `records`, from rows that know their set as `owner`. Not resolved
    yet."""
    owner = found.column("owner")
    row = pa.array(sets.row).take(owner)
    columns: dict[str, Column] = {
        "exchange_id": lambda: block.exchange_id.take(row),
        "topic": lambda: sets.topic.take(owner),
        "topic_id": lambda: sets.topic_id.take(owner),
        "partition": lambda: pa.array(sets.partition).cast(CODE, safe=False).take(owner),
        TIME_KEY: lambda: block.sort_time.take(row),
    }
    for place, column in enumerate(found.schema.names):
        if column != "owner":
            columns[column] = lambda place=place: found.column(place)  # type: ignore[misc]
    return assemble(name, columns, wanted, found.num_rows)


def fetch_batches(block: Block, sets: RecordSets, batches: Batches) -> Int64s:
    """Number of batches of each partition of the block's Fetch responses, in wire order: for `fetch_partitions`."""
    size = len(block.nest(FETCH, 1).each("responses").each("partitions"))
    counts = np.bincount(batches.owner[batches.real], minlength=len(sets))
    out = np.zeros(size, np.int64)
    ours = sets.key == FETCH
    out[sets.element[ours]] = counts[ours]
    return out


def record_problems(block: Block, sets: RecordSets, found: BatchProblems) -> Problems:
    """Problems of batches as rows of `problems`: their exchange, `topic-partition` as place."""
    owner = found.owner
    row, done = sets.row[owner], block.done
    topics, ids = sets.topic.take(pa.array(owner)).to_pylist(), sets.topic_id.take(pa.array(owner)).to_pylist()
    places = [
        f"{topic or topic_id}-{partition}"
        for topic, topic_id, partition in zip(topics, ids, sets.partition[owner].tolist(), strict=True)
    ]
    size = len(owner)
    asked = sets.key[owner] == 0
    return Problems(
        kind=found.kind,
        capture=np.full(size, -1, np.int32),
        conn=done.conn[row],
        n=done.n[row],
        is_orphan=done.is_orphan[row],
        at=np.where(asked, done.request_last[row], done.response_last[row]),
        packet=np.where(asked, done.request_packet[row], done.response_packet[row]),
        where=np.arange(size, dtype=np.int32),
        detail=np.arange(size, 2 * size, dtype=np.int32),
        bytes=found.bytes,
        texts=[*places, *found.texts],
    )
