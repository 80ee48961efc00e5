"""Declarations: record batches and records (KIP-98, KIP-32)."""

from __future__ import annotations

from kdissect.tables.declaration import model as m
from kdissect.tables.declaration.model import By, Column, Gathering, table

RECORD_BATCHES = table(
    "record_batches",
    "batch in a Fetch or ShareFetch response or a Produce request (magic-2 batch, compressed wrapper, or run "
    "of plain messages)",
    m.EXCHANGE_ID,
    m.TOPIC,
    m.TOPIC_ID,
    Column("partition", m.CODE, "Partition number."),
    Column("base_offset", m.COUNT, "Offset of the first record (a producer's own count from 0 in Produce requests); "
           "null of a compressed wrapper until it is opened."),
    Column("last_offset", m.COUNT, "Offset of the last record; of a compressed wrapper its own offset until it is "
           "opened."),
    Column("magic", m.CODE, "Format: 0, 1 or 2."),
    Column("codec", m.TEXT, "none, gzip, snappy, lz4, zstd."),
    Column("is_transactional", m.FLAG, "Written in a transaction (magic 2)."),
    Column("is_control", m.FLAG, "Holds control records (magic 2)."),
    Column("timestamp_type", m.TEXT, "create_time or log_append_time; null for magic 0."),
    Column("first_timestamp", m.TIME, "Timestamp of the first record (the delete horizon where the batch has one); "
           "null for none, and of a compressed wrapper until it is opened."),
    Column("max_timestamp", m.TIME, "Largest timestamp, of a compressed wrapper its own until it is opened; null for "
           "none."),
    Column("producer_id", m.COUNT, "Producer id, -1 for none (magic 2)."),
    Column("producer_epoch", m.CODE, "Producer epoch, -1 for none (magic 2)."),
    Column("base_sequence", m.CODE, "First sequence number, -1 for none (magic 2)."),
    Column("leader_epoch", m.CODE, "PartitionLeaderEpoch (magic 2)."),
    Column("records", m.COUNT, "Number of records that the batch states; null of a compressed wrapper until it is "
           "opened."),
    Column("compressed_bytes", m.COUNT, "Size of the batch on the wire, headers included."),
    Column("uncompressed_bytes", m.COUNT, "Size of the records after decompression; null unless asked for by column "
           "or `verify`.", costly=True),
    Column("crc", m.COUNT, "Checksum that the header states: CRC-32C of magic 2, CRC-32 of a compressed wrapper; "
           "null for plain messages."),
    Column("crc_ok", m.FLAG, "The checksum is right; null unless asked for by column or `verify`.", costly=True),
    Column("truncated", m.FLAG, "Cut: the last batch of a response, or bytes that were not captured."),
    made=By.RECORD_SETS,
    reads=frozenset([Gathering.RECORDS]),
    shown="exchange_id topic partition base_offset last_offset records codec compressed_bytes producer_id "
    "is_transactional is_control truncated",
)  # fmt: skip

PRODUCERS = table(
    "producers",
    "batch of a producer with an id in a Produce request, by partition and producer in order of time: duplicates and "
    "sequences out of order show (KIP-98)",
    m.EXCHANGE_ID,
    Column("sent_at", m.TIME, "When the first byte of the request arrived."),
    m.TOPIC,
    m.TOPIC_ID,
    Column("partition", m.CODE, "Partition number."),
    Column("producer_id", m.COUNT, "Producer id."),
    Column("producer_epoch", m.CODE, "Producer epoch."),
    Column("base_sequence", m.CODE, "Sequence number of the first record."),
    Column("last_sequence", m.CODE, "Sequence number of the last record; numbers go on from 2^31-1 with 0."),
    Column("expected_sequence", m.CODE, "The number behind the last one that was sent; null for first, reset and "
           "fenced."),
    Column("sequence", m.TEXT, "first (of this producer that was captured), ok, gap (numbers left out), repeat "
           "(numbers sent before: a retry), reset (the producer's epoch was raised), fenced (an older epoch)."),
    Column("missing", m.COUNT, "Numbers left out before a gap, else 0."),
    made=By.SENT,
    when="sent_at",
    key=(),
    reads=frozenset([Gathering.SENT_RECORDS]),
    shown="exchange_id topic partition producer_id producer_epoch base_sequence last_sequence sequence missing "
    "expected_sequence sent_at",
    on_request=True,
)  # fmt: skip

RECORDS = table(
    "records",
    "record",
    m.EXCHANGE_ID,
    m.TOPIC,
    m.TOPIC_ID,
    Column("partition", m.CODE, "Partition number."),
    Column("offset", m.COUNT, "Offset of the record."),
    Column("timestamp", m.TIME, "Timestamp of the record; null for none."),
    Column("key_bytes", m.COUNT, "Size of the key; null for a null key."),
    Column("value_bytes", m.COUNT, "Size of the value; null for a null value."),
    Column("headers", m.HEADERS, "Headers as (key, value) pairs; null unless revealed."),
    Column("key", m.BINARY, "The key; null unless revealed."),
    Column("value", m.BINARY, "The value; null unless revealed."),
    Column("control_type", m.TEXT, "abort, commit, leader_change, snapshot_header, snapshot_footer, kraft_version, "
           "kraft_voters; else null."),
    Column("trace_id", m.TEXT, "Trace that the record was written in, 32 hex digits: of a header `traceparent` (W3C), "
           "`b3` or `X-B3-TraceId` that is as specified; null unless asked for by column.", costly=True),
    Column("span_id", m.TEXT, "The span in it, 16 hex digits, of the same header.", costly=True),
    made=By.RECORD_SETS,
    reads=frozenset([Gathering.RECORDS]),
    shown="exchange_id topic partition offset timestamp key_bytes value_bytes key value headers control_type",
    on_request=True,
)  # fmt: skip
