"""Requests that wait for their answers, as the stream kernels hold them: how many on each connection, since when.

On a connection where either side sent FIN or RST nothing waits any more: no answer will come.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.state import request_at
from kdissect.kernels.kernel import kernel
from kdissect.kernels.structs import Int, Words
from kdissect.tcp.layout import NULL, connection_at

CONNECTION, API, CLIENT, SINCE, COUNT = range(5)
"""Columns: the connection's row in the ledger, the API key and code of the client id of the oldest request (-1 null),
when its last byte was captured (ns), and how many wait."""
WIDTH = 5


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
        out[n, CONNECTION] = connection.number
        out[n, API] = oldest.api
        out[n, CLIENT] = oldest.client
        out[n, SINCE] = oldest.frame.last
        out[n, COUNT] = connection.requests_open
        n += 1
    return n


def waiting(dissector: Dissector) -> npt.NDArray[np.int64]:
    """int64[connections, 5] of those on which a request waits. To be called between blocks."""
    out = np.empty((len(dissector.connections), WIDTH), np.int64)
    return out[: int(_waiting(dissector.M, dissector.connections, out))]
