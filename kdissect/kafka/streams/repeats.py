"""Bytes that are sent again, compared with the first copy.

The last REMEMBERED segments of a direction are remembered: where they lie, and, once the window forgets their bytes, a
fingerprint of them. (Nearly all are pushed out by later ones before, and their bytes are never looked at.) A segment
that begins below the highest position so far may repeat some of them. Those that it holds whole are compared however
long ago they came. Parts of them are compared while their own bytes are still at hand (in the window), and so is a
segment that waits behind a hole. Bytes that differ are a problem with both places: where the copy is, and the number of
the first one's packet. The first copy is what is read.
"""

from __future__ import annotations

from kdissect.capture.window import EXTRA
from kdissect.kafka.streams.state import KEPT, KEPT_BASE, place, problem
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import fingerprint
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.net.segment import RST, SYN, Segment
from kdissect.problems import Kind
from kdissect.tcp.assembly import unwrap
from kdissect.tcp.layout import REMEMBERED, Connection, Direction, connection_at, node_at

UNKNOWN = 0
"""No fingerprint was taken yet."""


@part
def _print_of(M: Words, b: Bytes, direction: Direction, q: Int) -> Int:
    """The fingerprint of a remembered segment: of its bytes, or, where they are not at hand, the one that was taken."""
    at, size = direction.kept_at[q], direction.kept_size[q]
    if at >= 0:
        p = place(M, at)
        if p >= 0 and size <= b.size - p:
            return fingerprint(b, p, size)
    return direction.kept_print[q]


@part
def remember(M: Words, b: Bytes, direction: Direction, q: Int) -> None:
    """Take the fingerprint of a remembered segment whose bytes will not be at hand."""
    if direction.kept_at[q] >= 0 and direction.kept_size[q] > 0 and direction.kept_print[q] == UNKNOWN:
        direction.kept_print[q] = _print_of(M, b, direction, q)


@kernel("i8[:] const u1[:] i8[:]")
def remember_all(M: Words, b: Bytes, connections: Words) -> None:
    """Take the fingerprints of all remembered segments of the connections at these addresses."""
    for c in connections:
        connection = connection_at(M, c)
        for side in range(2):
            for q in range(REMEMBERED):
                remember(M, b, connection.directions[side], q)


@part
def compare(
    M: Words, b: Bytes, A: Bytes, packet: Segment, connection: Connection, direction: Direction, highest: Int
) -> None:
    """Look at a segment that was just taken, or recognised as a copy; `highest`: the highest position before it."""
    size = packet.len
    if size <= 0 or packet.flags & RST or direction.started == 0:
        return
    o = place(M, packet.at)
    if o < 0 or size > b.size - o:
        return
    sequence = packet.seq
    if packet.flags & SYN:
        sequence = (sequence + 1) & 0xFFFFFFFF
    position = unwrap(sequence, direction.next)
    if position < highest and not (packet.wire <= 1 and position == highest - 1):  # that is a keep-alive
        if _waiting(M, b, A, packet, connection, direction, position, o):
            return
        if _repeats(M, b, packet, connection, direction, position, o):
            return
    turn = direction.kept_turn
    direction.kept_turn = (turn + 1) % REMEMBERED
    direction.kept_from[turn] = position
    direction.kept_size[turn] = size
    direction.kept_print[turn] = fingerprint(b, o, size) if packet.at >= EXTRA else UNKNOWN
    direction.kept_at[turn] = packet.at
    direction.kept_packet[turn] = packet.packet


@part
def _repeats(
    M: Words, b: Bytes, packet: Segment, connection: Connection, direction: Direction, position: Int, o: Int
) -> bool:
    """Whether a segment is one of those remembered once more. A difference becomes a problem, one row for each
    segment."""
    same = False
    for q in range(REMEMBERED):
        known, at = direction.kept_size[q], direction.kept_at[q]
        begin = max(position, direction.kept_from[q])
        end = min(position + packet.len, direction.kept_from[q] + known)
        if known <= 0 or begin >= end or direction.kept_packet[q] == packet.packet:
            continue
        differs = False
        mine = o + begin - position
        if end - begin == known:
            same |= known == packet.len
            theirs = _print_of(M, b, direction, q)
            differs = theirs != UNKNOWN and fingerprint(b, mine, known) != theirs
        elif at >= 0:
            p = place(M, at)
            if p >= 0 and known <= b.size - p:
                p += begin - direction.kept_from[q]
                differs = fingerprint(b, p, end - begin) != fingerprint(b, mine, end - begin)
        if differs:
            _note_conflict(M, packet, connection, direction, begin, end - begin, direction.kept_packet[q])
            break
    return same


@part
def _waiting(
    M: Words, b: Bytes, A: Bytes, packet: Segment, connection: Connection, direction: Direction, position: Int, o: Int
) -> bool:
    """Whether a segment differs from bytes of others that wait behind a hole; a difference becomes a problem."""
    if direction.ahead_tail < 0:
        return False
    last = node_at(M, direction.ahead_tail)
    if position >= last.position + (last.length >> 32):
        return False
    piece = direction.ahead_head
    while piece >= 0:
        node = node_at(M, piece)
        if node.position >= position + packet.len:
            break
        begin = max(position, node.position)
        end = min(position + packet.len, node.position + (node.length & 0x7FFFFFFF))
        if begin < end and node.at >= 0 and node.packet != packet.packet:
            at = node.at + begin - node.position
            mine = fingerprint(b, o + begin - position, end - begin)
            theirs = mine
            if at >= KEPT:
                if end - begin <= A.size - (at - KEPT + KEPT_BASE):
                    theirs = fingerprint(A, at - KEPT + KEPT_BASE, end - begin)
            else:
                p = place(M, at)
                if p >= 0 and end - begin <= b.size - p:
                    theirs = fingerprint(b, p, end - begin)
            if mine != theirs:
                _note_conflict(M, packet, connection, direction, begin, end - begin, node.packet)
                return True
        piece = node.next
    return False


@part
def _note_conflict(
    M: Words, packet: Segment, connection: Connection, direction: Direction, position: Int, size: Int, before: Int
) -> None:
    """A row of problems: the copy's place, and the packet that it differs from."""
    kind = Kind.CONFLICTING_RETRANSMISSION
    problem(M, kind, connection, direction.side, packet.time, packet.packet, position, size, before)
