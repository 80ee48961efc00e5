"""A complete frame becomes a request that waits, or a response that finds its request.

The rules:

- A broker answers the requests of one connection in the order in which they came. So a response belongs to the oldest
  waiting request with its correlation id; requests in front of that one will not be answered any more (`unanswered`).
- Ids repeat (0.8's SimpleConsumer always sends 0), so order decides, never the id alone. Where bytes were lost, order
  does not decide either. For a client that was never seen to send a request before it had its answer, an answer then
  belongs to the last request that was sent before it. Other clients' requests with the same id get no answer: it may be
  that of any of them. A held response answers no request that was sent after it: one that acknowledges it, with any id.
- Produce with acks=0 is never answered: it is finished at once (`no_response`).
- A response can be captured before its own request. Unmatched ones are held for HOLD_PACKETS packets of the connection,
  and while earlier requests wait behind a hole, before they are called orphans.
- After a SaslHandshake v0 request, frames are bare tokens of the mechanism until one reads as a Kafka request again, or
  the broker refuses the handshake. Whether its answer was captured makes no difference: tokens are credentials.
- A request that was not answered before bytes of the other direction were lost is `partial`: its answer may be among
  them.
- A frame with bytes missing is `partial`; its last byte's time is unknown when bytes were never captured, but known
  when a snap length cut them (they did arrive).
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.completed import Status
from kdissect.kafka.streams import state as st
from kdissect.kafka.streams.pairing.exchange_rows import (
    add_row,
    clear_frame,
    copy_frame,
    find_think,
    is_damaged,
    note_answer,
    set_answer_columns,
    set_no_request,
    set_request_columns,
    set_think_behind,
    set_way,
    way_back,
)
from kdissect.kafka.streams.pairing.held_responses import REPEATS, hold_response, meet_held
from kdissect.kafka.streams.pairing.message_headers import (
    acks_of,
    clean_client,
    client_code,
    is_client_token,
    known_header,
    request_body,
    response_body,
)
from kdissect.kafka.streams.pairing.waiting_requests import (
    MAX_WAITING,
    free_request,
    pick_of_equals,
    pop_request,
    take_out_of_flight,
    take_place,
    waiting_with,
    without_response,
)
from kdissect.kafka.streams.state import copy_out, damage, place, request_at
from kdissect.kernels.kernel import part
from kdissect.kernels.memory import be16, int32_at
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.problems import Kind
from kdissect.schema.apikeys import ApiKey
from kdissect.tcp import layout as tl
from kdissect.tcp.assembly import opposite
from kdissect.tcp.layout import NULL, Connection, Direction, Sasl, node_at


@part
def _head_place(M: Words, direction: Direction) -> Int:
    """Where the direction's current frame lies in the window, -1 when it does not lie there in one piece."""
    at = direction.at
    return place(M, at) if 0 <= at < st.KEPT else -1


@part
def frame_head(M: Words, b: Bytes, A: Bytes, direction: Direction) -> Int:
    """The first bytes of the direction's current frame at `A[HEAD:]`; how many there are."""
    if direction.at >= 0:
        n = min(direction.length, st.HEAD_BYTES)
        return n if copy_out(M, b, A, direction.at, n, A, st.HEAD) else 0
    w = 0
    piece = direction.head
    while piece >= 0 and w < st.HEAD_BYTES:
        node = node_at(M, piece)
        n = min(node.length, st.HEAD_BYTES - w)
        if node.at < 0 or not copy_out(M, b, A, node.at, n, A, st.HEAD + w):
            break
        w += n
        piece = node.next
    return w


@part
def _token(M: Words, connection: Connection, direction: Direction) -> None:
    """A bare SASL token: kept apart from exchanges. A client that has sent one waits for the broker's."""
    exchange = add_row(M, connection)
    connection.exchanges -= 1
    clear_frame(exchange.request)
    clear_frame(exchange.response)
    if direction.side == connection.client:
        exchange.orphan = 0
        copy_frame(exchange.request, direction, 0)
        note_answer(connection, np.int64(NULL))
    else:
        exchange.orphan = 1
        copy_frame(exchange.response, direction, 0)
        note_answer(connection, exchange.response.last)
    set_no_request(exchange, connection.tokens, 0, st.TOKEN)
    connection.tokens += 1


@part
def request_complete(M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction) -> None:
    """The direction's current frame is a request (as much of it as will ever come)."""
    o = _head_place(M, direction)
    if o >= 0:
        take_request(M, A, connection, direction, b, o, min(direction.length, st.HEAD_BYTES))
    else:
        take_request(M, A, connection, direction, A, st.HEAD, frame_head(M, b, A, direction))


@part
def take_request(
    M: Words, A: Bytes, connection: Connection, direction: Direction, buf: Bytes, o: Int, have: Int
) -> None:
    """A request whose first `have` bytes are at `buf[o:]`."""
    size = direction.size
    if connection.sasl == Sasl.BARE:
        if not known_header(M, buf, o, have, size) or not clean_client(buf, o, have):
            _token(M, connection, direction)
            return
        connection.sasl = tl.LOGINS[connection.sasl, tl.Login.REQUEST]
    if have < 8:
        _bad_header(M, connection, direction)
        return
    api = be16(buf, o)
    if is_client_token(api):
        _token(M, connection, direction)
        return
    version = be16(buf, o + 2)
    body = request_body(M, buf, o, o + have, api, version)
    if body >= 0:
        body -= o
    client = -1
    if have >= 10 and not (api == ApiKey.CONTROLLED_SHUTDOWN and version == 0):
        n = be16(buf, o + 8)
        if n < 0x8000 and n <= have - 10:
            client = client_code(M, A, connection, buf, o + 10, n)
    if connection.client_id < 0:
        connection.client_id = client
    if connection.requests_open >= MAX_WAITING:
        without_response(M, connection, pop_request(M, connection))
    r = take_place(M)
    request = request_at(M, r)
    request.api = api
    request.version = version
    request.correlation = int32_at(buf, o + 4)
    request.client = client
    copy_frame(request.frame, direction, body)
    request.n = connection.requests
    again = connection.requests > 0 and connection.asked == request.correlation
    if again:
        connection.repeats += 1
    connection.asked = request.correlation
    answered_to = opposite(connection, direction).acked
    at_once = direction.latest >= connection.last  # it did not wait behind a hole
    if connection.requests_open > 0 and at_once and answered_to != NULL and answered_to == connection.answered_to:
        connection.pipelined = 1
    connection.answered_to = answered_to
    connection.requests += 1
    request.in_flight = connection.requests_open + 1
    request.packets = connection.packets
    request.end = direction.next
    waited = direction.waited
    request.acked = waited.acked
    request.bare = waited.bare if waited.acked != NULL else 0
    request.proof = waited.proof if waited.acked != NULL else 0
    request.resent = waited.resent if waited.acked != NULL else 0
    request.answered_to = answered_to
    if not at_once:
        request.answered_to = NULL
    request.way_back = way_back(connection)
    request.think = find_think(M, connection, direction.first, request.way_back)
    request.missing = direction.missing_total
    request.doubted_at = connection.doubted_at
    connection.asked_missing = direction.missing_total
    request.unseen_until = direction.unseen_until
    if is_damaged(request.frame):
        direction.unseen_until = direction.latest
    if api == ApiKey.SASL_HANDSHAKE and version == 0:
        connection.sasl = tl.LOGINS[connection.sasl, tl.Login.HANDSHAKE]
    if api == ApiKey.PRODUCE and body >= 0 and acks_of(buf, o + body, o + have, version) == 0:
        exchange = add_row(M, connection)
        set_request_columns(exchange, request)
        clear_frame(exchange.response)
        exchange.status = Status.PARTIAL if is_damaged(request.frame) else Status.NO_RESPONSE
        connection.think_from = NULL
        free_request(M, r)
        return
    if connection.held > 0 and meet_held(M, connection, r):
        return
    if connection.request_tail >= 0:
        tail = request_at(M, connection.request_tail)
        tail.next = r
        if tail.correlation >= request.correlation:
            connection.unordered = 1
    else:
        connection.request_head = r
        connection.unordered = 0
    connection.request_tail = r
    connection.requests_open += 1
    known = direction.acked != NULL and direction.acked >= request.end
    if connection.unacked < 0 and not known and connection.sealed == 0:
        connection.unacked = r


@part
def _bad_header(M: Words, connection: Connection, direction: Direction) -> None:
    """A frame that is too short for its header, or whose beginning is not there."""
    damage(M, Kind.BAD_HEADER, connection, direction, direction.size + 4, -1)
    _token(M, connection, direction)


@part
def response_complete(M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction) -> None:
    """The direction's current frame is a response (as much of it as will ever come)."""
    o = _head_place(M, direction)
    if o >= 0:
        take_response(M, connection, direction, b, o, min(direction.length, st.HEAD_BYTES))
    else:
        take_response(M, connection, direction, A, st.HEAD, frame_head(M, b, A, direction))


@part
def take_response(M: Words, connection: Connection, direction: Direction, buf: Bytes, o: Int, have: Int) -> None:
    """A response whose first `have` bytes are at `buf[o:]`."""
    if have < 4:
        _bad_header(M, connection, direction)
        return
    correlation = int32_at(buf, o)
    r, _ = waiting_with(M, connection, correlation)
    if r < 0 and connection.sasl == Sasl.BARE:
        _token(M, connection, direction)
        return
    if r >= 0 and connection.repeats >= REPEATS:
        r = pick_of_equals(M, connection, direction, r)
    if r < 0:
        hold_response(M, connection, direction, correlation)
        return
    while True:
        first = pop_request(M, connection)
        if first == r:
            break
        without_response(M, connection, first)
    take_out_of_flight(M, connection, direction.latest)
    request = request_at(M, r)
    exchange = add_row(M, connection)
    set_request_columns(exchange, request)
    body = response_body(M, buf, o, o + have, request.api, request.version)
    if body >= 0:
        body -= o
    copy_frame(exchange.response, direction, body)
    set_way(request.way, connection, exchange.response)
    exchange.queued_from = request.way.behind
    set_answer_columns(connection, exchange, request, exchange.response.last)
    if connection.request_head >= 0:
        set_think_behind(M, connection, exchange.response.last, direction.next, request.missing, request.n)
    latest = request.n == connection.requests - 1
    if request.api == ApiKey.SASL_HANDSHAKE and latest and have >= 6 and be16(buf, o + 4) != 0:
        connection.sasl = tl.LOGINS[connection.sasl, tl.Login.REFUSED]
    free_request(M, r)
