"""Declarations: tables of single APIs: ListOffsets, InitProducerId, group APIs, ApiVersions, and the map of topics."""

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
    table,
)

LIST_OFFSETS = table(
    "list_offsets",
    "ListOffsets exchange x partition",
    EXCHANGE_ID,
    TOPIC,
    ("partition", CODE, "Partition number."),
    ("timestamp_asked", TIME, "Timestamp asked for; null for the special ones that `asked` names."),
    (
        "asked",
        TEXT,
        "What was asked: timestamp, latest, earliest, max_timestamp, earliest_local, latest_tiered, "
        "earliest_pending_upload, or "
        "`special N`.",
    ),
    ("offset", COUNT, "Offset of the answer, -1 for none (v1 and later)."),
    ("offsets", OFFSETS, "The answer of v0: offsets of log segments, newest first."),
    ("timestamp", TIME, "Timestamp of the answer; null for none."),
    ("leader_epoch", CODE, "Leader epoch of the answer, -1 for none (v4 and later)."),
    ("error_code", CODE, "Error code of the partition; null without an answer."),
    ("isolation_level", CODE, "0 read_uncommitted, 1 read_committed (v2 and later)."),
    ("replica_id", CODE, "Node id of an asking replica, -1 for a client."),
    ("current_leader_epoch", CODE, "CurrentLeaderEpoch of the request, -1 for none (v4 and later)."),
    ("latency_ms", MS, "As in `exchanges`."),
)

PRODUCER_IDS = table(
    "producer_ids",
    "InitProducerId exchange",
    EXCHANGE_ID,
    ("transactional_id", TEXT, "TransactionalId; null for an idempotent producer without transactions."),
    ("transaction_timeout_ms", CODE, "TransactionTimeoutMs."),
    ("producer_id_asked", COUNT, "ProducerId of the request, -1 for a new one (v3 and later)."),
    ("producer_epoch_asked", CODE, "ProducerEpoch of the request, -1 for a new one (v3 and later)."),
    ("producer_id", COUNT, "ProducerId of the answer, -1 on an error."),
    ("producer_epoch", CODE, "ProducerEpoch of the answer, -1 on an error."),
    ("error_code", CODE, "Error code; null without an answer."),
    ("latency_ms", MS, "As in `exchanges`."),
)

GROUPS = table(
    "groups",
    "group event",
    EXCHANGE_ID,
    ("at", TIME, "When the request's first byte arrived (the response's, where the request was not captured)."),
    ("group_id", TEXT, "The group."),
    (
        "member_id",
        TEXT,
        "The member: what the request says, or what the answer assigned where the request says nothing.",
    ),
    ("client_id", TEXT, "Client id of the request header."),
    ("protocol", TEXT, "classic, consumer (KIP-848), share (KIP-932), streams (KIP-1071)."),
    ("protocol_type", TEXT, "Classic groups: `consumer`, `connect`, ...; null where the message does not say."),
    ("assignor", TEXT, "Assignor: the chosen protocol name, or ServerAssignor of KIP-848."),
    (
        "generation",
        CODE,
        "Generation, or member epoch of the newer protocols: the answer's where it has one, else the request's.",
    ),
    (
        "event",
        TEXT,
        "join, sync, heartbeat (classic: only with an error), leave, offset_commit, txn_offset_commit, offset_fetch, "
        "consumer_heartbeat, share_heartbeat, streams_heartbeat.",
    ),
    ("error_code", CODE, "Kafka's error code, 0 none; null without an answer."),
    ("error", TEXT, "Name of the error; null for none."),
    (
        "assigned_partitions",
        ASSIGNMENT,
        "Assignment that the answer carries; null where it carries none (`unchanged` in KIP-848).",
    ),
)

API_VERSIONS = table(
    "api_versions",
    "broker x API",
    BROKER,
    ("api_key", CODE, "API key."),
    ("api", TEXT, "Name of the API, `key N` when unknown."),
    (
        "min_version",
        CODE,
        "Lowest version that the broker's last ApiVersions answer advertises; null when there was none.",
    ),
    ("max_version", CODE, "Highest version that it advertises."),
    ("used_min", CODE, "Lowest version seen in requests to it; null when there was none."),
    ("used_max", CODE, "Highest version seen."),
)

TOPICS = table(
    "topics",
    "topic id or name seen",
    TOPIC_ID,
    TOPIC,
    ("first_seen_at", TIME, "Time of the first message that names it."),
    ("partitions", COUNT, "Number of partitions, where a message tells (largest seen)."),
    ("source", TEXT, "API which told the name of the id, else the first that mentioned it."),
)
