from pathlib import Path

import pyarrow as pa
import pytest

import kdissect
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS, TABLES, columns_of, declared, doc, type_name

CONTRACT = {
    "connections": "connection_id, capture, client_ip, client_port, broker_ip, broker_port, broker, "
    "started_at, ended_at, "
    "start_seen, end_reason, closed_by, is_kafka, protocol, client_id, client_software_name, client_software_version, "
    "group_id, "
    "sasl_mechanism, principal, tls, packets, bytes, retransmitted_bytes, duplicated_packets, out_of_order_packets, "
    "missing_bytes, zero_window_ms, rtt_ms, rtt_min_ms, rtt_max_ms, client_rtt_ms, rtt_kind, lost_segments, "
    "sights, exchanges, problems",
    "exchanges": "exchange_id, connection_id, capture, client_ip, client_port, broker_ip, broker_port, broker, "
    "api_key, api, "
    "api_version, correlation_id, client_id, status, error_code, error, error_count, request_first_at, "
    "request_last_at, "
    "response_first_at, response_last_at, latency_ms, request_transfer_ms, network_ms, queued_ms, "
    "broker_ms, response_transfer_ms, request_resent_ms, response_resent_ms, think_ms, network_kind, "
    "throttle_ms, hold, abandoned, request_bytes, response_bytes, in_flight, request_file, request_frame, "
    "response_file, "
    "response_frame, api_inferred, decoded",
    "fetches": "exchange_id, connection_id, broker, client_id, api_version, replica_id, is_follower, requested_at, "
    "max_wait_ms, min_bytes, max_bytes, isolation_level, request_session_id, session_epoch, expected_epoch, "
    "epoch_status, "
    "response_session_id, request_kind, session_outcome, session_key, partitions_sent, partitions_added, "
    "partitions_altered, partitions_replaced, partitions_forgotten, implied_partitions, partitions_returned, "
    "partitions_with_records, record_bytes, latency_ms, queued_ms, broker_ms, hold, excess_ms, throttle_ms, error_code",
    "fetch_partitions": "exchange_id, topic, topic_id, partition, position, in_request, in_response, "
    "forgotten, implied, "
    "fetch_offset, current_leader_epoch, log_start_offset, partition_max_bytes, error_code, high_watermark, "
    "last_stable_offset, lag, record_bytes, batches, preferred_read_replica, reason",
    "produces": "exchange_id, connection_id, broker, client_id, api_version, acks, timeout_ms, transactional_id, "
    "requested_at, partitions, partitions_with_error, batches, records, record_bytes, latency_ms, queued_ms, "
    "broker_ms, replication_ms, waited_for, hold, excess_ms, throttle_ms, error_code",
    "produce_partitions": "exchange_id, topic, topic_id, partition, batches, records, record_bytes, base_offset, "
    "log_append_at, log_start_offset, error_code, error_message, current_leader",
    "fetch_sessions": "session_key, broker, session_id, shard, client_ids, connections, opened_at, closed_at, "
    "first_epoch, "
    "last_epoch, left_censored, requests, epoch_gaps, epoch_repeats, wraps, max_partitions, churn, "
    "max_idle_ms, end_reason, "
    "predecessor, request_bytes, full_request_bytes_avoided",
    "session_partitions": "session_key, topic, topic_id, partition, from_epoch, to_epoch, last_fetch_offset",
    "share_sessions": "session_key, group_id, member_id, first_epoch, last_epoch, requests, records_acquired, "
    "accepted, "
    "released, rejected, renewed, refused, redelivered, lock_ms, end_reason",
    "record_batches": "exchange_id, topic, partition, base_offset, last_offset, magic, codec, "
    "is_transactional, is_control, "
    "timestamp_type, first_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, leader_epoch, "
    "records, "
    "compressed_bytes, uncompressed_bytes, crc_ok, truncated",
    "records": "exchange_id, topic, partition, offset, timestamp, key_bytes, value_bytes, headers, key, value, "
    "control_type",
    "producers": "exchange_id, topic, partition, producer_id, producer_epoch, base_sequence, last_sequence, sequence",
    "list_offsets": "exchange_id, topic, partition, timestamp_asked, asked, offset, offsets, timestamp, leader_epoch, "
    "error_code, isolation_level, replica_id, latency_ms",
    "producer_ids": "exchange_id, transactional_id, transaction_timeout_ms, producer_id_asked, producer_epoch_asked, "
    "producer_id, producer_epoch, error_code, latency_ms",
    "groups": "exchange_id, at, group_id, member_id, client_id, protocol, generation, event, error, "
    "assigned_partitions",
    "offset_commits": "exchange_id, at, group_id, member_id, client_id, topic, partition, offset, leader_epoch, "
    "high_watermark, lag, error_code",
    "leaders": "at, topic, partition, leader, leader_epoch, previous, source, exchange_id",
    "api_versions": "broker, api_key, api, min_version, max_version, used_min, used_max",
    "topics": "topic_id, topic, first_seen_at, partitions, source",
    "topic_traffic": "client_id, client_ip, group_id, topic, topic_id, partition, produced_records, produced_bytes, "
    "fetched_records, fetched_bytes, first_at, last_at, first_lag, last_lag, max_lag",
    "time_budget": "by, subject, client_ip, at, until, wall_ms, agreed_ms, throttled_ms, broker_ms, replication_ms, "
    "transaction_ms, network_ms, own_ms, idle_ms, silent_ms, gone_ms, unknown_ms, exchanges",
    "time_ledger": "by, subject, client_ip, at, until, owner, evidence, connections, exchanges, first_exchange_id",
    "deliveries": "produce_exchange_id, fetch_exchange_id, topic, topic_id, partition, base_offset, last_offset, "
    "records, record_bytes, codec, producer_client_id, producer_id, is_transactional, client_id, group_id, member_id, "
    "is_follower, broker, isolation_level, created_at, produced_at, visible_at, delivered_at, buffered_ms, produce_ms, "
    "commit_ms, transaction_ms, absent_ms, served_ms, transfer_ms, delivery_ms, waited_for, times, times_written, "
    "matched_by",
    "traced": "trace_id, span_id, topic, topic_id, partition, offset, timestamp, produce_exchange_id, "
    "fetch_exchange_id, base_offset, producer_client_id, client_id, group_id, is_follower, produced_at, delivered_at, "
    "delivery_ms, waited_for",
    "transactions": "transactional_id, producer_id, producer_epoch, client_id, coordinator, began_at, ended_at, "
    "outcome, partitions, topics, groups, batches, records, record_bytes, open_ms, idle_ms, end_ms, markers_ms, "
    "first_exchange_id, end_exchange_id",
    "transaction_steps": "exchange_id, requested_at, answered_at, client_id, broker, step, transactional_id, "
    "producer_id, producer_epoch, committed, group_id, topic, partition, error_code",
    "clock_offsets": "first, second, connections, offset_ms, drift_ppm, uncertainty_ms",
    "findings": "id, severity, cause, text, advice, first_at, last_at, broker, client_id, group_id, topic, partition, "
    "transactional_id, incident, table, filter, count, first_exchange_id",
    "capture_quality": "capture, file, measure, value, text",
    "problems": "capture, connection_id, exchange_id, at, file, frame, kind, where, detail, bytes",
}


def test_every_table_of_the_contract_with_its_columns():
    assert list(TABLES) == list(CONTRACT)
    for name, columns in CONTRACT.items():
        missing = set(columns.replace("\n", " ").split(", ")) - set(SCHEMAS[name].names)
        assert not missing, name


def test_every_column_says_what_it_means():
    for table in TABLES.values():
        assert table.row
        names = [column.name for column in table.columns]
        assert len(names) == len(set(names)), table.name
        for column in table.columns:
            assert len(column.doc) >= 5, (table.name, column.name)
            assert column.doc.endswith("."), (table.name, column.name)
            assert SCHEMAS[table.name].field(column.name).metadata == {b"doc": column.doc.encode()}


def test_types_follow_the_contract():
    for name, schema in SCHEMAS.items():
        for item in schema:
            if item.name.endswith("_ms") and item.name not in ("max_wait_ms", "transaction_timeout_ms", "timeout_ms"):
                assert item.type == pa.float64(), (name, item.name)
            if item.name.endswith("_at") or item.name in ("at", "timestamp", "timestamp_asked"):
                assert item.type == pa.timestamp("us", tz="UTC"), (name, item.name)
            if item.name.endswith("bytes") and item.name not in ("min_bytes", "max_bytes", "partition_max_bytes"):
                assert item.type == pa.int64(), (name, item.name)
            if item.name.endswith("_port"):
                assert item.type == pa.int32()
            assert not pa.types.is_dictionary(item.type)


def test_doc_and_names():
    text = doc("list_offsets")
    assert text.startswith("list_offsets: one row per ListOffsets exchange x partition")
    assert "timestamp_asked" in text
    assert columns_of("topics") == SCHEMAS["topics"].names
    assert columns_of("topics", ["topic"]) == ["topic"]
    assert type_name(SCHEMAS["list_offsets"].field("offsets").type) == "list of int64"


def test_unknown_names_suggest_the_near_one():
    with pytest.raises(UsageError, match="did you mean 'fetches'"):
        declared("fetchs")
    with pytest.raises(UsageError, match="did you mean 'latency_ms'"):
        columns_of("exchanges", ["latencyms"])


@pytest.mark.parametrize("name", ["base", "k4_transactions", "k4_share_group", "field_midstream", "field_burst20_many"])
def test_columns_that_are_never_null_have_a_value_in_every_row(captures: Path, name: str) -> None:
    """Of connections met in the middle, orphans and damaged exchanges, too."""
    for table, rows in kdissect.open(captures / f"{name}.pcap").tables(list(TABLES)).items():
        nulls = {column: rows[column].null_count for column in TABLES[table].never_null}
        assert not any(nulls.values()), (table, nulls)
    assert {"exchange_id", "connection_id"} <= TABLES["exchanges"].never_null
    assert not TABLES["problems"].never_null
