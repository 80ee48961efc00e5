"""Declarations: Fetch exchanges and their partitions (KIP-74, KIP-227, KIP-392, KIP-516)."""

from __future__ import annotations

from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration import model as m
from kdissect.tables.declaration.model import Api, By, Column, Gathering, Reads, table

FETCH = Api(ApiKey.FETCH)


def _request_fields(*fields: str) -> Reads:
    """Fields of a partition in the request."""
    return FETCH.request(*(f"topics.partitions.{field}" for field in fields))


def _response_fields(*fields: str) -> Reads:
    """Fields of a partition in the response."""
    return FETCH.response(*(f"responses.partitions.{field}" for field in fields))


_REPLICA = FETCH.request("replica_id", "replica_state.replica_id")

FETCHES = table(
    "fetches",
    "Fetch exchange",
    m.EXCHANGE_ID,
    m.CONNECTION_ID,
    m.CAPTURE,
    m.BROKER,
    Column("client_ip", m.TEXT, "Address of the client.", never_null=True),
    Column("client_id", m.TEXT, "Client id of the request header."),
    Column("api_version", m.CODE, "Version of the Fetch request."),
    Column("status", m.TEXT, "Status of the exchange, as in `exchanges`."),
    Column("replica_id", m.CODE, "Node id of a fetching follower, -1 for a consumer (v15 and later: in the "
           "ReplicaState tag).", reads=_REPLICA),
    Column("is_follower", m.FLAG, "The request comes from a replica, not from a consumer.", reads=_REPLICA),
    Column("is_raft", m.FLAG, "The request reads `__cluster_metadata` (KRaft replication; outside fetch sessions).",
           reads=FETCH.request("topics.topic", "topics.topic_id")),
    Column("requested_at", m.TIME, "When the first byte of the request arrived."),
    Column("request_last_at", m.TIME, "When its last byte arrived: session uses are ordered by it."),
    Column("response_first_at", m.TIME, "When the first byte of the response arrived: session creations are ordered "
           "by it."),
    Column("response_last_at", m.TIME, "When the last byte of the response arrived."),
    Column("max_wait_ms", m.CODE, "MaxWaitMs: how long the broker may wait for `min_bytes`.",
           reads=FETCH.request("max_wait_ms")),
    Column("min_bytes", m.CODE, "MinBytes.", reads=FETCH.request("min_bytes")),
    Column("max_bytes", m.CODE, "MaxBytes of the whole response (v3 and later).", reads=FETCH.request("max_bytes")),
    Column("isolation_level", m.CODE, "0 read_uncommitted, 1 read_committed (v4 and later).",
           reads=FETCH.request("isolation_level")),
    Column("rack_id", m.TEXT, "Rack of the consumer (v11 and later).", reads=FETCH.request("rack_id")),
    Column("request_session_id", m.CODE, "SessionId of the request (v7 and later).", reads=FETCH.request("session_id")),
    Column("session_epoch", m.CODE, "SessionEpoch of the request (v7 and later).",
           reads=FETCH.request("session_epoch")),
    Column("expected_epoch", m.CODE, "Epoch that the broker expects next in the session named, where it is known.",
           by=By.SESSIONS),
    Column("epoch_status", m.TEXT, "ok, repeat, gap, not_captured (a gap where bytes of the connection were not "
           "captured), wrapped, unknown_start; null unless the request is incremental.",
           by=By.SESSIONS),
    Column("response_session_id", m.CODE, "SessionId of the response (v7 and later).",
           reads=FETCH.response("session_id")),
    Column("request_kind", m.TEXT, "sessionless, create, replace, close, incremental: what session id and epoch ask "
           "for (KIP-227).", reads=FETCH.request("session_id", "session_epoch")),
    Column("session_outcome", m.TEXT, "created, refused, continued, closed, evicted_or_unknown, epoch_error, "
           "topic_id_error, throttled, error; null when sessionless or unanswered.", by=By.SESSIONS),
    Column("session_key", m.TEXT, "The session in `fetch_sessions`: broker, id and incarnation.", by=By.SESSIONS),
    m.TOPICS._replace(
        reads=m.TOPICS.reads
        | FETCH.request(
            "topics.topic", "topics.topic_id", "forgotten_topics_data.topic", "forgotten_topics_data.topic_id"
        )
        | FETCH.response("responses.topic", "responses.topic_id")
    ),
    Column("partitions_sent", m.COUNT, "Partitions named in the request (Topics).", reads=_request_fields("partition")),
    Column("partitions_added", m.COUNT, "Of those, new in the session.", by=By.SESSIONS),
    Column("partitions_altered", m.COUNT, "Of those, in the session before.", by=By.SESSIONS),
    Column("partitions_replaced", m.COUNT, "Of those, with another topic id under the same name.", by=By.SESSIONS),
    Column("partitions_forgotten", m.COUNT, "Partitions named in ForgottenTopicsData.",
           reads=FETCH.request("forgotten_topics_data.partitions")),
    Column("implied_partitions", m.COUNT, "Partitions which the request covers without naming them; null while "
           "unknown.", by=By.SESSIONS),
    Column("partitions_returned", m.COUNT, "Partitions in the response.", reads=_response_fields("partition_index")),
    Column("hidden_partitions", m.COUNT, "Partitions of the session that the response left out, for nothing about "
           "them was new; null while unknown.", by=By.SESSIONS),
    Column("partitions_with_records", m.COUNT, "Of those, with records.", reads=_response_fields("records")),
    Column("partitions_with_error", m.COUNT, "Of those, with a non-zero error code of their own.",
           reads=_response_fields("error_code")),
    Column("record_bytes", m.COUNT, "Bytes of record data in the response.", reads=_response_fields("records")),
    Column("latency_ms", m.MS, "As in `exchanges`."),
    Column("queued_ms", m.MS, "As in `exchanges`."),
    Column("broker_ms", m.MS, "As in `exchanges`."),
    Column("hold", m.TEXT, "Why the broker answered when it did: data, timeout, throttled, error, immediate, unknown.",
           by=By.FETCH_HOLDS),
    Column("excess_ms", m.MS, "What broker_ms holds beyond what the request agreed to: all of it where the data was "
           "there, the part beyond max_wait_ms where it was waited for; null where that cannot be known.",
           by=By.FETCH_HOLDS),
    Column("agreed_ms", m.MS, "Part of broker_ms that the request agreed to, as in `exchanges`.", by=By.FETCH_HOLDS),
    Column("throttled_ms", m.MS, "Part of broker_ms in which a quota muted the connection, as in `exchanges`.",
           by=By.FETCH_HOLDS),
    Column("throttle_ms", m.MS, "ThrottleTimeMs of the response (v1 and later)."),
    Column("error_code", m.CODE, "Top-level error code of the response (v7 and later; 0 before); null when it was "
           "not read."),
    Column("request_bytes", m.COUNT, "Size of the request with its length prefix."),
    Column("response_bytes", m.COUNT, "Size of the response with its length prefix."),
    made=By.BLOCK,
    when="requested_at response_first_at",
    shown="exchange_id client_id broker request_kind session_outcome session_epoch latency_ms hold excess_ms "
    "partitions_sent implied_partitions partitions_returned record_bytes requested_at",
)  # fmt: skip

FETCH_PARTITIONS = table(
    "fetch_partitions",
    "partition named in a Fetch request or response, both sides joined",
    m.EXCHANGE_ID,
    m.TOPIC,
    m.TOPIC_ID,
    Column("partition", m.CODE, "Partition number."),
    Column("position", m.CODE, "Place in the response, from 0 (the broker rotates the order); null when not returned."),
    Column("in_request", m.FLAG, "Named in the request's Topics; null when the request was not read."),
    Column("in_response", m.FLAG, "Returned; null when no response was read."),
    Column("forgotten", m.FLAG, "Named in ForgottenTopicsData; null when the request was not read."),
    Column("implied", m.FLAG, "Returned, not named in the request; null when either side was not read."),
    Column("fetch_offset", m.COUNT, "FetchOffset of the request.", reads=_request_fields("fetch_offset")),
    Column("current_leader_epoch", m.CODE, "CurrentLeaderEpoch of the request, -1 for none (v9 and later).",
           reads=_request_fields("current_leader_epoch")),
    Column("last_fetched_epoch", m.CODE, "LastFetchedEpoch of the request, -1 for none (v12 and later).",
           reads=_request_fields("last_fetched_epoch")),
    Column("log_start_offset", m.COUNT, "LogStartOffset of the request: a follower's own, -1 for consumers (v5 and "
           "later).", reads=_request_fields("log_start_offset")),
    Column("partition_max_bytes", m.CODE, "PartitionMaxBytes of the request.",
           reads=_request_fields("partition_max_bytes")),
    Column("error_code", m.CODE, "Error code of the partition; the top-level one where that is set.",
           reads=_response_fields("error_code")),
    Column("high_watermark", m.COUNT, "HighWatermark of the response.", reads=_response_fields("high_watermark")),
    Column("last_stable_offset", m.COUNT, "LastStableOffset of the response (v4 and later).",
           reads=_response_fields("last_stable_offset")),
    Column("broker_log_start_offset", m.COUNT, "LogStartOffset of the response: the leader's (v5 and later).",
           reads=_response_fields("log_start_offset")),
    Column("lag", m.COUNT, "high_watermark - fetch_offset, not below 0: how far behind the reader was when it asked; "
           "null unless both are known and there is no error.",
           reads=_request_fields("fetch_offset") | _response_fields("high_watermark", "error_code")),
    Column("record_bytes", m.COUNT, "Bytes of record data; 0 for none.", reads=_response_fields("records")),
    Column("batches", m.COUNT, "Record batches (and legacy messages) in the data; null unless record batches were "
           "looked at.", reads=frozenset([Gathering.FETCHED_RECORDS])),
    Column("aborted_transactions", m.COUNT, "Length of AbortedTransactions (read_committed only, else null).",
           reads=_response_fields("aborted_transactions.producer_id")),
    Column("preferred_read_replica", m.CODE, "PreferredReadReplica of the response, -1 for none (v11 and later).",
           reads=_response_fields("preferred_read_replica")),
    Column("diverging_epoch", m.CODE, "DivergingEpoch.Epoch, -1 for none (v12 and later).",
           reads=_response_fields("diverging_epoch.epoch")),
    Column("diverging_end_offset", m.COUNT, "DivergingEpoch.EndOffset, -1 for none (v12 and later).",
           reads=_response_fields("diverging_epoch.end_offset")),
    Column("leader_id", m.CODE, "CurrentLeader.LeaderId, -1 for none (v12 and later).",
           reads=_response_fields("current_leader.leader_id")),
    Column("leader_epoch", m.CODE, "CurrentLeader.LeaderEpoch, -1 for none (v12 and later).",
           reads=_response_fields("current_leader.leader_epoch")),
    Column("reason", m.TEXT, "Why it was returned: full (not incremental), records, error, diverging_epoch, "
           "preferred_replica, high_watermark or log_start_offset (other than told last), unknown.", by=By.SESSIONS),
    made=By.BLOCK,
    reads=FETCH.request(
        "topics.topic",
        "topics.topic_id",
        "topics.partitions.partition",
        "forgotten_topics_data.topic",
        "forgotten_topics_data.topic_id",
        "forgotten_topics_data.partitions",
    )
    | FETCH.response("responses.topic", "responses.topic_id", "responses.partitions.partition_index"),
    shown="exchange_id topic partition fetch_offset high_watermark lag record_bytes error_code reason implied",
)  # fmt: skip
