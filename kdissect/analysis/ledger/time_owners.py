"""Owners of time, by what evidence an interval is theirs, and who is first where several lie over an instant.

A client's data lane (Fetch, Produce, ShareFetch) speaks before its background lane (OffsetCommit, Heartbeat,
Metadata...): a commit during a long poll does not outrank it. Within a lane the order is broker (beyond the agreed),
replication, transaction, network, throttled, agreed, unknown. Which of several requests in flight an instant goes to is
this order and no more: where one request is on the wire while another one is served, the broker has it.
"""

from __future__ import annotations

from typing import NamedTuple

OWNERS = (
    "own", "idle", "agreed", "throttled", "network", "replication", "transaction", "broker", "silent", "gone",
    "unknown",
)  # fmt: skip
"""Values of `owner`."""


class Label(NamedTuple):
    """What a row of the ledger says of an interval."""

    owner: str
    evidence: str


NETWORK_KINDS = ("both_ends", "handshake", "ack", "timestamps", "proven", "resent", "silence", "bound")
"""Values of `network_kind`, the surest first; each is the evidence of its interval."""
UNACKNOWLEDGED = ("silence", "resent")
"""Values of `network_kind` for time in which sent bytes were not acknowledged, or were sent again: it lies before the
broker had the request."""
GONE_MS = 1000.0
"""Time without any acknowledgement from a host: retransmission timers start at 200 ms."""
STALL = Label("broker", "stall")
SERVED = Label("broker", "remainder")
UNREAD_REQUEST = Label("broker", "closed_window")
FOLLOWERS = Label("replication", "follower_fetches")
COORDINATED = Label("transaction", "coordinator")
TRANSFER = Label("network", "transfer")
UNREAD_ANSWER = Label("own", "closed_window")
THROTTLE = Label("throttled", "throttle_time")
LONG_POLL = Label("agreed", "max_wait")
GROUP = Label("agreed", "group")
UNMEASURED = Label("unknown", "no_acknowledgement")
UNANSWERED = Label("unknown", "no_answer")
QUEUED = Label("unknown", "queued")
GONE = Label("gone", "no_connection")
HELD = Label("own", "records_held")
SILENT = Label("silent", "no_request")
IDLE = Label("idle", "nothing_asked")

_LANE = (
    STALL, SERVED, UNREAD_REQUEST, FOLLOWERS, COORDINATED, *(Label("network", kind) for kind in NETWORK_KINDS),
    TRANSFER, UNREAD_ANSWER, THROTTLE, LONG_POLL, GROUP, UNMEASURED,
)  # fmt: skip
LANE = len(_LANE)
"""Ranks of a lane: the background lane's follow the data lane's."""
RANKED = (*_LANE, *_LANE, UNANSWERED, QUEUED, GONE, HELD, SILENT, IDLE)
"""Label of each rank; at an instant the span of the lowest rank owns it."""
LABELS = tuple(dict.fromkeys(RANKED))
"""Each label once."""


def rank_of(label: Label, background: bool = False) -> int:
    """The rank of a label, of one of a lane in the data lane or in the background one."""
    return RANKED.index(label) + (LANE if background and label in _LANE else 0)


EVIDENCE = {
    **dict.fromkeys(NETWORK_KINDS, "how the network's time was measured, as in `network_kind`"),
    "transfer": "bytes of a message kept arriving",
    "remainder": "what is left of the time until the answer without all that is measured",
    "stall": "the broker answered nobody though requests on two connections were due",
    "closed_window": "the receiver's window was closed",
    "follower_fetches": "followers' fetches",
    "coordinator": "a request about a transaction was at the transaction coordinator",
    "throttle_time": "a response said so with throttle_time_ms",
    "max_wait": "the Fetch asked to wait",
    "group": "JoinGroup and SyncGroup wait for the group",
    "no_acknowledgement": "no acknowledgement separates the network from the broker",
    "no_answer": "the request was never answered, or not captured whole",
    "queued": "the request lay behind its predecessor",
    "no_connection": "none of its connections was open",
    "records_held": "a Fetch or ShareFetch was answered with records, and the next one was not sent yet",
    "no_request": "the process sent neither Fetch, Produce nor Heartbeat for three times as long as usual",
    "nothing_asked": "no request was in flight",
}
"""What each value of `evidence` says."""
