"""The fast lane: packets that are next in order on a live connection in plain text, and hold whole frames or nothing.

Most packets of most captures are of this kind, and most of what `connection_kernel` asks of a packet has one answer
then. `in_lane` handles such a packet as a whole, with the same words on the heap and the same rows as the way through
`_packet`. All other packets go that way, in order with these. The lane keeps no state, so a connection may leave it and
come back with any packet. `Control.lane` says whether it is used; it changes how long a run takes, and nothing else.
"""

from __future__ import annotations

from kdissect.capture.window import EXTRA
from kdissect.kafka.streams.framing import LEAST_REQUEST, LEAST_RESPONSE, PREFIX, forget_frame
from kdissect.kafka.streams.pairing import take_request, take_response
from kdissect.kafka.streams.pairing.held_responses import release_held
from kdissect.kafka.streams.pairing.waiting_requests import requests_acknowledged
from kdissect.kafka.streams.repeats import UNKNOWN
from kdissect.kafka.streams.state import HEAD_BYTES, place
from kdissect.kernels.kernel import part
from kdissect.kernels.memory import be32
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.net.segment import ACK_FLAG, FIN, RST, SYN, Segment
from kdissect.tcp import layout as tl
from kdissect.tcp.assembly import MAX_AHEAD, note_advance, opposite, unwrap
from kdissect.tcp.layout import REMEMBERED, Connection, Direction, End, Mode
from kdissect.tcp.one_way import note_delay
from kdissect.tcp.roundtrip import acknowledged, sent

ENDINGS = SYN | FIN | RST
WINDOW = 0xFFFF << 8
"""Of a segment's flags: the window."""


@part
def _live(packet: Segment, connection: Connection, direction: Direction, reverse: Direction) -> bool:
    """Whether a packet acknowledges and opens or ends nothing, and its connection is open, in plain text, known to be
    Kafka, and has nothing that waits."""
    return (
        packet.flags & (ENDINGS | ACK_FLAG) == ACK_FLAG
        and packet.flags & WINDOW != 0
        and packet.time != 0
        and connection.end == End.OPEN
        and connection.sealed == 0
        and connection.client >= 0
        and connection.held == 0
        and direction.viewpoint == packet.viewpoint
        and direction.zero_since == tl.NULL
        and direction.started > 0
        and reverse.started > 0
        and direction.ahead == 0
        and reverse.ahead == 0
    )


@part
def _holds_whole_frames(b: Bytes, o: Int, size: Int, least: Int) -> bool:
    """Whether `b[o:o + size]` is frames of at least so many bytes, and nothing else."""
    done = 0
    while size - done >= PREFIX:
        length = be32(b, o + done)
        if length < least or length > size - done - PREFIX:
            return False
        done += PREFIX + length
    return done == size


@part
def in_lane(M: Words, b: Bytes, A: Bytes, packet: Segment, connection: Connection, direction: Direction) -> bool:
    """Take a packet, if it is one for the lane. False: it is not, and nothing was done."""
    other = opposite(connection, direction)
    if not _live(packet, connection, direction, other):
        return False
    acked = unwrap(packet.ack, other.next)
    advances = acked > other.acked and other.acked != tl.NULL and acked - other.next <= MAX_AHEAD
    size = packet.wire
    o = 0
    if size > 0:
        if (
            packet.len != size
            or packet.seq != direction.next & 0xFFFFFFFF
            or direction.highest > direction.next
            or packet.at >= EXTRA
            or direction.mode != Mode.FRAMES
            or direction.need >= 0
            or direction.prefix_bytes > 0
        ):
            return False
        o = place(M, packet.at)
        least = LEAST_REQUEST if direction.side == connection.client else LEAST_RESPONSE
        if o < 0 or size > b.size - o or not _holds_whole_frames(b, o, size, least):
            return False
    elif not advances:
        return False
    connection.packets += 1
    note_advance(packet, direction)
    connection.last = max(connection.last, packet.time)
    direction.packets += 1
    direction.bytes += size
    direction.bares += size == 0
    note_delay(packet, connection, direction)
    if advances:
        other.acked_before, other.acked = other.acked, acked
        acknowledged(packet, connection, other, acked)
    elif other.acked == tl.NULL and acked - other.next <= MAX_AHEAD:
        other.acked_before, other.acked = other.acked, acked
        acknowledged(packet, connection, other, acked)
        advances = True
    if size > 0:
        _remember(packet, direction)
        direction.next += size
        direction.highest = direction.next
        direction.highest_time = packet.time
        sent(direction, direction.next, packet.time)
    if advances and connection.unacked >= 0:
        requests_acknowledged(M, packet, connection, other)
    if size > 0:
        _frames(M, b, A, packet, connection, direction, o)
        if connection.held > 0:
            release_held(M, connection)
    return True


@part
def _remember(packet: Segment, direction: Direction) -> None:
    """A segment with which a later one may be compared, see `repeats`."""
    turn = direction.kept_turn
    direction.kept_turn = (turn + 1) % REMEMBERED
    direction.kept_from[turn] = direction.next
    direction.kept_size[turn] = packet.len
    direction.kept_print[turn] = UNKNOWN
    direction.kept_at[turn] = packet.at
    direction.kept_packet[turn] = packet.packet


@part
def _frames(
    M: Words, b: Bytes, A: Bytes, packet: Segment, connection: Connection, direction: Direction, o: Int
) -> None:
    """The frames of a packet, whose bytes are at `b[o:]`."""
    asks = direction.side == connection.client
    done = 0
    direction.first = packet.time
    direction.first_rise = direction.rise
    direction.latest = packet.time
    direction.packet = packet.packet
    while done < packet.len:
        size = be32(b, o + done)
        done += PREFIX
        direction.size = size
        direction.need = 0
        direction.at = packet.at + done
        direction.length = size
        direction.frames += 1
        if asks:
            take_request(M, A, connection, direction, b, o + done, min(size, HEAD_BYTES))
        else:
            take_response(M, connection, direction, b, o + done, min(size, HEAD_BYTES))
        done += size
    forget_frame(direction)
