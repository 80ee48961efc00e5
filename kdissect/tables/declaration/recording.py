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
    table,
)

RECORD_BATCHES = table(
    "record_batches",
    "batch in a Fetch or ShareFetch response or a Produce request (magic-2 batch, compressed wrapper, or run "
    "of plain messages)",
    EXCHANGE_ID,
    TOPIC,
    TOPIC_ID,
    ("partition", CODE, "Partition number."),
    ("base_offset", COUNT, "Offset of the first record (a producer's own count from 0 in Produce requests)."),
    ("last_offset", COUNT, "Offset of the last record."),
    ("magic", CODE, "Format: 0, 1 or 2."),
    ("codec", TEXT, "none, gzip, snappy, lz4, zstd."),
    ("is_transactional", FLAG, "Written in a transaction (magic 2)."),
    ("is_control", FLAG, "Holds control records (magic 2)."),
    ("timestamp_type", TEXT, "create_time or log_append_time; null for magic 0."),
    (
        "first_timestamp",
        TIME,
        "Timestamp of the first record (the delete horizon where the batch has one); null for none.",
    ),
    ("max_timestamp", TIME, "Largest timestamp; null for none."),
    ("producer_id", COUNT, "Producer id, -1 for none (magic 2)."),
    ("producer_epoch", CODE, "Producer epoch, -1 for none (magic 2)."),
    ("base_sequence", CODE, "First sequence number, -1 for none (magic 2)."),
    ("leader_epoch", CODE, "PartitionLeaderEpoch (magic 2)."),
    ("records", COUNT, "Number of records that the batch states (of a compressed wrapper: null until it is opened)."),
    ("compressed_bytes", COUNT, "Size of the batch on the wire, headers included."),
    (
        "uncompressed_bytes",
        COUNT,
        "Size of the records after decompression; null unless asked for by column or `verify`.",
    ),
    ("crc_ok", FLAG, "The checksum is right; null unless asked for by column or `verify`."),
    ("truncated", FLAG, "Cut: the last batch of a response, or bytes that were not captured."),
)

PRODUCERS = table(
    "producers",
    "batch of a producer with an id in a Produce request, by partition and producer in order of time: duplicates and "
    "sequences out of order show (KIP-98)",
    EXCHANGE_ID,
    ("sent_at", TIME, "When the first byte of the request arrived."),
    TOPIC,
    TOPIC_ID,
    ("partition", CODE, "Partition number."),
    ("producer_id", COUNT, "Producer id."),
    ("producer_epoch", CODE, "Producer epoch."),
    ("base_sequence", CODE, "Sequence number of the first record."),
    ("last_sequence", CODE, "Sequence number of the last record; numbers go on from 2^31-1 with 0."),
    (
        "expected_sequence",
        CODE,
        "The number behind the last one that was sent; null for first, reset and fenced.",
    ),
    (
        "sequence",
        TEXT,
        "first (of this producer that was captured), ok, gap (numbers left out), repeat (numbers sent before: a "
        "retry), reset (the producer's epoch was raised), fenced (an older epoch).",
    ),
    ("missing", COUNT, "Numbers left out before a gap, else 0."),
)

RECORDS = table(
    "records",
    "record (only when asked for)",
    EXCHANGE_ID,
    TOPIC,
    TOPIC_ID,
    ("partition", CODE, "Partition number."),
    ("offset", COUNT, "Offset of the record."),
    ("timestamp", TIME, "Timestamp of the record; null for none."),
    ("key_bytes", COUNT, "Size of the key; null for a null key."),
    ("value_bytes", COUNT, "Size of the value; null for a null value."),
    ("headers", HEADERS, "Headers as (key, value) pairs; null unless revealed."),
    ("key", BINARY, "The key; null unless revealed."),
    ("value", BINARY, "The value; null unless revealed."),
    (
        "control_type",
        TEXT,
        "abort, commit, leader_change, snapshot_header, snapshot_footer, kraft_version, kraft_voters; else null.",
    ),
)
