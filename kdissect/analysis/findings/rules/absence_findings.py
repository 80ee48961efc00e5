"""Findings about one process that was away: a consumer that stopped asking, a broker whose connections all ended."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.rules.access_findings import refused_connections
from kdissect.analysis.findings.rules.reset_findings import split_strokes
from kdissect.analysis.findings.rules.silence_findings import (
    OF_SILENCES,
    Silence,
    first_and_last_of_clients,
    silences,
)
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, ints, times

STOPPED_MS = 2000.0
"""Silence of a consumer that is reported: several polls with the usual fetch.max.wait.ms of 500."""
TOGETHER = 0.7
"""Share of the longer of two silences in which both clients were silent, for one reason to explain both."""
FETCHES = 20
"""Fetches of a client before its rhythm is known."""
RESUMED = 5
"""Fetches after the silence: a client that only closes then had ended its work."""
RHYTHM = 8
"""The silence is this many times as long as any other wait of the client between two requests, at least: a consumer
whose application is slow now and then has other long waits."""
LEAST_RTO_MS = 200.0
"""The shortest retransmission timer of Linux; each further one is twice as long."""
LEAST_MESSAGE = 16
"""Bytes of the shortest messages. Tail loss probes, which busy hosts send without any loss, often have fewer."""
STROKE_MS = 200.0
"""From the first to the last end of a broker's connections: a process that stops ends them all at once."""
CLIENTS = 2
"""Clients whose connections ended: those of one may be its own decision."""
AWAY_MS = 2000.0
"""For so long nobody was served at the broker's port: twice reconnect.backoff.max.ms, 1 s by default."""
IDLE_MS = 60_000.0
"""One of the connections was used within this time: brokers and clients close idle ones after nine minutes and more
(connections.max.idle.ms)."""
MOST_NAMED = 20
"""Connections that a filter names one by one."""


@finder(exchanges=OF_SILENCES, fetches=EVERY_ROW, connections=EVERY_ROW)
def consumer_silent(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Consumers that fetched steadily, then sent nothing on any connection, and went on, each alone.

    No answer was due to them, their connections stayed open, and segments were not sent again and again: the host of a
    process that stands still acknowledges. Producers are left alone: one without anything to send looks
    the same.
    """
    exchanges = ev.get(tables, "exchanges")
    every = silences(exchanges)
    alone = [one for one in every if one.end - one.begin >= STOPPED_MS * MILLI and not _in_company(one, every)]
    if not alone:
        return []
    fetches, connections = ev.get(tables, "fetches"), ev.get(tables, "connections")
    found = []
    for one in alone:
        if not _reads_steadily(fetches, one) or not _stayed(connections, one) or _sent_again(connections, one):
            continue
        condition = ev.both(
            ev.equals("client_id", one.client),
            f"request_first_at in ({ev.instant(one.asked)}, {ev.instant(one.end)})",
        )
        found += ev.finding(
            tables, "consumer_silent", ev.MEDIUM, "exchanges", condition, client_id=one.client, first_at=one.begin,
            last_at=one.end,
        )  # fmt: skip
    return found


def _in_company(one: Silence, every: list[Silence]) -> bool:
    """Whether another client was silent for much the same time: then the reason may be a common one."""
    for other in every:
        shared = min(one.end, other.end) - max(one.begin, other.begin)
        longest = max(one.end - one.begin, other.end - other.begin)
        if other.client != one.client and shared >= TOGETHER * longest:
            return True
    return False


def _reads_steadily(fetches: pa.Table, one: Silence) -> bool:
    """Whether the client sent FETCHES fetches, RESUMED of them behind the silence, and other waits between two of them
    were short."""
    mine = ev.equal(fetches, "client_id", one.client) & (ints(fetches, "is_follower", 0) == 0)
    asked = np.sort(times(fetches, "requested_at")[mine])
    before = int(np.searchsorted(asked, one.begin, side="right"))
    if len(asked) < FETCHES or before == 0 or len(asked) - before < RESUMED:
        return False
    waits = np.delete(np.diff(asked), before - 1)
    return int(waits.max()) * RHYTHM <= one.end - one.begin


def _stayed(connections: pa.Table, one: Silence) -> bool:
    """Whether a connection of the client was open all the time, and none ended or began meanwhile."""
    mine = ev.equal(connections, "client_id", one.client)
    started, ended = times(connections, "started_at"), times(connections, "ended_at")
    stayed = mine & (started <= one.begin) & (ended >= one.end)
    inside = mine & (((started > one.begin) & (started < one.end)) | ((ended > one.begin) & (ended < one.end)))
    return bool(stayed.any()) and not bool(inside.any())


def _sent_again(connections: pa.Table, one: Silence) -> bool:
    """Whether a connection of the client has as many copies of segments as retransmission timers send in that time: a
    host whose process stands still acknowledges, one behind a dead network does not (RFC 6298)."""
    copies = math.floor(math.log2((one.end - one.begin) / (LEAST_RTO_MS * MILLI))) + 1
    mine = ev.equal(connections, "client_id", one.client) & (times(connections, "ended_at") >= one.begin)
    many = mine & (ints(connections, "lost_segments", 0) >= copies)
    return bool((ints(connections, "retransmitted_bytes", 0)[many] >= copies * LEAST_MESSAGE).any())


@finder(exchanges=first_and_last_of_clients, connections=EVERY_ROW)
def broker_stopped(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Brokers all of whose connections ended at one instant, and that served no client for a while, though their
    clients went on with other brokers.

    Clients that stop by themselves do not go on elsewhere, and a device that cuts connections leaves a broker that
    serves the next ones. Ports that refused a connection meanwhile are left to `connections_refused`.
    """
    connections = ev.get(tables, "connections")
    used = (ints(connections, "is_kafka", 0) > 0) & (ints(connections, "exchanges", 0) > 0)
    started, ended = times(connections, "started_at"), times(connections, "ended_at")
    used &= (started != NULL_TIME) & (ended != NULL_TIME)
    over = used & (ev.equal(connections, "end_reason", "fin") | ev.equal(connections, "end_reason", "rst"))
    if not over.any():
        return []
    refused = refused_connections(connections)
    last_use = _last_use(ev.get(tables, "exchanges"), connections)
    end_of_capture = int(ended.max())
    ports = group(connections, ["broker_ip", "broker_port"]).code
    clients = group(connections, ["client_ip", "client_id"]).code
    found = []
    for port in np.unique(ports[over]).tolist():
        at_port = ports == port
        for rows in split_strokes(np.flatnonzero(over & at_port), ended, STROKE_MS):
            begin, end = int(ended[rows[0]]), int(ended[rows[-1]])
            if len(np.unique(clients[rows])) < CLIENTS:
                continue
            open_then = used & at_port & (started < begin) & (ended >= begin)
            back = started[at_port & used & (started > begin)]
            until = int(back.min()) if len(back) else end_of_capture
            tried = refused & at_port & (started >= begin) & (started <= max(until, end))
            if open_then.sum() != len(rows) or until - end < AWAY_MS * MILLI or tried.any():
                continue
            if (last_use[rows] < begin - IDLE_MS * MILLI).all():
                continue
            went_on = used & ~at_port & (started < until) & (last_use >= end + AWAY_MS * MILLI / 2)
            if not np.isin(clients[rows], clients[went_on]).all():
                continue
            found += _report_stop(tables, connections.take(pa.array(rows)), begin, until if len(back) else None)
    return found


def _last_use(exchanges: pa.Table, connections: pa.Table) -> Int64s:
    """The last of these requests on each connection, NULL_TIME where there is none; microseconds [connections]."""
    found = np.full(connections.num_rows, NULL_TIME, np.int64)
    owner = ev.owners(exchanges, connections)
    known = owner >= 0
    np.maximum.at(found, owner[known], times(exchanges, "request_first_at")[known])
    return found


def _report_stop(tables: ev.Tables, rows: pa.Table, at: int, back: int | None) -> list[ev.Finding]:
    ids, brokers = ev.names(rows["connection_id"]), ev.names(rows["broker"])
    values = {
        "brokers": brokers, "connections": ids, "clients": ev.names(rows["client_id"]), "back": back,
        "away": None if back is None else (back - at) / MILLI,
    }  # fmt: skip
    condition = ev.among("connection_id", ids[:MOST_NAMED])
    return ev.finding(
        tables, "broker_stopped", ev.MEDIUM, "connections", condition, values, first_at=at, last_at=back or at,
        broker=brokers[0] if len(brokers) == 1 else None,
    )  # fmt: skip


FINDERS = (broker_stopped, consumer_silent)
