"""Findings about producers, transactions and the records that they write."""

from __future__ import annotations

from kdissect.analysis.findings.catalogue.kind import CLIENT, NOTHING_MISSING, Kind

KINDS = {
    "producer_silent": Kind(
        cause="client",
        rule=(
            "A producer sent 20 Produce requests or more, two in each 100 ms. Then it sent nothing on any connection "
            "for 2 s or more, and 5 requests or more followed. It never fetched, and no answer was due to it. "
            "Its other waits between two requests are an eighth of that at most, and the longest is four times their "
            "median at most (or 200 ms). Its connections stayed open, with fewer copies of segments than "
            "retransmission timers would have sent. No other client was silent for most of that time, or may have been "
            "behind an answer that is missing. Not where the capture lacks other connections of the client: it has the "
            "beginning of one, and no Metadata request." + NOTHING_MISSING
        ),
        headline="client {client} wrote nothing for {lasted:ms}",
        sentence=(
            "{client:who} wrote in a steady rhythm, then sent nothing on any connection for {lasted:ms} from "
            "{first:clock} on, and went on in its rhythm. No answer was due to it and its connections stayed open. Its "
            "process stood still (suspended, garbage collection, no CPU), or its application had nothing to write."
        ),
        advice=(
            "Look at that process at that moment: garbage collection log, CPU limits, suspension; and at what its "
            "application writes."
        ),
        needs=(
            "`exchanges` (client_id, api_key, status, request_first_at, response_first_at), `fetches` (client_id), "
            "`connections` (lost_segments, retransmitted_bytes, start_seen, started_at, ended_at, missing_bytes)"
        ),
        cannot_tell=(
            "a process that stood still from an application that had nothing to write. A producer that writes now "
            "and then has no rhythm, and is left alone."
        ),
        example="lab/producer_stopped_aiokafka",
        starts=True,
        settled_at=CLIENT,
    ),
    "metadata_in_vain": Kind(
        cause="client",
        rule=(
            "A producer that sent three Metadata requests or more over 2 s or more, at most 1.5 s apart, all "
            "answered without an error, and nothing else meanwhile. Not while a connection of its address ended: "
            "then it looks for a leader. Nor in a capture without acknowledgements that carry no bytes: it lacks "
            "refusals and ends of connections, too. Nor within 10 s of the beginning of a capture that met the "
            "client in its middle."
        ),
        headline="client {client} asked for metadata {count:times} and wrote nothing meanwhile",
        sentence=(
            "{client:who} asked for metadata {count:times} from {first:clock} to {last:clock}, was answered "
            "without an error, and wrote nothing meanwhile for {longest:ms} at a time. The answers lack what it "
            "wants to write to, such as a partition that its topic does not have."
        ),
        advice=(
            "Compare the topic and partition that the producer writes to with the topic's partitions (kafka-topics)."
        ),
        needs=(
            "`exchanges` (api_key, error_code, request_first_at), `connections` (client_ip, end_reason, ended_at), "
            "`capture_quality` (connections_without_bare_acks)"
        ),
        cannot_tell="which partition it wanted.",
        example="stories/bad_partition",
        settled_at=CLIENT,
    ),
    "batches_sent_again": Kind(
        cause="unknown",
        rule="Batches of idempotent producers with sequence numbers that were sent before.",
        headline="producer {producer} sent {batches:#batch|batches} again",
        sentence=(
            "Producer {producer} sent {batches:#batch|batches} to {partitions:#partition} again (a sequence number "
            "that it had used): the answer was an error, late, or lost."
        ),
        advice="Nothing is written twice by an idempotent producer; look at why the first answer did not count.",
        needs="`producers` (sequence)",
        cannot_tell="producers without idempotence have no sequence numbers.",
        example="stories/leader_move",
        settled_at=CLIENT,
    ),
    "batches_written_twice": Kind(
        cause="client",
        rule=(
            "A Produce request was answered after the client had closed, or never. One of the first 100 requests "
            "of another connection of that client then carried the same batch and was answered without an error. "
            "The same batch has the same topic, partition, checksum, size, number of records and timestamps, and "
            "no producer id. Medium where a late answer says that the first one was written too, else low."
        ),
        headline="client {client} wrote batches of {topics:list} again",
        sentence=(
            "{client:who} sent [?more:at least ]{batches:#batch|batches}[ ({records:#record})] of {topics:list} to "
            "broker {broker} again, on another connection, after it had given the first ones up. [{twice:n} of "
            "them {twice:?was|were} written twice, according to late responses|They are written twice where the "
            "broker had written the first ones][; no answer says so of {unknown:n}]."
        ),
        advice=(
            "An idempotent producer (enable.idempotence) writes once what it sends again; see why the answer took "
            "longer than the client waits (request.timeout.ms)."
        ),
        needs=(
            "`record_batches` (crc, records, compressed_bytes, first_timestamp, max_timestamp), `exchanges` "
            "(abandoned, status, request_first_at, response_first_at)"
        ),
        cannot_tell=(
            "whether a request without an answer was written: fetched batches with one crc at two offsets show it. "
            "Plain messages, batches without timestamps, and batches that were sent again on a connection that was "
            "open for long are not compared."
        ),
        example="stories/slow_broker",
    ),
    "tiny_batches": Kind(
        cause="settings",
        rule="A producer with an id sent 500 or more batches of one record (median), 100 or more a second.",
        headline="client {client} sends tiny batches: {batches:#batch|batches}",
        sentence=(
            "[{client:who}|A producer] (producer {producer}) sent {batches:#batch|batches} of {records:#record} "
            "(median) in {took:ms}, {rate:n} a second: each costs a request."
        ),
        advice="A linger.ms of some milliseconds and a batch.size that is not tiny put records together.",
        needs="`producers` (base_sequence, last_sequence, sent_at), `producer_ids`",
        cannot_tell="producers without idempotence have no sequence numbers, and are not seen.",
        example="stories/tiny",
    ),
    "recompressed": Kind(
        cause="settings",
        rule=(
            "Three or more batches of a topic were read in another codec than that in which their producer sent "
            "them. Compared are batches of 20 producers at most, at the first 20 sequence numbers divisible by 32 "
            "that were captured both ways."
        ),
        headline="the broker compresses batches of topic {topic} again",
        sentence=(
            "The broker compresses batches of topic {topic}[ by {clients:list}] again: they are sent [compressed "
            "with {sent}|uncompressed] and read [compressed with {read}|uncompressed] ({changed:n} of "
            "{compared:#batch|batches} that were compared)."
        ),
        advice=(
            "Set the topic's compression.type to producer, or the producers' to that of the topic: each batch "
            "costs the broker a decompression and a compression."
        ),
        needs="`record_batches` (codec, producer_id, producer_epoch, base_sequence, records)",
        cannot_tell="producers without idempotence have no sequence numbers, and are not compared.",
        example="stories/tiny",
    ),
    "converted_down": Kind(
        cause="client",
        rule=(
            "One client got records in a format before 2, and another one got them in format 2. Compared are "
            "batches whose offset is divisible by 32."
        ),
        headline="the broker converts records of topic {topic} for client {client}",
        sentence=(
            "{client:who} reads topic {topic} in an older record format, while {others:list} {others:?gets|get} "
            "the same records in the present one. The broker converts them for it."
        ),
        advice="A newer client library reads records as they are stored; for this one the broker rewrites them.",
        needs="`record_batches` (magic, base_offset, last_offset), `fetches` (client_id)",
        cannot_tell="what it costs the broker, and how much was converted in all.",
        example="downconv_282",
    ),
    "producer_fenced": Kind(
        cause="client",
        rule=(
            "Answers with INVALID_PRODUCER_EPOCH, PRODUCER_FENCED or TRANSACTION_COORDINATOR_FENCED. Or an EndTxn that "
            "was answered INVALID_TXN_STATE after another producer had asked for the transactional id."
        ),
        headline={
            "many": "{clients:#client} were fenced: they used outdated producer epochs",
            "unknown": "{client:who} was fenced: it used an outdated producer epoch[ ({transaction})]",
            "taken": "{client:who} was fenced: it used an outdated producer epoch[ ({transaction})]",
            "twin": "{client:who} was fenced: it used an outdated producer epoch[ ({transaction})]",
            "unseen": "{client:who} was fenced: it used an outdated producer epoch[ ({transaction})]",
        },
        sentence={
            "unknown": (
                "{client:who} got {errors:list} {answers:times}: its producer epoch is outdated. Another producer "
                "took its transactional id, or the coordinator gave up its transaction."
            ),
            "taken": (
                "{client:who} got {errors:list} {answers:times}: its producer epoch is outdated. {by:Who} took its "
                "transactional id {transaction} at {at:clock}."
            ),
            "twin": (
                "{client:who} got {errors:list} {answers:times}: its producer epoch is outdated. Another instance "
                "of it took its transactional id {transaction} at {at:clock}."
            ),
            "unseen": (
                "{client:who} got {errors:list} {answers:times}: its producer epoch is outdated. No other producer "
                "of its transactional id {transaction} was seen; the coordinator may have aborted."
            ),
            "many": (
                "{clients:#client} ({clients:list}) got {errors:list} {answers:times}: their producer epochs are "
                "outdated. Others took their transactional ids, or the coordinator gave up their transactions."
            ),
        },
        advice="See that only one instance runs with that transactional.id.",
        needs="`exchanges` (error), `producer_ids`",
        cannot_tell="the other instance, where its InitProducerId is not in the capture.",
        example="rules/twins",
        starts=True,
    ),
    "transaction_timed_out": Kind(
        cause="client",
        rule=(
            "As producer_fenced, or an EndTxn that was answered INVALID_TXN_STATE, where no other producer "
            "registered the transactional id and this one wrote nothing for its transaction.timeout.ms."
        ),
        headline="the broker aborted {transaction} of client {client}: timeout",
        sentence={
            "epoch": (
                "{client:who} got {errors:list} {answers:times}: its producer epoch is outdated. No other producer "
                "took its transactional id {transaction}. It wrote nothing for {silent:ms}, and after its "
                "transaction.timeout.ms of {timeout:ms} the coordinator aborts."
            ),
            "end": (
                "{client:who} got {errors:list} {answers:times}: its transaction has ended. No other producer took "
                "its transactional id {transaction}. It wrote nothing for {silent:ms}, and after its "
                "transaction.timeout.ms of {timeout:ms} the coordinator aborts."
            ),
        },
        advice=("Commit sooner, or raise the producer's transaction.timeout.ms (up to transaction.max.timeout.ms)."),
        needs="`exchanges`, `producer_ids` (transaction_timeout_ms), `producers` (sent_at)",
        cannot_tell="the coordinator's own abort, where its markers are not in the capture.",
        example="stories/txn_timeout",
        starts=True,
    ),
    "outdated_producer_epoch": Kind(
        cause="client",
        rule="Batches with a producer epoch below one that was used before.",
        headline="producer {producer} wrote with an outdated epoch",
        sentence=(
            "Producer {producer} sent {batches:#batch|batches} with an epoch older than one that was used before: "
            "two instances write with the same transactional id."
        ),
        advice="See that only one instance runs with that transactional.id.",
        needs="`producers` (sequence)",
        cannot_tell="who the other instance is.",
        example="rules/twins",
    ),
    "held_back_by_transaction": Kind(
        cause="client",
        rule=(
            "Answers to read_committed fetches had the same last stable offset, below the high watermark, for 1 s "
            "or more. The transaction is hanging if they still had it 30 s after transaction.timeout.ms had passed."
        ),
        headline={
            "open": "a transaction[ of client {client}] held readers of {place} back for {lasted:ms}",
            "hanging": "a hanging transaction[ of client {client}] held readers of {place} back for {lasted:ms}",
        },
        sentence={
            "open": (
                "An open transaction[ of {by:list client} (transactional id {transaction}, producer {known})][ of "
                "producer {other}] held read_committed consumers of partition {partition} of topic {topic} back. They "
                "stood at offset {offset:n} for {lasted:ms}, from {first:clock} on[?still:, to the end of the capture]."
            ),
            "hanging": (
                "A hanging transaction of {by:list client} (transactional id {transaction}, producer {known}) held "
                "read_committed consumers of partition {partition} of topic {topic} back. They stood at offset "
                "{offset:n} for {lasted:ms}, from {first:clock} on[?still:, to the end of the capture]. Answers showed "
                "that for {shown:ms}, and its transaction.timeout.ms is {timeout:ms}: its coordinator does not end it "
                "(KIP-664)."
            ),
        },
        parts={
            "client": "{it:who}",
        },
        advice={
            "open": (
                "Look at the producer of that transaction: why it does not commit; transaction.timeout.ms bounds it."
            ),
            "hanging": "kafka-transactions.sh find-hanging lists such transactions, and its abort ends one.",
        },
        needs="`fetch_partitions` (last_stable_offset, high_watermark), `record_batches`, `producer_ids`",
        cannot_tell="the producer, where no one fetched its batch.",
        example="stories/txn_timeout",
        starts=True,
    ),
}
"""By id."""
