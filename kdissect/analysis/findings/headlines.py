"""A finding in a few words: subject, verb, how much or how long. Every kind has a template; a finder that knows names
which the fields of a finding do not hold writes its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kdissect.analysis.findings.evidence import Finding, duration, many
from kdissect.arrays.arrow import MILLI

HEADLINES: Mapping[str, str] = MappingProxyType(
    {
        "network_silent": "the network carried nothing for {lasted}",
        "clients_paused_together": "clients of one host sent nothing for {lasted}",
        "slow_topic": "broker {broker} writes topic {topic} slower than other topics",
        "metadata_in_vain": "client {client} asked for metadata {times} and wrote nothing meanwhile",
        "broker_stalled": "broker {broker} answered nothing for {lasted}",
        "broker_stopped": "broker {broker} went away",
        "consumer_silent": "client {client} asked for nothing for {lasted}",
        "slow_requests": "broker {broker} answered {requests} late",
        "slow_fetches": "broker {broker} answered {fetches} late",
        "connections_refused": "broker {broker} refused {connections} for {lasted}",
        "tls_to_plaintext": "a client speaks TLS to a plaintext port of broker {broker}",
        "plaintext_to_tls": "a client speaks plaintext to a TLS port of broker {broker}",
        "login_failed": "client {client} was refused {times} at login",
        "not_authorized": "client {client} was refused {times}: no permission",
        "throttled_client": "client {client} was throttled {times} by a quota",
        "client_paused": "client {client} stopped asking for records for {lasted}",
        "empty_polling": "client {client} polls broker {broker} in a tight loop",
        "limited_by_max_bytes": "client {client} got {times} as much as its fetch.max.bytes allows",
        "limited_by_partition_max_bytes": "fetches of {place} reached max.partition.fetch.bytes {times}",
        "growing_lag": "client {client} falls behind on {place}",
        "held_back_by_transaction": "a transaction of client {client} held readers of {place} back for {lasted}",
        "producer_fenced": "client {client} was fenced: it used an outdated producer epoch ({transaction})",
        "transaction_timed_out": "the broker aborted {transaction} of client {client}: timeout",
        "outdated_producer_epoch": "a producer wrote with an outdated epoch",
        "batches_sent_again": "a producer sent {batches} again",
        "unsupported_version": "client {client} asked {times} for a version that the broker lacks",
        "passing_error": "{answers} with an error that passes",
        "stale_leader": "{answers} from a broker that no longer leads",
        "missing_topic": "topic {topic} does not exist: {answers}",
        "member_unknown": "a group no longer knew client {client}: {answers}",
        "offset_out_of_range": "client {client} asked for offsets that do not exist: {answers}",
        "retriable_error": "{answers} with an error that clients retry",
        "records_refused": "the broker refused records of client {client}: {answers}",
        "request_failed": "requests of client {client} failed: {answers}",
        "request_refused": "requests of client {client} were refused: {answers}",
        "slow_followers": "client {client} waited for followers of broker {broker} in {requests}",
        "leader_moved": "leaders moved away from broker {broker}: {partitions}",
        "rebalances": "group {group} rebalanced",
        "share_locks_ran_out": "client {client} of share group {group} held records longer than their lock",
        "commit_per_record": "client {client} of group {group} commits after each record",
        "commits_fall_behind": "commits of group {group} fall behind on {place}",
        "requests_cut_off": "{requests} of client {client} to broker {broker} got no answer before the end",
        "login_cut_off": "broker {broker} closed during a login of client {client}",
        "several_addresses": "client id {client} comes from several addresses",
        "capture_cut_short": "the capture cut packets short",
        "capture_without_acks": "the capture lacks TCP's bare acknowledgements",
        "capture_one_way": "the capture has one direction only of {requests}",
        "capture_began_late": "{connections} began before the capture",
        "short_connections": "client {client} opened {connections} that lived at most 2 s",
        "network_stall": "the network held {messages} of one connection up, with retransmissions",
        "connections_reset": "{connections} to broker {broker} were reset together",
        "window_closed": "a receiver of client {client} or broker {broker} stopped reading",
        "round_trip_rose": "the round trip to broker {broker} rose",
        "mostly_round_trip": "the round trip is most of what client {client} waits for at broker {broker}",
        "segments_lost": "the network lost segments between client {client} and broker {broker}",
        "requests_given_up": "client {client} gave up {requests} to broker {broker}",
        "batches_written_twice": "client {client} wrote batches of topic {topic} again",
        "tiny_batches": "client {client} sends tiny batches: {batches}",
        "recompressed": "the broker compresses batches of topic {topic} again",
        "converted_down": "the broker converts records of topic {topic} for client {client}",
        "group_rebalances": "client {client} joined its group {times}",
        "member_left": "client {client} left group {group}",
        "member_thrown_out": "group {group} threw client {client} out",
        "member_without_partitions": "client {client} of group {group} had no partitions",
        "heartbeat_loop": "client {client} sends heartbeats in a loop",
        "sessions_never_reused": "client {client} never reuses its fetch sessions on broker {broker}",
        "sessions_left_open": "client {client} opens fetch sessions faster than it closes them",
        "session_evictor": "sessions of client {client} push out those of others on broker {broker}",
        "sessions_lost": "broker {broker} did not know fetch sessions {times}",
        "sessions_refused": "broker {broker} refused {fetches} a session",
        "session_slots": "broker {broker} needs more slots for fetch sessions",
        "session_epoch_errors": "client {client} used a wrong session epoch {times}",
        "session_savings": "fetch sessions made requests smaller",
    }
)
"""By kind. Names in braces: who (client, broker, group, topic, place: topic-partition, transaction), the time from the
first to the last row of evidence (lasted), and its rows with their noun (times, requests, fetches, ...)."""
COUNTED = {
    "times": ("time", None), "requests": ("request", None), "fetches": ("Fetch", "Fetches"),
    "connections": ("connection", None), "batches": ("batch", "batches"), "answers": ("answer", None),
    "messages": ("message", None), "partitions": ("partition", None),
}  # fmt: skip
"""What rows of evidence are counted as."""


def headline_of(finding: Finding) -> str:
    """The finding in a few words, without a full stop; a name that is not known is `(none)`."""
    if finding.headline is not None:
        return finding.headline
    template = HEADLINES.get(finding.id)
    if template is None:
        return finding.id.replace("_", " ")
    return template.format_map(_fields(finding))


def _fields(finding: Finding) -> dict[str, str]:
    topic = finding.topic or "(several)"
    first, last = finding.first_at, finding.last_at
    return {
        "client": _name(finding.client_id),
        "broker": _name(finding.broker),
        "group": _name(finding.group_id),
        "topic": topic,
        "place": topic if finding.partition is None else f"{topic}-{finding.partition}",
        "transaction": finding.transactional_id or "its transactional id",
        "lasted": "a while" if first is None or last is None else duration((last - first) / MILLI),
        **{name: many(finding.count, one, more) for name, (one, more) in COUNTED.items()},
    }


def _name(value: str | None) -> str:
    return "(none)" if value is None else value or '""'
