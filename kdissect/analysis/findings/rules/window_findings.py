"""Findings about receivers that stop reading: their receive window stays closed, and messages to them stand still."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import Flags, reals, times
from kdissect.arrays.from_numpy import arrow_array

STALL_MS = 200.0
"""A message that took longer to get through stood still: the smallest retransmission timeout of Linux, and the first
probe of a closed window, are 200 ms."""
CLOSED_MS = 1000.0
"""A window closed for so long in all is felt. Receivers that read in turns close theirs for some ms at a time."""
CLOSED_SHARE = 0.5
"""Of the time that messages took to get through: a window closed for less than half of it is not why they were late."""
MOST_NAMED = 20
"""Connections that a filter names one by one."""
IN_LINE = 10
"""A request that took so many times as long as its own turn waited for earlier ones. Java's producer has five of a
connection under way at most (max.in.flight.requests.per.connection)."""
MOST_OF_TIME = 0.6
"""Share of the time of slow requests that makes a part their cause."""
CAUSES = {"response": "client", "request": "broker", "throttled": "settings", "queue": "unknown"}
"""Whose fault it is that a receiver of this side does not read."""


def slow_transfer(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges with a message that took STALL_MS and more to get through."""
    stalled = pa.scalar(STALL_MS)
    request, response = (exchanges[f"{side}_transfer_ms"] for side in ("request", "response"))
    return pc.or_kleene(pc.greater_equal(request, stalled), pc.greater_equal(response, stalled))


def _never_ended(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges with a message that began and did not end."""
    return arrow_array(row_filters.unfinished(exchanges, "request") | row_filters.unfinished(exchanges, "response"))


def window_explains(closed_ms: float, transfer_ms: float) -> bool:
    """Whether a window closed for so long is why the slow messages of a connection took so long in all."""
    return closed_ms >= CLOSED_MS and closed_ms >= CLOSED_SHARE * transfer_ms


def on_closed_windows(exchanges: pa.Table, connections: pa.Table) -> Flags:
    """Which exchanges are of connections with a receive window that was closed for CLOSED_MS; bool [rows]."""
    closed = pc.greater_equal(connections["zero_window_ms"], CLOSED_MS)
    ids = connections.filter(closed)["connection_id"].cast(pa.string()).combine_chunks()
    flags: Flags = pc.is_in(exchanges["connection_id"].cast(pa.string()), value_set=ids).to_numpy()
    return flags


def percent_in_line(exchanges: pa.Table, closed: Flags) -> float | None:
    """Percent of their time that slow requests spent behind earlier ones of their connections.

    A broker serves one request of a connection at a time, and reads the next one then. None where requests took long
    in their own turn, as of a broker that stood still. `closed` as of `on_closed_windows`: a request that waits in
    front of a closed window is in line, too.
    """
    latency = np.nan_to_num(reals(exchanges, "latency_ms"))
    waited = np.nan_to_num(reals(exchanges, "queued_ms"))
    waited = waited + np.where(closed, np.nan_to_num(reals(exchanges, "request_transfer_ms")), 0.0)
    turn = latency - waited
    if not len(turn) or turn[turn >= latency / IN_LINE].sum() >= (1 - MOST_OF_TIME) * turn.sum():
        return None
    return float(100 * waited.sum() / latency.sum())


@finder(exchanges=(slow_transfer, _never_ended, row_filters.throttled, row_filters.slow), connections=EVERY_ROW)
def closed_windows(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Receivers whose window stayed closed while a message to them stood still, or never ended.

    Responses wait for the client, requests for the broker: who does not read is the cause. A broker does not read the
    requests of a client that is beyond its quota (it mutes the connection, KIP-219): then the quota is. One that
    answered all along has been sent more than it answers, and why that is so does not show.
    """
    exchanges, connections = ev.get(tables, "exchanges"), ev.get(tables, "connections")
    closed = np.nan_to_num(reals(connections, "zero_window_ms"))
    owner = ev.owners(exchanges, connections)
    owner = np.where(owner < 0, connections.num_rows, owner)
    found = []
    for side in ("response", "request"):
        took = np.nan_to_num(reals(exchanges, f"{side}_transfer_ms"))
        slow, never = took >= STALL_MS, row_filters.unfinished(exchanges, side)
        spent = np.bincount(owner, np.where(slow, took, 0.0), len(closed) + 1)
        stuck = np.bincount(owner, slow | never, len(closed) + 1) > 0
        of = np.zeros(len(closed), np.bool_)
        for row in np.flatnonzero(stuck[: len(closed)]).tolist():
            of[row] = window_explains(closed[row], spent[row])
        if not of.any():  # as on nearly all captures: there may be very many connections
            continue
        groups = group(connections, ["client_ip", "client_id", *(["broker"] if side == "request" else [])])
        for code in np.flatnonzero(groups.count(of)).tolist():
            mine = np.flatnonzero(of & (groups.code == code))
            rows = np.flatnonzero(np.isin(owner, mine))
            held = _Held(
                connections.take(arrow_array(mine)), exchanges.take(arrow_array(rows)), float(closed[mine].max())
            )
            found += _finding(tables, limits, side, held)
    return found


class _Held(NamedTuple):
    """Connections of one client on which a window was closed, and the exchanges of those that are slow or throttled."""

    connections: pa.Table
    exchanges: pa.Table
    closed_ms: float
    """The longest."""


def _finding(tables: ev.Tables, limits: Limits, side: str, direction: _Held) -> list[ev.Finding]:
    """The finding about messages of one direction."""
    ids, brokers = ev.names(direction.connections["connection_id"]), ev.names(direction.connections["broker"])
    client = direction.connections["client_id"][0].as_py()
    took = np.nan_to_num(reals(direction.exchanges, f"{side}_transfer_ms"))
    late, never = int((took >= STALL_MS).sum()), int(row_filters.unfinished(direction.exchanges, side).sum())
    case = side
    if side == "request":
        slow = direction.exchanges.filter(row_filters.slow(direction.exchanges, limits))
        in_line = percent_in_line(slow, np.ones(slow.num_rows, np.bool_))
        throttled = bool((reals(direction.exchanges, "throttle_ms") > 0).any())
        case = "throttled" if throttled else "request" if in_line is None else "queue"
    values = {
        "brokers": brokers, "closed": direction.closed_ms, "several": len(ids) > 1, "connections": ids,
        "late": late or None, "longest": float(took.max()), "never": never or None,
    }  # fmt: skip
    ended = f"{side}_first_at is not null and {side}_last_at is null"
    condition = ev.both(
        ev.among("connection_id", ids) if len(ids) <= MOST_NAMED else ev.equals("client_id", client),
        f"({side}_transfer_ms >= {STALL_MS:g} or ({ended}))",
    )
    # a message that never ended stands still to the end of its connection
    about = {"last_at": int(times(direction.connections, "ended_at").max())} if never else {}
    return ev.finding(
        tables, "window_closed", ev.MEDIUM, "exchanges", condition, values, case=case, client_id=client,
        broker=brokers[0] if len(brokers) == 1 else None, cause=CAUSES[case], **about,
    )  # fmt: skip


FINDERS = (closed_windows,)
