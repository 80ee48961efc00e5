"""The client's own time: from an answer until its next request, where nothing else was in flight."""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams.state import request_at
from kdissect.kernels.kernel import part
from kdissect.kernels.structs import Int, Words
from kdissect.tcp.layout import NULL, Connection, Rise
from kdissect.tcp.one_way import rise_known
from kdissect.tcp.roundtrip import LOCAL_NS, Found, acks_removed, floor_doubted, sent_again_between


@part
def way_back(connection: Connection) -> Int:
    """How long packets take to the client and back at the request that is taken now, ns, -1 unknown.

    The client's time is less by it. It is unknown also where only a bound is known, or where acknowledgements that
    would have raised it may be missing from the capture."""
    asking, answering = connection.directions[connection.client], connection.directions[1 - connection.client]
    removed = connection.same_host == 0 and acks_removed(connection)
    if removed or answering.floor < 0 or answering.floor_kind == Found.BOUND or floor_doubted(answering, asking):
        return -1
    rise = asking.first_rise if connection.sealed == 0 else np.int64(0)
    return answering.floor + rise if rise_known(connection, asking, rise) == Rise.KNOWN else np.int64(-1)


@part
def find_think(M: Words, connection: Connection, first: Int, way_back: Int) -> Int:
    """The client's time until a request that is taken now, where nothing was in flight, ns, -1 unknown. Unknown too
    where bytes of either direction are missing since the response."""
    asking, answering = connection.directions[connection.client], connection.directions[1 - connection.client]
    if connection.requests_open > 0 or answering.lost >= connection.think_packets:
        return -1
    if connection.sealed == 1:
        if asking.lost >= connection.think_packets or connection.held > 0:
            return -1
    else:
        if asking.missing_total != connection.asked_missing or _answered_since(M, connection, first):
            return -1
        if answering.started > 0 and answering.acked > answering.next + 1:
            return -1
    return _time_to_think(connection, connection.think_from, first, way_back, connection.doubted_at)


@part
def set_think_behind(M: Words, connection: Connection, answered: Int, end: Int, missing: Int, n: Int) -> None:
    """Sets the client's time until the next request, where that was captured before this answer: the answer's bytes lay
    behind a hole.

    The answer ended at the instant `answered`, and at the position `end`. The request's packet acknowledges just that.
    `missing`, `n`: those of the request that was answered. One in between may have asked for no answer."""
    following = request_at(M, connection.request_head)
    is_next = following.n == n + 1 and following.missing == missing
    if connection.sealed == 0 and is_next and following.answered_to == end:
        following.think = _time_to_think(
            connection, answered, following.frame.first, following.way_back, following.doubted_at
        )


@part
def _time_to_think(connection: Connection, since: Int, first: Int, way_back: Int, doubted_at: Int) -> Int:
    """The client's time until a request from the answer before it, ns, -1 unknown. `doubted_at`: of the connection when
    the request came.

    It is unknown where bytes of the broker were sent again meanwhile: the client may have had the answer only then. Its
    host may say that it had them before (D-SACK, RFC 2883). Of a connection that was met in its middle the way may take
    less than it did since."""
    if since == NULL or since == 0 or first < since or way_back < 0 or doubted_at > since:
        return -1
    answering = connection.directions[1 - connection.client]
    if answering.copies > answering.copies_told and sent_again_between(answering, since, first):
        return -1
    thought = first - since - way_back
    met = answering.isn == NULL
    return -1 if met and way_back > LOCAL_NS and way_back > thought // 10 else max(thought, 0)


@part
def _answered_since(M: Words, connection: Connection, first: Int) -> bool:
    """Whether a held response, whose request was not captured yet, came since the client waits for nothing and before
    its request's first byte at `first`, or may have."""
    h = connection.held_head
    while h >= 0:
        frame = request_at(M, h).frame
        if frame.first <= first and (frame.last == NULL or frame.last > connection.think_from):
            return True
        h = request_at(M, h).next
    return False
