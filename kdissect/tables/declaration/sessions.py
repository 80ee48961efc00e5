"""Declarations: fetch sessions (KIP-227) and share sessions (KIP-932)."""

from __future__ import annotations

from kdissect.tables.declaration.model import (
    BROKER,
    CODE,
    COUNT,
    FLAG,
    MS,
    REAL,
    TEXT,
    TEXTS,
    TIME,
    TOPIC,
    TOPIC_ID,
    table,
)

FETCH_SESSIONS = table(
    "fetch_sessions",
    "fetch session of which an accepted use was seen",
    ("session_key", TEXT, "The session: `<broker>/<session id>/<incarnation>`."),
    BROKER,
    ("session_id", CODE, "Session id that the broker gave."),
    (
        "shard",
        CODE,
        "Shard of the broker's session cache, by id range (Kafka 3.8 and later); null when the version is unknown.",
    ),
    ("client_ids", TEXTS, "Client ids that used it."),
    ("connections", TEXTS, "Connection ids that used it."),
    ("opened_at", TIME, "Creating response's first byte; the first accepted use when left-censored."),
    ("closed_at", TIME, "When it ended; null while open or when the end was not seen."),
    ("first_epoch", CODE, "First accepted epoch; 0 when its creation was seen."),
    ("last_epoch", CODE, "Last accepted epoch."),
    ("left_censored", FLAG, "Its creation was not captured: the set of its partitions is unknown."),
    ("requests", COUNT, "Requests: the creating one and all that named it from its first accepted use until its end."),
    ("epoch_gaps", COUNT, "Requests with an epoch beyond the expected one."),
    ("epoch_repeats", COUNT, "Requests with the epoch before the expected one."),
    ("wraps", COUNT, "Times the epoch wrapped from 2^31-1 to 1."),
    ("max_partitions", COUNT, "Largest number of partitions held; null when left-censored."),
    ("churn", COUNT, "Partitions added and forgotten after creation."),
    ("max_idle_ms", MS, "Longest time between two uses."),
    ("fill_ratio", REAL, "Partitions returned by incremental responses / partitions held then; null without any."),
    ("end_reason", TEXT, "closed, replaced, empty, evicted, open."),
    ("predecessor", TEXT, "session_key that the creating request replaced."),
    ("request_bytes", COUNT, "Bytes of its requests."),
    ("full_request_bytes_avoided", COUNT, "Bytes that naming the implied partitions would have cost."),
)

SESSION_PARTITIONS = table(
    "session_partitions",
    "stay of a partition in a session",
    ("session_key", TEXT, "The session."),
    TOPIC,
    TOPIC_ID,
    ("partition", CODE, "Partition number."),
    ("from_epoch", CODE, "Epoch of the request that added it."),
    ("to_epoch", CODE, "Epoch of the request that removed it; null while it is in the session."),
    ("last_fetch_offset", COUNT, "Last FetchOffset that a request gave."),
)

SHARE_SESSIONS = table(
    "share_sessions",
    "share session (KIP-932)",
    ("session_key", TEXT, "The session: `<broker>/<group>/<member>/<incarnation>`."),
    BROKER,
    ("group_id", TEXT, "Share group."),
    ("member_id", TEXT, "Member."),
    ("opened_at", TIME, "First use seen."),
    ("closed_at", TIME, "When it ended; null while open."),
    ("first_epoch", CODE, "First accepted epoch; 0 when its creation was seen."),
    ("last_epoch", CODE, "Last accepted epoch."),
    ("requests", COUNT, "ShareFetch and ShareAcknowledge requests (they share one epoch)."),
    ("records_acquired", COUNT, "Records acquired."),
    ("accepted", COUNT, "Records acknowledged as accepted."),
    ("released", COUNT, "Records released for another delivery."),
    ("rejected", COUNT, "Records rejected."),
    ("renewed", COUNT, "Acquisition locks renewed."),
    ("end_reason", TEXT, "closed, replaced, disconnected, evicted, open."),
)
