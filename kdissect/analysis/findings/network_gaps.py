"""When the network between two hosts was gone: nothing that was sent was acknowledged, not even by TCP.

Several findings ask for it. `network_silent` tells it; others leave to it what it explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, Flags, Int64s, reals, times

GONE_MS = 1000.0
"""Time without any acknowledgement from a host: retransmission timers start at 200 ms."""
GONE_KINDS = ("silence", "resent")
"""Values of `network_kind` for time in which sent bytes were not acknowledged, or were sent again."""
EXPLAINED = 0.5
"""Share of a wait for which the network was gone, to be its reason."""


@dataclass(frozen=True, slots=True)
class NetworkGap:
    """A stretch in which requests between two hosts were not acknowledged; microseconds."""

    client_ip: str
    broker_ip: str
    begin: int
    end: int
    rows: pa.Table
    """The exchanges that were not acknowledged."""


def long_on_the_way(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges of which the network had GONE_MS and more: the rows that `network_gaps` reads."""
    return pc.greater_equal(exchanges["network_ms"], GONE_MS)


def network_gaps(exchanges: pa.Table, connections: pa.Table) -> list[NetworkGap]:
    """The gaps of each pair of hosts, by time."""
    lost = np.nan_to_num(reals(exchanges, "network_ms"))
    flags: Flags = np.zeros(exchanges.num_rows, np.bool_)
    for kind in GONE_KINDS:
        flags |= ev.equal(exchanges, "network_kind", kind)
    rows = exchanges.take(pa.array(np.flatnonzero(flags & (lost >= GONE_MS))))
    if not rows.num_rows:
        return []
    owner = ev.owners(rows, connections)
    rows = rows.filter(pa.array(owner >= 0))
    ends = connections.select(["client_ip", "broker_ip"]).take(pa.array(owner[owner >= 0]))
    begun = times(rows, "request_first_at")
    until = begun + (np.nan_to_num(reals(rows, "network_ms")) * MILLI).astype(np.int64)
    groups = group(ends, ["client_ip", "broker_ip"])
    found = []
    for code in range(len(groups)):
        client_ip, broker_ip = (groups.keys[name][code].as_py() for name in ("client_ip", "broker_ip"))
        for mine in _overlapping(np.flatnonzero(groups.code == code), begun, until):
            some = rows.take(pa.array(mine))
            found.append(NetworkGap(client_ip, broker_ip, int(begun[mine].min()), int(until[mine].max()), some))
    return found


def _overlapping(rows: Int64s, begin: Int64s, end: Int64s) -> list[Int64s]:
    """Rows whose spans hang together, by time."""
    rows = rows[np.argsort(begin[rows], kind="stable")]
    reach = np.maximum.accumulate(end[rows])
    return np.split(rows, np.flatnonzero(begin[rows][1:] > reach[:-1]) + 1)


def explained_by_gaps(
    gaps: list[NetworkGap], rows: pa.Table, connections: pa.Table, begin: Int64s, end: Int64s
) -> Flags:
    """Which rows waited mostly while the network between their hosts was gone; bool [rows]. `rows` have exchange_id;
    they waited from `begin` to `end`, microseconds [rows]."""
    flags: Flags = np.zeros(rows.num_rows, np.bool_)
    if not gaps:
        return flags
    owner = np.where((at := ev.owners(rows, connections)) < 0, connections.num_rows, at)
    clients, brokers = (np.array([*connections[name].to_pylist(), None], object) for name in ("client_ip", "broker_ip"))
    for gap in gaps:
        of = (clients[owner] == gap.client_ip) & (brokers[owner] == gap.broker_ip)
        flags |= of & _covers(gap, begin, end)
    return flags


def may_share_a_gap(gaps: list[NetworkGap], rows: pa.Table, connections: pa.Table, begin: Int64s, end: Int64s) -> Flags:
    """Which rows waited mostly while the network from their client's host to any broker was gone; bool [rows]. An
    answer that was due then may have been lost. Not where their own broker answered that host meanwhile, unless that
    answer had waited so, too. Arguments as of `explained_by_gaps`; `end` is when each row was answered."""
    flags: Flags = np.zeros(rows.num_rows, np.bool_)
    if not gaps:
        return flags
    hosts = np.array([*connections["client_ip"].to_pylist(), None], object)[ev.owners(rows, connections)]
    broker = group(rows, ["broker"]).code
    for gap in gaps:
        mine, covered = hosts == gap.client_ip, _covers(gap, begin, end)
        for row in np.flatnonzero(mine & covered).tolist():
            others = mine & ~covered & (broker == broker[row])
            low, high = max(begin[row], gap.begin), min(end[row], gap.end)
            flags[row] |= not (others & (end > low) & (end < high)).any()
    return flags


def _covers(gap: NetworkGap, begin: Int64s, end: Int64s) -> Flags:
    """Whether a gap takes EXPLAINED of each span or more; bool [rows]."""
    shared = np.minimum(end, gap.end) - np.maximum(begin, gap.begin)
    flags: Flags = (shared >= EXPLAINED * (end - begin)) & (shared > 0)
    return flags
