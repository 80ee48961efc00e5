"""Findings about groups and their members."""

from __future__ import annotations

from kdissect.analysis.findings.catalogue.kind import CLIENT, Kind

KINDS = {
    "group_rebalances": Kind(
        cause="client",
        rule=(
            "A member was let into its group five times or more. Where other members set off more than half of the "
            "group's rebalances, by joining, by leaving or without a word, it is about them."
        ),
        headline={
            "own": "client {member} joined its group {joins:times}",
            "others": "{by:?client|clients} {by:list} set off {theirs:n} of the {each:n} rebalances of group {group}",
        },
        sentence={
            "own": (
                "{member:Who} joined its group {joins:times} within {took:ms}: the group rebalances again and again."
            ),
            "others": (
                "{by:?Client|Clients} {by:list} came and went in group {group} and set off {theirs:n} of its "
                "{each:#rebalance}. {member:Who} had to join {joins:times} within {took:ms}."
            ),
        },
        advice=(
            "See why members come and go (their logs; `groups` has each join); group.instance.id and the "
            "cooperative assignor make rebalances cheaper."
        ),
        needs="`exchanges` (JoinGroup: request_first_at), `groups` (event, generation, member_id, client_id)",
        cannot_tell="why a member joins again by itself.",
        example="sweep_0110",
        starts=True,
        settled_at=CLIENT,
    ),
    "rebalances": Kind(
        cause="client",
        rule=(
            "A classic group went from one generation to the next while members of both were seen. Its reason is a "
            "member that left, one that joined, one that is gone, or one that joined again. Low where a member "
            "waited for 10 s or more from its JoinGroup to the answer of its SyncGroup."
        ),
        headline="group {group} rebalanced {each:times}",
        sentence=(
            "Group {group} rebalanced {each:times} ({each:list rebalance}). A member waited for its partitions for "
            "{longest:ms} at most."
        ),
        parts={
            "rebalance": (
                "{at:clock} by [{left:list} leaving][{joined:list} joining][{gone:list} gone without a "
                "word][{again:list} joining again]"
            ),
        },
        needs="`groups` (at, event, generation, member_id), `exchanges` (response_first_at of SyncGroup)",
        cannot_tell=(
            "why a member left without a reason of its own or vanished, or which partitions a cooperative one kept."
        ),
        example="stories/slow_consumer",
    ),
    "member_left": Kind(
        cause="client",
        rule=(
            "LeaveGroup with the reason that the client itself sends (KIP-800). Info unless it was a timeout. Or "
            "LeaveGroup without a reason, of a member whose connection to the coordinator still had packets 3 s later "
            "or more, and that did not join again meanwhile: clients that end close it at once."
        ),
        headline={"reason": "client {client} left group {group}", "stayed": "client {client} left group {group}"},
        sentence={
            "reason": (
                "{client:who} left group {group} {leaves:times} ([{when:list instant}|when is unknown]), in its own "
                'words: "{reason}"'
            ),
            "stayed": (
                "{client:who} left group {group} {leaves:times} ({when:list instant}), kept its connection, and did "
                "not join again for 3 s or more. Its application did not poll within max.poll.interval.ms, or it "
                "unsubscribed."
            ),
        },
        parts={
            "instant": "{it:clock}",
        },
        advice=(
            "A poll timeout: handle records faster, fewer at once (max.poll.records), or raise max.poll.interval.ms."
        ),
        needs="`groups` (event, reason), `connections` (ended_at)",
        cannot_tell="members that just vanish send none, nor those whose connection has no packet any more.",
        example="stories/slow_consumer",
        starts=True,
        settled_at=CLIENT,
    ),
    "member_thrown_out": Kind(
        cause="client",
        rule=(
            "A heartbeat or a commit was answered with ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or "
            "FENCED_MEMBER_EPOCH. The last heartbeat, JoinGroup or SyncGroup of that connection was sent 6 s or "
            "more before it. Connections with missing bytes are left alone."
        ),
        headline="[group {group}|a group] threw client {client} out",
        sentence=(
            "{client:who} was thrown out of [group {group}|its group]: it sent no heartbeat for {lasted:ms} from "
            "{first:clock} on, and got {error} then."
        ),
        advice=(
            "See why it stood still (garbage collection, a suspended host); session.timeout.ms is what a group waits."
        ),
        needs="`exchanges` (request_first_at, error), `groups` (group_id of the connection's requests)",
        cannot_tell=(
            "the session.timeout.ms that it agreed to, and why it was silent. `rebalances` reports members that "
            "never come back."
        ),
        example="rules/suspended",
        starts=True,
    ),
    "member_without_partitions": Kind(
        cause="unknown",
        rule=(
            "A member of a KIP-848 group got an empty assignment and got partitions 1 s or more later. Low from 10 "
            "s on."
        ),
        headline="client {client} of group {group} had no partitions",
        sentence=(
            "{client:who} in group {group} had no partitions for {total:ms} (from {first:clock} on): others had "
            "not given them up yet."
        ),
        needs="`groups` (at, assigned_partitions)",
        cannot_tell=(
            "whether a member that never gets any partition waits: groups with more members than partitions have some."
        ),
        example="stories/kip848",
    ),
    "heartbeat_loop": Kind(
        cause="client",
        rule="A member sent 50 or more heartbeats within 50 ms of the one before.",
        headline="client {client} sends heartbeats in a loop",
        sentence="{client:who} sends {api} in a loop: {beats:times} less than {gap:ms} after the one before it.",
        needs="`exchanges` (request_first_at)",
        cannot_tell="why.",
        example="rules/heartbeats",
    ),
    "share_locks_ran_out": Kind(
        cause="client",
        rule="A broker refused acknowledgements of a member of a share group.",
        headline="client {client} of share group {group} held records longer than their lock",
        sentence=(
            "[{client:who}|Member {member}] of share group {group} held {records:#record} until the broker refused "
            "to take their acknowledgement. Their lock had run out[ (the broker keeps them for {lock:ms})], or "
            "they were acknowledged before. They are delivered again, or were."
        ),
        advice=(
            "Handle records faster, fewer at once (max.poll.records), renew their locks, or raise "
            "group.share.record.lock.duration.ms."
        ),
        needs="`share_sessions` (refused, lock_ms), `groups` (client_id of the member)",
        cannot_tell="whether the lock had run out or the record was acknowledged before.",
        example="stories/share_slow",
    ),
}
"""By id."""
