"""Findings about connections that something ended by a reset while both ends went on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.rules.access_findings import refused_connections
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, distinct, ints, reals, times
from kdissect.arrays.from_numpy import arrow_array

RESETS = 3
"""Connections in one stroke: two may be the connections of one client that its library gives up together."""
CLIENTS = 2
"""Clients among them: one process that crashes, or that closes with data unread, resets its own alone."""
MOST_NAMED = 20
"""Connections that a filter names one by one."""
STROKE_MS = 1000.0
"""From the first reset to the last: a device that forgot its connections resets each at its next packet, and a consumer
in use sends one at least every 500 ms (fetch.max.wait.ms)."""
STAYED_MS = 2000.0
"""A connection that was there for so long: one that ends at once ends for what was asked on it."""
BACK_MS = 10_000.0
"""Clients that come back do so within this time: ten times reconnect.backoff.max.ms, 1 s by default."""
BACK_EXCHANGES = 2
"""A client sends its second request after the answer to its first (ApiVersions): two show that the broker answered."""
MOST_OPEN = 0.5
"""Share of the open connections of these clients to these brokers: a stroke on the way takes them all, a few resets in
one second beside many that stay are each client's own."""


@finder(connections=EVERY_ROW, exchanges=row_filters.abandoned)
def reset_together(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Connections of several clients that were reset within a second, whose clients came back and were served.

    A connection whose client had closed before an answer came is the client's own end, and does not count. Brokers that
    refused a connection around that time had stopped, and theirs do not count either.
    """
    connections = ev.get(tables, "connections")
    own_end = set(ev.names(ev.get(tables, "exchanges")["connection_id"]))
    exchanges = ints(connections, "exchanges", 0)
    used = (ints(connections, "is_kafka", 0) > 0) & (exchanges > 0)
    reset = used & ev.equal(connections, "end_reason", "rst")
    if int(reset.sum()) < RESETS:
        return []
    reset &= np.array([name not in own_end for name in connections["connection_id"].to_pylist()], bool)
    answered = used & ~np.isnan(reals(connections, "rtt_ms"))  # where answers are in the capture at all
    started, ended = times(connections, "started_at"), times(connections, "ended_at")
    reset &= (started != NULL_TIME) & (ended != NULL_TIME) & (ended - started >= STAYED_MS * MILLI)
    refused = refused_connections(connections)
    ports = group(connections, ["broker_ip", "broker_port"]).code
    clients = group(connections, ["client_ip", "client_id"]).code
    pairs = group(connections, ["client_ip", "client_id", "broker_ip", "broker_port"]).code
    found = []
    for rows in split_strokes(np.flatnonzero(reset), ended, STROKE_MS):
        begin, end = int(ended[rows[0]]), int(ended[rows[-1]])
        near = (started >= begin - BACK_MS * MILLI) & (started <= end + BACK_MS * MILLI)
        rows = rows[~np.isin(ports[rows], ports[refused & near])]
        served = answered & (exchanges >= BACK_EXCHANGES) & (started >= begin) & (started <= end + BACK_MS * MILLI)
        rows = rows[np.isin(clients[rows], clients[served])]
        open_then = used & (started < begin) & (ended >= begin)
        whole = np.bincount(pairs[open_then], minlength=int(pairs.max()) + 1)
        mine = np.bincount(pairs[rows], minlength=len(whole))
        rows = rows[mine[pairs[rows]] >= MOST_OPEN * whole[pairs[rows]]]
        if len(rows) < RESETS or len(distinct(clients[rows])) < CLIENTS:
            continue
        found += _finding(tables, connections.take(arrow_array(rows)))
    return found


def split_strokes(rows: Int64s, ended: Int64s, longest_ms: float) -> Iterator[Int64s]:
    """The rows in parts, by their end: each part lasts `longest_ms` at most."""
    rows = rows[np.argsort(ended[rows], kind="stable")]
    first = 0
    while first < len(rows):
        last = int(np.searchsorted(ended[rows], ended[rows[first]] + round(longest_ms * MILLI), side="right"))
        yield rows[first:last]
        first = last


def _finding(tables: ev.Tables, stroke: pa.Table) -> list[ev.Finding]:
    ended = times(stroke, "ended_at")
    begin, end = int(ended.min()), int(ended.max())
    brokers, ids = ev.names(stroke["broker"]), ev.names(stroke["connection_id"])
    values = {"connections": ids, "clients": ev.names(stroke["client_id"]), "brokers": brokers}
    if len(ids) <= MOST_NAMED:
        condition = ev.among("connection_id", ids)
    else:
        condition = ev.both(
            "end_reason = 'rst' and is_kafka and exchanges > 0",
            f"ended_at >= {ev.instant(begin)} and ended_at <= {ev.instant(end)}",
        )
    return ev.finding(
        tables, "connections_reset", ev.MEDIUM, "connections", condition, values, first_at=begin, last_at=end,
        broker=brokers[0] if len(brokers) == 1 else None,
    )  # fmt: skip


FINDERS = (reset_together,)
