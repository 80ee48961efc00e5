"""Requests told by their headers alone, where a snap length cut the bodies off.

A connection that was met in its middle and whose packets are cut has no whole message that could be tried. The bytes
that are there still show much, and other protocols do not show it. A frame's length leads to the beginning of another
segment, however much of it was captured, and there stands the next header. It has a known key and version, the same
client id, a correlation id a little higher, for the same key the same version. Precision comes first:

- TILES such headers in a row are Kafka.
- Fewer are, when the other direction has an answer with an id of a request, and its length leads to the beginning of a
  segment too. A single one is only if its own length does. An answer that reads as a request itself is no evidence. An
  answer to Produce version 1 with id 1 about one topic, next to its request, reads the same the other way round.
- On a connection that is known to be Kafka, and lost its place, two are enough, or one whose length leads to a segment.

Client ids are null or printable, and not empty: zeros read as a header of Produce. All looks at the bytes of the two
directions only.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams.framing import LEAST_REQUEST, LEAST_RESPONSE, MAX_REQUEST, MAX_RESPONSE
from kdissect.kafka.streams.pairing.message_headers import known_header, text_like
from kdissect.kafka.streams.state import HEAD, copy_out
from kdissect.kernels.kernel import part
from kdissect.kernels.memory import be16, be32, int32_at
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.tcp.layout import Connection, Direction, Mode, node_at

TILES = 4
"""Headers in a row that are believed without an answer: each of them says some 40 bits."""
LEAST_HEADER = 14
"""Length, key, version, correlation id and the client id's length."""
LOOK = 256
"""Bytes of a header that are compared."""
NEAR = 64
"""How far apart the ids of two requests in a row may be: clients count them up by one, some by connection, some for
all of their connections."""
MOST_STEPS = 64
"""Pieces that are gone through from a header on: so many segments belong to one request of 90 KB, and such are rare."""
MOST_ANSWERS = 64
"""Segments of the other direction that are looked at for an answer."""

BROKEN, OPEN, TILED = 0, 1, 2
"""What a piece is: no request; perhaps, when more comes; the first of requests."""


@part
def _header(M: Words, b: Bytes, A: Bytes, piece: Int, skip: Int, to: Int) -> Int:
    """Bytes of a frame at `A[to:]` if they read as a request's header, else 0. It begins `skip` bytes into a piece."""
    node = node_at(M, piece)
    have = min(node.length - skip, LOOK)
    if node.at < 0 or have < LEAST_HEADER or not copy_out(M, b, A, node.at + skip, have, A, to):
        return np.int64(0)
    size = be32(A, to)
    if size < LEAST_REQUEST or size > MAX_REQUEST or not known_header(M, A, to + 4, have - 4, size):
        return np.int64(0)
    n = be16(A, to + 12)
    if n == 0 or (n < 0x8000 and not text_like(A, to + 14, min(n, have - LEAST_HEADER))):
        return np.int64(0)
    return have


@part
def _follows(A: Bytes, first: Int, have: Int, second: Int, more: Int) -> bool:
    """Whether the second header can be that of the request behind the first: same client, an id a little higher."""
    above = int32_at(A, second + 8) - int32_at(A, first + 8)
    if above <= 0 or above > NEAR:
        return False
    if be16(A, first + 4) == be16(A, second + 4) and be16(A, first + 6) != be16(A, second + 6):
        return False
    n = be16(A, first + 12)
    if be16(A, second + 12) != n:
        return False
    q = 0
    end = min(n, min(have, more) - LEAST_HEADER) if n < 0x8000 else 0
    while q < end and A[first + LEAST_HEADER + q] == A[second + LEAST_HEADER + q]:
        q += 1
    return q >= end


@part
def _behind(M: Words, piece: Int, length: Int) -> tuple[Int, Int, Int]:
    """The piece with the byte that is `length` bytes behind the beginning of a piece, -1 when it did not come yet, -2
    when it is further away than is looked. Then how far in it, or how much is left; then pieces passed."""
    steps = np.int64(0)
    while piece >= 0 and length >= node_at(M, piece).length:
        if steps >= MOST_STEPS:
            return np.int64(-2), length, steps
        length -= node_at(M, piece).length
        piece = node_at(M, piece).next
        steps += 1
    return piece, length, steps


@part
def _ends_segment(M: Words, piece: Int, bytes_left: Int) -> bool:
    """Whether what `_behind` found is a place where a segment begins, or may: the end of what came."""
    if bytes_left != 0 or piece < -1:
        return False
    return piece == -1 or node_at(M, piece).position == 1


@part
def answered(M: Words, b: Bytes, A: Bytes, reverse: Direction, low: Int, high: Int) -> tuple[bool, Int]:
    """Whether a segment of the other direction begins with an answer to one of these ids, whose length leads to the
    beginning of a segment; pieces looked at."""
    steps = np.int64(0)
    to = HEAD + 2 * LOOK
    piece = reverse.head if reverse.mode == Mode.SEARCH else np.int64(-1)
    while piece >= 0 and steps < MOST_ANSWERS:
        node = node_at(M, piece)
        steps += 1
        if node.position == 1 and node.at >= 0 and node.length >= 8 and copy_out(M, b, A, node.at, 8, A, to):
            size = be32(A, to)
            if LEAST_RESPONSE < size <= MAX_RESPONSE and low <= int32_at(A, to + 4) <= high:
                after, left, more = _behind(M, piece, 4 + size)
                steps += more
                if _ends_segment(M, after, left) and _header(M, b, A, piece, np.int64(0), to) == 0:
                    return True, steps
        piece = node.next
    return False, steps


@part
def judged(
    M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction, reverse: Direction, piece: Int
) -> tuple[Int, Int]:
    """Whether requests begin with this piece of a searched window, BROKEN, OPEN or TILED; pieces looked at."""
    count, steps = np.int64(0), np.int64(1)
    first = last = np.int64(0)
    have = np.int64(0)
    skip = left = np.int64(0)
    exact = False
    while piece >= 0 and count < TILES:
        to = HEAD + (count & 1) * LOOK
        more = _header(M, b, A, piece, skip, to)
        if more == 0 or (count > 0 and not _follows(A, HEAD + LOOK - (count & 1) * LOOK, have, to, more)):
            break
        have = more
        last = int32_at(A, to + 8)
        if count == 0:
            first = last
        count += 1
        piece, left, passed = _behind(M, piece, skip + 4 + be32(A, to))
        exact = _ends_segment(M, piece, left)
        skip = left
        steps += passed
    if count == 0:
        return BROKEN, steps
    if connection.kafka == 1:
        if count > 1 or exact:
            return TILED, steps
    elif count >= TILES:
        return TILED, steps
    elif count > 1 or exact:
        found, looked = answered(M, b, A, reverse, first, last)
        steps += looked
        if found:
            return TILED, steps
    return OPEN if piece == -1 else BROKEN, steps
