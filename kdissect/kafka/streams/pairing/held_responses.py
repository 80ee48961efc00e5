"""Responses that wait for their requests, which were captured late, and those whose request never comes: orphans."""

from __future__ import annotations

from kdissect.kafka.completed import Status
from kdissect.kafka.streams import state as st
from kdissect.kafka.streams.pairing.exchange_rows import (
    add_row,
    clear_frame,
    copy_frame,
    note_answer,
    set_abandoned,
    set_answer_columns,
    set_no_request,
    set_request_columns,
    set_way,
)
from kdissect.kafka.streams.pairing.message_headers import is_server_token
from kdissect.kafka.streams.pairing.waiting_requests import (
    NEXT_FEW,
    free_request,
    pop_request,
    take_place,
    without_response,
)
from kdissect.kafka.streams.state import Request, problem, request_at
from kdissect.kernels.kernel import part
from kdissect.kernels.structs import Int, Words
from kdissect.problems import Kind
from kdissect.tcp.layout import CONTROL, NULL, Connection, Direction, Final, control_at, node_at

HOLD_PACKETS = 64
"""How many packets of its connection a response waits for a request that was captured late; see GAP_PACKETS."""
HELD = 256
"""Responses held per connection at most; the oldest becomes an orphan."""
REPEATS = 1
"""A client whose ids repeat has sent the same one so often again: those that count them up never do."""


@part
def finish_orphan(M: Words, connection: Connection, h: Int) -> None:
    """Finish a held response (already off the list) as one whose request was not captured; a bare SASL token is kept
    apart from exchanges."""
    held = request_at(M, h)
    exchange = add_row(M, connection)
    if is_server_token(held.correlation):
        connection.exchanges -= 1
        clear_frame(exchange.request)
        exchange.response = held.frame
        exchange.orphan = 1
        set_no_request(exchange, connection.tokens, 0, st.TOKEN)
        connection.tokens += 1
        free_request(M, h)
        return
    clear_frame(exchange.request)
    exchange.response = held.frame
    exchange.orphan = 1
    set_no_request(exchange, connection.orphans, held.correlation, Status.ORPHAN)
    connection.orphans += 1
    frame = held.frame
    set_abandoned(connection, exchange, frame.first)
    if (
        frame.last == NULL or frame.last >= connection.answered_last
    ):  # later ones may have found their requests meanwhile
        note_answer(connection, frame.last)
    problem(
        M,
        Kind.ORPHAN_RESPONSE,
        connection,
        1 - connection.client,
        frame.first,
        frame.packet,
        held.n,
        frame.bytes,
        held.correlation,
    )
    free_request(M, h)


@part
def request_waits(M: Words, direction: Direction, time: Int, packet: Int) -> bool:
    """Whether a request that was sent before `time` may wait behind a hole of its direction, or one that was
    captured before `packet`: two interfaces can have two clocks."""
    place = direction.ahead_head
    steps = 0
    while place >= 0 and steps < NEXT_FEW:
        node = node_at(M, place)
        if node.time <= time or node.packet <= packet:
            return True
        place = node.next
        steps += 1
    return False


@part
def release_held(M: Words, connection: Connection) -> None:
    """Responses held too long become orphans."""
    while connection.held_head >= 0:
        h = connection.held_head
        held = request_at(M, h)
        late = connection.packets - held.packets >= HOLD_PACKETS
        asking = connection.directions[connection.client]
        late = late and not request_waits(M, asking, held.frame.first, held.frame.packet)
        if not (control_at(M, CONTROL).final > Final.RUNNING or late or connection.held > HELD):
            return
        connection.held_head = held.next
        connection.held -= 1
        finish_orphan(M, connection, h)


@part
def _last_before(M: Words, connection: Connection, request: Request, held_response: Request) -> bool:
    """Whether a held response came after this request, and, where one request waits for the other's answer, before the
    next one, which may wait behind a hole."""
    if request.frame.first > held_response.frame.first:
        return False
    following = connection.directions[connection.client].ahead_head
    return connection.pipelined == 1 or following < 0 or node_at(M, following).time > held_response.frame.first


@part
def meet_held(M: Words, connection: Connection, r: Int) -> bool:
    """A request that was captured after its response; True when one was waiting for it."""
    request = request_at(M, r)
    had = request.answered_to  # those answers came before it was sent
    before = -1
    h = connection.held_head
    while h >= 0:
        held = request_at(M, h)
        may = connection.repeats < REPEATS or _last_before(M, connection, request, held)
        may = may and (had == NULL or had < held.n or request.frame.first < held.frame.first)
        if held.correlation == request.correlation and held.frame.first != NULL and may:
            while connection.repeats >= REPEATS and connection.request_head >= 0:
                without_response(M, connection, pop_request(M, connection))
            exchange = add_row(M, connection)
            exchange.queued_from = held.way.behind
            if before >= 0:
                request_at(M, before).next = held.next
            else:
                connection.held_head = held.next
            connection.held -= 1
            set_request_columns(exchange, request)
            exchange.response = held.frame
            exchange.response.body = -2
            request.way = held.way
            set_answer_columns(connection, exchange, request, held.frame.last)
            if held.frame.packet < request.frame.packet:
                problem(
                    M,
                    Kind.ANSWER_FIRST,
                    connection,
                    1 - connection.client,
                    held.frame.first,
                    held.frame.packet,
                    held.n,
                    held.frame.bytes,
                    held.correlation,
                )
            free_request(M, h)
            free_request(M, r)
            return True
        before = h
        h = held.next
    return False


@part
def hold_response(M: Words, connection: Connection, direction: Direction, correlation: Int) -> None:
    """The direction's current frame answers a request that was not captured yet: it is held."""
    h = take_place(M)
    held = request_at(M, h)
    held.correlation = correlation
    copy_frame(held.frame, direction, -1)
    held.n = direction.next
    set_way(held.way, connection, held.frame)
    held.packets = connection.packets
    tail = connection.held_head
    if tail < 0:
        connection.held_head = h
    else:
        while request_at(M, tail).next >= 0:
            tail = request_at(M, tail).next
        request_at(M, tail).next = h
    connection.held += 1
    release_held(M, connection)
