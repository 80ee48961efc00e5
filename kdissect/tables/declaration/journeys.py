"""Declarations: from producer to consumer."""

from __future__ import annotations

from kdissect.tables.declaration import model as m
from kdissect.tables.declaration.model import By, Column, plain, table

DELIVERIES = table(
    "deliveries",
    "record batch x reader that was given it: a consumer group (else client id and address), or a follower",
    Column("produce_exchange_id", m.TEXT, "The Produce request that first carried the batch; null where it was not "
           "captured, as is all that is known from it."),
    Column("fetch_exchange_id", m.TEXT, "The Fetch or ShareFetch whose answer first gave the batch to this reader."),
    plain(m.TOPIC),
    m.TOPIC_ID,
    Column("partition", m.CODE, "Partition number."),
    Column("base_offset", m.COUNT, "Offset of the first record."),
    Column("last_offset", m.COUNT, "Offset of the last record."),
    Column("records", m.COUNT, "Records of the batch, as its header says."),
    Column("record_bytes", m.COUNT, "Size of the batch on the wire, as it was sent."),
    Column("codec", m.TEXT, "none, gzip, snappy, lz4, zstd, as it was sent."),
    Column("producer_client_id", m.TEXT, "Client id of the producer."),
    Column("producer_id", m.COUNT, "Producer id, -1 for none."),
    Column("is_transactional", m.FLAG, "Written in a transaction."),
    Column("client_id", m.TEXT, "Client id of the reader; of a group the member that was given the batch first."),
    Column("group_id", m.TEXT, "Consumer or share group of the reader; null where it is not known, and for followers."),
    Column("member_id", m.TEXT, "Its member of the group; null where its client id is several members at a time."),
    Column("is_follower", m.FLAG, "The reader is a follower, which reads before records are committed."),
    Column("broker", m.TEXT, "Broker that gave it the batch.", reads=m.BROKER.reads),
    Column("isolation_level", m.CODE, "Of the fetch: 0 read_uncommitted, 1 read_committed; null for ShareFetch."),
    Column("created_at", m.TIME, "Timestamp of the first record, where it is the producer's (CreateTime)."),
    Column("produced_at", m.TIME, "First byte of the Produce request."),
    Column("visible_at", m.TIME, "When the high watermark passed the batch; null where that is not known to 10 ms."),
    Column("delivered_at", m.TIME, "Last byte of the answer that gave it to the reader."),
    Column("buffered_ms", m.MS, "produced_at - created_at: the producer's buffer, linger, retries. Null where "
           "the producer's clock is ahead (a batch of it in the partition seems younger than its request), "
           "and above 120,000 ms, which is an application's own time."),
    Column("produce_ms", m.MS, "From the request's first byte until the broker had all of it."),
    Column("commit_ms", m.MS, "From then until the high watermark passed the batch; null where that is not known (then "
           "it is part of absent_ms), 0 for followers."),
    Column("transaction_ms", m.MS, "From then until the last stable offset passed it, for read_committed; else 0."),
    Column("absent_ms", m.MS, "The batch was there, and no fetch of the reader that could take it."),
    Column("served_ms", m.MS, "Both were there: until the answer's first byte."),
    Column("transfer_ms", m.MS, "From the answer's first byte at the broker to its last one at the capture point."),
    Column("delivery_ms", m.MS, "delivered_at - produced_at: the sum of the six parts before it; null where one of "
           "their instants was not captured."),
    Column("waited_for", m.TEXT, "The largest part: producer (buffered_ms), network (produce_ms and transfer_ms), "
           "replication (commit_ms without what the leader took to store the batch), transaction, reader (absent_ms, "
           "and its own min_bytes), broker (served_ms, and storing), throttle (what a quota muted, of any part)."),
    Column("times", m.COUNT, "How many answers gave the batch to this reader: above 1 it read it again."),
    Column("times_written", m.COUNT, "How many Produce requests carried the batch: above 1 the producer tried again."),
    Column("matched_by", m.TEXT, "How the Produce request was found: offset, or crc (checksum, or producer id and "
           "sequence, where no answer told the offset)."),
    made=By.DELIVERIES,
    key=(),
    on_request=True,
    when="produced_at delivered_at",
    shown="topic partition base_offset records client_id group_id delivery_ms waited_for buffered_ms produce_ms "
    "commit_ms transaction_ms absent_ms served_ms transfer_ms times fetch_exchange_id",
)  # fmt: skip
