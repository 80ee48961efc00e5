"""Declarations: tables of single APIs (ListOffsets, InitProducerId, groups, commits, ApiVersions), leaders, topics."""

from __future__ import annotations

from kdissect.tables.declaration.model import (
    ASSIGNMENT,
    BROKER,
    CODE,
    COUNT,
    EXCHANGE_ID,
    MS,
    OFFSETS,
    TEXT,
    TIME,
    TOPIC,
    TOPIC_ID,
    Api,
    By,
    Column,
    Gathering,
    Reads,
    plain,
    table,
)

LIST_OFFSETS_API, INIT_PRODUCER_ID = Api(2), Api(22)
OFFSET_COMMIT, TXN_OFFSET_COMMIT = Api(8), Api(28)


def _asked(field: str) -> Reads:
    """A field of a partition in a ListOffsets request."""
    return LIST_OFFSETS_API.request(f"topics.partitions.{field}")


def _given(field: str) -> Reads:
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
    EXCHANGE_ID,
    TOPIC,
    Column("partition", CODE, "Partition number."),
    Column(
        "timestamp_asked",
        TIME,
        "Timestamp asked for; null for the special ones that `asked` names.",
        reads=_asked("timestamp"),
    ),
    Column(
        "asked",
        TEXT,
        "What was asked: timestamp, latest, earliest, max_timestamp, earliest_local, latest_tiered, "
        "earliest_pending_upload, or "
        "`special N`.",
        reads=_asked("timestamp"),
    ),
    Column("offset", COUNT, "Offset of the answer, -1 for none (v1 and later).", reads=_given("offset")),
    Column(
        "offsets",
        OFFSETS,
        "The answer of v0: offsets of log segments, newest first.",
        reads=_given("old_style_offsets"),
    ),
    Column("timestamp", TIME, "Timestamp of the answer; null for none.", reads=_given("timestamp")),
    Column(
        "leader_epoch", CODE, "Leader epoch of the answer, -1 for none (v4 and later).", reads=_given("leader_epoch")
    ),
    Column("error_code", CODE, "Error code of the partition; null without an answer.", reads=_given("error_code")),
    Column(
        "isolation_level",
        CODE,
        "0 read_uncommitted, 1 read_committed (v2 and later).",
        reads=LIST_OFFSETS_API.request("isolation_level"),
    ),
    Column(
        "replica_id",
        CODE,
        "Node id of an asking replica, -1 for a client.",
        reads=LIST_OFFSETS_API.request("replica_id"),
    ),
    Column(
        "current_leader_epoch",
        CODE,
        "CurrentLeaderEpoch of the request, -1 for none (v4 and later).",
        reads=_asked("current_leader_epoch"),
    ),
    Column("latency_ms", MS, "As in `exchanges`."),
    made=By.BLOCK,
    reads=LIST_OFFSETS_API.request("topics.name", "topics.partitions.partition_index")
    | LIST_OFFSETS_API.response("topics.name", "topics.partitions.partition_index"),
)

PRODUCER_IDS = table(
    "producer_ids",
    "InitProducerId exchange",
    EXCHANGE_ID,
    Column(
        "transactional_id",
        TEXT,
        "TransactionalId; null for an idempotent producer without transactions.",
        reads=INIT_PRODUCER_ID.request("transactional_id"),
    ),
    Column(
        "transaction_timeout_ms",
        CODE,
        "TransactionTimeoutMs.",
        reads=INIT_PRODUCER_ID.request("transaction_timeout_ms"),
    ),
    Column(
        "producer_id_asked",
        COUNT,
        "ProducerId of the request, -1 for a new one (v3 and later).",
        reads=INIT_PRODUCER_ID.request("producer_id"),
    ),
    Column(
        "producer_epoch_asked",
        CODE,
        "ProducerEpoch of the request, -1 for a new one (v3 and later).",
        reads=INIT_PRODUCER_ID.request("producer_epoch"),
    ),
    Column(
        "producer_id",
        COUNT,
        "ProducerId of the answer, -1 on an error.",
        reads=INIT_PRODUCER_ID.response("producer_id"),
    ),
    Column(
        "producer_epoch",
        CODE,
        "ProducerEpoch of the answer, -1 on an error.",
        reads=INIT_PRODUCER_ID.response("producer_epoch"),
    ),
    Column("error_code", CODE, "Error code; null without an answer.", reads=INIT_PRODUCER_ID.response("error_code")),
    Column("latency_ms", MS, "As in `exchanges`."),
    made=By.BLOCK,
)

GROUPS = table(
    "groups",
    "group event",
    EXCHANGE_ID,
    Column("at", TIME, "When the request's first byte arrived (the response's, where the request was not captured)."),
    Column("group_id", TEXT, "The group."),
    Column(
        "member_id",
        TEXT,
        "The member: what the request says, or what the answer assigned where the request says nothing.",
    ),
    Column("client_id", TEXT, "Client id of the request header."),
    Column("protocol", TEXT, "classic, consumer (KIP-848), share (KIP-932), streams (KIP-1071)."),
    Column("protocol_type", TEXT, "Classic groups: `consumer`, `connect`, ...; null where the message does not say."),
    Column("assignor", TEXT, "Assignor: the chosen protocol name, or ServerAssignor of KIP-848."),
    Column(
        "generation",
        CODE,
        "Generation, or member epoch of the newer protocols: the answer's where it has one, else the request's.",
    ),
    Column(
        "event",
        TEXT,
        "join, sync, heartbeat (classic: only with an error), leave, offset_commit, txn_offset_commit, offset_fetch, "
        "consumer_heartbeat, share_heartbeat, streams_heartbeat.",
    ),
    Column(
        "reason",
        TEXT,
        "The client's own words why it joins or leaves (KIP-800; JoinGroup v8, LeaveGroup v5); else null.",
    ),
    Column("error_code", CODE, "Kafka's error code, 0 none; null without an answer."),
    Column("error", TEXT, "Name of the error; null for none."),
    Column(
        "assigned_partitions",
        ASSIGNMENT,
        "Assignment that the answer carries; null where it carries none (`unchanged` in KIP-848).",
        reads=frozenset([Gathering.TOPICS]),
    ),
    made=By.BLOCK,
    when="at",
    key=("at", "exchange_id"),
    reads=frozenset([Gathering.GROUPS]),
    shown="at group_id event generation client_id member_id error exchange_id",
)

OFFSET_COMMITS = table(
    "offset_commits",
    "OffsetCommit or TxnOffsetCommit x partition",
    EXCHANGE_ID,
    Column("at", TIME, "When the request's first byte arrived."),
    Column("group_id", TEXT, "The group.", reads=_commits("group_id")),
    Column("member_id", TEXT, "The member; null outside a group's protocol.", reads=_commits("member_id")),
    Column("client_id", TEXT, "Client id of the request header."),
    TOPIC,
    TOPIC_ID,
    Column("partition", CODE, "Partition number."),
    Column(
        "offset",
        COUNT,
        "Offset that was committed: that of the next record to read.",
        reads=_commits("topics.partitions.committed_offset"),
    ),
    Column(
        "leader_epoch",
        CODE,
        "Leader epoch of the last record that was read, -1 unknown (v6 and later, TxnOffsetCommit v2).",
        reads=_commits("topics.partitions.committed_leader_epoch"),
    ),
    Column(
        "high_watermark",
        COUNT,
        "High watermark of the partition in the last Fetch answer of the same capture before; null for none.",
        by=By.COMMITS,
    ),
    Column("lag", COUNT, "high_watermark - offset, not below 0.", by=By.COMMITS),
    Column("error_code", CODE, "Error code of the partition; null without an answer.", reads=_committed("error_code")),
    made=By.BLOCK,
    when="at",
    reads=_commits(*_COMMIT_TOPICS)
    | OFFSET_COMMIT.response(*_COMMIT_TOPICS)
    | TXN_OFFSET_COMMIT.response(*_COMMIT_TOPICS),
    shown="at group_id client_id topic partition offset lag error_code exchange_id",
)

API_VERSIONS = table(
    "api_versions",
    "broker x API",
    plain(BROKER),
    Column("api_key", CODE, "API key."),
    Column("api", TEXT, "Name of the API, `key N` when unknown."),
    Column(
        "min_version",
        CODE,
        "Lowest version that the broker's last ApiVersions answer advertises; null when there was none.",
    ),
    Column("max_version", CODE, "Highest version that it advertises."),
    Column("used_min", CODE, "Lowest version seen in requests to it; null when there was none."),
    Column("used_max", CODE, "Highest version seen."),
    made=By.LEARNED,
    key=(),
    reads=frozenset([Gathering.OFFERS, Gathering.BROKERS]),
)

TOPICS = table(
    "topics",
    "topic id or name seen",
    TOPIC_ID,
    plain(TOPIC),
    Column("first_seen_at", TIME, "Time of the first message that names it."),
    Column("partitions", COUNT, "Number of partitions, where a message tells (largest seen)."),
    Column("source", TEXT, "API which told the name of the id, else the first that mentioned it."),
    made=By.LEARNED,
    key=(),
    reads=frozenset([Gathering.MENTIONS]),
)

LEADERS = table(
    "leaders",
    "leader of a partition as messages told it: the first one, and each change",
    Column("at", TIME, "When the first message that tells it arrived."),
    plain(TOPIC),
    TOPIC_ID,
    Column("partition", CODE, "Partition number."),
    Column("leader", CODE, "Node id of the leader, -1 for none."),
    Column("leader_epoch", CODE, "Its leader epoch; null where messages of that version have none."),
    Column("previous", CODE, "Node id of the leader before it; null for the first that was told."),
    Column("source", TEXT, "API of the message that told it."),
    EXCHANGE_ID,
    made=By.LEARNED,
    when="at",
    key=(),
    reads=frozenset([Gathering.LEADERS, Gathering.TOPICS]),
    shown="at topic partition leader leader_epoch previous source exchange_id",
)
"""The leader of the metadata quorum, and before KRaft the controller by its epoch, stand under `__cluster_metadata` 0.
Leaders move by epochs: what a broker that lags behind tells of an earlier one is no change."""
