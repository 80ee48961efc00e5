"""The way between brokers and their clients as a capture at the broker's end has it.

What exchanges lose on the network is measured between the capture point and the broker, which is nothing there. Left
are the round trip to the client that each connection ends with, how soon clients asked again, and segments sent again.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, ints, reals, times
from kdissect.schema.apikeys import ApiKey

ASKED_SOON = 3
"""Requests so soon after an answer that the way was short, on one connection: each of them is a proof."""
AFTER_ROWS = 4
"""Requests since the last of them, of those that are seen: two in a second."""
AFTER_MS = 2000.0
"""For at least so long."""
COPIES = 20
"""Segments between two hosts that were sent again before they are called lost."""
COPIES_SHARE = 0.02
"""Of their packets. Busy hosts send up to 1 in 60 again without any loss, by tail loss probes (RFC 8985)."""
LEAST_RTO_MS = 200.0
"""The shortest retransmission timer of Linux; each further one is twice as long."""
LEAST_MESSAGE = 16
"""Bytes of the shortest messages: such probes often have fewer."""
ON_CONNECTIONS = 2
"""Connections with such segments: of one alone it may be the connection's own."""
CLOSED_MS = 200.0
"""Of a window closed for so long probes may be among what was sent again."""


class Rise(NamedTuple):
    """A connection on which the way to the client became longer."""

    connection: int
    """Row of `connections`."""
    since: int
    """The last instant at which it was short; microseconds."""
    until: int
    """Its last request; microseconds."""
    before: float
    """How soon the client asked again until then, milliseconds: the way took no longer."""


class HostLoss(NamedTuple):
    """Two hosts that sent each other segments again."""

    client_ip: str
    broker_ip: str
    connections: pa.Table
    """Theirs."""
    copies: int
    packets: int


def client_distance_ms(connections: pa.Table, least_ms: float) -> npt.NDArray[np.float64]:
    """The round trip between capture point and client where it is `least_ms` or more, else 0; [connections].

    A connection whose handshake was not captured has 0: its client may have held acknowledgements back."""
    trip = np.nan_to_num(reals(connections, "client_rtt_ms"))
    known = (ints(connections, "is_kafka", 0) > 0) & (ints(connections, "start_seen", 0) > 0) & (trip >= least_ms)
    return np.where(known, trip, 0.0)


def longer_ways(exchanges: pa.Table, connections: pa.Table, short_ms: float, long_ms: float) -> list[Rise]:
    """Connections whose way to the client is `long_ms` at their end and was `short_ms` before. Its client had asked
    again within that time of an answer. Only fetches count: a client sends them one after the other."""
    distant = client_distance_ms(connections, long_ms) > 0
    if not distant.any():
        return []
    asked, answered = times(exchanges, "request_first_at"), times(exchanges, "response_last_at")
    owner = ev.owners(exchanges, connections)
    known = (ints(exchanges, "api_key") == ApiKey.FETCH) & (asked != NULL_TIME) & (answered != NULL_TIME)
    known &= np.append(distant, False)[owner]
    rows = np.flatnonzero(known)
    rows = rows[np.lexsort((asked[rows], owner[rows]))]
    found = []
    for mine in np.split(rows, np.flatnonzero(np.diff(owner[rows])) + 1):
        gaps = (asked[mine[1:]] - answered[mine[:-1]]) / MILLI
        soon = np.flatnonzero(gaps <= short_ms)
        if len(soon) < ASKED_SOON or gaps.min() < 0:  # the client asks before it is answered
            continue
        last = int(soon[-1]) + 1
        since, until = int(asked[mine[last]]), int(asked[mine[-1]])
        if len(mine) - last - 1 >= AFTER_ROWS and until - since >= AFTER_MS * MILLI:
            found.append(Rise(int(owner[mine[0]]), since, until, float(np.median(gaps[soon]))))
    return found


def host_losses(connections: pa.Table) -> list[HostLoss]:
    """Pairs of hosts between which COPIES_SHARE of the packets were sent again. One host has no network to itself."""
    copies, packets = ints(connections, "lost_segments", 0), ints(connections, "packets", 0)
    lossy = _lossy(connections, copies)
    if not lossy.any():
        return []
    groups = group(connections, ["client_ip", "broker_ip"])
    total, of = groups.total(np.where(lossy, copies, 0)), groups.total(packets)
    flags = (total >= COPIES) & (total >= COPIES_SHARE * of) & (groups.count(lossy) >= ON_CONNECTIONS)
    found = []
    for code in np.flatnonzero(flags).tolist():
        client_ip, broker_ip = (groups.keys[name][code].as_py() for name in ("client_ip", "broker_ip"))
        if client_ip != broker_ip:
            mine = connections.filter(pa.array(groups.code == code))
            found.append(HostLoss(client_ip, broker_ip, mine, int(total[code]), int(of[code])))
    return found


def _lossy(connections: pa.Table, copies: Int64s) -> Flags:
    """On which connections segments were sent again that were no probes of a window or of a tail; [connections]."""
    found: Flags = (copies > 0) & (ints(connections, "is_kafka", 0) > 0)
    found &= ints(connections, "retransmitted_bytes", 0) >= LEAST_MESSAGE * copies
    found &= np.nan_to_num(reals(connections, "zero_window_ms")) < CLOSED_MS
    return found


def with_copies(connections: pa.Table, copies: int) -> Flags:
    """On which connections so many segments that were more than probes were sent again; bool [rows]."""
    flags: Flags = ints(connections, "lost_segments", 0) >= copies
    return flags & (ints(connections, "retransmitted_bytes", 0) >= copies * LEAST_MESSAGE)


def copies_in(span_ms: float) -> int:
    """How often TCP sends an unacknowledged segment again in so long: its timer begins at LEAST_RTO_MS and doubles
    (RFC 6298)."""
    return math.floor(math.log2(span_ms / LEAST_RTO_MS)) + 1
