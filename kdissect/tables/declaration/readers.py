"""Who reads tables: parts of the analysis and surfaces, with the columns (and messages) that each of them reads.

What is read for somebody is made for them and nothing else; a column that stands here and in no declaration is an error
when this module is imported.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import CLUSTER, NOTHING, Api, DeclarationError, Path, Reads

SHARE_FETCH, SHARE_ACKNOWLEDGE = Api(ApiKey.SHARE_FETCH), Api(ApiKey.SHARE_ACKNOWLEDGE)


class Reader(NamedTuple):
    """Somebody who reads tables: table -> columns, and message fields besides."""

    name: str
    tables: Mapping[str, tuple[str, ...]]
    fields: Reads = NOTHING

    @property
    def messages(self) -> dict[tuple[int, int], frozenset[str]]:
        """The message fields: (API key, side: 0 request, 1 response) -> paths."""
        found: dict[tuple[int, int], frozenset[str]] = {}
        for one in self.fields:
            if isinstance(one, Path):
                found[one[:2]] = found.get(one[:2], frozenset()) | {one.path}
        return found


def reader(name: str, fields: Reads = NOTHING, **tables: str) -> Reader:
    """A `Reader`; column names with blanks between them, `*` for all. Every reader reads `cluster`, for nothing of one
    cluster says anything of another. Raises DeclarationError."""
    columns = {}
    for table, text in tables.items():
        if table not in TABLES:
            raise DeclarationError(f"{name} reads table {table!r}, which is not declared")
        declared = TABLES[table].by_name
        columns[table] = tuple(declared if text == "*" else dict.fromkeys((*text.split(), CLUSTER.name)))
        for column in columns[table]:
            if column not in declared:
                raise DeclarationError(f"{name} reads column {column!r} of {table!r}, which is not declared")
    return Reader(name, columns, fields)


# ---- the analysis

SESSIONS = reader(
    "what follows fetch sessions",
    fetches="exchange_id broker client_id api_version request_last_at response_first_at request_session_id "
    "session_epoch response_session_id error_code throttle_ms partitions_returned partitions_sent request_bytes",
    fetch_partitions="exchange_id topic topic_id partition in_request in_response forgotten fetch_offset error_code "
    "high_watermark broker_log_start_offset record_bytes preferred_read_replica diverging_epoch",
)
SHARDS = reader("what tells shards of session caches", api_versions="broker api_key max_version")
FETCH_HOLDS = reader(
    "what tells why fetches were answered when they were",
    fetches="queued_ms broker_ms max_wait_ms min_bytes isolation_level is_raft record_bytes partitions_with_error",
    fetch_partitions="last_stable_offset",
    exchanges="exchange_id connection_id client_id api_key broker error_code request_last_at response_first_at "
    "broker_ms throttle_ms queued_ms",
    list_offsets="exchange_id topic partition asked offset error_code isolation_level",
)
PRODUCE_HOLDS = reader(
    "what tells how long requests to produce waited for followers",
    produces="exchange_id broker acks error_code request_last_at response_first_at broker_ms queued_ms",
    produce_partitions="exchange_id topic topic_id partition base_offset error_code replicas",
    fetches="exchange_id broker replica_id request_last_at response_first_at",
    fetch_partitions="exchange_id topic topic_id partition fetch_offset record_bytes",
    exchanges="exchange_id response_first_at throttle_ms",
)
EXCHANGE_HOLDS = reader(
    "what tells why exchanges were answered when they were",
    SHARE_FETCH.request("max_wait_ms", "min_bytes", "share_session_epoch", "is_renew_ack")
    | SHARE_FETCH.response("responses.partitions.records"),
    exchanges=" ".join(FETCH_HOLDS.tables["exchanges"]),
)
COMMITS = reader(
    "what tells how far groups have committed",
    offset_commits="exchange_id at topic partition offset",
    exchanges="exchange_id capture",
    fetches="exchange_id response_first_at",
    fetch_partitions="exchange_id topic partition high_watermark error_code",
)
_ACKNOWLEDGED = (
    "group_id",
    "member_id",
    "share_session_epoch",
    "topics.topic_id",
    "topics.partitions.partition_index",
    "topics.partitions.acknowledgement_batches.first_offset",
    "topics.partitions.acknowledgement_batches.last_offset",
    "topics.partitions.acknowledgement_batches.acknowledge_types",
)
SHARES = reader(
    "what follows share sessions",
    SHARE_FETCH.request(*_ACKNOWLEDGED)
    | SHARE_ACKNOWLEDGE.request(*_ACKNOWLEDGED)
    | SHARE_FETCH.response(
        "error_code",
        "responses.partitions.acquired_records.first_offset",
        "responses.partitions.acquired_records.last_offset",
        "responses.partitions.acquired_records.delivery_count",
        "acquisition_lock_timeout_ms",
        "responses.topic_id",
        "responses.partitions.partition_index",
        "responses.partitions.acknowledge_error_code",
    )
    | SHARE_ACKNOWLEDGE.response(
        "error_code",
        "acquisition_lock_timeout_ms",
        "responses.topic_id",
        "responses.partitions.partition_index",
        "responses.partitions.error_code",
    ),
    exchanges="exchange_id broker request_last_at",
)
FINDINGS = reader(
    "what looks for findings",
    exchanges="exchange_id capture connection_id api_key api api_version broker client_id status abandoned hold "
    "network_ms network_kind queued_ms broker_ms replication_ms agreed_ms throttled_ms error_code error throttle_ms "
    "latency_ms request_first_at "
    "request_last_at response_first_at response_last_at request_transfer_ms response_transfer_ms request_frame "
    "request_file response_frame response_file request_resent_ms response_resent_ms",
    fetches="exchange_id connection_id broker client_id requested_at request_last_at response_first_at request_kind "
    "session_outcome session_key request_session_id excess_ms broker_ms latency_ms throttle_ms record_bytes error_code "
    "max_bytes max_wait_ms isolation_level is_follower is_raft replica_id partitions_with_error",
    fetch_partitions="exchange_id topic topic_id partition record_bytes partition_max_bytes last_stable_offset "
    "high_watermark error_code lag",
    connections="connection_id capture client_ip client_port client_id broker tls start_seen is_kafka end_reason "
    "closed_by exchanges started_at ended_at zero_window_ms retransmitted_bytes broker_ip broker_port bytes rtt_ms "
    "rtt_min_ms client_rtt_ms rtt_kind protocol packets lost_segments missing_bytes",
    producers="exchange_id sent_at topic topic_id partition producer_id base_sequence last_sequence sequence",
    producer_ids="exchange_id transactional_id transaction_timeout_ms producer_id producer_epoch",
    groups="exchange_id at group_id member_id client_id protocol generation event reason error_code "
    "assigned_partitions",
    record_batches="exchange_id topic topic_id partition base_offset last_offset is_transactional is_control "
    "leader_epoch producer_id producer_epoch base_sequence magic codec crc records compressed_bytes "
    "first_timestamp max_timestamp",
    fetch_sessions="*",
    offset_commits="exchange_id at group_id client_id topic topic_id partition offset high_watermark lag error_code",
    leaders="*",
    produces="exchange_id connection_id broker client_id acks requested_at response_first_at latency_ms broker_ms "
    "replication_ms waited_for",
    share_sessions="session_key broker group_id member_id opened_at closed_at refused redelivered lock_ms",
    capture_quality="capture measure value",
    topics="topic_id topic partitions source",
    api_versions="broker api_key min_version max_version",
    deliveries="fetch_exchange_id topic topic_id partition base_offset last_offset records group_id client_id "
    "is_follower broker isolation_level producer_client_id created_at produced_at delivered_at buffered_ms delivery_ms "
    "absent_ms served_ms transfer_ms waited_for times",
)
"""Of `record_batches` only what was written within transactions matters, what may have been sent twice, and a sample of
what brokers may have rewritten."""
ONE_BATCH_IN = 32
"""Of batches of the present format findings look at those whose first number is divisible by this, the first batch of
every producer in every partition among them: what a broker does to one batch of a topic it does to all."""
FIRST_BATCHES = 20_000
"""Record batches whose deliveries findings and the first screen look at, the first ones: some 10,000 deliveries."""
FIRST_REQUESTS = 100
"""Requests of a connection among which findings look for what had been sent before on another one: clients send first
what waits (5 requests at most by default, max.in.flight.requests.per.connection; some clients have more)."""

# ---- surfaces

FIRST_SCREEN = reader(
    "the first screen",
    exchanges="exchange_id client_id broker api api_version status error latency_ms hold queued_ms request_first_at",
    connections="connection_id capture client_ip client_name broker broker_ip broker_port broker_name started_at "
    "ended_at is_kafka protocol tls client_id client_software_name client_software_version group_id bytes start_seen "
    "missing_bytes exchanges",
    fetch_sessions="broker opened_at closed_at first_epoch requests end_reason",
    findings="*",
    capture_quality="capture file measure value text",
    clock_offsets="*",
    problems="kind bytes detail at exchange_id connection_id",
)
FIRST_SCREEN_COUNTS = reader(
    "the first screen, of exchanges of which it shows none",
    exchanges="client_id broker api_key api_version status error_code latency_ms hold queued_ms request_first_at",
)
LIVE = reader(
    "the live view",
    exchanges="exchange_id connection_id api_key api api_version broker client_id client_ip client_port status "
    "error_code error latency_ms request_transfer_ms network_ms queued_ms broker_ms replication_ms agreed_ms "
    "throttled_ms response_transfer_ms hold request_first_at request_last_at response_first_at response_last_at "
    "request_bytes response_bytes",
    fetches="exchange_id broker client_id max_wait_ms broker_ms excess_ms hold",
    fetch_partitions="exchange_id topic partition lag",
    fetch_sessions="broker end_reason",
    record_batches="exchange_id topic partition records compressed_bytes",
    problems="kind bytes",
)
REPORT = reader(
    "the report",
    exchanges="exchange_id connection_id capture client_ip client_port broker_ip broker_port broker api_key api "
    "api_version correlation_id client_id status error_code error request_first_at response_first_at latency_ms "
    "request_transfer_ms network_ms network_kind queued_ms broker_ms replication_ms agreed_ms throttled_ms "
    "response_transfer_ms throttle_ms hold request_bytes response_bytes request_resent_ms response_resent_ms "
    "response_last_at request_file request_frame response_file response_frame",
    fetches="exchange_id broker client_id requested_at request_last_at response_first_at request_kind session_outcome "
    "session_key session_epoch epoch_status excess_ms max_wait_ms record_bytes",
    fetch_sessions="*",
    share_sessions="*",
    produces="exchange_id client_id requested_at",
    produce_partitions="exchange_id topic topic_id record_bytes",
    fetch_partitions="exchange_id topic topic_id record_bytes",
    connections=" ".join(FIRST_SCREEN.tables["connections"])
    + " client_port rtt_ms retransmitted_bytes out_of_order_packets zero_window_ms end_reason",
    api_versions="*",
    findings="*",
    capture_quality="*",
    clock_offsets="*",
    problems=" ".join((*FIRST_SCREEN.tables["problems"], "file", "frame")),
)
"""None of it holds keys or values of records, or credentials."""
LATENCY = reader(
    "latency",
    exchanges="exchange_id capture client_id broker api_key api api_version status error_code hold request_first_at "
    "response_first_at latency_ms broker_ms throttle_ms request_bytes response_bytes",
    fetches="exchange_id excess_ms session_key session_epoch",
    fetch_partitions="exchange_id topic topic_id",
    session_partitions="session_key topic topic_id from_epoch to_epoch",
    record_batches="exchange_id topic topic_id",
)
TOPIC_TRAFFIC = reader(
    "who writes and reads what",
    exchanges="exchange_id connection_id client_id client_ip api_key request_first_at",
    connections="connection_id group_id",
    fetch_partitions="exchange_id topic topic_id partition lag record_bytes",
    record_batches="exchange_id topic topic_id partition records compressed_bytes",
)
DELIVERIES = reader(
    "the way of record batches",
    exchanges="exchange_id connection_id client_id client_ip broker api_key api_version error_code request_first_at "
    "request_last_at response_first_at response_last_at network_ms network_up_ms network_down_ms request_resent_ms "
    "throttle_ms",
    connections="connection_id group_id",
    groups="exchange_id at group_id member_id client_id",
    produces="exchange_id acks",
    produce_partitions="exchange_id topic topic_id partition base_offset error_code replicas",
    fetches="exchange_id is_follower replica_id isolation_level min_bytes max_wait_ms is_raft",
    fetch_partitions="exchange_id topic topic_id partition fetch_offset high_watermark last_stable_offset error_code",
    record_batches="exchange_id topic topic_id partition base_offset last_offset codec is_transactional is_control "
    "timestamp_type first_timestamp producer_id producer_epoch base_sequence records compressed_bytes crc truncated",
)
_TRACED = reader(
    "records with a trace context", records="exchange_id topic topic_id partition offset timestamp trace_id span_id"
)
TRACED = Reader(_TRACED.name, {**DELIVERIES.tables, **_TRACED.tables})
TRANSACTIONS = reader(
    "transactions",
    exchanges="exchange_id client_id broker api_key request_first_at response_last_at error_code",
    transaction_steps="exchange_id step transactional_id producer_id producer_epoch committed group_id topic partition",
    producer_ids="exchange_id transactional_id transaction_timeout_ms producer_id_asked producer_id producer_epoch "
    "error_code",
    produces="exchange_id transactional_id",
    record_batches="exchange_id topic topic_id partition is_transactional is_control producer_id producer_epoch "
    "base_sequence records compressed_bytes",
)
BUDGET = reader(
    "the ledger of time and its sums",
    exchanges="exchange_id connection_id client_ip client_id broker api_key status hold request_first_at "
    "response_first_at response_last_at request_transfer_ms network_ms network_up_ms queued_ms broker_ms "
    "replication_ms agreed_ms throttled_ms response_transfer_ms network_kind throttle_ms",
    fetches="exchange_id record_bytes",
    connections="connection_id client_ip broker_ip client_id group_id started_at ended_at zero_window_ms",
)
BUDGET_TOPICS = reader(
    "time budgets of topics", fetch_partitions="exchange_id topic", produce_partitions="exchange_id topic"
)
MATCHING = reader(
    "comparing two captures, besides latency",
    exchanges="connection_id client_ip client_port broker_ip broker_port correlation_id request_last_at error hold "
    "queued_ms request_transfer_ms response_transfer_ms",
)
SESSION_FIGURES = reader(
    "figures of fetch sessions",
    fetches="exchange_id broker client_id request_kind session_outcome session_key request_last_at response_first_at "
    "is_follower",
    fetch_sessions="*",
    share_sessions="*",
)
FETCHING = reader(
    "what other waits of consumers would have meant",
    fetches="exchange_id connection_id client_id broker requested_at response_first_at latency_ms broker_ms "
    "record_bytes max_wait_ms min_bytes error_code partitions_with_error is_follower is_raft",
)
BATCHING = reader(
    "what another linger of producers would have meant",
    produces="exchange_id connection_id client_id broker requested_at response_first_at",
    produce_partitions="exchange_id topic topic_id partition batches records record_bytes",
)
MEMBERSHIP = reader(
    "partitions that a fetch implies",
    fetches="exchange_id request_kind session_key session_epoch implied_partitions",
    fetch_partitions="exchange_id topic topic_id partition in_request",
    session_partitions="*",
)
GISTS = reader(
    "what an exchange was about",
    fetch_partitions="exchange_id topic partition fetch_offset record_bytes error_code in_request in_response",
    record_batches="exchange_id topic partition base_offset records compressed_bytes",
    groups="exchange_id group_id event generation",
    list_offsets="exchange_id topic partition asked offset",
    producer_ids="exchange_id transactional_id producer_id producer_epoch",
    transaction_steps="exchange_id step transactional_id producer_id committed group_id topic partition",
)
SLOWEST = reader(
    "which exchanges were slowest",
    exchanges="exchange_id request_first_at api client_id broker latency_ms hold status error",
    fetches="exchange_id excess_ms",
)
ERRORS = reader(
    "which errors there were",
    exchanges="exchange_id request_first_at api client_id broker error error_code",
    fetch_partitions="exchange_id topic topic_id error_code",
    produce_partitions="exchange_id topic topic_id error_code",
    list_offsets="exchange_id topic error_code",
)
SILENCES = reader(
    "who was silent for how long",
    exchanges="exchange_id client_id broker request_first_at response_first_at response_last_at",
    fetch_partitions="exchange_id topic topic_id partition record_bytes",
    produce_partitions="exchange_id topic topic_id partition record_bytes",
)
EXPLANATIONS = reader(
    "why a finding is there",
    exchanges=" ".join(BUDGET.tables["exchanges"]) + " latency_ms error_code request_resent_ms response_resent_ms",
    fetches=" ".join(BUDGET.tables["fetches"]) + " requested_at response_first_at",
    connections=" ".join(BUDGET.tables["connections"]) + " broker end_reason lost_segments missing_bytes rtt_ms "
    "is_kafka bytes",
)
