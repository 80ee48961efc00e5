"""Declarations: record batches and records (KIP-98, KIP-32)."""

from __future__ import annotations

from kdissect.tables.declaration.model import (
    BINARY,
    CODE,
    COUNT,
    EXCHANGE_ID,
    FLAG,
    HEADERS,
    TEXT,
    TIME,
    TOPIC,
    TOPIC_ID,
    By,
    Column,
    Gathering,
    table,
)

RECORD_BATCHES = table(
    "record_batches",
    "batch in a Fetch or ShareFetch response or a Produce request (magic-2 batch, compressed wrapper, or run "
    "of plain messages)",
    EXCHANGE_ID,
    TOPIC,
    TOPIC_ID,
    Column("partition", CODE, "Partition number."),
    Column("base_offset", COUNT, "Offset of the first record (a producer's own count from 0 in Produce requests)."),
    Column("last_offset", COUNT, "Offset of the last record."),
    Column("magic", CODE, "Format: 0, 1 or 2."),
    Column("codec", TEXT, "none, gzip, snappy, lz4, zstd."),
    Column("is_transactional", FLAG, "Written in a transaction (magic 2)."),
    Column("is_control", FLAG, "Holds control records (magic 2)."),
    Column("timestamp_type", TEXT, "create_time or log_append_time; null for magic 0."),
    Column(
        "first_timestamp",
        TIME,
        "Timestamp of the first record (the delete horizon where the batch has one); null for none.",
    ),
    Column("max_timestamp", TIME, "Largest timestamp; null for none."),
    Column("producer_id", COUNT, "Producer id, -1 for none (magic 2)."),
    Column("producer_epoch", CODE, "Producer epoch, -1 for none (magic 2)."),
    Column("base_sequence", CODE, "First sequence number, -1 for none (magic 2)."),
    Column("leader_epoch", CODE, "PartitionLeaderEpoch (magic 2)."),
    Column(
        "records", COUNT, "Number of records that the batch states (of a compressed wrapper: null until it is opened)."
    ),
    Column("compressed_bytes", COUNT, "Size of the batch on the wire, headers included."),
    Column(
        "uncompressed_bytes",
        COUNT,
        "Size of the records after decompression; null unless asked for by column or `verify`.",
        costly=True,
    ),
    Column(
        "crc",
        COUNT,
        "Checksum that the header states: CRC-32C of magic 2, CRC-32 of a compressed wrapper; null for plain messages.",
    ),
    Column("crc_ok", FLAG, "The checksum is right; null unless asked for by column or `verify`.", costly=True),
    Column("truncated", FLAG, "Cut: the last batch of a response, or bytes that were not captured."),
    made=By.RECORD_SETS,
    reads=frozenset([Gathering.RECORDS]),
    shown="exchange_id topic partition base_offset last_offset records codec compressed_bytes producer_id "
    "is_transactional is_control truncated",
)

PRODUCERS = table(
    "producers",
    "batch of a producer with an id in a Produce request, by partition and producer in order of time: duplicates and "
    "sequences out of order show (KIP-98)",
    EXCHANGE_ID,
    Column("sent_at", TIME, "When the first byte of the request arrived."),
    TOPIC,
    TOPIC_ID,
    Column("partition", CODE, "Partition number."),
    Column("producer_id", COUNT, "Producer id."),
    Column("producer_epoch", CODE, "Producer epoch."),
    Column("base_sequence", CODE, "Sequence number of the first record."),
    Column("last_sequence", CODE, "Sequence number of the last record; numbers go on from 2^31-1 with 0."),
    Column(
        "expected_sequence",
        CODE,
        "The number behind the last one that was sent; null for first, reset and fenced.",
    ),
    Column(
        "sequence",
        TEXT,
        "first (of this producer that was captured), ok, gap (numbers left out), repeat (numbers sent before: a "
        "retry), reset (the producer's epoch was raised), fenced (an older epoch).",
    ),
    Column("missing", COUNT, "Numbers left out before a gap, else 0."),
    made=By.SENT,
    when="sent_at",
    key=(),
    reads=frozenset([Gathering.SENT_RECORDS]),
    shown="exchange_id topic partition producer_id producer_epoch base_sequence last_sequence sequence missing "
    "expected_sequence sent_at",
    on_request=True,
)

RECORDS = table(
    "records",
    "record (only when asked for)",
    EXCHANGE_ID,
    TOPIC,
    TOPIC_ID,
    Column("partition", CODE, "Partition number."),
    Column("offset", COUNT, "Offset of the record."),
    Column("timestamp", TIME, "Timestamp of the record; null for none."),
    Column("key_bytes", COUNT, "Size of the key; null for a null key."),
    Column("value_bytes", COUNT, "Size of the value; null for a null value."),
    Column("headers", HEADERS, "Headers as (key, value) pairs; null unless revealed."),
    Column("key", BINARY, "The key; null unless revealed."),
    Column("value", BINARY, "The value; null unless revealed."),
    Column(
        "control_type",
        TEXT,
        "abort, commit, leader_change, snapshot_header, snapshot_footer, kraft_version, kraft_voters; else null.",
    ),
    made=By.RECORD_SETS,
    reads=frozenset([Gathering.RECORDS]),
    shown="exchange_id topic partition offset timestamp key_bytes value_bytes key value headers control_type",
    on_request=True,
)
