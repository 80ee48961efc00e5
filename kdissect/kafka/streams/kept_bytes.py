"""Bytes that must outlive the window.

The window forgets its oldest slot before it reads on. The bytes that the stream kernels may still look at then move to
`kept`: the beginnings of frames that are being received, windows that are being searched, and segments ahead of a hole.
The bulk of a large frame stays where it is, as extents of the file, where the input can be read again. Where it cannot
(a pipe, a compressed file, plaintext of TLS) it moves too, or is given up when too much would be kept. Such a frame is
still paired and timed. `kept` is packed again each time, so it holds live bytes only.
"""

from __future__ import annotations

from kdissect.capture.window import EXTRA
from kdissect.kafka.streams.repeats import remember
from kdissect.kafka.streams.state import HEAD_BYTES, KEPT, KEPT_BASE, copy_out, request_at
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import fetch
from kdissect.kernels.structs import Bytes, Int, Words, offsets, width
from kdissect.tcp.layout import (
    CONTROL,
    CUT,
    REMEMBERED,
    Connection,
    Direction,
    Mode,
    connection_at,
    control_at,
    node_at,
)

LEAVE, MOVE, GIVE_UP = 0, 1, 2
"""What becomes of the bulk of large frames: it stays where it can be read again, it moves, it is given up."""
AHEAD = 4
"""Structs between asking for memory and using it."""
_C, _D = offsets(Connection), offsets(Direction)
NUMBER, DIRECTIONS, DIRECTION_WIDTH = _C.number, _C.directions[0].next, width(Direction)
AT, AHEAD_HEAD, KEPT_AT = _D.at, _D.ahead_head, _D.kept_at
SMALL_REQUEST = 4096
"""Waiting requests up to this size are kept: cheaper than reading each of them again."""


@part
def _leaving(at: Int, low: Int, high: Int) -> bool:
    """Whether bytes at `at` have to move: the window forgets [low, high); bytes put together by us rotate on their
    own."""
    return low <= at < high or at >= EXTRA


@part
def _move(M: Words, b: Bytes, A: Bytes, at: Int, n: Int, fresh: Bytes, w: Int, fill: bool) -> Int:
    """Copy a piece to the new `kept`; its new address, CUT when its bytes are gone or there is no room."""
    if not fill:
        return KEPT
    return KEPT + w if copy_out(M, b, A, at, n, fresh, KEPT_BASE + w) else CUT


@part
def _nodes(
    M: Words, b: Bytes, A: Bytes, piece: Int, bulk: Int, low: Int, high: Int, fresh: Bytes, w: Int, fill: bool
) -> Int:
    """Move the pieces of one list: those within the first HEAD_BYTES, and those of the bulk that `bulk` selects. A
    piece that is not in the input moves in any case, unless it is given up."""
    seen = 0
    while piece >= 0:
        node = node_at(M, piece)
        n = node.length & 0x7FFFFFFF
        at = node.at
        if at >= 0 and n > 0 and _leaving(at, low, high):
            if seen < HEAD_BYTES or bulk == MOVE or (bulk == LEAVE and at >= EXTRA):
                if fill:
                    node.at = _move(M, b, A, at, n, fresh, w, fill)
                w += n
            elif bulk == GIVE_UP and fill:
                node.at = CUT
        seen += n
        piece = node.next
    return w


@part
def _forget(M: Words, b: Bytes, direction: Direction, low: Int, high: Int) -> None:
    """The bytes of remembered segments will not be at hand any more; their fingerprints are."""
    for q in range(REMEMBERED):
        if _leaving(direction.kept_at[q], low, high):
            remember(M, b, direction, q)
            direction.kept_at[q] = -1


@part
def _look_ahead(M: Words, place: Int) -> None:
    """Ask for what is read of a connection whose turn comes soon."""
    fetch(M, place + NUMBER)
    for side in range(2):
        direction = place + DIRECTIONS + side * DIRECTION_WIDTH
        fetch(M, direction + AT)
        fetch(M, direction + AHEAD_HEAD)
        fetch(M, direction + KEPT_AT)
        fetch(M, direction + KEPT_AT + REMEMBERED - 1)


@kernel("i8[:] const u1[:] u1[:] i8[:] i8[:] i8 i8 i8 u1[:] b1 -> i8")
def keep(
    M: Words, b: Bytes, A: Bytes, connections: Words, requests: Words, low: Int, high: Int, bulk: Int, fresh: Bytes,
    fill: bool,
) -> Int:  # fmt: skip
    """Move (or, without `fill`, only measure) what has to leave the window; returns the bytes.

    `connections` and `requests` are the addresses of all such structs, free ones too, in rising order. `fresh` becomes
    the new `A`. `bulk`: LEAVE, MOVE or GIVE_UP.
    """
    w = 0
    for i in range(connections.size):
        if i + AHEAD < connections.size:
            _look_ahead(M, connections[i + AHEAD])
        connection = connection_at(M, connections[i])
        if connection.number < 0:
            continue
        for side in range(2):
            direction = connection.directions[side]
            if not fill:
                _forget(M, b, direction, low, high)
            at = direction.at
            if at >= 0 and _leaving(at, low, high):
                if fill:
                    direction.at = _move(M, b, A, at, direction.length, fresh, w, fill)
                w += direction.length
            if direction.head >= 0:
                mine = MOVE if direction.mode == Mode.SEARCH else bulk
                w = _nodes(M, b, A, direction.head, mine, low, high, fresh, w, fill)
            if direction.ahead_head >= 0:
                w = _nodes(M, b, A, direction.ahead_head, MOVE, low, high, fresh, w, fill)
    last = control_at(M, CONTROL).last_request
    for r in requests:
        if r > last:
            break
        frame = request_at(M, r).frame
        if frame.bytes <= 0:
            continue
        at = frame.at
        if at >= 0 and _leaving(at, low, high) and (frame.bytes <= SMALL_REQUEST or bulk == MOVE or at >= EXTRA):
            if fill:
                frame.at = _move(M, b, A, at, frame.length, fresh, w, fill)
            w += frame.length
        if frame.head >= 0:
            w = _nodes(M, b, A, frame.head, bulk, low, high, fresh, w, fill)
    return w
