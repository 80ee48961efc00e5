"""Declarations: fetch sessions (KIP-227) and share sessions (KIP-932)."""

from __future__ import annotations

from kdissect.tables.declaration import model as m
from kdissect.tables.declaration.model import By, Column, table

FETCH_SESSIONS = table(
    "fetch_sessions",
    "fetch session of which an accepted use was seen",
    Column("session_key", m.TEXT, "The session: `<broker>/<session id>/<incarnation>`."),
    m.BROKER,
    Column("session_id", m.CODE, "Session id that the broker gave."),
    Column("shard", m.CODE, "Shard of the broker's session cache, by id range (Kafka 3.8 and later); null when the "
           "version is unknown."),
    Column("client_ids", m.TEXTS, "Client ids that used it."),
    Column("connections", m.TEXTS, "Connection ids that used it."),
    Column("opened_at", m.TIME, "Creating response's first byte; the first accepted use when left-censored."),
    Column("closed_at", m.TIME, "When it ended; null while open or when the end was not seen."),
    Column("first_epoch", m.CODE, "First accepted epoch; 0 when its creation was seen."),
    Column("last_epoch", m.CODE, "Last accepted epoch."),
    Column("left_censored", m.FLAG, "Its creation was not captured: the set of its partitions is unknown."),
    Column("requests", m.COUNT, "Requests: the creating one and all that named it from its first accepted use until "
           "its end."),
    Column("epoch_gaps", m.COUNT, "Requests with an epoch beyond the expected one, though every byte of its connection "
           "was captured."),
    Column("epochs_not_captured", m.COUNT, "Requests with an epoch beyond the expected one, where bytes of the "
           "connection were not captured."),
    Column("epoch_repeats", m.COUNT, "Requests with the epoch before the expected one."),
    Column("wraps", m.COUNT, "Times the epoch wrapped from 2^31-1 to 1."),
    Column("max_partitions", m.COUNT, "Largest number of partitions held; null when left-censored."),
    Column("churn", m.COUNT, "Partitions added and forgotten after creation."),
    Column("max_idle_ms", m.MS, "Longest time between two uses."),
    Column("fill_ratio", m.REAL, "Partitions returned by incremental responses / partitions held then; null without "
           "any."),
    Column("end_reason", m.TEXT, "closed, replaced, empty, evicted, open."),
    Column("predecessor", m.TEXT, "session_key that the creating request replaced."),
    Column("request_bytes", m.COUNT, "Bytes of its requests."),
    Column("full_request_bytes_avoided", m.COUNT, "Bytes that naming the implied partitions would have cost."),
    made=By.SESSIONS,
    when="opened_at closed_at",
    key=("opened_at", "session_key"),
    shown="session_key client_ids opened_at closed_at requests last_epoch max_partitions churn end_reason",
)  # fmt: skip

SESSION_PARTITIONS = table(
    "session_partitions",
    "stay of a partition in a session",
    Column("session_key", m.TEXT, "The session."),
    m.TOPIC,
    m.TOPIC_ID,
    Column("partition", m.CODE, "Partition number."),
    Column("from_epoch", m.CODE, "Epoch of the request that added it."),
    Column("to_epoch", m.CODE, "Epoch of the request that removed it; null while it is in the session."),
    Column("last_fetch_offset", m.COUNT, "Last FetchOffset that a request gave."),
    made=By.SESSIONS,
    key=("session_key", "topic", "topic_id", "partition", "from_epoch", "to_epoch"),
)

SHARE_SESSIONS = table(
    "share_sessions",
    "share session (KIP-932)",
    Column("session_key", m.TEXT, "The session: `<broker>/<group>/<member>/<incarnation>`."),
    m.BROKER,
    Column("group_id", m.TEXT, "Share group."),
    Column("member_id", m.TEXT, "Member."),
    Column("connection_id", m.TEXT, "Its connection, with which it ends.", never_null=True),
    Column("opened_at", m.TIME, "First use seen."),
    Column("closed_at", m.TIME, "When it ended; null while open."),
    Column("first_epoch", m.CODE, "First accepted epoch; 0 when its creation was seen."),
    Column("last_epoch", m.CODE, "Last accepted epoch."),
    Column("requests", m.COUNT, "ShareFetch and ShareAcknowledge requests (they share one epoch)."),
    Column("records_acquired", m.COUNT, "Records acquired."),
    Column("accepted", m.COUNT, "Records acknowledged as accepted."),
    Column("released", m.COUNT, "Records released for another delivery."),
    Column("rejected", m.COUNT, "Records rejected."),
    Column("renewed", m.COUNT, "Acquisition locks renewed."),
    Column("refused", m.COUNT, "Records whose acknowledgement the broker did not take; they count nowhere else."),
    Column("redelivered", m.COUNT, "Records acquired that had been delivered before (delivery count above 1)."),
    Column("lock_ms", m.MS, "AcquisitionLockTimeoutMs of the last answer that told it; null before ShareFetch v1."),
    Column("end_reason", m.TEXT, "closed, replaced, disconnected, evicted, open."),
    made=By.SHARES,
    key=("opened_at", "session_key"),
)
