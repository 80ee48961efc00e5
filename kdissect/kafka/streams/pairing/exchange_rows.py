"""The row of an exchange: its two frames, its request, the network's share of its time, and the client's own time until
its next request."""

from __future__ import annotations

import numpy as np

from kdissect.kafka.completed import Status
from kdissect.kafka.streams import state as st
from kdissect.kafka.streams.state import Exchange, Frame, Request, exchange_at, request_at
from kdissect.kernels.kernel import part
from kdissect.kernels.structs import Int, Words
from kdissect.tcp.layout import CONTROL, NULL, Connection, Direction, Rise, Way, control_at
from kdissect.tcp.one_way import rise_known
from kdissect.tcp.roundtrip import (
    LOCAL_NS,
    PROOF_NS,
    Found,
    acks_removed,
    floor_doubted,
    in_force,
    may_be_needless,
    network_share,
    sent_again_between,
)


@part
def add_row(M: Words, connection: Connection) -> Exchange:
    """A new row of the connection, in which nothing is known yet that not each row has."""
    control = control_at(M, CONTROL)
    exchange = exchange_at(M, st.X_BASE + control.out * st.EXCHANGE_WIDTH)
    control.out += 1
    exchange.connection = connection.number
    exchange.queued_from = NULL
    exchange.direction = connection.client
    exchange.network = -1
    exchange.network_kind = -1
    exchange.network_down = NULL
    exchange.request_resent = -1
    exchange.response_resent = -1
    exchange.think = -1
    exchange.unseen_until = NULL
    exchange.abandoned = -1
    connection.exchanges += 1
    return exchange


@part
def copy_frame(frame: Frame, direction: Direction, body: Int) -> None:
    """Write the direction's current frame into `frame`, which owns its nodes from now on."""
    frame.first = direction.first
    frame.last = NULL if direction.missing > 0 or direction.need > 0 else direction.latest
    frame.bytes = direction.size + 4
    frame.packet = direction.packet
    frame.at = direction.at
    frame.length = direction.length
    frame.head = direction.head
    frame.body = body
    frame.missing = direction.missing + max(direction.need, 0)
    frame.cut = direction.cut


@part
def clear_frame(frame: Frame) -> None:
    """The row has no such frame."""
    frame.first = NULL
    frame.last = NULL
    frame.bytes = -1
    frame.packet = -1
    frame.at = -1
    frame.length = -1
    frame.head = -1
    frame.body = -1
    frame.missing = 0
    frame.cut = 0


@part
def is_damaged(frame: Frame) -> bool:
    """Whether bytes of the frame are not there."""
    return frame.missing > 0 or frame.cut > 0


@part
def set_request_columns(exchange: Exchange, request: Request) -> None:
    """The row is of this request."""
    exchange.request = request.frame
    exchange.n = request.n
    exchange.orphan = 0
    exchange.api = request.api
    exchange.version = request.version
    exchange.correlation = request.correlation
    exchange.client = request.client
    exchange.in_flight = request.in_flight
    exchange.think = request.think
    exchange.unseen_until = request.unseen_until
    exchange.end = request.end


@part
def set_no_request(exchange: Exchange, n: Int, correlation: Int, status: Int) -> None:
    """An exchange whose request is not known."""
    exchange.n = n
    exchange.api = -1
    exchange.version = -1
    exchange.correlation = correlation
    exchange.client = -1
    exchange.in_flight = -1
    exchange.end = -1
    exchange.status = status


@part
def set_way(way: Way, connection: Connection, frame: Frame) -> None:
    """Sets what is known of the way of the broker's current frame, which is `frame`. The next one stands behind it,
    whether its request was captured or not."""
    asking = connection.directions[connection.client]
    answering = connection.directions[1 - connection.client]
    plain = connection.sealed == 0
    way.rise = answering.first_rise if plain else 0
    way.rise_known = rise_known(connection, answering, way.rise) if plain else Rise.KNOWN
    way.last_rise = answering.rise if plain else 0
    way.floor = asking.floor
    way.floor_kind = asking.floor_kind
    first, last, hole, filled = answering.first, answering.latest, answering.filled_from, answering.filled_at
    way.first_hole = hole if plain and filled == first and hole < first else NULL
    way.last_hole = hole if plain and filled == last and hole < last else NULL
    way.skipped, way.behind, way.behind_rise = connection.skipped, connection.answered_last, connection.answered_rise
    connection.skipped = frame.last == NULL
    if frame.last != NULL:
        connection.answered_last, connection.answered_rise = frame.last, way.last_rise


@part
def set_answer_columns(connection: Connection, exchange: Exchange, request: Request, answered_last: Int) -> None:
    """The network's share and status of a row that has a response to `request`, which came as its `way` says."""
    _set_network_columns(connection, exchange, request)
    exchange.status = Status.PARTIAL if is_damaged(exchange.request) or is_damaged(exchange.response) else Status.OK
    note_answer(connection, answered_last)


@part
def note_answer(connection: Connection, answered_last: Int) -> None:
    """Notes that the client's time until its next request begins with an answer that ended at `answered_last`, NULL:
    that it is not known."""
    connection.think_from = answered_last
    connection.think_packets = connection.packets


@part
def _set_network_columns(connection: Connection, exchange: Exchange, request: Request) -> None:
    """The network's share of an exchange, as far as its own connection's packets show it."""
    way = request.way
    asked, answered, arrived = exchange.request.last, exchange.response.first, exchange.response.last
    set_abandoned(connection, exchange, answered)
    if way.floor >= 0:
        in_force(connection, way.floor)
    if request.acked != NULL:
        exchange.request_resent = max(request.resent, 0)
    if connection.sealed == 0 and arrived != NULL:
        late = way.last_hole != NULL and arrived > answered
        exchange.response_resent = arrived - max(way.last_hole, answered) if late else 0
    if asked == NULL or asked == 0 or answered == NULL or answered == 0:
        return
    asking = connection.directions[connection.client]
    share, kind = network_share(
        connection, asking, asked, answered, request.acked, request.bare, request.proof, request.resent, way
    )
    alone = request.in_flight == 1 and asking.lost < connection.think_packets
    if way.skipped == 1 and not alone:  # how long it lay behind its predecessor is not known
        share, kind = np.int64(-1), np.int64(-1)
        exchange.queued_from = NULL
    needless = may_be_needless(asking, connection.directions[1 - connection.client], asked, request.resent)
    if needless and kind >= 0 and request.resent <= PROOF_NS:  # of a timer's copy the time is the network's either way
        kind = np.int64(Found.BOUND)
    if kind < 0 or needless:
        exchange.request_resent = -1
    if kind < 0 and exchange.queued_from != NULL:  # the answer before it left the broker sooner by so much more
        exchange.queued_from += min(way.rise - way.behind_rise, 0)
    if kind == Found.TIMESTAMPS:
        exchange.network_down = way.rise
        if exchange.queued_from != NULL:
            exchange.queued_from += way.rise - way.behind_rise
    exchange.network = share
    exchange.network_kind = kind


@part
def set_abandoned(connection: Connection, exchange: Exchange, answered: Int) -> None:
    """Whether the client had closed before the answer's first byte."""
    if answered != NULL:
        closed = connection.directions[connection.client].closed_at
        exchange.abandoned = 1 if closed != NULL and closed < answered else 0


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
