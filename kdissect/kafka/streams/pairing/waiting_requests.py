"""The requests of a connection that wait for their answers, in the order in which they were sent.

A request that will not be answered any more leaves the list as a row of its own (`without_response`). One is found by
the correlation id of an answer (`waiting_with`), and by what was acknowledged (`requests_acknowledged`).
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.completed import Status
from kdissect.kafka.streams import state as st
from kdissect.kafka.streams.pairing.exchange_rows import add_row, clear_frame, is_damaged, set_request_columns
from kdissect.kafka.streams.state import request_at
from kdissect.kernels.kernel import part
from kdissect.kernels.structs import Int, Words
from kdissect.net.segment import Segment
from kdissect.tcp.assembly import bareness, opposite
from kdissect.tcp.layout import CONTROL, NULL, Connection, Direction, End, Final, control_at
from kdissect.tcp.roundtrip import came_first, lost_by_copies, proof_of_silence

MAX_WAITING = 8192
"""Requests waiting per connection at most (Kafka's clients keep 5 in flight, librdkafka up to 1,000,000 by setting
but a broker reads one at a time); the oldest is finished as never answered."""
NEXT_FEW = 16
"""Waiting requests that are looked at for captures out of order: packets change places over short distances only."""
MAX_SKIPPED = 1024
"""How far behind the oldest waiting request a response's id is looked for."""


@part
def take_place(M: Words) -> Int:
    """Where a further request, or held response, may stand on the heap."""
    control = control_at(M, CONTROL)
    place = control.request_free
    if place < 0:  # the heap is zeros where nobody was yet: pages that nobody writes to cost nothing
        place = control.request_fresh
        control.request_fresh += st.REQUEST_WIDTH
        request_at(M, place).frame.head = -1
        request_at(M, place).next = -1
    request = request_at(M, place)
    control.request_free = request.next
    control.requests_left -= 1
    control.last_request = max(control.last_request, place)
    request.next = -1
    return place


@part
def free_request(M: Words, place: Int) -> None:
    """The request, or held response, at this place is needed no more."""
    control = control_at(M, CONTROL)
    request = request_at(M, place)
    request.frame.bytes = 0
    request.next = control.request_free
    control.request_free = place
    control.requests_left += 1


@part
def pop_request(M: Words, connection: Connection) -> Int:
    """Take the oldest waiting request off the list, -1 when there is none."""
    oldest = connection.request_head
    if oldest >= 0:
        connection.request_head = request_at(M, oldest).next
        if connection.request_head < 0:
            connection.request_tail = -1
        connection.requests_open -= 1
        if connection.unacked == oldest:
            connection.unacked = request_at(M, oldest).next
    return oldest


@part
def without_response(M: Words, connection: Connection, r: Int) -> None:
    """Finish the oldest waiting request `r` (already off the list) as never answered."""
    request = request_at(M, r)
    exchange = add_row(M, connection)
    set_request_columns(exchange, request)
    clear_frame(exchange.response)
    answering = connection.directions[1 - connection.client]
    if answering.packets == 0:
        status = Status.ONE_WAY
    elif is_damaged(request.frame) or answering.lost >= request.packets:
        status = Status.PARTIAL
    elif control_at(M, CONTROL).final == Final.CAPTURE_ENDED and connection.end == End.OPEN:
        status = Status.PENDING
    else:
        status = Status.UNANSWERED
    exchange.status = status
    free_request(M, r)


@part
def requests_acknowledged(M: Words, packet: Segment, connection: Connection, direction: Direction) -> None:
    """A packet acknowledged bytes of a direction: the requests among them."""
    if direction.side != connection.client:
        return
    bare = bareness(packet)
    r = connection.unacked
    while r >= 0:
        request = request_at(M, r)
        if request.end > direction.acked:
            break
        request.acked = packet.time - opposite(connection, direction).rise
        request.bare = bare
        request.proof = proof_of_silence(packet, connection, direction, request.frame.last)
        if bare < 2 and request.frame.last != NULL:
            request.resent = lost_by_copies(packet, direction, request.frame.last, request.end, request.acked)
        r = request.next
    connection.unacked = r


@part
def copies_not_needed(M: Words, packet: Segment, connection: Connection, direction: Direction) -> None:
    """Clears the loss of requests that a packet reports as arrived twice (D-SACK), just after another
    packet acknowledged them. Copies that look like probes cost them nothing."""
    if direction.side != connection.client:
        return
    r = connection.request_head
    steps = 0
    while r >= 0 and r != connection.unacked and steps < NEXT_FEW:
        request = request_at(M, r)
        if came_first(packet, request.acked, request.resent):
            request.bare, request.resent = 2, 0
        r = request.next
        steps += 1


@part
def waiting_with(M: Words, connection: Connection, correlation: Int) -> tuple[Int, Int]:
    """The oldest waiting request with a correlation id, -1 when there is none near the front; how many were passed."""
    r = connection.request_head
    steps = 0
    ordered = r >= 0 and connection.unordered == 0
    if ordered and request_at(M, connection.request_tail).correlation < correlation:
        return -1, steps
    while r >= 0 and steps < MAX_SKIPPED:
        request = request_at(M, r)
        if request.correlation == correlation:
            return r, steps
        if ordered and request.correlation > correlation:
            break
        r = request.next
        steps += 1
    return -1, steps


@part
def last_asked(M: Words, oldest: Int, time: Int) -> tuple[Int, Int]:
    """The last waiting request with the id of `oldest` that was sent by this time, -1 none, and how many such were."""
    correlation = request_at(M, oldest).correlation
    newest, count, steps = np.int64(-1), np.int64(0), np.int64(0)
    r = oldest
    while r >= 0 and steps < MAX_SKIPPED:
        request = request_at(M, r)
        if request.correlation == correlation and request.frame.first <= time:
            newest = r
            count += 1
        r = request.next
        steps += 1
    return newest, count


@part
def pick_of_equals(M: Words, connection: Connection, direction: Direction, oldest: Int) -> Int:
    """The waiting request with the id of the oldest such that the current frame answers, -1 where that is not known.
    Then those that it may answer are finished as not answered."""
    first = request_at(M, oldest)
    lost = max(connection.directions[0].lost, connection.directions[1].lost) >= first.packets
    newest, count = last_asked(M, oldest, direction.first)
    if not lost:
        if count > 1:
            connection.pipelined = 1
        return oldest
    if connection.pipelined == 0 or count < 2:
        return newest
    while True:
        r = pop_request(M, connection)
        without_response(M, connection, r)
        if r == newest:
            return np.int64(-1)


@part
def take_out_of_flight(M: Words, connection: Connection, answered: Int) -> None:
    """Requests that were captured before this answer but sent after it (a capture out of order) did not overlap it."""
    r = connection.request_head
    steps = 0
    while r >= 0 and steps < NEXT_FEW:
        request = request_at(M, r)
        if request.frame.first > answered:
            request.in_flight -= 1
        r = request.next
        steps += 1
