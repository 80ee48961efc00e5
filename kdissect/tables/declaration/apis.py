"""Declarations: tables of single APIs (ListOffsets, InitProducerId, groups, commits, ApiVersions), leaders, topics."""

from __future__ import annotations

from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration import model as m
from kdissect.tables.declaration.model import Api, By, Column, Gathering, Reads, plain, table

LIST_OFFSETS_API, INIT_PRODUCER_ID = Api(ApiKey.LIST_OFFSETS), Api(ApiKey.INIT_PRODUCER_ID)
OFFSET_COMMIT, TXN_OFFSET_COMMIT = Api(ApiKey.OFFSET_COMMIT), Api(ApiKey.TXN_OFFSET_COMMIT)


def _request_field(field: str) -> Reads:
    """A field of a partition in a ListOffsets request."""
    return LIST_OFFSETS_API.request(f"topics.partitions.{field}")


def _response_field(field: str) -> Reads:
    """A field of a partition in the response."""
    return LIST_OFFSETS_API.response(f"topics.partitions.{field}")


def _commits(*fields: str) -> Reads:
    """Fields of the requests that commit offsets."""
    return OFFSET_COMMIT.request(*fields) | TXN_OFFSET_COMMIT.request(*fields)


def _committed(*fields: str) -> Reads:
    """Fields of a partition in their responses."""
    paths = [f"topics.partitions.{field}" for field in fields]
    return OFFSET_COMMIT.response(*paths) | TXN_OFFSET_COMMIT.response(*paths)


_COMMIT_TOPICS = ("topics.name", "topics.topic_id", "topics.partitions.partition_index")

LIST_OFFSETS = table(
    "list_offsets",
    "ListOffsets exchange x partition",
    m.EXCHANGE_ID,
    m.CONNECTION_ID,
    Column("client_id", m.TEXT, "Client id of the request header."),
    m.TOPIC,
    Column("partition", m.CODE, "Partition number."),
    Column("timestamp_asked", m.TIME, "Timestamp asked for; null for the special ones that `asked` names.",
           reads=_request_field("timestamp")),
    Column("asked", m.TEXT, "What was asked: timestamp, latest, earliest, max_timestamp, earliest_local, "
           "latest_tiered, earliest_pending_upload, or `special N`.", reads=_request_field("timestamp")),
    Column("offset", m.COUNT, "Offset of the answer, -1 for none (v1 and later).", reads=_response_field("offset")),
    Column("offsets", m.OFFSETS, "The answer of v0: offsets of log segments, newest first.",
           reads=_response_field("old_style_offsets")),
    Column("timestamp", m.TIME, "Timestamp of the answer; null for none.", reads=_response_field("timestamp")),
    Column("leader_epoch", m.CODE, "Leader epoch of the answer, -1 for none (v4 and later).",
           reads=_response_field("leader_epoch")),
    Column("error_code", m.CODE, "Error code of the partition; null without an answer.",
           reads=_response_field("error_code")),
    Column("isolation_level", m.CODE, "0 read_uncommitted, 1 read_committed (v2 and later).",
           reads=LIST_OFFSETS_API.request("isolation_level")),
    Column("replica_id", m.CODE, "Node id of an asking replica, -1 for a client.",
           reads=LIST_OFFSETS_API.request("replica_id")),
    Column("current_leader_epoch", m.CODE, "CurrentLeaderEpoch of the request, -1 for none (v4 and later).",
           reads=_request_field("current_leader_epoch")),
    Column("latency_ms", m.MS, "As in `exchanges`."),
    made=By.BLOCK,
    reads=LIST_OFFSETS_API.request("topics.name", "topics.partitions.partition_index")
    | LIST_OFFSETS_API.response("topics.name", "topics.partitions.partition_index"),
)  # fmt: skip

PRODUCER_IDS = table(
    "producer_ids",
    "InitProducerId exchange",
    m.EXCHANGE_ID,
    m.CONNECTION_ID,
    Column("client_id", m.TEXT, "Client id of the request header."),
    Column("transactional_id", m.TEXT, "TransactionalId; null for an idempotent producer without transactions.",
           reads=INIT_PRODUCER_ID.request("transactional_id")),
    Column("transaction_timeout_ms", m.CODE, "TransactionTimeoutMs.",
           reads=INIT_PRODUCER_ID.request("transaction_timeout_ms")),
    Column("producer_id_asked", m.COUNT, "ProducerId of the request, -1 for a new one (v3 and later).",
           reads=INIT_PRODUCER_ID.request("producer_id")),
    Column("producer_epoch_asked", m.CODE, "ProducerEpoch of the request, -1 for a new one (v3 and later).",
           reads=INIT_PRODUCER_ID.request("producer_epoch")),
    Column("producer_id", m.COUNT, "ProducerId of the answer, -1 on an error.",
           reads=INIT_PRODUCER_ID.response("producer_id")),
    Column("producer_epoch", m.CODE, "ProducerEpoch of the answer, -1 on an error.",
           reads=INIT_PRODUCER_ID.response("producer_epoch")),
    Column("error_code", m.CODE, "Error code; null without an answer.", reads=INIT_PRODUCER_ID.response("error_code")),
    Column("latency_ms", m.MS, "As in `exchanges`."),
    made=By.BLOCK,
)  # fmt: skip

GROUPS = table(
    "groups",
    "group event",
    m.EXCHANGE_ID,
    Column("at", m.TIME, "When the request's first byte arrived (the response's, where the request was not captured)."),
    Column("group_id", m.TEXT, "The group."),
    Column("member_id", m.TEXT, "The member: what the request says, or what the answer assigned where the request "
           "says nothing."),
    Column("client_id", m.TEXT, "Client id of the request header."),
    Column("protocol", m.TEXT, "classic, consumer (KIP-848), share (KIP-932), streams (KIP-1071)."),
    Column("protocol_type", m.TEXT, "Classic groups: `consumer`, `connect`, ...; null where the message does not say."),
    Column("assignor", m.TEXT, "Assignor: the chosen protocol name, or ServerAssignor of KIP-848."),
    Column("generation", m.CODE, "Generation, or member epoch of the newer protocols: the answer's where it has one, "
           "else the request's."),
    Column("event", m.TEXT, "join, sync, heartbeat (classic: only with an error), leave, offset_commit, "
           "txn_offset_commit, offset_fetch, consumer_heartbeat, share_heartbeat, streams_heartbeat."),
    Column("reason", m.TEXT, "The client's own words why it joins or leaves (KIP-800; JoinGroup v8, LeaveGroup v5); "
           "else null."),
    Column("error_code", m.CODE, "Kafka's error code, 0 none; null without an answer."),
    Column("error", m.TEXT, "Name of the error; null for none."),
    Column("assigned_partitions", m.ASSIGNMENT, "Assignment that the answer carries; null where it carries none "
           "(`unchanged` in KIP-848).", reads=frozenset([Gathering.TOPICS])),
    made=By.BLOCK,
    when="at",
    key=("at", "exchange_id"),
    reads=frozenset([Gathering.GROUPS]),
    shown="at group_id event generation client_id member_id error exchange_id",
)  # fmt: skip

OFFSET_COMMITS = table(
    "offset_commits",
    "OffsetCommit or TxnOffsetCommit x partition",
    m.EXCHANGE_ID,
    Column("at", m.TIME, "When the request's first byte arrived (the response's, where the request was not captured)."),
    Column("group_id", m.TEXT, "The group.", reads=_commits("group_id")),
    Column("member_id", m.TEXT, "The member; null outside a group's protocol.", reads=_commits("member_id")),
    Column("client_id", m.TEXT, "Client id of the request header."),
    m.TOPIC,
    m.TOPIC_ID,
    Column("partition", m.CODE, "Partition number."),
    Column("offset", m.COUNT, "Offset that was committed: that of the next record to read.",
           reads=_commits("topics.partitions.committed_offset")),
    Column("leader_epoch", m.CODE, "Leader epoch of the last record that was read, -1 unknown (v6 and later, "
           "TxnOffsetCommit v2).", reads=_commits("topics.partitions.committed_leader_epoch")),
    Column("high_watermark", m.COUNT, "High watermark of the partition in the last Fetch answer of the same capture "
           "before; null for none.", by=By.COMMITS),
    Column("lag", m.COUNT, "high_watermark - offset, not below 0.", by=By.COMMITS),
    Column("error_code", m.CODE, "Error code of the partition; null without an answer.",
           reads=_committed("error_code")),
    made=By.BLOCK,
    when="at",
    reads=_commits(*_COMMIT_TOPICS)
    | OFFSET_COMMIT.response(*_COMMIT_TOPICS)
    | TXN_OFFSET_COMMIT.response(*_COMMIT_TOPICS),
    shown="at group_id client_id topic partition offset lag error_code exchange_id",
)  # fmt: skip

API_VERSIONS = table(
    "api_versions",
    "broker x API",
    plain(m.BROKER),
    Column("api_key", m.CODE, "API key."),
    Column("api", m.TEXT, "Name of the API, `key N` when unknown."),
    Column("min_version", m.CODE, "Lowest version that the broker's last ApiVersions answer advertises; null when "
           "there was none."),
    Column("max_version", m.CODE, "Highest version that it advertises."),
    Column("used_min", m.CODE, "Lowest version seen in requests to it; null when there was none."),
    Column("used_max", m.CODE, "Highest version seen."),
    made=By.LEARNED,
    key=(),
    reads=frozenset([Gathering.OFFERS, Gathering.BROKERS]),
)  # fmt: skip

TOPICS = table(
    "topics",
    "topic id or name seen",
    m.TOPIC_ID,
    plain(m.TOPIC),
    Column("first_seen_at", m.TIME, "Time of the first message that names it."),
    Column("partitions", m.COUNT, "Number of partitions, where a message tells (largest seen)."),
    Column("source", m.TEXT, "API which told the name of the id, else the first that mentioned it."),
    made=By.LEARNED,
    key=(),
    reads=frozenset([Gathering.MENTIONS]),
)

LEADERS = table(
    "leaders",
    "leader of a partition as messages told it: the first one, and each change",
    Column("at", m.TIME, "When the first message that tells it arrived."),
    plain(m.TOPIC),
    m.TOPIC_ID,
    Column("partition", m.CODE, "Partition number."),
    Column("leader", m.CODE, "Node id of the leader, -1 for none."),
    Column("leader_epoch", m.CODE, "Its leader epoch; null where messages of that version have none."),
    Column("previous", m.CODE, "Node id of the leader before it; null for the first that was told."),
    Column("source", m.TEXT, "API of the message that told it."),
    m.EXCHANGE_ID,
    made=By.LEARNED,
    when="at",
    key=(),
    reads=frozenset([Gathering.LEADERS, Gathering.TOPICS]),
    shown="at topic partition leader leader_epoch previous source exchange_id",
)
"""The leader of the metadata quorum, and before KRaft the controller by its epoch, stand under `__cluster_metadata` 0.
Leaders move by epochs: what a broker that lags behind tells of an earlier one is no change."""
