"""Every kind of finding, declared once: whose fault it is, what to do, what the rule is and what it cannot tell.

The page docs/findings.md is made of it (`page`), and a test holds it to that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding."""

    cause: str
    """client, network, broker, follower, settings, security, capture, unknown; a finding may know better."""
    advice: str | None
    """What to look at or change, one sentence."""
    rule: str
    """When it is said."""
    reads: str
    """Tables and columns that its numbers come from, besides those of its filter."""
    cannot: str
    """What it cannot tell."""
    example: str
    """A recording that has it."""
    starts: bool = False
    """It sets other things off."""


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "broker_stalled": Kind(
            "broker",
            "Look at that broker's garbage collection log, its disks and its host (steal time, swap) at that moment.",
            "No answer of a broker for 1 s or more while requests on two connections or more were due (a Fetch: its "
            "max_wait_ms over), all answered within 200 ms of the end. APIs that wait by design do not count.",
            "`exchanges` (request_last_at, response_first_at, hold), `fetches` (max_wait_ms, replica_id: the broker's "
            "own fetches)",
            "What the process waited for. Without the broker's own fetches in the capture, whether the process or the "
            "network stood still.",
            "stories/slow_broker",
            starts=True,
        ),
        "slow_requests": Kind(
            "unknown",
            "Show the slowest with `kdissect show`; `kdissect latency` tells whether broker, network or followers took "
            "the time.",
            "Requests of an API that took `--slow` (1 s) or more at a broker, without those that were throttled "
            "or wait "
            "by design. Medium from 10 s in all on.",
            "`exchanges` (latency_ms, hold)",
            "Why: `queued_ms`, `broker_ms` and `network_ms` of the rows say where.",
            "stories/slow_broker",
        ),
        "slow_fetches": Kind(
            "broker",
            "Look at the broker's disks: data that is not in the page cache, or a busy host.",
            "Fetches that took `--slow` (1 s) or more beyond the wait that they agreed to. Medium from 10 s in all on.",
            "`fetches` (excess_ms)",
            "Fetches whose excess is unknown do not count; nothing is said of them.",
            "stories/slow_broker",
        ),
        "connections_refused": Kind(
            "broker",
            "See whether the broker runs and listens there (listeners, advertised.listeners).",
            "A SYN was answered by a reset, on a port where Kafka was seen or that metadata names, or where the "
            "capture "
            "holds no Kafka at all.",
            "`connections`",
            "Whether the broker was stopped, had crashed or was not up yet.",
            "era_2_4_1",
            starts=True,
        ),
        "tls_to_plaintext": Kind(
            "settings",
            "Set the client's security.protocol to what that listener speaks (listener.security.protocol.map).",
            "A TLS connection to a port on which others speak plaintext Kafka.",
            "`connections` (protocol, tls)",
            "Nothing.",
            "rules/tls",
        ),
        "plaintext_to_tls": Kind(
            "settings",
            "Set the client's security.protocol to SSL or SASL_SSL.",
            "A plaintext Kafka connection that was answered by a TLS alert.",
            "`connections` (tls)",
            "Nothing.",
            "rules/tls",
        ),
        "login_failed": Kind(
            "security",
            "Check sasl.mechanism and the credentials (sasl.jaas.config) of that client.",
            "An answer with UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE or SASL_AUTHENTICATION_FAILED.",
            "`exchanges` (error)",
            "Which part of the credentials is wrong. A broker that closes without an answer is not seen.",
            "rules/login",
        ),
        "not_authorized": Kind(
            "security",
            "Grant that principal the permission it needs (kafka-acls), or stop the client from asking.",
            "An answer with an AUTHORIZATION_FAILED error.",
            "`exchanges` (error)",
            "Which resource, where the answer names none.",
            "rules/permission",
        ),
        "throttled_client": Kind(
            "settings",
            "Raise its quota (producer_byte_rate, consumer_byte_rate, request_percentage) or let it send less.",
            "Answers with a throttle time. Low below 1 s in all, high from 60 s on.",
            "`exchanges` (throttle_ms)",
            "Which of the quotas of the user, the client id or both.",
            "stories/quotas",
            starts=True,
        ),
        "client_paused": Kind(
            "client",
            "Look at what the application does with a poll's records; fewer at once (max.poll.records) or more "
            "instances help.",
            "A consumer got records and had no Fetch open at any broker for 1 s or more, not throttled, not "
            "joining its group, and not for an answer that had to be sent again until it was acknowledged. Medium when "
            "that is half of at least 3 s, else info.",
            "`fetches` (requested_at, response_first_at, record_bytes, throttle_ms), `exchanges` (response_resent_ms)",
            "Whether the application worked, slept or was suspended. Consumers that never asked again do not count.",
            "stories/slow_consumer",
            starts=True,
        ),
        "empty_polling": Kind(
            "settings",
            "Look at what ends the wait: fetch.max.wait.ms and fetch.min.bytes of that client.",
            "A client's fetches (not followers', not the quorum's) had 100 empty answers without an error, 20 or "
            "more a "
            "second for a second at least, each within 10 ms, nine of ten of all.",
            "`fetches` (record_bytes, latency_ms, max_wait_ms)",
            "Nothing.",
            "rules/polling",
        ),
        "limited_by_max_bytes": Kind(
            "settings",
            "Nothing is wrong while it catches up; afterwards a larger fetch.max.bytes needs fewer fetches.",
            "Ten or more answers with as many bytes as max_bytes.",
            "`fetches` (record_bytes, max_bytes)",
            "Whether the client would take more.",
            "base",
        ),
        "limited_by_partition_max_bytes": Kind(
            "settings",
            "Nothing is wrong while it catches up; afterwards a larger max.partition.fetch.bytes needs fewer fetches.",
            "Ten or more answers for a partition with as many bytes as partition_max_bytes.",
            "`fetch_partitions` (record_bytes, partition_max_bytes)",
            "Whether the client would take more.",
            "k4_session_eviction",
        ),
        "growing_lag": Kind(
            "client",
            "Look at what the consumer does with its records, or add instances to its group.",
            "The lag of a client's fetch position in a partition grew by 1,000 records, to twice or more, at four of "
            "five steps.",
            "`fetch_partitions` (lag), `fetches` (client_id)",
            "How far the group has committed; see `offset_commits`.",
            "rules/lagging",
        ),
        "held_back_by_transaction": Kind(
            "client",
            "Look at the producer of that transaction: why it does not commit; transaction.timeout.ms bounds it.",
            "read_committed fetches were told the same last stable offset, below the high watermark, for 1 s or more.",
            "`fetch_partitions` (last_stable_offset, high_watermark), `record_batches`, `producer_ids`",
            "The producer, where nobody fetched its batch.",
            "stories/txn_timeout",
            starts=True,
        ),
        "producer_fenced": Kind(
            "client",
            "See that only one instance runs with that transactional.id.",
            "Answers with INVALID_PRODUCER_EPOCH, PRODUCER_FENCED or TRANSACTION_COORDINATOR_FENCED.",
            "`exchanges` (error), `producer_ids`",
            "The other instance, where its InitProducerId is not in the capture.",
            "rules/twins",
            starts=True,
        ),
        "transaction_timed_out": Kind(
            "client",
            "Commit sooner, or raise the producer's transaction.timeout.ms (up to transaction.max.timeout.ms).",
            "As producer_fenced, or an EndTxn that was answered INVALID_TXN_STATE, where no other producer registered "
            "the transactional id and this one wrote nothing for its transaction.timeout.ms.",
            "`exchanges`, `producer_ids` (transaction_timeout_ms), `producers` (sent_at)",
            "The coordinator's own abort, where its markers are not in the capture.",
            "stories/txn_timeout",
            starts=True,
        ),
        "outdated_producer_epoch": Kind(
            "client",
            "See that only one instance runs with that transactional.id.",
            "Batches with a producer epoch below one that was used before.",
            "`producers` (sequence)",
            "Who the other instance is.",
            "rules/twins",
        ),
        "batches_sent_again": Kind(
            "unknown",
            "Nothing is written twice by an idempotent producer; look at why the first answer did not count.",
            "Batches of idempotent producers with sequence numbers that were sent before.",
            "`producers` (sequence)",
            "Producers without idempotence have no sequence numbers.",
            "stories/leader_move",
        ),
        "unsupported_version": Kind(
            "settings",
            None,
            "Answers with UNSUPPORTED_VERSION. Info of ApiVersions: newer clients ask older brokers so by design.",
            "`exchanges` (error)",
            "Nothing.",
            "k4_list_offsets_raw",
        ),
        "passing_error": Kind(
            "unknown",
            None,
            "Errors that clients meet as they start, move or wait their turn (MEMBER_ID_REQUIRED, "
            "COORDINATOR_NOT_AVAILABLE, CONCURRENT_TRANSACTIONS, ...). Low when one goes on for 30 s.",
            "`exchanges` (error, client_id)",
            "Nothing.",
            "base",
        ),
        "stale_leader": Kind(
            "unknown",
            "Nothing, if it ends: clients ask for metadata and go on; else see which brokers come and go.",
            "NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH. Info where only brokers were told so.",
            "`exchanges` (error, client_id)",
            "Why the leader moved.",
            "stories/leader_move",
        ),
        "missing_topic": Kind(
            "client",
            "See whether the topic was deleted or its name is wrong; or let brokers create it "
            "(auto.create.topics.enable).",
            "UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID. Info for less than ten answers that no Produce got.",
            "`exchanges` (error, client_id), `fetch_partitions` (error_code, topic)",
            "Whether the topic was deleted or never there, and which one, of APIs other than Fetch.",
            "k4_slow_and_throttled",
        ),
        "member_unknown": Kind(
            "client",
            "See whether its heartbeats or polls stopped: session.timeout.ms, max.poll.interval.ms.",
            "UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID and those of KIP-848: the group has gone on "
            "without the member. Info of LeaveGroup alone.",
            "`exchanges` (error, client_id)",
            "Why the member was late.",
            "rules/suspended",
        ),
        "offset_out_of_range": Kind(
            "client",
            "See what auto.offset.reset does then, and whether retention (retention.ms, retention.bytes) is shorter "
            "than the consumer's lag.",
            "OFFSET_OUT_OF_RANGE of a Fetch: records that the client wanted are gone, or the log was cut back.",
            "`exchanges` (error, client_id)",
            "Which of the two.",
            "k4_slow_and_throttled",
        ),
        "retriable_error": Kind(
            "broker",
            "Look at the brokers and replicas that the answers come from.",
            "Errors after which clients try again and that do not belong to starting or moving (NOT_ENOUGH_REPLICAS, "
            "REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE, ...).",
            "`exchanges` (error, client_id)",
            "Whether the client's next attempt got through.",
            "raw_errors",
        ),
        "records_refused": Kind(
            "client",
            "These records are lost unless the application handles the error; the error's name says what it must "
            "change.",
            "A Produce was answered with an error that clients do not retry (MESSAGE_TOO_LARGE, ...).",
            "`exchanges` (error, client_id)",
            "What the application did next. A producer may split a batch that is too large.",
            "k4_slow_and_throttled",
        ),
        "request_failed": Kind(
            "client",
            None,
            "Any other error of an API by which applications read and write.",
            "`exchanges` (error, client_id)",
            "What it means for the application.",
            "downconv_282",
        ),
        "request_refused": Kind(
            "client",
            None,
            "Any other error of an API that people, tools and brokers ask.",
            "`exchanges` (error, client_id)",
            "Whether anybody minded.",
            "k4_admin_sweep",
        ),
        "slow_followers": Kind(
            "follower",
            "Look at that follower: its disks, its load, its way to the leader (replica.lag.time.max.ms is how long it "
            "is waited for).",
            "Produce requests with acks=all that waited `--slow` (1 s) or more for followers. Medium from 10 s in all "
            "on.",
            "`produces` (replication_ms, waited_for, client_id)",
            "Which follower, where its own fetches are not in the capture.",
            "stories/slow_follower",
        ),
        "leader_moved": Kind(
            "unknown",
            "See why it moved (a broker that stopped, a reassignment, preferred leaders); clients that ask the old "
            "leader for long refresh their metadata late (metadata.max.age.ms).",
            "Messages told leaders of partitions that differ from those before, by a higher epoch; those from one "
            "broker to another within 5 s together. Low where a client asked the old one for 1 s or more. The "
            "controller's moves are those of `__cluster_metadata`.",
            "`leaders` (previous, leader, at), `exchanges` (error, client_id, broker: refusals of the old leader from "
            "5 s before to 5 s after)",
            "Why it moved.",
            "stories/leader_move",
        ),
        "rebalances": Kind(
            "client",
            None,
            "A classic group went from one generation to the next while members of both were seen. What set it off: a "
            "member that left, one that joined, one that is gone, or one that joined again. Low where a member waited "
            "for 10 s or more from its JoinGroup to the answer of its SyncGroup.",
            "`groups` (at, event, generation, member_id), `exchanges` (response_first_at of SyncGroup)",
            "Why a member left without a reason of its own, or vanished or which partitions a cooperative one kept.",
            "stories/slow_consumer",
        ),
        "share_locks_ran_out": Kind(
            "client",
            "Handle records faster, fewer at once (max.poll.records), renew their locks, or raise "
            "group.share.record.lock.duration.ms.",
            "A broker refused acknowledgements of a member of a share group.",
            "`share_sessions` (refused, lock_ms), `groups` (client_id of the member)",
            "Whether the lock had run out or the record was acknowledged before.",
            "stories/share_slow",
        ),
        "commit_per_record": Kind(
            "client",
            "Commit after a poll's records, or every few seconds (enable.auto.commit, auto.commit.interval.ms).",
            "A client of a group sent 100 commits or more, 20 a second or more, and they went on by 1.5 records a "
            "request or less.",
            "`offset_commits` (at, offset, exchange_id)",
            "Nothing.",
            "stories/slow_consumer",
        ),
        "commits_fall_behind": Kind(
            "client",
            "Look at what the consumer does with its records, and when it commits, or add instances to its group.",
            "What a group committed of a partition lay 1,000 records further behind its end than before, twice as far "
            "or more, at four of five steps.",
            "`offset_commits` (lag)",
            "Whether it reads further than it commits: see `growing_lag`.",
            "rules/lagging",
        ),
        "requests_cut_off": Kind(
            "unknown",
            None,
            "The connection ended, and nothing of the answer came. Info: a consumer that stops leaves its long poll "
            "so.",
            "`exchanges` (status), `connections` (end_reason)",
            "Whether the broker had worked on them.",
            "rules/tls",
        ),
        "login_cut_off": Kind(
            "security",
            "Look at the broker's log: some close the connection instead of saying why "
            "(connection.failed.authentication.delay.ms).",
            "The connection ended, and SaslHandshake or SaslAuthenticate had no answer.",
            "`exchanges` (status), `connections` (end_reason)",
            "Why.",
            "rules/login",
        ),
        "several_addresses": Kind(
            "client",
            None,
            "Kafka connections with one client id from two addresses or more.",
            "`connections` (client_id, client_ip)",
            "Whether they are several processes or one that moved.",
            "rules/addresses",
        ),
        "capture_cut_short": Kind(
            "capture",
            "Record whole packets (tcpdump -s 0).",
            "Packets are longer than what was kept of them.",
            "`capture_quality` (snapped_packets)",
            "Nothing.",
            "field_snap96",
        ),
        "capture_one_way": Kind(
            "capture",
            "Record on the client's or the broker's own host, without a filter on src or dst.",
            "Connections with two messages or more, all of them requests without answers or answers without requests.",
            "`exchanges` (status, connection_id)",
            "Nothing.",
            "field_to_broker",
        ),
        "capture_began_late": Kind(
            "capture",
            "Begin before the client connects, where its login, its fetch session or its transaction matters.",
            "Kafka connections whose opening was not captured.",
            "`connections` (start_seen)",
            "Nothing.",
            "field_midstream",
        ),
        "short_connections": Kind(
            "client",
            "Keep one producer or consumer per process instead of one per message; or see why it reconnects.",
            "One client opened 20 or more connections that ended within 2 s after 5 exchanges at most.",
            "`connections` (started_at, ended_at, exchanges, end_reason)",
            "Why it reconnects.",
            "raw_errors",
        ),
        "network_stall": Kind(
            "network",
            "Retransmissions: look for loss on the way. A closed window: the receiver does not read.",
            "A message took 200 ms or more from its first to its last byte on a connection with retransmissions or a "
            "closed window. Medium from 1 s in all on.",
            "`exchanges` (request_transfer_ms, response_transfer_ms), `connections` (retransmitted_bytes, "
            "zero_window_ms)",
            "Where on the way packets were lost.",
            "raw_zerowindow",
        ),
        "round_trip_rose": Kind(
            "network",
            "Look at the way between client and broker: routes, queues, a VPN or a proxy that came in between.",
            "The round trip was 4 ms or less and then, for most requests, 20 ms or more on two connections or "
            "more to a broker, "
            "proven by acknowledgements (`times.md`).",
            "`connections` (rtt_min_ms, rtt_ms, rtt_kind), `exchanges` (network_ms: when it rose)",
            "A rise below some 60 ms: acknowledgements may be held back for 40 ms. Which way, from one end alone.",
            "stories/net_delay_client",
            starts=True,
        ),
        "mostly_round_trip": Kind(
            "network",
            "Requests that wait for one another pay it each time: send more at once (batch.size, fetch.min.bytes, "
            "more in "
            "flight), or bring client and broker closer.",
            "A client's connections to a broker with a round trip of 20 ms or more; of the first 100 requests of each, "
            "20 or more, half of them at least, spent 20 ms and half their latency on the network.",
            "`connections` (rtt_ms, rtt_kind), `exchanges` (network_ms, latency_ms: of those requests)",
            "Which part of the way takes it. A round trip that nothing but a bound tells is left alone.",
            "stories/net_delay_client",
        ),
        "segments_lost": Kind(
            "network",
            "Look for what drops packets between the two: queues, duplex or offload settings, a full conntrack table.",
            "Five or more messages between a client and a broker, 1 % of their exchanges at least, waited for segments "
            "that were sent again and were needed. Medium from 1 s in all on.",
            "`exchanges` (request_resent_ms, response_resent_ms), `connections` (lost_segments, packets, exchanges)",
            "Where they were lost. What was sent again in vain counts among the segments only.",
            "rules/loss",
        ),
        "requests_given_up": Kind(
            "client",
            "Its request.timeout.ms was shorter than the answer took; look at why that took so long.",
            "Answers that came after the client had closed the connection, and what was open on the same connections. "
            "Info unless Produce requests were among them.",
            "`exchanges` (abandoned, status)",
            "Whether the client sent them again: see `batches_written_twice`.",
            "stories/slow_broker",
        ),
        "batches_written_twice": Kind(
            "client",
            "An idempotent producer (enable.idempotence) writes once what it sends again; see why the answer took "
            "longer than the client waits (request.timeout.ms).",
            "A Produce request that was answered after the client had closed, or never, and the same batch (topic, "
            "partition, checksum, size, records and their timestamps; no producer id) in one of the first 100 requests "
            "of another connection of that client later, answered without an error. Medium where a late answer says "
            "that the first was written too, else low.",
            "`record_batches` (crc, records, compressed_bytes, first_timestamp, max_timestamp), `exchanges` "
            "(abandoned, status, request_first_at, response_first_at)",
            "Whether a request without an answer was written: fetched batches with one crc at two offsets show it. "
            "Plain messages and batches without timestamps are not compared, nor what was sent again on a connection "
            "that was open for long.",
            "stories/slow_broker",
        ),
        "tiny_batches": Kind(
            "settings",
            "A linger.ms of some milliseconds and a batch.size that is not tiny put records together.",
            "A producer with an id sent 500 or more batches of one record (median), 100 or more a second.",
            "`producers` (base_sequence, last_sequence, sent_at), `producer_ids`",
            "Producers without idempotence have no sequence numbers, and are not seen.",
            "stories/tiny",
        ),
        "recompressed": Kind(
            "settings",
            "Set the topic's compression.type to producer, or the producers' to that of the topic: each batch costs "
            "the "
            "broker a decompression and a compression.",
            "Three or more batches of a topic that were read in another codec than that in which their producer sent "
            "them, of those compared: 20 producers' batches at most, at the first 20 sequence numbers divisible by 32 "
            "that were captured both ways.",
            "`record_batches` (codec, producer_id, producer_epoch, base_sequence, records)",
            "Producers without idempotence have no sequence numbers, and are not compared.",
            "stories/tiny",
        ),
        "converted_down": Kind(
            "client",
            "A newer client library reads records as they are stored; for this one the broker rewrites them.",
            "Records that one client got in a format before 2, and another in format 2, looked at where a batch's "
            "offset is divisible by 32.",
            "`record_batches` (magic, base_offset, last_offset), `fetches` (client_id)",
            "What it costs the broker, and how much was converted in all.",
            "downconv_282",
        ),
        "group_rebalances": Kind(
            "client",
            "See why members come and go (their logs; `groups` has each join); group.instance.id and the cooperative "
            "assignor make rebalances cheaper.",
            "A member was let into its group five times or more.",
            "`exchanges` (JoinGroup: request_first_at)",
            "What set each off.",
            "sweep_0110",
            starts=True,
        ),
        "member_left": Kind(
            "client",
            "A poll timeout: handle records faster, fewer at once (max.poll.records), or raise max.poll.interval.ms.",
            "LeaveGroup with the reason that the client itself sends (KIP-800). Info unless it was a timeout.",
            "`groups` (event, reason)",
            "Members that just vanish send none.",
            "stories/slow_consumer",
            starts=True,
        ),
        "member_thrown_out": Kind(
            "client",
            "See why it stood still (garbage collection, a suspended host); session.timeout.ms is what a group waits.",
            "A heartbeat or a commit was answered with ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH, "
            "and the last heartbeat, JoinGroup or SyncGroup of that connection was sent 6 s or more before it. "
            "Connections of which bytes are missing are left alone.",
            "`exchanges` (request_first_at, error), `groups` (group_id of the connection's requests)",
            "The session.timeout.ms that it agreed to, and why it was silent. Members that never come back are told by "
            "`rebalances`.",
            "rules/suspended",
            starts=True,
        ),
        "member_without_partitions": Kind(
            "unknown",
            None,
            "A member of a KIP-848 group was told an empty assignment and got partitions 1 s or more later. Low from "
            "10 s "
            "on.",
            "`groups` (at, assigned_partitions)",
            "Members of groups with more members than partitions never get any; they are not told.",
            "stories/kip848",
        ),
        "heartbeat_loop": Kind(
            "client",
            None,
            "A member sent 50 or more heartbeats within 50 ms of the one before.",
            "`exchanges` (request_first_at)",
            "Why.",
            "rules/heartbeats",
        ),
        "sessions_never_reused": Kind(
            "client",
            "Let it use incremental fetches: most clients of this kind send epoch 0 at every poll.",
            "Ten or more fetch sessions opened on a broker, and neither closed nor replaced, by a client that sent no "
            "incremental fetch.",
            "`fetches` (session_outcome, request_kind)",
            "Nothing.",
            "rules/sessions",
        ),
        "sessions_left_open": Kind(
            "client",
            "See that the client closes its sessions, or reconnects less.",
            "A client left 20 or more sessions open on a broker, half of those it opened.",
            "`fetches` (session_outcome, request_kind)",
            "Nothing.",
            "rules/sessions",
        ),
        "session_evictor": Kind(
            "client",
            "Raise max.incremental.fetch.session.cache.slots, or let this client open fewer sessions.",
            "Its new sessions account for others' lost ones (one whole session at least).",
            "`fetches` (session_outcome)",
            "Sessions of brokers or times that are not in the capture.",
            "k4_session_eviction",
            starts=True,
        ),
        "sessions_lost": Kind(
            "settings",
            "`kdissect sessions` shows who needs how many slots (max.incremental.fetch.session.cache.slots).",
            "Answers with FETCH_SESSION_ID_NOT_FOUND.",
            "`fetches` (session_outcome)",
            "Whether the session was evicted, or never known (a restarted broker, a wrong id).",
            "k4_session_eviction",
        ),
        "sessions_refused": Kind(
            "settings",
            "Raise max.incremental.fetch.session.cache.slots where it matters (followers and consumers of many "
            "partitions).",
            "Three or more requests for a session that were answered with session id 0.",
            "`fetches` (session_outcome)",
            "Whether the cache has no slots at all, or none free.",
            "k4_session_eviction",
        ),
        "session_slots": Kind(
            "settings",
            "Raise max.incremental.fetch.session.cache.slots.",
            "As many sessions at once as four fifths of Kafka's default slots.",
            "`fetch_sessions` (opened_at, closed_at)",
            "How many slots this broker really has.",
            "rules/slots",
        ),
        "session_epoch_errors": Kind(
            "client",
            None,
            "Answers with INVALID_FETCH_SESSION_EPOCH.",
            "`fetches` (session_outcome)",
            "Nothing.",
            "k4_fetch_sessions_raw",
        ),
        "session_savings": Kind(
            "unknown",
            None,
            "Incremental fetches were used.",
            "`fetch_sessions` (full_request_bytes_avoided, request_bytes)",
            "Nothing.",
            "base",
        ),
    }
)
"""By id."""


def page() -> str:
    """The page docs/findings.md, which says of every kind what it means."""
    lines = [INTRODUCTION]
    for name in sorted(KINDS):
        kind = KINDS[name]
        lines += [f"\n## {name}\n", kind.rule, ""]
        lines.append(f"- Cause: {kind.cause}{', unless it knows better' if kind.cause == 'unknown' else ''}.")
        if kind.starts:
            lines.append("- It may set others off: what follows it and speaks of the same is told as one incident.")
        if kind.advice:
            lines.append(f"- Advice: {kind.advice}")
        lines.append(f"- Its numbers come from {kind.reads}.")
        if kind.cannot != "Nothing.":
            lines.append(f"- What it cannot tell: {kind.cannot[0].lower()}{kind.cannot[1:]}")
        lines.append(f"- Example: `captures/{kind.example}`.")
    return "\n".join(lines) + "\n"


INTRODUCTION = """\
# Findings

Generated from the catalogue that the program uses (`kdissect/analysis/findings/catalogue.py`). A finding is a sentence
that a rule made of the tables, with its evidence: `table` and `filter` select the rows, `count` says how many they are.
`kdissect CAPTURE` shows what happened first, `kdissect timeline CAPTURE` prints all of the account, `--table findings`
the rows.

Severity goes by the harm done to clients. high: they fail, or lose seconds. medium: they lose time or work again and
again. low: worth knowing, little is lost. info: nothing is wrong. `cause` is whose fault it is, as far as the capture
can tell; `unknown` is said rather than guessed. `first_at` and `last_at` are when, and findings with the same
`incident` are one story: what set it off, and what followed. What no rule says may still have happened: a rule that
cannot be sure is silent.

Thresholds are constants with a reason beside the rules; `--slow` sets the one that people differ about."""
