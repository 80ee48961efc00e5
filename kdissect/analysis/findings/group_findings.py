"""Findings about members of groups: those that join again and again, those that heartbeat in a loop."""

from __future__ import annotations

import numpy as np

from kdissect.analysis.findings.evidence import MEDIUM, Finding, Tables, both, duration, equals, finding, get, many, who
from kdissect.analysis.grouping import group, most_first
from kdissect.arrays.arrow import MILLI, NULL_TIME, ints, times

JOIN_GROUP = 11
REJOINS = 5
"""Times that one member (a member keeps one connection to its coordinator) was let into its group: its own start, and
a few others that come and go, take fewer."""
HEARTBEATS = {"Heartbeat": 12, "ConsumerGroupHeartbeat": 68, "ShareGroupHeartbeat": 76, "StreamsGroupHeartbeat": 88}
LOOKED_AT = (JOIN_GROUP, *HEARTBEATS.values())
"""Keys of the APIs of which the finders look at every exchange."""
LOOP_MS = 50.0
"""A heartbeat this soon after the one before it on its connection: Kafka's own intervals are seconds, and a member
sends one at once only where its assignment or subscription changes."""
LOOP_COUNT = 50
"""Of them on one connection, what changes of assignment do not explain."""


def rejoins(tables: Tables) -> list[Finding]:
    """Members of classic groups that join again and again: each time the whole group stops to rebalance."""
    exchanges = get(tables, "exchanges")
    joined = (ints(exchanges, "api_key") == JOIN_GROUP) & (ints(exchanges, "error_code", -1) == 0)
    rows = np.flatnonzero(joined & (times(exchanges, "request_first_at") != NULL_TIME))
    if len(rows) < REJOINS:
        return []
    joins = exchanges.take(rows)
    at = times(joins, "request_first_at")
    members, clients = group(joins, ["connection_id", "client_id"]), group(joins, ["client_id"])
    often = (members.count() >= REJOINS)[members.code]
    counts = clients.count(often)
    found = []
    for code in most_first(counts):
        client = clients.keys["client_id"][code].as_py()
        mine = often & (clients.code == code)
        most = int(members.count(mine).max())
        text = (
            f"{who(client)} joined its group {many(most, 'time')} within "
            f"{duration(float(at[mine].max() - at[mine].min()) / MILLI)}: the group rebalances again and again."
        )
        condition = both(equals("client_id", client), "api = 'JoinGroup' and error_code = 0")
        found += finding(tables, "group_rebalances", MEDIUM, text, "exchanges", condition)
    return found


def heartbeat_loops(tables: Tables) -> list[Finding]:
    """Members that send heartbeats without a pause."""
    exchanges = get(tables, "exchanges")
    beat = np.isin(ints(exchanges, "api_key"), list(HEARTBEATS.values()))
    rows = np.flatnonzero(beat)
    if len(rows) < LOOP_COUNT:
        return []
    beats = exchanges.take(rows)
    groups = group(beats, ["connection_id", "client_id", "api"])
    at = times(beats, "request_first_at")
    order = np.lexsort((at, groups.code))
    same = np.diff(groups.code[order]) == 0
    quick = np.zeros(len(rows), bool)
    quick[order[1:]] = same & (np.diff(at[order]) <= LOOP_MS * MILLI)
    counts = groups.count(quick)
    found = []
    for code in most_first(counts, LOOP_COUNT):
        client, connection, api = (groups.keys[name][code].as_py() for name in ("client_id", "connection_id", "api"))
        text = (
            f"{who(client)} sends {api} in a loop: {many(int(counts[code]), 'time')} less than {duration(LOOP_MS)} "
            f"after the one before it."
        )
        condition = both(equals("connection_id", connection), equals("api", api))
        found += finding(tables, "heartbeat_loop", MEDIUM, text, "exchanges", condition)
    return found


FINDERS = (rejoins, heartbeat_loops)
