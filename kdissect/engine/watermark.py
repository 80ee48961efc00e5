"""Up to which instant the rows of a run are complete: what an analysis that goes by time may settle between blocks.

Exchanges finish when they are answered, so rows come in another order than requests did. Whatever is still to come is
a request that waits, a frame that is being received, bytes that are searched for a frame or wait behind a hole, or a
packet not read yet. The watermark is the earliest instant among all of these.
"""

from __future__ import annotations

import numpy as np

from kdissect.arrays.arrow import Int64s, Scalar
from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.state import R_FIRST, R_LAST, R_NEXT
from kdissect.kernels.kernel import kernel
from kdissect.tcp.layout import (
    C_HELD_HEAD,
    C_KAFKA,
    C_NUMBER,
    C_REQUEST_HEAD,
    C_WIDTH,
    CONNECTION_WIDTH,
    D_AHEAD_HEAD,
    D_FIRST,
    D_HEAD,
    D_MODE,
    D_NEED,
    D_PREFIX_BYTES,
    D_WIDTH,
    MODE_IGNORED,
    N_NEXT,
    N_TIME,
    NULL,
)

LATENESS = 20_000_000
"""Packets of several queues or interfaces are written out of order by some milliseconds; ns. What comes later still is
worked on when it comes, which matters only to a session that two connections use in that very moment."""
COMPLETE = 2**63 - 1
"""Nothing more will come."""
NOTHING_YET = -(2**63)
"""More may come from any time."""


@kernel("i8[:] i8[:] -> i8")
def _earliest(M: Int64s, connections: Int64s) -> Scalar:
    """Earliest instant (ns) at which anything arrived that is not finished; COMPLETE when nothing is open."""
    first: Scalar = np.int64(COMPLETE)
    for c in connections:
        if M[c + C_NUMBER] < 0 or M[c + C_KAFKA] < 0:
            continue
        for head in (C_REQUEST_HEAD, C_HELD_HEAD):
            r = M[c + head]
            while r >= 0:
                # A request counts from its last byte, a held response from its first.
                when = M[r + R_LAST] if head == C_REQUEST_HEAD else M[r + R_FIRST]
                if when == NULL:
                    when = M[r + R_FIRST]
                if when != NULL:
                    first = min(first, when)
                r = M[r + R_NEXT]
        for s in range(c + C_WIDTH, c + CONNECTION_WIDTH, D_WIDTH):
            if M[s + D_MODE] == MODE_IGNORED:
                continue
            if M[s + D_NEED] >= 0 or M[s + D_PREFIX_BYTES] > 0:
                first = min(first, M[s + D_FIRST])
            for head in (D_HEAD, D_AHEAD_HEAD):
                node = M[s + head]
                while node >= 0:
                    first = min(first, M[node + N_TIME])
                    node = M[node + N_NEXT]
    return first


def watermark(dissector: Dissector, latest: int) -> int:
    """Microseconds since the epoch: no row that comes later has its request's last byte, or its response's first one,
    before it. To be asked between blocks. `latest`: time of the last packet read, ns."""
    first = int(_earliest(dissector.M, dissector.connections))
    return min(first, latest - LATENESS) // 1000
