"""Topic ids and names: the map between them, the `topics` table, and filling names in.

A topic id is unique in the world (KIP-516), so the map is shared by all captures of a run, but each cluster has its own
(`kdissect.tables.clusters`): what is learned in one names nothing of another. Names are not unique: a topic
deleted and made again has a new id under its old name, therefore ids become names but never names ids. A message
that carries both tells the name of an id; messages with one of them only add rows of `topics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import NULL_TIME
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.apinames import api_name
from kdissect.tables.brokers import Brokers
from kdissect.tables.clusters import answered_clusters
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import ASSIGNMENT, CODE, COUNT, TEXT, TEXTS
from kdissect.tables.identity import ZERO_ID
from kdissect.tables.nest import Int64s, Level, lengths, numbers
from kdissect.tables.table_block import Block, instant
from kdissect.tables.topic_lists import MARKED_ID

Replicas = tuple[Mapping[str, int], Mapping[str, int]]
"""How many replicas partitions of topics have, by topic id and by name."""


def topics_or_ids(table: pa.Table) -> pa.ChunkedArray:
    """The name of each row's topic, its id where no name is known; null where the row has neither."""
    topics = table["topic"]
    if not topics.null_count or "topic_id" not in table.schema.names:
        return topics
    return pc.coalesce(topics.cast(pa.string()), table["topic_id"].cast(pa.string()))


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
    Source(ApiKey.METADATA, 1, "topics", partitions="partitions", replicas="replica_nodes"),
    Source(ApiKey.CREATE_TOPICS, 1, "topics"),
    Source(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 1, "topics", partitions="partitions", replicas="replica_nodes"),
    Source(ApiKey.LEADER_AND_ISR, 0, "topic_states", "topic_name"),
    Source(ApiKey.UPDATE_METADATA, 0, "topic_states", "topic_name"),
    Source(ApiKey.DELETE_TOPICS, 1, "responses"),
    Source(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, "groups/members/assignment.topic_partitions", "topic_name"),
    Source(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, "groups/members/target_assignment.topic_partitions", "topic_name"),
    Source(ApiKey.SHARE_GROUP_DESCRIBE, 1, "groups/members/assignment.topic_partitions", "topic_name"),
    Source(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, "groups/topics", "topic_name"),
    Source(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 1, "responses", "topic_name"),
    Source(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 1, "responses", "topic_name"),
)
"""Every place where a message can name a topic's id and its name together."""
REPLICATED = frozenset(source.key for source in SOURCES if source.replicas)
"""APIs whose answers say how many replicas partitions have."""

MENTIONS: tuple[Source, ...] = (
    Source(ApiKey.PRODUCE, 0, "topic_data"),
    Source(ApiKey.FETCH, 0, "topics", "topic"),
    Source(ApiKey.FETCH, 1, "responses", "topic"),
    Source(ApiKey.LIST_OFFSETS, 0, "topics", topic_id=""),
    Source(ApiKey.SHARE_FETCH, 0, "topics", name=""),
)
"""Places where the id or the name of a topic stands alone; read only for the `topics` table itself."""


def topic_paths(mentions: bool = False) -> dict[tuple[int, int], set[str]]:
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
    """One topic id, or one name without an id, as messages of one origin have it."""

    origin: str
    """The ClusterId that the messages carry, else the unresolved broker on whose connections they were."""
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
    """Names and replicas that were filled in for topics, by their ids or names; None where none were known."""

    replicas: bool = True
    """Whether it matters how many replicas they have."""
    names: dict[tuple[str | None, str], str | None] = field(default_factory=dict)
    """By cluster and id."""
    replicas_by_id: dict[str, int | None] = field(default_factory=dict)
    replicas_by_name: dict[str, int | None] = field(default_factory=dict)

    def holds(self, topics: Topics) -> bool:
        """Whether this is what these topics would give."""
        if any(topics.name_of(*which) != name for which, name in self.names.items()):
            return False
        known = topics.known_replicas() if self.replicas else ({}, {})
        given = (self.replicas_by_id, self.replicas_by_name) if self.replicas else ({}, {})
        return all(most.get(text) == told for one, most in zip(given, known, strict=True) for text, told in one.items())


@dataclass(slots=True, eq=False, repr=False)
class Topics:
    """The map of a run. Its final content does not depend on the order in which messages come."""

    brokers: Brokers = field(default_factory=Brokers)
    """What knows which clusters messages were of."""
    seen: dict[tuple[str, str | None, str | None], Seen] = field(default_factory=dict)
    """(origin, id, None) or (origin, None, name) -> what is known."""
    mentions: bool = False
    """Also collect ids and names that stand alone."""
    given: Given | None = None
    """What was filled in so far; None: nobody asks."""
    changes: int = 0
    """How often something new was learned."""
    _names: tuple[int, Names] | None = None

    @property
    def names_unchanged(self) -> bool:
        """Everything that was filled in is what would be filled in now."""
        return self.given is None or self.given.holds(self)

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
        origins, origin = origins_of(block, source.key, source.side)
        for place, topic_id, topic, first, most, replicas in grouped(
            origin[level.body], ids, names, moment, counted, copies
        ):
            self.note(origins[place], topic_id, topic, first, most, (False, first, source.key), replicas)

    def note(
        self, origin: str, topic_id: str | None, topic: str | None, first: int, partitions: int,
        precedence: tuple[bool, int, int], replicas: int = 0,
    ) -> None:  # fmt: skip
        """A message of this origin at time `first` (ns) mentions this id, this name, or both; `replicas`: of a
        partition, at most."""
        topic_id = None if topic_id == ZERO_ID else topic_id
        topic = topic or None
        if topic_id is None and topic is None:
            return
        precedence = (topic_id is not None and topic is None, *precedence[1:])
        key = (origin, topic_id, None if topic_id else topic)
        known = self.seen.get(key)
        if known is None:
            known = self.seen[key] = Seen(origin, topic_id, topic, first, partitions, precedence)
            self.changes += 1
        if topic and (known.topic is None or (precedence, topic) < (known.told, known.topic)):
            known.topic = topic  # damaged messages may tell several names: the first one counts, whoever is read first
            self.changes += 1
        known.first = min(known.first, first)
        known.partitions = max(known.partitions, partitions)
        known.told = min(known.told, precedence)
        if replicas > known.replicas:
            known.replicas = replicas
            self.changes += 1

    def clear(self) -> None:
        """Forget everything."""
        self.changes += 1
        self.seen.clear()

    def merge(self, other: Topics) -> None:
        """Add what another part of the same work has collected."""
        for item in other.seen.values():
            self.note(item.origin, item.topic_id, item.topic, item.first, item.partitions, item.told, item.replicas)

    def ids_of_names(self) -> dict[tuple[str | None, str], list[str]]:
        """(cluster, name) -> the topic ids that have it, as far as they are known now."""
        found: dict[tuple[str | None, str], list[str]] = {}
        for (cluster, topic_id), name in self._names_by_now().within.items():
            found.setdefault((cluster, name), []).append(topic_id)
        return found

    def by_cluster(self) -> dict[str | None, Topics]:
        """The map of each cluster's messages, and of those without a known cluster: as if each had been alone."""
        clusters = {origin: self.cluster_of(origin) for origin in {item.origin for item in self.seen.values()}}
        parts: dict[str | None, Topics] = {}
        for item in self.seen.values():
            part = parts.setdefault(clusters[item.origin], Topics())
            part.note("", item.topic_id, item.topic, item.first, item.partitions, item.told, item.replicas)
        return parts

    def cluster_of(self, origin: str) -> str | None:
        """The cluster that messages of this origin are of, as far as it is known now."""
        return self.brokers.cluster_named(origin)

    def _names_by_now(self) -> Names:
        changes = self.changes + self.brokers.changes + self.brokers.clusters.changes
        if self._names is None or self._names[0] != changes:
            self._names = changes, Names.of(self.by_cluster())
        return self._names[1]

    def names(self) -> dict[str, str]:
        """Topic id -> name, as far as known now and the same in every cluster."""
        return self._names_by_now().everywhere

    def name_of(self, cluster: str | None, topic_id: str) -> str | None:
        """The name of a topic id in a cluster, as far as it is known now. Where the cluster does not tell, or is not
        known, the name that all others tell."""
        known = self._names_by_now()
        return known.within.get((cluster, topic_id)) or known.elsewhere(cluster, topic_id)

    def resolve(
        self, topic: pa.Array | pa.ChunkedArray, topic_id: pa.Array | pa.ChunkedArray,
        cluster: pa.Array | pa.ChunkedArray | None = None,
    ) -> pa.Array | pa.ChunkedArray:  # fmt: skip
        """A `topic` column with names filled in for ids whose name is known now, as plain strings. `cluster`: resolved;
        None: of no row it is known."""
        topic, topic_id = _together(topic), _together(topic_id)
        topic = topic.cast(TEXT)
        if topic.null_count == 0:
            return topic
        pairs, codes = _pairs(topic_id, None if cluster is None else _together(cluster))
        found = [text and self.name_of(of, text) for text, of in pairs]
        if self.given is not None:
            self.given.names.update(((of, text), name) for (text, of), name in zip(pairs, found, strict=True) if text)
        return pc.coalesce(topic, pc.take(pa.array(found, TEXT), codes))

    def resolve_replicas(
        self, topic: pa.Array | pa.ChunkedArray, topic_id: pa.Array | pa.ChunkedArray,
        cluster: pa.Array | pa.ChunkedArray | None = None,
    ) -> pa.Array | pa.ChunkedArray:  # fmt: skip
        """A `replicas` column: the most replicas that a message lists for a partition of each topic. It goes by the
        topic's id where rows have one and it is known, else by its name; null where no message lists any. A row without
        a cluster has what all clusters agree on."""
        by_id, by_name = self.known_replicas()
        given = self.given
        known = self._names_by_now()
        if len(known.replicas) < 2:
            return pc.coalesce(
                _looked_up(topic_id, by_id, None if given is None else given.replicas_by_id),
                _looked_up(topic, by_name, None if given is None else given.replicas_by_name),
            )
        columns = []
        of_cluster = {**known.replicas, None: (by_id, by_name)}  # of a row without a cluster what all agree on
        for values, which in ((topic_id, 0), (topic, 1)):
            pairs, codes = _pairs(_together(values), None if cluster is None else _together(cluster))
            found = [of_cluster[of][which].get(text or "") if of in of_cluster else None for text, of in pairs]
            columns.append(pc.take(pa.array(found, CODE), codes))
        return pc.coalesce(*columns)

    def known_replicas(self) -> tuple[dict[str, int], dict[str, int]]:
        """By topic id and by name, the most replicas that a message lists for a partition of it, where no cluster says
        otherwise."""
        parts = list(self._names_by_now().replicas.values())
        if len(parts) == 1:
            return parts[0]
        return _agreed([ids for ids, _ in parts]), _agreed([names for _, names in parts])

    def resolve_assignments(self, column: pa.ChunkedArray, cluster: pa.ChunkedArray | None = None) -> pa.ChunkedArray:
        """An `assigned_partitions` column with names filled in for topic ids whose name is known now. `cluster`:
        resolved, of each row."""
        chunks = []
        at = 0
        for chunk in column.chunks:
            items, own = chunk.values, None
            if cluster is not None and not chunk.offset:
                own = _together(cluster.slice(at, len(chunk))).take(pc.list_parent_indices(chunk))
                own = own if len(own) == len(items) else None  # lists that are null have items, too
            at += len(chunk)
            topic = self.resolve(pc.struct_field(items, "topic"), pc.struct_field(items, "topic_id"), own)
            rest = [pc.struct_field(items, name) for name in ("topic_id", "partitions")]
            filled = pa.StructArray.from_arrays([topic, *rest], fields=list(items.type))
            chunks.append(
                pa.ListArray.from_arrays(chunk.offsets, filled, type=ASSIGNMENT, mask=chunk.is_null())
                if not chunk.offset
                else chunk
            )
        return pa.chunked_array(chunks, ASSIGNMENT)

    def resolve_lists(self, column: pa.ChunkedArray, cluster: pa.ChunkedArray | None = None) -> pa.ChunkedArray:
        """A column of lists (`topic_lists`) with names in place of topic ids, ids where none is known now. `cluster`:
        resolved, of each row."""
        chunks = []
        at = 0
        for chunk in column.chunks:
            values, own = chunk.flatten(), None
            marked = pc.match_substring_regex(values, MARKED_ID)
            if pc.any(marked).as_py():
                if cluster is not None:
                    own = _together(cluster.slice(at, len(chunk))).take(pc.list_parent_indices(chunk))
                ids = pc.if_else(marked, pc.utf8_slice_codeunits(values, 1), None)
                names = pc.coalesce(self.resolve(pc.if_else(marked, None, values), ids, own), ids)
                offsets = np.concatenate([[0], np.cumsum(lengths(chunk))]).astype(np.int32)
                chunk = pa.ListArray.from_arrays(arrow_array(offsets), names, type=TEXTS, mask=chunk.is_null())
            chunks.append(chunk)
            at += len(chunk)
        return pa.chunked_array(chunks, TEXTS)

    def table(self) -> pa.Table:
        """The `topics` table, in order of first appearance. Names with an id known for them have no row of their
        own."""
        rows = []
        for cluster, part in self.by_cluster().items():
            named = {item.topic for item in part.seen.values() if item.topic_id}
            rows += [(cluster, item) for item in part.seen.values() if item.topic_id or item.topic not in named]
        rows.sort(key=lambda row: (row[1].first, row[1].topic_id or "", row[1].topic or "", row[0] or ""))
        columns = topic_columns([item for _, item in rows])
        return pa.table({**columns, "cluster": pa.array([one for one, _ in rows], TEXT)}, schema=SCHEMAS["topics"])


class Names(NamedTuple):
    """Names of topic ids, and replicas of topics, by cluster."""

    within: dict[tuple[str | None, str], str]
    """(cluster, id) -> name."""
    everywhere: dict[str, str]
    """Id -> the name that every cluster tells that tells one."""
    replicas: dict[str | None, tuple[dict[str, int], dict[str, int]]]
    """Cluster -> by topic id and by name, the most replicas that was told of a partition of it."""

    @classmethod
    def of(cls, parts: dict[str | None, Topics]) -> Names:
        """The names and replicas of each cluster's topics."""
        names: list[dict[str, str]] = []
        within: dict[tuple[str | None, str], str] = {}
        replicas: dict[str | None, tuple[dict[str, int], dict[str, int]]] = {}
        for cluster, part in parts.items():
            own = {item.topic_id: item.topic for item in part.seen.values() if item.topic_id and item.topic}
            names.append(own)
            within |= {(cluster, topic_id): name for topic_id, name in own.items()}
            by_id: dict[str, int] = {}
            by_name: dict[str, int] = {}
            for item in part.seen.values():
                if item.replicas and item.topic_id:
                    by_id[item.topic_id] = max(by_id.get(item.topic_id, 0), item.replicas)
                if item.replicas and item.topic:
                    by_name[item.topic] = max(by_name.get(item.topic, 0), item.replicas)
            replicas[cluster] = by_id, by_name
        return cls(within, _agreed(names), replicas)

    def elsewhere(self, cluster: str | None, topic_id: str) -> str | None:
        """The name that others tell, for rows whose cluster is not known, or of messages whose cluster is not."""
        return self.everywhere.get(topic_id) if cluster is None else self.within.get((None, topic_id))


Told = TypeVar("Told")


def _agreed(parts: Sequence[dict[str, Told]]) -> dict[str, Told]:
    """The value of each text in all parts that have one; texts with several values are left out."""
    found: dict[str, Told] = {}
    several: set[str] = set()
    for part in parts:
        several.update(text for text, told in part.items() if found.setdefault(text, told) != told)
    for text in several:
        del found[text]
    return found


def _together(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _pairs(texts: pa.Array, clusters: pa.Array | None) -> tuple[list[tuple[str | None, str | None]], pa.Array]:
    """The distinct texts, with the cluster of their rows, and which of them each row has (null: no text)."""
    codes = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    words = codes.dictionary.to_pylist()
    if clusters is None:
        return [(word, None) for word in words], codes.indices
    own = clusters if pa.types.is_dictionary(clusters.type) else clusters.dictionary_encode()
    names = own.dictionary.to_pylist()
    if len(names) == 1 and not own.null_count:
        return [(word, names[0]) for word in words], codes.indices
    which = (numbers(codes.indices, -1) + 1) * (len(names) + 1) + numbers(own.indices, -1) + 1
    kept, inverse = np.unique(which, return_inverse=True)
    pairs = [((None, *words)[one // (len(names) + 1)], (None, *names)[one % (len(names) + 1)]) for one in kept.tolist()]
    return pairs, arrow_array(inverse)


def origins_of(block: Block, key: int, side: int) -> tuple[list[str], Int64s]:
    """Where the messages of an API's side come from, as `Seen.origin` says it, and which of these each message has."""
    words, named = answered_clusters(block, key, side)
    brokers = block.directory.broker_codes(block.done.conn[block.bodies(key, side)])
    texts = block.directory.brokers.texts
    return [*texts, *words], np.where(named >= 0, named + len(texts), brokers).astype(np.int64)


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
    texts: pa.Array | pa.ChunkedArray, number_of: dict[str, int], looked_up: dict[str, int | None] | None
) -> pa.Array:
    """The number that each text stands for, null for none. The number of each distinct text goes into `looked_up`."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    codes = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    words = codes.dictionary.to_pylist()
    found = [number_of.get(text or "") for text in words]
    if looked_up is not None:
        looked_up.update((text, most) for text, most in zip(words, found, strict=True) if text)
    return pc.take(pa.array(found, CODE), codes.indices)


def grouped(
    origin: Int64s, ids: pa.Array, names: pa.Array, moment: Int64s, partitions: Int64s, replicas: Int64s
) -> list[tuple[int, str | None, str | None, int, int, int]]:
    """Distinct (origin, id, name) with their first moment, largest number of partitions and of replicas."""
    pair = numbers(ids.indices, -1) + 1 << 32 | numbers(names.indices, -1) + 1
    places, which = np.unique(origin, return_inverse=True)
    pairs, inverse = np.unique(pair, return_inverse=True)
    distinct, inverse = np.unique(which * len(pairs) + inverse, return_inverse=True)
    first = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(first, inverse, moment)
    most = np.zeros(len(distinct), np.int64)
    np.maximum.at(most, inverse, partitions)
    copies = np.zeros(len(distinct), np.int64)
    np.maximum.at(copies, inverse, replicas)
    id_texts, name_texts = [*ids.dictionary.to_pylist(), None], [*names.dictionary.to_pylist(), None]
    keys = pairs[distinct % len(pairs)].tolist() if len(pairs) else []
    return [
        (place, id_texts[(key >> 32) - 1], name_texts[(key & 0xFFFFFFFF) - 1], begin, size, count)
        for place, key, begin, size, count in zip(
            places[distinct // max(len(pairs), 1)].tolist(),
            keys,
            first.tolist(),
            most.tolist(),
            copies.tolist(),
            strict=True,
        )
    ]
