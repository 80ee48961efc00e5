"""Record sets of a block, and the tables `record_batches` and `records` made of what is found in them.

A record set is the `records` field of one partition of a Fetch or ShareFetch response or a Produce request. This module
says where the sets are and whose; `kafka.recordsets` reads them and names each row's set as `owner`. A FetchSnapshot
response holds a stretch of a snapshot file (KIP-630). The first stretch starts with a batch and counts as a record set
that may end inside one. The others may begin anywhere in a batch, and no field says where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import Problems
from kdissect.kafka.recordsets.batch_layout import FIELDS, NULL
from kdissect.kafka.recordsets.batches import Batches
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import CODE, TEXT
from kdissect.tables.nest import Int64s
from kdissect.tables.table_block import Block, Column, assemble

SNAPSHOT = 59
MOST_PROBLEMS = 1000
"""Problems of record batches listed for each part of a capture; of more, which only a hostile or a thoroughly damaged
part has, one row says how many."""

SOURCES: tuple[tuple[int, int, str, str, str, str, str], ...] = (
    # API key, side, list of topics, its name field ("" none), list of partitions, fields of their number and records
    (ApiKey.PRODUCE, 0, "topic_data", "name", "partition_data", "index", "records"),
    (ApiKey.FETCH, 1, "responses", "topic", "partitions", "partition_index", "records"),
    (ApiKey.SHARE_FETCH, 1, "responses", "", "partitions", "partition_index", "records"),
    (SNAPSHOT, 1, "topics", "name", "partitions", "index", "unaligned_records"),
)
"""Every message with record sets."""


def record_set_paths(*keys: int) -> dict[tuple[int, int], set[str]]:
    """The message paths by which the record sets of these APIs (of all, if none is named) are found; `@` asks for the
    position."""
    paths = {}
    for key, side, topics, name, partitions, number, records in SOURCES:
        if keys and key not in keys:
            continue
        below = f"{topics}.{partitions}"
        fields = {f"{below}.{number}", f"{below}.{records}", f"{below}.{records}@"}
        fields.add(f"{below}.position" if key == SNAPSHOT else f"{topics}.topic_id")
        paths[key, side] = fields | ({f"{topics}.{name}"} if name else set())
    return paths


OF_A_SET = ("exchange_id", "topic", "topic_id", "partition", "cluster")
"""Columns that all rows of a record set share."""


class RecordSets:
    """Record sets with anything in them, in order of exchanges: arrays of equal length.

    `row` is the exchange's row of the block; `at` and `size` place the set in the buffer that was decoded; `element`
    is the partition's place among those of all messages of its type (`key`), in wire order.
    """

    def __init__(
        self, row: Int64s, key: Int64s, element: Int64s, topic: pa.Array, topic_id: pa.Array, partition: Int64s,
        at: Int64s, size: Int64s,
    ) -> None:  # fmt: skip
        self.row = row
        self.key = key
        self.element = element
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.at = at
        self.size = size

    def __len__(self) -> int:
        return len(self.row)

    def pick_sets(self, index: Int64s) -> RecordSets:
        """Some of the sets."""
        picked = arrow_array(index)
        columns = vars(self).values()
        return RecordSets(*(c.take(picked) if isinstance(c, pa.Array) else c[index] for c in columns))

    @property
    def partial_is_legal(self) -> npt.NDArray[np.bool_]:
        """The last batch of the set may be cut by the sender: in responses, not in Produce requests."""
        flags: npt.NDArray[np.bool_] = self.key != ApiKey.PRODUCE
        return flags


def record_sets(block: Block, picked: Callable[[int, Int64s, Int64s], Int64s] | None = None) -> RecordSets:
    """The record sets of a block's messages. `picked`: which of those of an API at these places and of these sizes are
    wanted."""
    parts = []
    for key, side, topics, name, partitions, number, records in SOURCES:
        messages = block.nest(key, side)
        if picked is not None and not messages.may_have_values(topics, partitions, f"{records}_bytes"):
            continue
        outer = messages.each(topics)
        level = outer.each(partitions)
        size = level.ints(f"{records}_bytes", 0)
        if key == SNAPSHOT:
            size = np.where(level.ints("position") == 0, size, 0)
        kept = np.flatnonzero(size > 0).astype(np.int64)
        if picked is not None:
            at = level.ints(f"{records}_at")
            kept = kept[picked(key, at, size) if len(kept) == len(size) else picked(key, at[kept], size[kept])]
            if not len(kept):
                continue
        names = outer.column(name, TEXT) if name else pa.nulls(len(outer), TEXT)
        index = arrow_array(level.parent[kept])
        row = block.bodies(key, side)[level.body[kept]]
        ids = outer.column("topic_id", TEXT)
        numbers, places = level.ints(number)[kept], level.ints(f"{records}_at")[kept]
        parts.append(
            (row, np.full(len(kept), key), kept, names.take(index), ids.take(index), numbers, places, size[kept])
        )
    if not parts:
        none = np.zeros(0, np.int64)
        return RecordSets(none, none, none, pa.nulls(0, TEXT), pa.nulls(0, TEXT), none, none, none)
    columns = [
        pa.concat_arrays(column) if isinstance(column[0], pa.Array) else np.concatenate(column)
        for column in zip(*parts, strict=True)
    ]
    sets = RecordSets(*columns)
    return sets if (np.diff(sets.row) >= 0).all() else sets.pick_sets(np.argsort(sets.row, kind="stable"))


def record_rows(
    name: str, block: Block, sets: RecordSets, rows: pa.RecordBatch, column_names: Sequence[str]
) -> pa.RecordBatch:
    """The wanted columns of `record_batches` or `records`, from rows that know their set as `owner`. Not resolved
    yet."""
    owner = rows.column("owner")
    row = arrow_array(sets.row).take(owner)
    columns: dict[str, Column] = {
        "exchange_id": lambda: _repeated(block.exchange_id.take(arrow_array(sets.row)), owner),
        "topic": lambda: _repeated(sets.topic, owner),
        "topic_id": lambda: _repeated(sets.topic_id, owner),
        "partition": lambda: arrow_array(sets.partition).cast(CODE, safe=False).take(owner),
        "cluster": lambda: block.cluster(np.asarray(row)),
        **block.time_columns(np.asarray(row)),
    }
    for place, column in enumerate(rows.schema.names):
        if column != "owner":
            columns[column] = lambda place=place: rows.column(place)  # type: ignore[misc]
    return assemble(name, columns, column_names, rows.num_rows)


def _repeated(values: pa.Array, owner: pa.Array) -> pa.Array:
    """A value for each row from one for each set: a dictionary, for a set has many rows."""
    encoded = values.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.take(owner), encoded.dictionary)


def fetch_batches(block: Block, sets: RecordSets, batches: Batches) -> Int64s:
    """Number of batches of each partition of the block's Fetch responses, in wire order: for `fetch_partitions`."""
    size = len(block.nest(ApiKey.FETCH, 1).each("responses").each("partitions"))
    counts = np.bincount(batches.owner[batches.real], minlength=len(sets))
    out = np.zeros(size, np.int64)
    ours = sets.key == ApiKey.FETCH
    out[sets.element[ours]] = counts[ours]
    return out


def sent_records(block: Block, sets: RecordSets, batches: Batches) -> Int64s:
    """[n, 2]: number of batches, and of records as their headers say, of each partition of the block's Produce
    requests, in wire order. Records are -1 for a compressed wrapper of old, whose header has no number of them."""
    size = len(block.nest(ApiKey.PRODUCE, 0).each("topic_data").each("partition_data"))
    real = batches.real
    owner, records = batches.owner[real], batches.rows[real, FIELDS.records]
    counts = np.bincount(owner, minlength=len(sets))
    totals = np.bincount(owner, weights=np.maximum(records, 0), minlength=len(sets)).astype(np.int64)
    totals[owner[records < 0]] = -1
    out = np.zeros((size, 2), np.int64)
    ours = sets.key == ApiKey.PRODUCE
    out[sets.element[ours], 0], out[sets.element[ours], 1] = counts[ours], totals[ours]
    return out


def record_problems(block: Block, sets: RecordSets, batches: Batches) -> Problems:
    """Problems of batches as rows of `problems`, MOST_PROBLEMS of them: their exchange; `topic-partition` and where in
    the record set as place."""
    found = batches.problems(sets.partial_is_legal)
    listed = found.first(MOST_PROBLEMS)
    owner = listed.owner
    row, done = sets.row[owner], block.done
    topics, ids = sets.topic.take(arrow_array(owner)).to_pylist(), sets.topic_id.take(arrow_array(owner)).to_pylist()
    batch = batches.rows[listed.rows]
    places = [
        f"{topic or topic_id}-{partition}, {_place(at, offset)}"
        for topic, topic_id, partition, at, offset in zip(
            topics,
            ids,
            sets.partition[owner].tolist(),
            (batch[:, FIELDS.at] - sets.at[owner]).tolist(),
            batch[:, FIELDS.base_offset].tolist(),
            strict=True,
        )
    ]
    size = len(owner)
    texts = list(listed.texts)
    if size < len(found):
        texts[-1] = f"{len(found) - size + 1} further problems of record batches are not listed"
    asked = sets.key[owner] == ApiKey.PRODUCE
    return Problems(
        kind=listed.kind,
        capture=np.full(size, -1, np.int32),
        conn=done.conn[row],
        n=done.n[row],
        is_orphan=done.is_orphan[row],
        at=np.where(asked, done.request_last[row], done.response_last[row]),
        packet=np.where(asked, done.request_packet[row], done.response_packet[row]),
        where=np.arange(size, dtype=np.int32),
        detail=np.arange(size, 2 * size, dtype=np.int32),
        bytes=listed.bytes,
        texts=[*places, *texts],
    )


def _place(at: int, offset: int) -> str:
    return f"byte {at}" if offset == NULL else f"byte {at}, offset {offset}"
