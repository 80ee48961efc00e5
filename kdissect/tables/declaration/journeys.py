"""Declarations: from producer to consumer."""

from __future__ import annotations

from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration import model as m
from kdissect.tables.declaration.model import Api, By, Column, Reads, plain, table

ADD_PARTITIONS, ADD_OFFSETS = Api(ApiKey.ADD_PARTITIONS_TO_TXN), Api(ApiKey.ADD_OFFSETS_TO_TXN)
END, MARKERS, COMMIT_OFFSETS = Api(ApiKey.END_TXN), Api(ApiKey.WRITE_TXN_MARKERS), Api(ApiKey.TXN_OFFSET_COMMIT)
_PRODUCER = ("transactional_id", "producer_id", "producer_epoch")


def _steps() -> Reads:
    """Fields of the requests that say something of transactions."""
    below = [f"v3_and_below_{name}" for name in _PRODUCER]
    each = [f"transactions.{name}" for name in (*_PRODUCER, "verify_only", "topics.name", "topics.partitions")]
    of_old = ["v3_and_below_topics.name", "v3_and_below_topics.partitions"]
    of_markers = ["producer_id", "producer_epoch", "transaction_result", "topics.name", "topics.partition_indexes"]
    return (
        ADD_PARTITIONS.request(*below, *of_old, *each)
        | ADD_OFFSETS.request(*_PRODUCER, "group_id")
        | END.request(*_PRODUCER, "committed")
        | MARKERS.request(*(f"markers.{name}" for name in of_markers))
        | COMMIT_OFFSETS.request(*_PRODUCER, "group_id")
    )


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
    Column("visible_at", m.TIME, "When the high watermark passed the batch, for readers that a follower served "
           "(KIP-392) at that follower; null where that is not known to 10 ms."),
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
    key=("delivered_at", "fetch_exchange_id", "topic", "topic_id", "partition", "base_offset"),
    on_request=True,
    when="produced_at delivered_at",
    shown="topic partition base_offset records client_id group_id delivery_ms waited_for buffered_ms produce_ms "
    "commit_ms transaction_ms absent_ms served_ms transfer_ms times fetch_exchange_id",
)  # fmt: skip

TRACED = table(
    "traced",
    "record with a trace context x reader that was given it; one row without a reader where none was captured",
    Column("trace_id", m.TEXT, "Trace that the record was written in, as in `records`."),
    Column("span_id", m.TEXT, "The span in it."),
    plain(m.TOPIC),
    m.TOPIC_ID,
    Column("partition", m.CODE, "Partition number."),
    Column("offset", m.COUNT, "Offset of the record in the log; null where no message tells it."),
    Column("timestamp", m.TIME, "Timestamp of the record; null for none."),
    Column("produce_exchange_id", m.TEXT, "The Produce request that first carried the record; null where it was not "
           "captured."),
    Column("fetch_exchange_id", m.TEXT, "The Fetch or ShareFetch whose answer first gave it to this reader."),
    Column("base_offset", m.COUNT, "First offset of its batch: with fetch_exchange_id, topic and partition the row of "
           "`deliveries`."),
    Column("producer_client_id", m.TEXT, "Client id of the producer."),
    Column("client_id", m.TEXT, "Client id of the reader."),
    Column("group_id", m.TEXT, "Consumer or share group of the reader, as in `deliveries`."),
    Column("is_follower", m.FLAG, "The reader is a follower; null without a reader."),
    Column("produced_at", m.TIME, "First byte of the Produce request."),
    Column("delivered_at", m.TIME, "Last byte of the answer that gave the record to the reader."),
    Column("delivery_ms", m.MS, "delivered_at - produced_at, as in `deliveries`."),
    Column("waited_for", m.TEXT, "The largest part of the batch's way, as in `deliveries`."),
    made=By.TRACED,
    key=(),
    on_request=True,
    when="produced_at delivered_at",
    shown="trace_id span_id topic partition offset producer_client_id client_id group_id delivery_ms waited_for "
    "produce_exchange_id fetch_exchange_id",
)  # fmt: skip

TRANSACTION_STEPS = table(
    "transaction_steps",
    "message about a transaction x partition that it names (AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, "
    "EndTxn, WriteTxnMarkers)",
    m.EXCHANGE_ID,
    Column("requested_at", m.TIME, "First byte of the request."),
    Column("answered_at", m.TIME, "Last byte of the response."),
    Column("client_id", m.TEXT, "Client id of the request header: a producer's, or a broker's."),
    m.BROKER,
    Column("step", m.TEXT, "add_partitions, verify (a broker asks whether partitions are part of it, KIP-890), "
           "add_offsets, commit_offsets, end, markers."),
    Column("transactional_id", m.TEXT, "Transactional id; null for markers, which name the producer id alone."),
    Column("producer_id", m.COUNT, "Producer id."),
    Column("producer_epoch", m.CODE, "Producer epoch."),
    Column("committed", m.FLAG, "Of end and markers: commit, else abort."),
    Column("group_id", m.TEXT, "Of add_offsets and commit_offsets: the group."),
    Column("topic", m.TEXT, "Of add_partitions, verify and markers: the topic."),
    Column("partition", m.CODE, "Its partition."),
    Column("error_code", m.CODE, "First error code of the response, 0 for none; null without a response."),
    Column("next_producer_id", m.COUNT, "Of end, v5: the producer id to go on with; null where the answer has none.",
           reads=END.response("producer_id")),
    Column("next_producer_epoch", m.CODE, "The epoch to go on with: each transaction has its own (KIP-890).",
           reads=END.response("producer_epoch")),
    made=By.BLOCK,
    when="requested_at answered_at",
    reads=_steps(),
    on_request=True,
    shown="requested_at step transactional_id producer_id producer_epoch topic partition group_id committed error_code "
    "exchange_id",
)  # fmt: skip

TRANSACTIONS = table(
    "transactions",
    "transaction of a transactional id",
    Column("transactional_id", m.TEXT, "Transactional id; null where only its markers were captured."),
    Column("producer_id", m.COUNT, "Producer id."),
    Column("producer_epoch", m.CODE, "Producer epoch: with KIP-890 each transaction has its own."),
    Column("client_id", m.TEXT, "Client id of the producer."),
    Column("coordinator", m.TEXT, "Broker that coordinates it: the one that was asked to end or begin it.",
           reads=m.BROKER.reads),
    Column("began_at", m.TIME, "Its first AddPartitionsToTxn, AddOffsetsToTxn or transactional Produce; null where it "
           "began before the capture."),
    Column("ended_at", m.TIME, "Last byte of the answer to EndTxn, else when the coordinator's first marker was sent."),
    Column("outcome", m.TEXT, "committed, aborted, timed_out (the coordinator aborted it by itself), fenced (another "
           "producer took over the transactional id), open (at the end of the capture); null where the capture does "
           "not tell."),
    Column("partitions", m.COUNT, "Partitions of topics that it wrote to, or added."),
    Column("topics", m.TEXTS, "Their topics, in order."),
    Column("groups", m.TEXTS, "Groups whose offsets it commits, in order."),
    Column("batches", m.COUNT, "Record batches that were not refused, each counted once however often it was sent."),
    Column("records", m.COUNT, "Their records."),
    Column("record_bytes", m.COUNT, "Their bytes on the wire."),
    Column("open_ms", m.MS, "From began_at to its EndTxn, to the first marker where the coordinator ended it, or to "
           "the last message of the capture where it is open."),
    Column("idle_ms", m.MS, "Time of open_ms in which none of its requests was under way."),
    Column("end_ms", m.MS, "From the first EndTxn request to the last byte of the last answer to one."),
    Column("markers_ms", m.MS, "From the EndTxn request (else the first marker) until the last WriteTxnMarkers was "
           "answered; null where none was captured."),
    Column("timeout_ms", m.CODE, "TransactionTimeoutMs of the producer, where its InitProducerId was captured."),
    Column("first_exchange_id", m.TEXT, "The exchange that began it."),
    Column("end_exchange_id", m.TEXT, "The last EndTxn; null for none."),
    made=By.TRANSACTIONS,
    key=(),
    on_request=True,
    when="began_at ended_at",
    shown="transactional_id began_at outcome open_ms idle_ms end_ms markers_ms partitions groups batches records "
    "client_id coordinator producer_id producer_epoch first_exchange_id end_exchange_id",
)  # fmt: skip
