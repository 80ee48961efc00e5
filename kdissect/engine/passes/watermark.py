"""Up to which instant the rows of a run are complete: what an analysis that goes by time may settle between blocks.

Exchanges finish when they are answered, so rows come in another order than requests did. The rows still to come are of
a request that waits, a frame that is being received, bytes that are searched for a frame or wait behind a hole, or a
packet not read yet. The watermark is the earliest instant among all of these.
"""

from __future__ import annotations

from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.state import request_at
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.structs import Int, Words
from kdissect.tcp.layout import NULL, Mode, connection_at, node_at

LATENESS = 20_000_000
"""Packets of several queues or interfaces are written out of order by some milliseconds; ns. What comes later still is
worked on when it comes, which matters only to a session that two connections use in that very moment."""
COMPLETE = 2**63 - 1
"""Nothing more will come."""
NOTHING_YET = -(2**63)
"""More may come from any time."""


@part
def _earlier(first: Int, time: Int) -> Int:
    return min(first, time) if time != NULL else first


@kernel("i8[:] i8[:] -> i8")
def _earliest(M: Words, connections: Words) -> Int:
    """Earliest instant (ns) at which anything arrived that is not finished; COMPLETE when nothing is open."""
    first = COMPLETE
    for c in connections:
        connection = connection_at(M, c)
        if connection.number < 0 or connection.kafka < 0:
            continue
        place = connection.request_head
        while place >= 0:
            request = request_at(M, place)
            first = _earlier(first, request.frame.first if request.frame.first != NULL else request.frame.last)
            place = request.next
        place = connection.held_head
        while place >= 0:
            held = request_at(M, place)
            first = _earlier(first, held.frame.first)
            place = held.next
        for side in range(2):
            direction = connection.directions[side]
            if direction.mode == Mode.IGNORED:
                continue
            if direction.need >= 0 or direction.prefix_bytes > 0:
                first = min(first, direction.first)
            first = min(_first_piece(M, direction.head, first), _first_piece(M, direction.ahead_head, first))
    return first


@part
def _first_piece(M: Words, piece: Int, first: Int) -> Int:
    """The earliest of `first` and the times of a list of nodes."""
    while piece >= 0:
        node = node_at(M, piece)
        first = min(first, node.time)
        piece = node.next
    return first


def watermark(dissector: Dissector, latest: int) -> int:
    """Microseconds since the epoch: no row that comes later has its request's first or last byte, or its response's
    first one, before it. To be asked between blocks. `latest`: time of the last packet read, ns."""
    first = min(int(_earliest(dissector.M, dissector.connections)), dissector.half_open_since)
    return min(first, latest - LATENESS) // 1000
