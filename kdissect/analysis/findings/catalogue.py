"""Every kind of finding: whose fault it is, and what to do. Rules, and what they cannot tell: docs/findings.md."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

CLIENT, BROKER, BOTH, CONTROLLER = "client", "broker", "both", "controller"
"""Where a further capture would settle a cause: at the client's host, the broker's, both at once, or a controller's."""


class Kind(NamedTuple):
    """A kind of finding."""

    cause: str
    """client, network, broker, follower, settings, security, capture, unknown; a finding may know better."""
    advice: str | None = None
    """What to look at or change, one sentence."""
    starts: bool = False
    """It sets other things off."""
    settled_at: str | None = None
    """Its cause is likely, not sure: where a capture would settle it. None where the evidence proves the cause."""


_KINDS = {
    "network_silent": Kind(
        "network",
        "Look at the way between the two hosts at that moment: links, routes, firewalls, the host itself.",
        starts=True,
        settled_at=BOTH,
    ),
    "clients_paused_together": Kind(
        "client",
        "Look at that host and process at that moment: garbage collection log, CPU limits, suspension, swap.",
        starts=True,
    ),
    "broker_stopped": Kind(
        "broker",
        "See in that broker's log whether it was stopped, was killed, or shut itself down.",
        starts=True,
        settled_at=BROKER,
    ),
    "consumer_silent": Kind(
        "client",
        "Look at that process at that moment: garbage collection log, CPU limits, suspension; and at what its "
        "application did between two polls.",
        starts=True,
        settled_at=CLIENT,
    ),
    "slow_topic": Kind(
        "broker",
        "Look at the disk that holds the topic's partitions (iostat), and at flush.messages and flush.ms of the topic.",
        settled_at=BROKER,
    ),
    "metadata_in_vain": Kind(
        "client",
        "Compare the topic and partition that the producer writes to with the topic's partitions (kafka-topics).",
        settled_at=CLIENT,
    ),
    "broker_stalled": Kind(
        "broker",
        "Look at that broker's garbage collection log, its disks and its host (steal time, swap) at that moment.",
        starts=True,
        settled_at=BROKER,
    ),
    "slow_requests": Kind(
        "unknown",
        "Show the slowest with `kdissect show`; `kdissect latency` tells whether broker, network or followers took "
        "the time.",
        settled_at=BROKER,
    ),
    "slow_fetches": Kind(
        "broker",
        "Look at the broker's disks: data that is not in the page cache, or a busy host.",
        settled_at=BROKER,
    ),
    "connections_refused": Kind(
        "broker",
        "See whether the broker runs and listens there (listeners, advertised.listeners).",
        starts=True,
    ),
    "tls_to_plaintext": Kind(
        "settings",
        "Set the client's security.protocol to what that listener speaks (listener.security.protocol.map).",
    ),
    "plaintext_to_tls": Kind("settings", "Set the client's security.protocol to SSL or SASL_SSL."),
    "login_failed": Kind("security", "Check sasl.mechanism and the credentials (sasl.jaas.config) of that client."),
    "not_authorized": Kind(
        "security",
        "Grant that principal the permission it needs (kafka-acls), or stop the client from asking.",
    ),
    "throttled_client": Kind(
        "settings",
        "Raise its quota (producer_byte_rate, consumer_byte_rate, request_percentage) or let it send less.",
        starts=True,
    ),
    "client_paused": Kind(
        "client",
        "Look at what the application does with a poll's records; fewer at once (max.poll.records) or more instances "
        "help.",
        starts=True,
    ),
    "empty_polling": Kind(
        "settings",
        "Look at what ends the wait: fetch.max.wait.ms and fetch.min.bytes of that client.",
    ),
    "limited_by_max_bytes": Kind(
        "settings",
        "Nothing is wrong while it catches up; afterwards a larger fetch.max.bytes needs fewer fetches.",
    ),
    "limited_by_partition_max_bytes": Kind(
        "settings",
        "Nothing is wrong while it catches up; afterwards a larger max.partition.fetch.bytes needs fewer fetches.",
    ),
    "growing_lag": Kind(
        "client", "Look at what the consumer does with its records, or add instances to its group.", settled_at=CLIENT
    ),
    "held_back_by_transaction": Kind(
        "client",
        "Look at the producer of that transaction: why it does not commit; transaction.timeout.ms bounds it.",
        starts=True,
    ),
    "producer_fenced": Kind("client", "See that only one instance runs with that transactional.id.", starts=True),
    "transaction_timed_out": Kind(
        "client",
        "Commit sooner, or raise the producer's transaction.timeout.ms (up to transaction.max.timeout.ms).",
        starts=True,
    ),
    "outdated_producer_epoch": Kind("client", "See that only one instance runs with that transactional.id."),
    "batches_sent_again": Kind(
        "unknown",
        "Nothing is written twice by an idempotent producer; look at why the first answer did not count.",
        settled_at=CLIENT,
    ),
    "unsupported_version": Kind("settings"),
    "passing_error": Kind("unknown"),
    "stale_leader": Kind(
        "unknown",
        "Nothing, if it ends: clients ask for metadata and go on; else see which brokers come and go.",
    ),
    "missing_topic": Kind(
        "client",
        "See whether the topic was deleted or its name is wrong; or let brokers create it (auto.create.topics.enable).",
    ),
    "member_unknown": Kind(
        "client",
        "See whether its heartbeats or polls stopped: session.timeout.ms, max.poll.interval.ms.",
    ),
    "offset_out_of_range": Kind(
        "client",
        "See what auto.offset.reset does then, and whether retention (retention.ms, retention.bytes) is shorter than "
        "the consumer's lag.",
    ),
    "retriable_error": Kind("broker", "Look at the brokers and replicas that the answers come from."),
    "records_refused": Kind(
        "client",
        "These records are lost unless the application handles the error; the error's name says what it must change.",
    ),
    "request_failed": Kind("client"),
    "request_refused": Kind("client"),
    "slow_followers": Kind(
        "follower",
        "Look at that follower: its disks, its load, its way to the leader (replica.lag.time.max.ms is how long it "
        "is waited for).",
    ),
    "leader_moved": Kind(
        "unknown",
        "See why it moved (a broker that stopped, a reassignment, preferred leaders); clients that ask the old "
        "leader for long refresh their metadata late (metadata.max.age.ms).",
        settled_at=CONTROLLER,
    ),
    "rebalances": Kind("client"),
    "share_locks_ran_out": Kind(
        "client",
        "Handle records faster, fewer at once (max.poll.records), renew their locks, or raise "
        "group.share.record.lock.duration.ms.",
    ),
    "commit_per_record": Kind(
        "client",
        "Commit after a poll's records, or every few seconds (enable.auto.commit, auto.commit.interval.ms).",
    ),
    "commits_fall_behind": Kind(
        "client",
        "Look at what the consumer does with its records, and when it commits, or add instances to its group.",
    ),
    "requests_cut_off": Kind("unknown", settled_at=BROKER),
    "login_cut_off": Kind(
        "security",
        "Look at the broker's log: some close the connection instead of saying why "
        "(connection.failed.authentication.delay.ms).",
    ),
    "several_addresses": Kind("client"),
    "capture_cut_short": Kind("capture", "Record whole packets (tcpdump -s 0)."),
    "capture_without_acks": Kind(
        "capture", "Record, and export, whole connections: TCP's acknowledgements say what the network took."
    ),
    "capture_one_way": Kind(
        "capture",
        "Record on the client's or the broker's own host, without a filter on src or dst.",
    ),
    "capture_began_late": Kind(
        "capture",
        "Begin before the client connects, where its login, its fetch session or its transaction matters.",
    ),
    "short_connections": Kind(
        "client",
        "Keep one producer or consumer per process instead of one per message; or see why it reconnects.",
    ),
    "network_stall": Kind(
        "network",
        "Look for loss on the way: captures of both ends, given together, tell where.",
        settled_at=BOTH,
    ),
    "connections_reset": Kind(
        "network",
        "Look at what stands between clients and brokers (a firewall, a load balancer, NAT: restarts, full tables) and "
        "at the hosts.",
        starts=True,
        settled_at=BOTH,
    ),
    "window_closed": Kind(
        "client",
        "See what the receiver does instead of reading its socket: a blocked thread or event loop, a pause, a host out "
        "of memory.",
        starts=True,
    ),
    "round_trip_rose": Kind(
        "network",
        "Look at the way between client and broker: routes, queues, a VPN or a proxy that came in between.",
        starts=True,
    ),
    "mostly_round_trip": Kind(
        "network",
        "Requests that wait for one another pay it each time: send more at once (batch.size, fetch.min.bytes, more "
        "in flight), or bring client and broker closer.",
    ),
    "segments_lost": Kind(
        "network",
        "Look for what drops packets between the two: queues, duplex or offload settings, a full conntrack table.",
    ),
    "requests_given_up": Kind(
        "client",
        "Its request.timeout.ms was shorter than the answer took; look at why that took so long.",
        settled_at=CLIENT,
    ),
    "batches_written_twice": Kind(
        "client",
        "An idempotent producer (enable.idempotence) writes once what it sends again; see why the answer took longer "
        "than the client waits (request.timeout.ms).",
    ),
    "tiny_batches": Kind(
        "settings",
        "A linger.ms of some milliseconds and a batch.size that is not tiny put records together.",
    ),
    "recompressed": Kind(
        "settings",
        "Set the topic's compression.type to producer, or the producers' to that of the topic: each batch costs the "
        "broker a decompression and a compression.",
    ),
    "converted_down": Kind(
        "client",
        "A newer client library reads records as they are stored; for this one the broker rewrites them.",
    ),
    "group_rebalances": Kind(
        "client",
        "See why members come and go (their logs; `groups` has each join); group.instance.id and the cooperative "
        "assignor make rebalances cheaper.",
        starts=True,
        settled_at=CLIENT,
    ),
    "member_left": Kind(
        "client",
        "A poll timeout: handle records faster, fewer at once (max.poll.records), or raise max.poll.interval.ms.",
        starts=True,
        settled_at=CLIENT,
    ),
    "member_thrown_out": Kind(
        "client",
        "See why it stood still (garbage collection, a suspended host); session.timeout.ms is what a group waits.",
        starts=True,
    ),
    "member_without_partitions": Kind("unknown"),
    "heartbeat_loop": Kind("client"),
    "sessions_never_reused": Kind(
        "client",
        "Let it use incremental fetches: most clients of this kind send epoch 0 at every poll.",
    ),
    "sessions_left_open": Kind("client", "See that the client closes its sessions, or reconnects less."),
    "session_evictor": Kind(
        "client",
        "Raise max.incremental.fetch.session.cache.slots, or let this client open fewer sessions.",
        starts=True,
    ),
    "sessions_lost": Kind(
        "settings",
        "`kdissect sessions` shows who needs how many slots (max.incremental.fetch.session.cache.slots).",
    ),
    "sessions_refused": Kind(
        "settings",
        "Raise max.incremental.fetch.session.cache.slots where it matters (followers and consumers of many "
        "partitions).",
    ),
    "session_slots": Kind("settings", "Raise max.incremental.fetch.session.cache.slots."),
    "session_epoch_errors": Kind("client"),
    "session_savings": Kind("unknown"),
}
KINDS: Mapping[str, Kind] = MappingProxyType(_KINDS)
"""By id."""
