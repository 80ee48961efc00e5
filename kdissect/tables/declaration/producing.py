"""Declarations: Produce exchanges and their partitions (KIP-98, KIP-516, KIP-951)."""

from __future__ import annotations

from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration import model as m
from kdissect.tables.declaration.model import Api, By, Column, Gathering, Reads, table

PRODUCE = Api(ApiKey.PRODUCE)
_SENT = frozenset([Gathering.SENT_RECORDS])


def _sent(*fields: str) -> Reads:
    """Fields of a partition in the request."""
    return PRODUCE.request(*(f"topic_data.partition_data.{field}" for field in fields))


def _answered(*fields: str) -> Reads:
    """Fields of a partition in the response."""
    return PRODUCE.response(*(f"responses.partition_responses.{field}" for field in fields))


PRODUCES = table(
    "produces",
    "Produce exchange",
    m.EXCHANGE_ID,
    m.CONNECTION_ID,
    m.CAPTURE,
    m.BROKER,
    Column("client_id", m.TEXT, "Client id of the request header."),
    Column("api_version", m.CODE, "Version of the Produce request."),
    Column("status", m.TEXT, "Status of the exchange, as in `exchanges`."),
    Column("acks", m.CODE, "Acks: 0 no answer is wanted, 1 the leader's alone, -1 every replica in sync has to have "
           "the records.", reads=PRODUCE.request("acks")),
    Column("timeout_ms", m.CODE, "TimeoutMs: how long the broker may wait for followers.",
           reads=PRODUCE.request("timeout_ms")),
    Column("transactional_id", m.TEXT, "TransactionalId (v3 and later); null for none.",
           reads=PRODUCE.request("transactional_id")),
    Column("requested_at", m.TIME, "When the first byte of the request arrived."),
    Column("request_last_at", m.TIME, "When its last byte arrived."),
    Column("response_first_at", m.TIME, "When the first byte of the response arrived."),
    m.TOPICS._replace(
        reads=m.TOPICS.reads
        | PRODUCE.request("topic_data.name", "topic_data.topic_id")
        | PRODUCE.response("responses.name", "responses.topic_id")
    ),
    Column("partitions", m.COUNT, "Partitions in the request.", reads=_sent("index")),
    Column("partitions_with_error", m.COUNT, "Partitions of the response with a non-zero error code.",
           reads=_answered("error_code")),
    Column("batches", m.COUNT, "Record batches (and legacy messages) sent.", reads=_SENT),
    Column("records", m.COUNT, "Records sent, as batch headers say; null where a compressed wrapper of old does not.",
           reads=_SENT),
    Column("record_bytes", m.COUNT, "Bytes of record data in the request.", reads=_sent("records")),
    Column("latency_ms", m.MS, "As in `exchanges`."),
    Column("queued_ms", m.MS, "As in `exchanges`."),
    Column("broker_ms", m.MS, "As in `exchanges`."),
    Column("replication_ms", m.MS, "Part of broker_ms in which the leader waited for followers (acks -1), as their "
           "fetches of the partitions show; 0 where every topic is known to have one replica; null where the capture "
           "cannot tell.", by=By.PRODUCE_HOLDS),
    Column("waited_for", m.CODES, "Node ids of the followers that were waited for last, or that never came; null "
           "where replication_ms is 0 or null.", by=By.PRODUCE_HOLDS),
    Column("hold", m.TEXT, "Why the broker answered when it did: throttled, replication (measured, at least 5 ms and "
           "more than half of broker_ms), error, immediate (one replica: nobody to wait for), unknown; null unless "
           "acks is -1.", by=By.PRODUCE_HOLDS),
    Column("excess_ms", m.MS, "broker_ms - replication_ms; null where acks is -1 and replication_ms is null, and "
           "where it was throttled.", by=By.PRODUCE_HOLDS),
    Column("throttled_ms", m.MS, "Part of broker_ms in which a quota muted the connection, as in `exchanges`.",
           by=By.PRODUCE_HOLDS),
    Column("throttle_ms", m.MS, "ThrottleTimeMs of the response (v1 and later)."),
    Column("error_code", m.CODE, "First error code of the response in wire order, 0 for none; null when it was not "
           "read."),
    Column("request_bytes", m.COUNT, "Size of the request with its length prefix."),
    made=By.BLOCK,
    when="requested_at response_first_at",
    shown="exchange_id client_id broker acks partitions records record_bytes latency_ms broker_ms replication_ms "
    "waited_for hold excess_ms error_code requested_at",
)  # fmt: skip

PRODUCE_PARTITIONS = table(
    "produce_partitions",
    "partition named in a Produce request or response, both sides joined",
    m.EXCHANGE_ID,
    m.TOPIC,
    m.TOPIC_ID,
    Column("partition", m.CODE, "Partition number."),
    Column("batches", m.COUNT, "Record batches (and legacy messages) sent to it.", reads=_SENT),
    Column("records", m.COUNT, "Records sent to it, as batch headers say; null where a compressed wrapper of old does "
           "not.", reads=_SENT),
    Column("record_bytes", m.COUNT, "Bytes of record data sent to it.", reads=_sent("records")),
    Column("base_offset", m.COUNT, "BaseOffset of the response: offset of the first record; -1 where it was refused "
           "or is not known.", reads=_answered("base_offset")),
    Column("log_append_at", m.TIME, "LogAppendTimeMs: the broker's clock, where the topic's timestamps are the "
           "broker's (v2 and later).", reads=_answered("log_append_time_ms")),
    Column("log_start_offset", m.COUNT, "LogStartOffset of the response (v5 and later).",
           reads=_answered("log_start_offset")),
    Column("error_code", m.CODE, "Error code of the partition.", reads=_answered("error_code")),
    Column("error_message", m.TEXT, "ErrorMessage: why it was refused (v8 and later).",
           reads=_answered("error_message")),
    Column("current_leader", m.CODE, "CurrentLeader.LeaderId: who leads it, where the broker that was asked does not; "
           "-1 for none (v10 and later).", reads=_answered("current_leader.leader_id")),
    Column("replicas", m.CODE, "The most replicas that any message told of a partition of this topic (Metadata, "
           "DescribeTopicPartitions); null where none did.", reads=frozenset([Gathering.TOPICS])),
    made=By.BLOCK,
    reads=PRODUCE.request("topic_data.name", "topic_data.topic_id", "topic_data.partition_data.index")
    | PRODUCE.response("responses.name", "responses.topic_id", "responses.partition_responses.index"),
    shown="exchange_id topic partition records record_bytes base_offset error_code replicas error_message",
)  # fmt: skip
