"""Bytes of a direction, in order, into frames.

A frame is a 4-byte length and that many bytes. Bytes missing inside a frame cost that frame alone: the length says
where the next one begins (`gap` counts through). Only when a length itself is missing, or is one that no frame can
have, the place is lost and the direction is searched (`resync`). A stream whose protocol is not known
yet is a stream whose place is lost, at its very beginning.

While a direction is searched its bytes are nodes of a window; afterwards nodes are the pieces of the current frame.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams.pairing import request_complete, response_complete
from kdissect.kafka.streams.state import KEPT, KEPT_BASE, place, problem
from kdissect.kernels.kernel import part
from kdissect.kernels.memory import be32
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.problems import Kind
from kdissect.tcp.assembly import give_node, note_way, take_node
from kdissect.tcp.layout import CUT, HOLE, MODES, Connection, Direction, Mode, Sasl, Sight, node_at

PREFIX = 4
LEAST_REQUEST = 8
LEAST_RESPONSE = 4
"""A request has at least key, version and correlation id, a response its correlation id. (An empty frame is a legal
answer to a bare SASL token; as a request it makes the broker close the connection.)"""

MAX_REQUEST = 128 << 20
"""No broker accepts a request beyond socket.request.max.bytes, 100 MiB by default and hardly ever raised."""
MAX_RESPONSE = 1 << 30
"""Clients ask for 50 MiB (fetch.max.bytes) by default and cannot take 2 GiB; tuned ones stay far below this."""

TRIAL_FACTOR = 32
"""How many bytes trials may read for each byte that is searched, so that searching stays linear."""


@part
def push(M: Words, direction: Direction, at: Int, length: Int, time: Int, packet: Int) -> None:
    """Append a piece (or a gap) to the direction's list of nodes."""
    fresh = take_node(M)
    node = node_at(M, fresh)
    node.at = at
    node.length = length
    node.time = time
    node.packet = packet
    node.position = 0
    if direction.tail >= 0:
        node_at(M, direction.tail).next = fresh
    else:
        direction.head = fresh
    direction.tail = fresh


@part
def _piece(M: Words, direction: Direction, at: Int, length: Int, time: Int, packet: Int) -> None:
    """Bytes of the current frame. The first piece needs no node, which is all that most frames have."""
    if at >= 0 and direction.at < 0 and direction.head < 0:
        direction.at = at
        direction.length = length
        return
    if direction.at >= 0:
        push(M, direction, direction.at, direction.length, direction.first, direction.packet)
        direction.at = -1
    push(M, direction, at, length, time, packet)


@part
def forget_frame(direction: Direction) -> None:
    """The direction owns no pieces any more (they were handed on)."""
    direction.at = -1
    direction.head = -1
    direction.tail = -1
    direction.need = -1
    direction.prefix_bytes = 0
    direction.missing = 0
    direction.cut = 0


@part
def drop_nodes(M: Words, direction: Direction) -> None:
    """Free the direction's nodes."""
    node = direction.head
    while node >= 0:
        following = node_at(M, node).next
        give_node(M, node)
        node = following
    direction.head = -1
    direction.tail = -1


@part
def complete(M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction) -> None:
    """Hand the current frame on."""
    direction.frames += 1
    if direction.side == connection.client:
        request_complete(M, b, A, connection, direction)
    else:
        response_complete(M, b, A, connection, direction)
    forget_frame(direction)


@part
def lose(M: Words, direction: Direction) -> None:
    """The place of the next frame is not known any more."""
    drop_nodes(M, direction)
    forget_frame(direction)
    direction.mode = MODES[direction.mode, Sight.LOST]
    direction.window = 0
    direction.tried = 0
    direction.searched = 0


@part
def _prefix_byte(M: Words, b: Bytes, A: Bytes, at: Int) -> Int:
    if at >= KEPT:
        o = at - KEPT + KEPT_BASE
        return np.int64(A[o]) if o < A.size else -1
    o = place(M, at)
    return np.int64(b[o]) if o >= 0 else -1


@part
def _whole_frames(
    M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction, at: Int, captured: Int, time: Int,
    packet: Int,
) -> Int:  # fmt: skip
    """Reads frames that lie whole within bytes of the window, up to the first that does not, or whose length is odd.
    These are almost all frames of most captures. They need nothing that `consume` remembers of a frame that goes on.
    Returns their bytes."""
    if direction.need >= 0 or direction.prefix_bytes > 0 or at >= KEPT:
        return 0
    o = place(M, at)
    if o < 0:
        return 0
    least = LEAST_REQUEST if direction.side == connection.client else LEAST_RESPONSE
    done = 0
    while captured - done >= PREFIX:
        size = be32(b, o + done)
        if size < least or size > captured - done - PREFIX:
            break
        direction.first = time
        direction.first_rise = direction.rise
        direction.latest = time
        direction.packet = packet
        direction.size = size
        direction.need = 0
        direction.at = at + done + PREFIX
        direction.length = size
        complete(M, b, A, connection, direction)
        done += PREFIX + size
    return done


@part
def consume(
    M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction, at: Int, captured: Int, wire: Int,
    time: Int, packet: Int,
) -> Int:  # fmt: skip
    """The next bytes of a direction whose frames are known: `captured` of them at `at`, the rest of `wire` was cut off.

    Returns how many of the bytes were taken: fewer than `wire` when the place was lost inside them.
    """
    whole = _whole_frames(M, b, A, connection, direction, at, captured, time, packet)
    at += whole
    left = captured - whole
    cut = wire - captured
    while left > 0 or cut > 0:
        if direction.need < 0:
            if left == 0:
                direction.cut_total += cut
                problem(M, Kind.SNAPPED, connection, direction.side, time, packet, direction.next, cut, -1)
                lose(M, direction)
                return wire
            if direction.prefix_bytes == 0:
                direction.first = time
                direction.first_rise = direction.rise
                direction.latest = time
                direction.packet = packet
                direction.prefix = 0
            o = place(M, at) if left >= 4 and at < KEPT and direction.prefix_bytes == 0 else -1
            if o >= 0:
                direction.prefix = be32(b, o)
                direction.prefix_bytes = 4
                at += 4
                left -= 4
            while left > 0 and direction.prefix_bytes < 4:
                x = _prefix_byte(M, b, A, at)
                if x < 0:
                    lose(M, direction)
                    return wire
                direction.prefix = (direction.prefix << 8) | x
                direction.prefix_bytes += 1
                at += 1
                left -= 1
            direction.latest = max(direction.latest, time)
            direction.packet = max(direction.packet, packet)
            if direction.prefix_bytes < 4:
                continue
            size = direction.prefix
            is_request = direction.side == connection.client
            least = LEAST_REQUEST if is_request else LEAST_RESPONSE
            if size == 0:
                if connection.sasl != Sasl.BARE:
                    problem(M, Kind.BAD_LENGTH, connection, direction.side, time, packet, direction.next, 4, 0)
                direction.prefix_bytes = 0
                continue
            most = MAX_REQUEST if is_request else MAX_RESPONSE
            if size > most or (size < least and connection.sasl != Sasl.BARE):
                signed = size if size < 0x80000000 else size - (1 << 32)
                problem(M, Kind.BAD_LENGTH, connection, direction.side, time, packet, direction.next, 4, signed)
                lose(M, direction)
                return wire - left - cut
            direction.size = size
            direction.need = size
            continue
        need = direction.need
        direction.latest = max(direction.latest, time)
        direction.packet = max(direction.packet, packet)
        if left > 0:
            n = min(left, need)
            _piece(M, direction, at, n, time, packet)
            at += n
            left -= n
        else:
            n = min(cut, need)
            _piece(M, direction, CUT, n, time, packet)
            direction.cut += n
            direction.cut_total += n
            cut -= n
        direction.need = need - n
        if need == n:
            complete(M, b, A, connection, direction)
    return wire


@part
def gap(
    M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction, length: Int, time: Int, packet: Int
) -> None:
    """`length` bytes of the direction were never captured."""
    connection.skipped |= direction.side != connection.client and (direction.need < 0 or length > direction.need)
    if direction.mode == Mode.SEARCH:
        if direction.window > 0:
            push(M, direction, HOLE, length, time, packet)
        else:
            direction.begun = 0
        return
    if direction.mode != Mode.FRAMES:
        return
    need = direction.need
    if need < 0:
        lose(M, direction)
        return
    n = min(need, length)
    _piece(M, direction, HOLE, n, time, packet)
    direction.missing += n
    direction.need = need - n
    if need == n:
        complete(M, b, A, connection, direction)
    if length > n:
        lose(M, direction)


@part
def feed(
    M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction, at: Int, captured: Int, wire: Int,
    time: Int, packet: Int,
) -> None:  # fmt: skip
    """Feeds the next bytes of a direction, at any stage of the search for frames."""
    whole = direction.mode != Mode.FRAMES
    if not whole:
        taken = consume(M, b, A, connection, direction, at, captured, wire, time, packet)
        if taken == wire:
            return
        at += taken
        captured = max(captured - taken, 0)
        wire -= taken
    if direction.mode == Mode.SEARCH:
        direction.budget += TRIAL_FACTOR * captured
        direction.window += captured
        if captured > 0:
            push(M, direction, at, captured, time, packet)
            node = node_at(M, direction.tail)
            node.position = 1 if whole else 0
            note_way(node.arrival, connection, direction)
        if wire > captured:
            direction.cut_total += wire - captured
            if direction.head >= 0:
                push(M, direction, CUT, wire - captured, time, packet)
            else:
                direction.begun = 0
