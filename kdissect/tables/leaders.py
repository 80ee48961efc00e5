"""Leaders of partitions, and of the metadata quorum, as messages tell them: the table `leaders`.

A message names a leader with its epoch, which rises by each election (KIP-101). So the order of leaders is the order of
epochs, though brokers lag behind: the first message with an epoch above all before it shows a change. Metadata before
v7 has no epochs: there each broker's answers are followed by themselves, and the first broker that changes its mind
shows a change. The leader of the quorum (KIP-595) is that of partition 0 of `__cluster_metadata`; the controller of a
ZooKeeper cluster stands there too, by the controller epoch of its requests. The controller that KRaft brokers name in
Metadata is any broker (KIP-590), and is not read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import NULL_TIME
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.apinames import api_name
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import CODE, TEXT
from kdissect.tables.identity import SEPARATOR, ZERO_ID
from kdissect.tables.nest import Int64s, numbers
from kdissect.tables.table_block import Block, instant
from kdissect.tables.topics import Topics, origins_of

QUORUM, QUORUM_ID = "__cluster_metadata", "AAAAAAAAAAAAAAAAAAAAAQ"
"""Topic.CLUSTER_METADATA_TOPIC_NAME and Uuid.METADATA_TOPIC_ID."""
NO_EPOCH = -1
MOST = 1 << 20
"""Leaders that are remembered, some 300 MB; more partitions than any cluster has are those of a hostile capture."""


class Source(NamedTuple):
    """Where a message has leaders: a list of topics ("/" between lists), a list of partitions in each, and the fields
    of these. Without `partitions` the elements of `path` are partitions themselves."""

    key: int
    side: int
    path: str
    partitions: str
    number: str
    leader: str
    epoch: str
    name: str = "name"
    topic_id: str = ""


def _quorum(key: int, side: int, within: str = "") -> Source:
    return Source(
        key, side, "topics", "partitions", "partition_index", f"{within}leader_id", f"{within}leader_epoch",
        "topic_name",
    )  # fmt: skip


_CURRENT = ("current_leader.leader_id", "current_leader.leader_epoch")
_STATED = ("partition_index", "leader", "leader_epoch", "topic_name")
SOURCES: tuple[Source, ...] = (
    Source(ApiKey.METADATA, 1, "topics", "partitions", "partition_index", "leader_id", "leader_epoch",
           topic_id="topic_id"),
    Source(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 1, "topics", "partitions", "partition_index", "leader_id",
           "leader_epoch", topic_id="topic_id"),
    Source(ApiKey.PRODUCE, 1, "responses", "partition_responses", "index", *_CURRENT, topic_id="topic_id"),
    Source(ApiKey.FETCH, 1, "responses", "partitions", "partition_index", *_CURRENT, "topic", "topic_id"),
    Source(ApiKey.SHARE_FETCH, 1, "responses", "partitions", "partition_index", *_CURRENT, "", "topic_id"),
    Source(ApiKey.SHARE_ACKNOWLEDGE, 1, "responses", "partitions", "partition_index", *_CURRENT, "", "topic_id"),
    Source(ApiKey.LEADER_AND_ISR, 0, "topic_states", "partition_states", *_STATED, "topic_id"),
    Source(ApiKey.LEADER_AND_ISR, 0, "ungrouped_partition_states", "", *_STATED),
    Source(ApiKey.UPDATE_METADATA, 0, "topic_states", "partition_states", *_STATED, "topic_id"),
    Source(ApiKey.UPDATE_METADATA, 0, "ungrouped_partition_states", "", *_STATED),
    _quorum(ApiKey.VOTE, 1),
    *(_quorum(ApiKey.BEGIN_QUORUM_EPOCH, side) for side in (0, 1)),
    *(_quorum(ApiKey.END_QUORUM_EPOCH, side) for side in (0, 1)),
    _quorum(ApiKey.DESCRIBE_QUORUM, 1),
    Source(ApiKey.FETCH_SNAPSHOT, 1, "topics", "partitions", "index", *_CURRENT),
)  # fmt: skip
"""Every place where a message names the leader of a partition."""
CONTROLLERS = ((ApiKey.LEADER_AND_ISR, 0), (ApiKey.STOP_REPLICA, 0), (ApiKey.UPDATE_METADATA, 0))
"""Requests by which a controller of the ZooKeeper era names itself: LeaderAndIsr, StopReplica, UpdateMetadata."""


def leader_paths() -> dict[tuple[int, int], set[str]]:
    """The message paths that leaders are read from."""
    paths: dict[tuple[int, int], set[str]] = {}
    for one in SOURCES:
        inner = f"{one.path}.{one.partitions}" if one.partitions else one.path
        names = {f"{one.path}.{name}" for name in (one.name, one.topic_id) if name}
        names |= {f"{inner}.{name}" for name in (one.number, one.leader, one.epoch)}
        paths.setdefault((one.key, one.side), set()).update(names)
    for kind in CONTROLLERS:
        paths.setdefault(kind, set()).update(("controller_id", "controller_epoch"))
    return paths


ID = "#"
"""Stands before topic ids: no name has it (Topic.LEGAL_CHARS)."""
Topic = tuple[str, str, int]
"""Origin (`Topics.Seen.origin`), topic id behind ID or else name, partition."""
View = tuple[str, str]
"""Broker, connection."""
Told = tuple[int, str, int]
"""ns, exchange id, API key of the message that told it."""


@dataclass(slots=True, eq=False, repr=False)
class Leaders:
    """Leaders that messages of a run name. They do not depend on the order in which messages come."""

    epochs: dict[Topic, dict[tuple[int, int], Told]] = field(default_factory=dict)
    """(epoch, leader) -> the first message that told it."""
    views: dict[Topic, dict[View, dict[Told, int]]] = field(default_factory=dict)
    """Without epochs: messages at which what a connection tells begins or ends -> leader. A connection is followed by
    one part of a work, so that all of them together do not depend on how the work is parted."""
    count: int = 0

    def feed(self, block: Block) -> None:
        """Collect the leaders that a block's messages tell."""
        for one in SOURCES:
            if (one.key, one.side) in block.done.messages:
                self._feed(block, one)
        for key, side in CONTROLLERS:
            if (key, side) in block.done.messages:
                level = block.nest(key, side)
                number, epoch = level.ints("controller_id"), level.ints("controller_epoch")
                known = np.flatnonzero((number >= 0) & (epoch >= 0))
                told = _Tellings(block, key, side, level.body[known])
                names = pa.array([ID + QUORUM_ID], TEXT).take(arrow_array(np.zeros(len(known), np.int64)))
                self._note(told, names, np.zeros(len(known), np.int64), number[known], epoch[known])

    def _feed(self, block: Block, source: Source) -> None:
        messages = block.nest(source.key, source.side)
        if not messages.may_have_values(*(path for path in (source.path, source.partitions, source.leader) if path)):
            return
        topics = messages.each(source.path)
        level = topics.each(source.partitions) if source.partitions else topics
        said = level.get(source.leader) if len(level) else None
        if said is None or said.null_count == len(said):
            return
        leader, epoch = level.ints(source.leader, -2), level.ints(source.epoch, NO_EPOCH)
        # An absent `current_leader` has leader and epoch -1; so has a quorum's member that knows nobody.
        told = (leader >= -1) & ~((leader < 0) & (epoch < 0))
        rows = np.flatnonzero(told)
        if not len(rows):
            return
        own = rows if level is topics else level.parent[rows]
        name, ids = (
            topics.column(field, TEXT) if field else pa.nulls(len(topics), TEXT)
            for field in (source.name, source.topic_id)
        )
        ids = pc.if_else(pc.equal(ids, ZERO_ID), pa.scalar(None, TEXT), ids)
        topic = pc.coalesce(pc.binary_join_element_wise(pa.scalar(ID), ids, ""), name).take(arrow_array(own))
        told_by = _Tellings(block, source.key, source.side, level.body[rows])
        self._note(told_by, topic, level.ints(source.number)[rows], leader[rows], epoch[rows])

    def _note(self, mentions: "_Tellings", topics: pa.Array, partition: Int64s, leader: Int64s, epoch: Int64s) -> None:
        """Take what messages told: the first of each distinct one, or all that are first at one time."""
        coded = topics.dictionary_encode()
        texts, topic = coded.dictionary.to_pylist(), numbers(coded.indices, -1)
        good = topic >= 0
        for some, view in ((good & (epoch >= 0), False), (good & (epoch < 0), True)):
            rows = np.flatnonzero(some)
            columns = [mentions.origin, topic, partition, *([mentions.connection] if view else [epoch, leader])]
            order = rows[np.lexsort([mentions.at[rows], *(column[rows] for column in columns[::-1])])]
            keys = np.stack([column[order] for column in columns], axis=1)
            if view:  # where what a connection tells differs from what it told before, or tells next
                keys = np.concatenate([keys, leader[order][:, None]], axis=1)
            new = np.ones(len(order), np.bool_)
            new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
            if view:
                new |= np.append(new[1:], True)[: len(new)]
            else:  # of several at one time the exchange's id decides, whoever is read first
                at = mentions.at[order]
                new |= at == at[np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))]
            kept = order[new]
            for i, said in zip(kept.tolist(), mentions.of(kept), strict=True):
                key = (mentions.origins[mentions.origin[i]], texts[topic[i]], int(partition[i]))
                if view:
                    self._view(key, mentions.brokers[mentions.broker[i]], said, int(leader[i]))
                else:
                    self._epoch(key, (int(epoch[i]), int(leader[i])), said)

    def _epoch(self, topic: Topic, epoch_and_leader: tuple[int, int], said: Told) -> None:
        known = self.epochs.setdefault(topic, {})
        if epoch_and_leader in known:
            known[epoch_and_leader] = min(known[epoch_and_leader], said)
        elif self.count < MOST:
            known[epoch_and_leader] = said
            self.count += 1

    def _view(self, topic: Topic, broker: str, said: Told, leader: int) -> None:
        known = self.views.setdefault(topic, {}).setdefault((broker, said[1].partition(":")[0]), {})
        if said in known or self.count >= MOST:
            return
        known[said] = leader
        self.count += 1
        if len(known) > 2:  # of a run of the same leader the first and the last message are enough
            order = sorted(known)
            dropped = [
                b for a, b, c in zip(order, order[1:], order[2:], strict=False) if known[a] == known[b] == known[c]
            ]
            for one in dropped:
                del known[one]
            self.count -= len(dropped)

    def clear(self) -> None:
        """Forget everything."""
        self.epochs.clear()
        self.views.clear()
        self.count = 0

    def merge(self, other: "Leaders") -> None:
        """Add what another part of the same work has collected."""
        for topic, found in other.epochs.items():
            for which, said in found.items():
                self._epoch(topic, which, said)
        for topic, views in other.views.items():
            for (broker, _), told in views.items():
                for said, leader in told.items():
                    self._view(topic, broker, said, leader)

    def table(self, topics: Topics) -> pa.Table:
        """The `leaders` table, in order of time. Partitions told by id and by name are one, where the name has one id.
        Messages of one cluster are followed together, from all captures. Messages without a known cluster are followed
        capture by capture."""
        ids = topics.ids_of_names()
        together: dict[tuple[str | None, str, str, int], list[Topic]] = {}
        for key in dict.fromkeys((*self.epochs, *self.views)):
            cluster = topics.cluster_of(key[0])
            scope = "" if cluster is not None else key[0].partition(SEPARATOR)[0]
            own = [QUORUM_ID] if key[1] == QUORUM else ids.get((cluster, key[1]), [])
            topic = ID + own[0] if len(own) == 1 else key[1]
            together.setdefault((cluster, scope, topic, key[2]), []).append(key)
        rows: list[Row] = []
        for (cluster, _, topic, partition), keys in together.items():
            own_id = topic.removeprefix(ID) if topic.startswith(ID) else None
            named: str | None = topic
            if own_id:
                named = QUORUM if own_id == QUORUM_ID else topics.name_of(cluster, own_id)
            rows += [(change[0], named, own_id, partition, *change[1:], cluster) for change in self._changes(keys)]
        rows.sort(key=lambda row: (row[0], row[1] or "", row[2] or "", row[3]))
        return pa.table(leader_columns(rows), schema=SCHEMAS["leaders"])

    def _changes(self, keys: list[Topic]) -> Iterable[tuple[Told, int, int | None, int | None]]:
        """(message, leader, epoch, previous) of a partition's leaders, in order."""
        epochs: dict[tuple[int, int], Told] = {}
        for key in keys:
            for which, said in self.epochs.get(key, {}).items():
                epochs[which] = min(said, epochs.get(which, said))
        previous: int | None = None
        if epochs:
            reached = NO_EPOCH
            for (epoch, leader), said in sorted(epochs.items(), key=lambda item: (item[1], item[0])):
                if epoch > reached or (epoch == reached and previous == -1 and leader >= 0):
                    yield said, leader, epoch, previous
                    reached, previous = epoch, leader
            return
        told = sorted(
            (said, broker, leader)
            for key in keys
            for (broker, _), found in self.views.get(key, {}).items()
            for said, leader in found.items()
        )
        view: dict[str, int] = {}
        for said, broker, leader in told:
            # A broker that says what it said before lags behind, or nothing has changed; one that is asked for the
            # first time may lag behind as well.
            news = previous is None or (leader != previous and view.get(broker, leader) != leader)
            view[broker] = leader
            if news:
                yield said, leader, None, previous
                previous = leader


class _Tellings:
    """Messages of a block that tell something: one entry each."""

    def __init__(self, block: Block, key: int, side: int, bodies: Int64s) -> None:
        done = block.done
        self.block, self.key = block, key
        self.rows = block.bodies(key, side)[bodies]
        last, first = (done.response_last, done.response_first) if side else (done.request_last, done.request_first)
        self.at = np.where(last != NULL_TIME, last, first)[self.rows]
        conn = done.conn[self.rows]
        self.connection = conn.astype(np.int64)
        self.broker = block.directory.broker_codes(conn).astype(np.int64)
        self.brokers = block.directory.brokers.texts
        self.origins, origin = origins_of(block, key, side)
        self.origin = origin[bodies]

    def of(self, some: Int64s) -> list[Told]:
        ids = self.block.exchange_id.take(arrow_array(self.rows[some])).to_pylist()
        return [(int(at), text, self.key) for at, text in zip(self.at[some].tolist(), ids, strict=True)]


Row = tuple[Told, str | None, str | None, int, int, int | None, int | None, str | None]
"""Message, topic, id, partition, leader, epoch, previous, cluster."""


def leader_columns(rows: Sequence[Row]) -> dict[str, pa.Array]:
    """The columns of the `leaders` table."""
    return {
        "at": instant(np.array([row[0][0] for row in rows], np.int64)),
        "topic": pa.array([row[1] for row in rows], TEXT),
        "topic_id": pa.array([row[2] for row in rows], TEXT),
        "partition": pa.array([row[3] for row in rows], CODE),
        "leader": pa.array([row[4] for row in rows], CODE),
        "leader_epoch": pa.array([row[5] for row in rows], CODE),
        "previous": pa.array([row[6] for row in rows], CODE),
        "source": pa.array([api_name(row[0][2]) for row in rows], TEXT),
        "exchange_id": pa.array([row[0][1] for row in rows], TEXT),
        "cluster": pa.array([row[7] for row in rows], TEXT),
    }
