"""Finds the cluster that a broker's address belongs to, by ClusterIds and by messages that join addresses to them.

Metadata (v2 and later) and DescribeCluster answer with the ClusterId of the broker that was asked. An address gets its
cluster by the first step that applies:

1. The one ClusterId that answers on connections to the address carry.
2. Within the capture set: the cluster of an address whose messages list this one as a broker, or which this one's
   messages list (`Brokers.claims`), from address to address.
3. The cluster of the topic ids that its messages name; any capture set may have shown that cluster. A topic id is
   unique in the world (KIP-516), but for the zero id and the id of `__cluster_metadata`.
4. The one ClusterId that requests of KRaft nodes expect there (Vote, BrokerRegistration ...), where the answer has no
   error: a controller refuses another cluster's (INCONSISTENT_CLUSTER_ID). The ClusterId of a Fetch is not read,
   as brokers answer fetches of topics with any.

Where a step gives two ClusterIds, the address has none, and nothing goes on from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kdissect.arrays.arrow import distinct
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import TEXT
from kdissect.tables.fetches import METADATA_TOPIC_ID
from kdissect.tables.identity import ZERO_ID
from kdissect.tables.nest import Int64s, Level, numbers
from kdissect.tables.table_block import Block

SOURCES: tuple[tuple[int, int], ...] = (
    (ApiKey.METADATA, 1),
    (ApiKey.DESCRIBE_CLUSTER, 1),
    (ApiKey.VOTE, 0),
    (ApiKey.BEGIN_QUORUM_EPOCH, 0),
    (ApiKey.END_QUORUM_EPOCH, 0),
    (ApiKey.FETCH_SNAPSHOT, 0),
    (ApiKey.BROKER_REGISTRATION, 0),
    (ApiKey.ADD_RAFT_VOTER, 0),
    (ApiKey.REMOVE_RAFT_VOTER, 0),
    (ApiKey.UPDATE_RAFT_VOTER, 0),
)
"""Messages with a field `cluster_id` that names the cluster of the broker they come from, or go to."""
TOPICS: tuple[tuple[int, int, str], ...] = (
    (ApiKey.METADATA, 1, "topics"),
    (ApiKey.PRODUCE, 0, "topic_data"),
    (ApiKey.FETCH, 0, "topics"),
    (ApiKey.FETCH, 1, "responses"),
    (ApiKey.SHARE_FETCH, 0, "topics"),
)
"""Messages with a list of topics whose elements have a `topic_id`."""
MOST_TOPIC_IDS = 64
"""Topic ids kept of an address without a ClusterId of its own, the least as text: any one joins it."""
LONGEST = 100
"""A ClusterId is 22 characters (a Uuid as text); longer ones, and those with control characters, are damage."""
UNJOINED = frozenset({ZERO_ID, METADATA_TOPIC_ID})
"""Topic ids that every cluster has."""


JOINING: Mapping[tuple[int, int], str] = {
    (key, side): f"{topics}.topic_id" for key, side, topics in TOPICS if key != ApiKey.METADATA
}
"""Message paths whose values only join addresses without a ClusterId of their own to a cluster."""


def cluster_paths() -> dict[tuple[int, int], set[str]]:
    """The message paths that clusters are known by, besides those of `Brokers.claims`."""
    paths: dict[tuple[int, int], set[str]] = {kind: {"cluster_id"} for kind in SOURCES}
    for key, side, topics in TOPICS:
        paths.setdefault((key, side), set()).add(f"{topics}.topic_id")
    return paths


@dataclass(slots=True, eq=False, repr=False)
class Clusters:
    """ClusterIds and topic ids of addresses, from the messages of a run. Addresses are unresolved brokers:
    `capture<TAB>ip:port`."""

    ids: dict[str, set[str]] = field(default_factory=dict)
    """Address -> ClusterIds that answers on its connections carry."""
    expected: dict[str, set[str]] = field(default_factory=dict)
    """Address -> ClusterIds that requests on its connections expect, where the answer has no error."""
    topic_ids: dict[str, set[str]] = field(default_factory=dict)
    """Address -> the least MOST_TOPIC_IDS topic ids that its messages name."""
    told_topic_ids: dict[str, set[str]] = field(default_factory=dict)
    """ClusterId -> topic ids that messages name which carry it."""
    changes: int = 0
    """How often something new was learned."""

    def feed(self, block: Block) -> None:
        """Collect what a block's messages tell."""
        done, codes = block.done, block.directory.broker_codes(block.done.conn)
        texts = block.directory.brokers.texts
        for key, side in SOURCES:
            rows = block.bodies(key, side)
            words, named = cluster_ids(block.nest(key, side))
            good = named >= 0
            if side == 0:
                good &= done.error_code[rows] == 0
            if not good.any():
                continue
            for address, word in distinct(np.stack([codes[rows], named], axis=1)[good].astype(np.int64)).tolist():
                self.note(self.ids if side else self.expected, texts[address], words[word])
        for key, side, path in TOPICS:
            if (key, side) in done.messages:
                self._feed_topics(block, key, side, path, codes)
        if done.aside is not None:
            self._feed_aside(block, codes)

    def _feed_topics(self, block: Block, key: int, side: int, path: str, codes: np.ndarray) -> None:
        answers = block.nest(key, side)
        if not answers.may_have_values(path, "topic_id"):
            return
        topics = answers.each(path)
        ids = topics.get("topic_id") if len(topics) else None
        if ids is None or ids.null_count == len(ids):
            return
        rows, texts = block.bodies(key, side), block.directory.brokers.texts
        if key == ApiKey.METADATA:
            self._feed_metadata(answers, topics, ids)
        present = distinct(codes[rows]).tolist()
        open_codes = np.array([code for code in present if texts[code] not in self.ids], np.int64)
        if not len(open_codes):
            return
        of = np.full(len(texts), -1, np.int64)
        of[open_codes] = open_codes
        for address, topic_id in _distinct_pairs(of[codes[rows]][topics.body], ids):
            self.mention(texts[address], (topic_id,))

    def _feed_metadata(self, answers: Level, topics: Level, ids: pa.Array) -> None:
        """Topic ids of answers which carry the ClusterId themselves."""
        names, of = cluster_ids(answers)
        for cluster, topic_id in _distinct_pairs(of[topics.body], ids):
            told = self.told_topic_ids.setdefault(names[cluster], set())
            if topic_id not in UNJOINED and topic_id not in told:
                told.add(topic_id)
                self.changes += 1

    def _feed_aside(self, block: Block, codes: np.ndarray) -> None:
        """Topics of the fetches and produces that were read aside."""
        read, texts = block.done.aside, block.directory.brokers.texts
        assert read is not None
        if not any(known for _, known in read.topics):
            return
        from kdissect.tables.fetch_rows import fetches_of, partitions_of
        from kdissect.tables.sent_rows import sent_of

        fetches = fetches_of(read.rows.fetches)
        address = np.repeat(codes[fetches["exchange"]], fetches["partitions"])
        topic = partitions_of(read.rows.partitions)["topic"]
        sent = sent_of(read.sent)
        seen = np.zeros((len(texts), len(read.topics) + 1), np.bool_)
        seen[address, topic] = True  # -1 marks the last column
        seen[codes[sent["exchange"]], sent["topic"]] = True
        for place, which in np.argwhere(seen[:, :-1]).tolist():
            known = read.topics[which][1]
            if known is not None and texts[place] not in self.ids:
                self.mention(texts[place], (known,))

    def note(self, mentions: dict[str, set[str]], address: str, cluster: str) -> None:
        """A message on a connection to the address carries this ClusterId; `mentions`: `ids` or `expected`."""
        if cluster not in mentions.get(address, ()):
            mentions.setdefault(address, set()).add(cluster)
            self.changes += 1

    def mention(self, address: str, topic_ids: Iterable[str]) -> None:
        """Messages on connections to the address name these topic ids."""
        new = set(topic_ids) - UNJOINED - self.topic_ids.get(address, set())
        if new:
            found = self.topic_ids.setdefault(address, set())
            found |= new
            while len(found) > MOST_TOPIC_IDS:
                found.remove(max(found))
            self.changes += 1

    def clear(self) -> None:
        """Forget everything."""
        self.changes += 1
        self.ids.clear()
        self.expected.clear()
        self.topic_ids.clear()
        self.told_topic_ids.clear()

    def merge(self, other: Clusters) -> None:
        """Add what another part of the same work has collected."""
        self.changes += 1
        for known, more in ((self.ids, other.ids), (self.expected, other.expected)):
            for address, ids in more.items():
                known.setdefault(address, set()).update(ids)
        for cluster, topic_ids in other.told_topic_ids.items():
            self.told_topic_ids.setdefault(cluster, set()).update(topic_ids)
        for address, topic_ids in other.topic_ids.items():
            self.mention(address, topic_ids)

    def assign_clusters(self, listed_ids: Mapping[str, set[str]], links: Mapping[str, set[str]]) -> dict[str, str]:
        """The cluster of each address that has one. `listed_ids`: address -> ClusterIds of the messages that list it.
        `links`: addresses of one capture set that list each other in messages without a ClusterId."""
        found: dict[str, str] = {}
        doubtful: set[str] = set()
        for known in (self.ids, self.expected):
            fresh = _assign_clusters(known, found, doubtful) + _assign_clusters(listed_ids, found, doubtful)
            while fresh:
                told: dict[str, set[str]] = {}
                for address in fresh:
                    for other in links.get(address, ()):
                        told.setdefault(other, set()).add(found[address])
                fresh = _assign_clusters(told, found, doubtful) or self._by_topics(found, doubtful)
        return found

    def _by_topics(self, cluster_of: dict[str, str], doubtful: set[str]) -> list[str]:
        """Addresses that the topic ids of clusters join to them."""
        open_addresses = [one for one in self.topic_ids if one not in cluster_of and one not in doubtful]
        if not open_addresses:
            return []
        clusters_of: dict[str, set[str]] = {}
        for cluster, topic_ids in self.told_topic_ids.items():
            for topic_id in topic_ids:
                clusters_of.setdefault(topic_id, set()).add(cluster)
        for address, cluster in cluster_of.items():
            # Of an address with a ClusterId of its own they are collected until that is known, which depends on who
            # reads what first.
            for topic_id in () if address in self.ids else self.topic_ids.get(address, ()):
                clusters_of.setdefault(topic_id, set()).add(cluster)
        told = {
            address: set[str]().union(*(clusters_of.get(topic_id, ()) for topic_id in self.topic_ids[address]))
            for address in open_addresses
        }
        return _assign_clusters(
            {address: clusters for address, clusters in told.items() if clusters}, cluster_of, doubtful
        )


def _distinct_pairs(places: Int64s, topic_ids: pa.Array) -> Iterator[tuple[int, str]]:
    """The distinct (place, topic id) of rows that have both; -1 is no place."""
    known = topic_ids.cast(TEXT).dictionary_encode()
    found, words = numbers(known.indices, -1), known.dictionary.to_pylist()
    pairs = np.stack([places, found], axis=1)[(places >= 0) & (found >= 0)].astype(np.int64)
    for place, word in distinct(pairs).tolist():
        yield place, words[word]


def _assign_clusters(mentioned: Mapping[str, set[str]], cluster_of: dict[str, str], doubtful: set[str]) -> list[str]:
    """Give each address its cluster, where `mentioned` has a single one for it. Returns the addresses that are new."""
    fresh = []
    for address, clusters in mentioned.items():
        if address in cluster_of or address in doubtful:
            continue
        if len(clusters) == 1:
            cluster_of[address] = next(iter(clusters))
            fresh.append(address)
        else:
            doubtful.add(address)
    return fresh


def answered_clusters(block: Block, key: int, side: int) -> tuple[list[str], Int64s]:
    """ClusterIds that answers of an API carry, and which of these each has, -1 where it has none; requests, which name
    what their sender expects, have none."""
    if side == 1:
        return cluster_ids(block.nest(key, side))
    return [], np.full(len(block.bodies(key, side)), -1, np.int64)


def cluster_ids(messages: Level) -> tuple[list[str], Int64s]:
    """ClusterIds that messages carry, and which of these each message has, -1 where it has none."""
    column = messages.get("cluster_id")
    if column is None or column.null_count == len(column):
        return [], np.full(len(messages), -1, np.int64)
    ids = column.cast(TEXT).dictionary_encode()
    words = ids.dictionary.to_pylist()
    good = np.array([*(0 < len(word) <= LONGEST and word.isprintable() for word in words), False])
    named = numbers(ids.indices, -1)
    return words, np.where(good[named], named, -1).astype(np.int64)
