"""Findings about connections: short ones, and messages that the network held up."""

from __future__ import annotations

import numpy as np

from kdissect.analysis.findings.evidence import (
    LOW,
    MEDIUM,
    Finding,
    Tables,
    both,
    duration,
    equals,
    finding,
    get,
    literal,
    many,
    who,
)
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import Coder, ints, reals, times

SHORT_CONNECTIONS = 20
"""Short connections from one client: more than reconnects after a failure, each costs a handshake and two round trips
before the first useful request."""
SHORT_SECONDS = 2.0
"""A connection that lived no longer."""
SHORT_EXCHANGES = 5
"""And carried no more than ApiVersions, a login, Metadata and a request or two."""
STALL_MS = 200.0
"""Transfer of one message that took longer while its connection retransmitted or had no window: the smallest
retransmission timeout of Linux is 200 ms."""
STALLED_MS = 1000.0
"""Time lost to it on one connection that is felt."""


def short_connections(tables: Tables) -> list[Finding]:
    """Clients that connect again and again."""
    connections = get(tables, "connections")
    ended = Coder()
    reason = ended.column(connections, "end_reason")
    over = (reason == ended.codes.get("fin", -2)) | (reason == ended.codes.get("rst", -2))
    exchanges = ints(connections, "exchanges", 0)
    lived = (times(connections, "ended_at") - times(connections, "started_at")) / 1e6
    short = (
        over
        & (ints(connections, "start_seen", 0) > 0)
        & (ints(connections, "is_kafka", 0) > 0)
        & (exchanges <= SHORT_EXCHANGES)
        & (lived <= SHORT_SECONDS)
    )
    groups = group(connections, ["client_ip", "client_id"])
    found = []
    for code in np.flatnonzero(groups.count(short) >= SHORT_CONNECTIONS).tolist():
        ip, client = groups.keys["client_ip"][code].as_py(), groups.keys["client_id"][code].as_py()
        text = (
            f"{who(client)} at {ip} opened {many(int(groups.count(short)[code]), 'connection')} that lived no longer "
            f"than {SHORT_SECONDS:g} s and carried at most {SHORT_EXCHANGES} exchanges each."
        )
        condition = both(
            equals("client_ip", ip), equals("client_id", client), "start_seen and is_kafka",
            "end_reason in ('fin', 'rst')", f"exchanges <= {SHORT_EXCHANGES}",
        )  # fmt: skip
        found += finding(tables, "short_connections", LOW, text, "connections", condition, client_id=client)
    return found


def stalls(tables: Tables) -> list[Finding]:
    """Messages whose transfer stood still while TCP retransmitted or a window was closed."""
    exchanges, connections = get(tables, "exchanges"), get(tables, "connections")
    slow = np.maximum(
        np.nan_to_num(reals(exchanges, "request_transfer_ms")), np.nan_to_num(reals(exchanges, "response_transfer_ms"))
    )
    stalled = slow >= STALL_MS
    if not stalled.any():
        return []
    causes: dict[str, str] = {}
    for row in connections.select(
        ["connection_id", "retransmitted_bytes", "zero_window_ms", "client_ip", "client_port"]
    ).to_pylist():
        parts = []
        if row["zero_window_ms"]:
            parts.append(f"a closed receive window ({duration(row['zero_window_ms'])})")
        if row["retransmitted_bytes"]:
            parts.append(f"retransmissions ({row['retransmitted_bytes']:,} bytes)")
        if parts:
            causes[row["connection_id"]] = " and ".join(parts)
    found = []
    groups = group(exchanges, ["connection_id"])
    for code in np.flatnonzero(groups.count(stalled)).tolist():
        connection = groups.keys["connection_id"][code].as_py()
        if connection not in causes:
            continue
        rows = np.flatnonzero(stalled & (groups.code == code))
        worst = exchanges.slice(int(rows[np.argmax(slow[rows])]), 1).to_pylist()[0]
        response = (worst["response_transfer_ms"] or 0) >= (worst["request_transfer_ms"] or 0)
        side = "response" if response else "request"
        text = (
            f"{many(len(rows), 'message')} on connection {connection} took {duration(STALL_MS)} or more to get "
            f"through, with {causes[connection]} on it; the worst is the {side} of {worst['api']} "
            f"{worst['exchange_id']} "
            f"({duration(float(slow[rows].max()))}, complete in frame {worst[side + '_frame']} of "
            f"{worst[side + '_file']})."
        )
        condition = both(
            f"connection_id = {literal(connection)}",
            f"(request_transfer_ms >= {STALL_MS:g} or response_transfer_ms >= {STALL_MS:g})",
        )
        total = float(slow[rows].sum())
        severity = MEDIUM if total >= STALLED_MS else LOW
        found += finding(tables, "network_stall", severity, text, "exchanges", condition)
    return found


FINDERS = (short_connections, stalls)
