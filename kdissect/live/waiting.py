"""Requests that wait for their answers, as the stream kernels hold them: how many on each connection, since when.

On a connection where either side sent FIN or RST nothing waits any more: no answer will come.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.state import request_at
from kdissect.kernels.kernel import kernel
from kdissect.kernels.structs import Int, Records, Words, rows_of, struct, view, width
from kdissect.tcp.layout import NULL, connection_at


@struct
class Waiting:
    """A connection on which a request waits."""

    connection: int
    """The connection's row in the ledger."""
    api: int
    """API key of the oldest request."""
    client: int
    """Code of its client id, -1 null."""
    since: int
    """When its last byte was captured, ns."""
    count: int
    """How many wait."""


waiting_at = view(Waiting)


@kernel("i8[:] const i8[:] i8[:,:] -> i8")
def _waiting(M: Words, connections: Words, out: Words) -> Int:
    """Rows of `out`, one for each connection on which a whole request waits; how many."""
    n = 0
    for c in connections:
        connection = connection_at(M, c)
        if connection.number < 0 or connection.kafka < 0 or connection.request_head < 0:
            continue
        if connection.directions[0].closed_at != NULL or connection.directions[1].closed_at != NULL:
            continue
        oldest = request_at(M, connection.request_head)
        if oldest.frame.last == NULL:
            continue
        row = waiting_at(out, n)
        row.connection, row.api, row.client = connection.number, oldest.api, oldest.client
        row.since, row.count = oldest.frame.last, connection.requests_open
        n += 1
    return n


def waiting(dissector: Dissector) -> Records:
    """Rows of `Waiting`: the connections on which a request waits. To be called between blocks."""
    out = np.empty((len(dissector.connections), width(Waiting)), np.int64)
    return rows_of(Waiting, out[: int(_waiting(dissector.M, dissector.connections, out))])
