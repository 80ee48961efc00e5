"""Topic ids and names: the map between them, the `topics` table, and filling names in.

A topic id is unique in the world (KIP-516), so the map is shared by all captures of a run. Names are not: a topic
deleted and made again has a new id under its old name, therefore ids become names but never names ids. A message
that carries both tells the name of an id; messages with one of them only add rows of `topics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.kafka.exchanges.completed import NULL_TIME
from kdissect.tables.apinames import api_name
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import ASSIGNMENT, CODE, COUNT, TEXT
from kdissect.tables.nest import Int64s, Level, lengths, numbers
from kdissect.tables.table_block import Block, instant

ZERO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Uuid.ZERO_UUID: "no id" wherever a topic id may be left out."""


class Source(NamedTuple):
    """A list of topics in a message: its path ("/" between lists), and the fields of its elements ("" none)."""

    key: int
    side: int
    path: str
    name: str = "name"
    topic_id: str = "topic_id"
    partitions: str = ""
    replicas: str = ""
    """The list of a partition's replicas, in the elements of `partitions`."""


SOURCES: tuple[Source, ...] = (
    Source(3, 1, "topics", partitions="partitions", replicas="replica_nodes"),  # Metadata
    Source(19, 1, "topics"),  # CreateTopics
    Source(75, 1, "topics", partitions="partitions", replicas="replica_nodes"),  # DescribeTopicPartitions
    Source(4, 0, "topic_states", "topic_name"),  # LeaderAndIsr
    Source(6, 0, "topic_states", "topic_name"),  # UpdateMetadata
    Source(20, 1, "responses"),  # DeleteTopics
    Source(69, 1, "groups/members/assignment.topic_partitions", "topic_name"),  # ConsumerGroupDescribe
    Source(69, 1, "groups/members/target_assignment.topic_partitions", "topic_name"),
    Source(77, 1, "groups/members/assignment.topic_partitions", "topic_name"),  # ShareGroupDescribe
    Source(90, 1, "groups/topics", "topic_name"),  # DescribeShareGroupOffsets
    Source(91, 1, "responses", "topic_name"),  # AlterShareGroupOffsets
    Source(92, 1, "responses", "topic_name"),  # DeleteShareGroupOffsets
)
"""Every place where a message can name a topic's id and its name together."""
REPLICATED = frozenset(source.key for source in SOURCES if source.replicas)
"""APIs whose answers say how many replicas partitions have."""

MENTIONS: tuple[Source, ...] = (
    Source(0, 0, "topic_data"),  # Produce
    Source(1, 0, "topics", "topic"),  # Fetch
    Source(1, 1, "responses", "topic"),
    Source(2, 0, "topics", topic_id=""),  # ListOffsets
    Source(78, 0, "topics", name=""),  # ShareFetch
)
"""Places where the id or the name of a topic stands alone; read only for the `topics` table itself."""


def wanted(mentions: bool = False) -> dict[tuple[int, int], set[str]]:
    """The message paths that the map (and with `mentions` the whole `topics` table) is read from."""
    paths: dict[tuple[int, int], set[str]] = {}
    for source in (*SOURCES, *(MENTIONS if mentions else ())):
        base = source.path.replace("/", ".")
        fields = {source.name, source.topic_id, source.partitions and f"{source.partitions}.error_code"} - {""}
        if source.replicas:
            fields.add(f"{source.partitions}.{source.replicas}")
        paths.setdefault((source.key, source.side), set()).update(f"{base}.{field}" for field in fields)
    return paths


@dataclass(slots=True, eq=False, repr=False)
class Seen:
    """What is known of one topic id, or of one name without an id."""

    topic_id: str | None
    topic: str | None
    first: int
    """ns of the first message that names it."""
    partitions: int
    told: tuple[bool, int, int]
    """(it did not tell the name of the id, ns, API key) of the message that counts as source: the smallest."""
    replicas: int = 0
    """The most replicas that any message told of a partition; 0 where none did."""


@dataclass(slots=True, eq=False, repr=False)
class Given:
    """What was filled in for topics, by their ids or names; None where nothing was known."""

    replicas: bool = True
    """Whether it matters how many replicas they have."""
    names: dict[str, str | None] = field(default_factory=dict)
    replicas_by_id: dict[str, int | None] = field(default_factory=dict)
    replicas_by_name: dict[str, int | None] = field(default_factory=dict)

    def holds(self, names: dict[str, str], by_id: dict[str, int], by_name: dict[str, int]) -> bool:
        """Whether this is what these would give."""
        pairs = ((self.names, names), (self.replicas_by_id, by_id), (self.replicas_by_name, by_name))
        return all(
            known.get(text) == told
            for given, known in pairs[: 3 if self.replicas else 1]
            for text, told in given.items()
        )


@dataclass(slots=True, eq=False, repr=False)
class Topics:
    """The map of a run. What it ends up with does not depend on the order in which messages come."""

    seen: dict[tuple[str | None, str | None], Seen] = field(default_factory=dict)
    """(id, None) or (None, name) -> what is known."""
    mentions: bool = False
    """Also collect ids and names that stand alone."""
    given: Given | None = None
    """What was filled in so far; None: nobody asks."""

    @property
    def kept(self) -> bool:
        """Everything that was filled in is what would be filled in now."""
        return self.given is None or self.given.holds(self.names(), *self.known_replicas())

    def feed(self, block: Block) -> None:
        """Collect the topics of a block's messages."""
        for source in (*SOURCES, *(MENTIONS if self.mentions else ())):
            if (source.key, source.side) in block.done.messages:
                self._feed(block, source)

    def _feed(self, block: Block, source: Source) -> None:
        level: Level = block.nest(source.key, source.side)
        for step in source.path.split("/"):
            level = level.each(step)
        if not len(level):
            return
        done = block.done
        at = (done.response_last, done.response_first) if source.side else (done.request_last, done.request_first)
        rows = block.bodies(source.key, source.side)[level.body]
        moment = np.where(at[0] != NULL_TIME, at[0], at[1])[rows]
        ids, names = (
            (level.column(name, TEXT) if name else pa.nulls(len(level), TEXT)).dictionary_encode()
            for name in (source.topic_id, source.name)
        )
        found = level.get(source.partitions) if source.partitions else None
        counted = np.zeros(len(level), np.int64) if found is None else lengths(found)
        copies = _replicas(level, source)
        for topic_id, topic, first, most, replicas in grouped(ids, names, moment, counted, copies):
            self.note(topic_id, topic, first, most, (False, first, source.key), replicas)

    def note(
        self, topic_id: str | None, topic: str | None, first: int, partitions: int, told: tuple[bool, int, int],
        replicas: int = 0,
    ) -> None:  # fmt: skip
        """A message at time `first` (ns) mentions this id, this name, or both; `replicas`: of a partition, at most."""
        topic_id = None if topic_id == ZERO_ID else topic_id
        topic = topic or None
        if topic_id is None and topic is None:
            return
        told = (topic_id is not None and topic is None, *told[1:])
        key = (topic_id, None if topic_id else topic)
        known = self.seen.setdefault(key, Seen(topic_id, topic, first, partitions, told))
        if topic and (known.topic is None or (told, topic) < (known.told, known.topic)):
            known.topic = topic  # damaged messages may tell several names: the first one counts, whoever is read first
        known.first = min(known.first, first)
        known.partitions = max(known.partitions, partitions)
        known.told = min(known.told, told)
        known.replicas = max(known.replicas, replicas)

    def clear(self) -> None:
        """Forget everything."""
        self.seen.clear()

    def merge(self, other: Topics) -> None:
        """Add what another part of the same work has collected."""
        for item in other.seen.values():
            self.note(item.topic_id, item.topic, item.first, item.partitions, item.told, item.replicas)

    def names(self) -> dict[str, str]:
        """Topic id -> name, as far as known now."""
        return {item.topic_id: item.topic for item in self.seen.values() if item.topic_id and item.topic}

    def resolve(
        self, topic: pa.Array | pa.ChunkedArray, topic_id: pa.Array | pa.ChunkedArray
    ) -> pa.Array | pa.ChunkedArray:
        """A `topic` column with names filled in for ids whose name is known now, as plain strings."""
        if isinstance(topic, pa.ChunkedArray):
            topic, topic_id = topic.combine_chunks(), topic_id.combine_chunks()
        topic = topic.cast(TEXT)
        if topic.null_count == 0:
            return topic
        ids = topic_id if pa.types.is_dictionary(topic_id.type) else topic_id.dictionary_encode()
        names = self.names()
        texts = ids.dictionary.to_pylist()
        found = [text and names.get(text) for text in texts]
        if self.given is not None:
            self.given.names.update((text, name) for text, name in zip(texts, found, strict=True) if text)
        return pc.coalesce(topic, pc.take(pa.array(found, TEXT), ids.indices))

    def resolve_replicas(
        self, topic: pa.Array | pa.ChunkedArray, topic_id: pa.Array | pa.ChunkedArray
    ) -> pa.Array | pa.ChunkedArray:
        """A `replicas` column: the most replicas that was told of a partition of each topic, by its id where rows have
        one and it is known, else by its name; null where nothing told."""
        by_id, by_name = self.known_replicas()
        given = self.given
        return pc.coalesce(
            _looked_up(topic_id, by_id, None if given is None else given.replicas_by_id),
            _looked_up(topic, by_name, None if given is None else given.replicas_by_name),
        )

    def known_replicas(self) -> tuple[dict[str, int], dict[str, int]]:
        """By topic id and by name, the most replicas that was told of a partition of it."""
        ids: dict[str, int] = {}
        names: dict[str, int] = {}
        for item in self.seen.values():
            if item.replicas and item.topic_id:
                ids[item.topic_id] = max(ids.get(item.topic_id, 0), item.replicas)
            if item.replicas and item.topic:
                names[item.topic] = max(names.get(item.topic, 0), item.replicas)
        return ids, names

    def resolve_assignments(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """An `assigned_partitions` column with names filled in for topic ids whose name is known now."""
        chunks = []
        for chunk in column.chunks:
            items = chunk.values
            topic = self.resolve(pc.struct_field(items, "topic"), pc.struct_field(items, "topic_id"))
            rest = [pc.struct_field(items, name) for name in ("topic_id", "partitions")]
            filled = pa.StructArray.from_arrays([topic, *rest], fields=list(items.type))
            chunks.append(
                pa.ListArray.from_arrays(chunk.offsets, filled, type=ASSIGNMENT, mask=chunk.is_null())
                if not chunk.offset
                else chunk
            )
        return pa.chunked_array(chunks, ASSIGNMENT)

    def table(self) -> pa.Table:
        """The `topics` table, in order of first appearance. Names with an id known for them have no row of their
        own."""
        named = {item.topic for item in self.seen.values() if item.topic_id}
        rows = [item for item in self.seen.values() if item.topic_id or item.topic not in named]
        rows.sort(key=lambda item: (item.first, item.topic_id or "", item.topic or ""))
        return pa.table(topic_columns(rows), schema=SCHEMAS["topics"])


def topic_columns(rows: Sequence[Seen]) -> dict[str, pa.Array]:
    """The columns of the `topics` table."""
    return {
        "topic_id": pa.array([item.topic_id for item in rows], TEXT),
        "topic": pa.array([item.topic for item in rows], TEXT),
        "first_seen_at": instant(np.array([item.first for item in rows], np.int64)),
        "partitions": pa.array([item.partitions or None for item in rows], COUNT),
        "source": pa.array([api_name(item.told[2]) for item in rows], TEXT),
    }


def _replicas(level: Level, source: Source) -> Int64s:
    """The most replicas of a partition, of each topic; 0 where the message does not say."""
    most = np.zeros(len(level), np.int64)
    partitions = level.each(source.partitions) if source.replicas else None
    found = None if partitions is None else partitions.get(source.replicas)
    if partitions is not None and found is not None:
        np.maximum.at(most, partitions.parent, lengths(found))
    return most


def _looked_up(
    texts: pa.Array | pa.ChunkedArray, known: dict[str, int], given: dict[str, int | None] | None
) -> pa.Array:
    """The number that each text stands for, null for none. What was told of each goes into `given`."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    codes = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    words = codes.dictionary.to_pylist()
    found = [known.get(text or "") for text in words]
    if given is not None:
        given.update((text, most) for text, most in zip(words, found, strict=True) if text)
    return pc.take(pa.array(found, CODE), codes.indices)


def grouped(
    ids: pa.Array, names: pa.Array, moment: Int64s, partitions: Int64s, replicas: Int64s
) -> list[tuple[str | None, str | None, int, int, int]]:
    """Distinct (id, name) pairs with their first moment, largest number of partitions and of replicas."""
    pair = numbers(ids.indices, -1) + 1 << 32 | numbers(names.indices, -1) + 1
    distinct, inverse = np.unique(pair, return_inverse=True)
    first = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(first, inverse, moment)
    most = np.zeros(len(distinct), np.int64)
    np.maximum.at(most, inverse, partitions)
    copies = np.zeros(len(distinct), np.int64)
    np.maximum.at(copies, inverse, replicas)
    id_texts, name_texts = [*ids.dictionary.to_pylist(), None], [*names.dictionary.to_pylist(), None]
    return [
        (id_texts[(key >> 32) - 1], name_texts[(key & 0xFFFFFFFF) - 1], begin, size, count)
        for key, begin, size, count in zip(
            distinct.tolist(), first.tolist(), most.tolist(), copies.tolist(), strict=True
        )
    ]
