"""One packet at a time into a direction's byte stream (RFC 9293), with the arrival time of every byte.

The rules, per direction:

- Sequence numbers are compared modulo 2^32 and unwrapped to 64-bit positions around the next one expected.
- The first copy of a byte wins, and its time is the byte's time. Bytes seen already are retransmissions, unless the
  packet is a copy of one that was captured before. Copies come from both ends of a veth, `-i any`, a mirrored port, a
  tunnel and its inner packets, two captures put into one file. A keep-alive (at most one byte, just below the next
  position) is neither.
- A copy is a packet without news (bytes, acknowledgement, SYN, FIN, RST) for which one of three things is true. It was
  seen at another place (VIEW) than the packet that last brought its direction further, however late. Or its IP id is
  not beyond the latest, where ids count up: a segment sent again gets the next id. Or its header fields and id are
  those of one of the last RECENT packets, within DUPLICATE_NS where ids do not count up. Copies count, and touch
  nothing else.
- Bytes beyond the next position wait, in order, as nodes. They wait until the hole is filled, or until it will not be.
  The other side acknowledged it and GAP_PACKETS more packets of the connection went by (captures reorder packets; holes
  that were acknowledged at the same time wait together). Or more than AHEAD_SEGMENTS or AHEAD_BYTES wait behind it.
  Then the hole is an event of known length. These limits look at the connection's own packets only, so the result does
  not depend on what else is in the capture. A node keeps what was known of its segment when it came and when it was
  acknowledged (`Arrival`).
- A segment further ahead than MAX_AHEAD is believed only when the next one continues it, or the other side acknowledged
  as much. One forged or damaged sequence number must not cost a stream.

Nothing here knows what the bytes mean: `arrive` and `ready` say what comes next in the stream, the caller takes it.
"""

from __future__ import annotations

from kdissect.kernels.kernel import part
from kdissect.kernels.structs import Int, Words
from kdissect.net.segment import ACK_FLAG, DSACK, FIN, MSS_SHIFT, RST, SAME_HOST, SYN, Segment
from kdissect.tcp import layout as tl
from kdissect.tcp.layout import Arrival, Connection, Direction, End, Final, control_at, node_at, outgoing_at
from kdissect.tcp.one_way import note_delay
from kdissect.tcp.roundtrip import (
    acknowledged,
    acknowledged_before,
    came_first,
    doubt_answer,
    doubted,
    lost_by_copies,
    proof_of_silence,
    sent,
    sent_again,
)

DUPLICATE_NS = 100_000_000
"""A second copy with the same non-zero IP id, where ids do not count up: capture points of one host see it within
microseconds, a mirrored port within milliseconds; an id comes back after 65,536 packets at the earliest."""
DUPLICATE_BARE_NS = 1_000_000
"""The same without an IP id (IPv6, some stacks): shorter than any retransmission timer."""
ID_STEP = 256
"""Linux counts IP ids by connection, one a packet (45 for the largest of segmentation offload), Windows by host."""
LARGEST_MSS = 32767
"""What a segment row says of larger ones too: those of loopback."""
OPTIONS = 12
"""Bytes of the timestamps that nearly every segment has."""
MARK = (1 << 40) - 1
"""What is remembered of a packet besides its time."""
GAP_PACKETS = 64
"""How many packets of the connection a captured packet may be late: capture rings of several queues reorder by less."""
AHEAD_SEGMENTS = 2048
"""Segments waiting behind one hole when nobody acknowledges: beyond Linux's default of tcp_max_reordering by far."""
AHEAD_BYTES = 16 << 20
"""Bytes waiting behind one hole: beyond the largest receive window that Linux gives by default (6 MiB)."""
SETTLE_PACKETS = 32
"""A stream that is met in its middle begins with the lowest position among this many packets of its connection: a SYN
or earlier bytes may have been captured late."""
EARLIER = 1 << 20
"""How far below the first bytes seen earlier ones may lie."""
MAX_AHEAD = 64 << 20
"""Largest plausible distance from the next position: ten times the largest default receive window."""
FILLED_LATE_NS = 3_000_000
"""A hole filled within this time was reordering, later it was a retransmission (Wireshark's rule of thumb)."""


@part
def unwrap(sequence: int, near: int) -> int:
    """The 64-bit position of a 32-bit sequence number nearest to the position `near`."""
    return near + ((sequence - near + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@part
def opposite(connection: Connection, direction: Direction) -> Direction:
    """The other direction of a connection."""
    return connection.directions[1 - direction.side]


@part
def take_node(M: Words) -> Int:
    """A free node; the caller has made sure that there is one."""
    control = control_at(M, tl.CONTROL)
    place = control.node_free
    node = node_at(M, place)
    control.node_free = node.next
    control.nodes_left -= 1
    node.next = -1
    return place


@part
def give_node(M: Words, place: Int) -> None:
    """Put a node back on the free list."""
    control = control_at(M, tl.CONTROL)
    node = node_at(M, place)
    node.next = control.node_free
    node.at = -3
    control.node_free = place
    control.nodes_left += 1


@part
def duplicate(M: Words, packet: Segment, connection: Connection, direction: Direction) -> bool:
    """Whether the packet is a copy of one that was captured before; remembers it when it is not.

    A packet that carries bytes or acknowledges bytes beyond all before it is not looked for: it has no first copy.
    """
    if _advances(packet, connection, direction):
        direction.viewpoint = packet.viewpoint
        note_advance(packet, direction)
    else:
        flags = packet.flags
        mark = _mark(packet)
        now = (packet.time >> tl.TICK) & 0xFFFFFF
        ident = (flags >> 24) & 0xFFFF
        known = direction.ident
        later = (ident - known) & 0xFFFF
        counted = ident != 0 and known >> 16 == tl.ID_STEPS
        again = packet.viewpoint != direction.viewpoint
        if flags & SYN:  # those of Linux that acknowledge have no id; none is sent again once bytes went on
            again |= unwrap((packet.seq + 1) & 0xFFFFFFFF, direction.next) < direction.next
        elif counted and (later == 0 or later >= 0x8000):
            again |= packet.wire > 0 or -later & 0xFFFF >= tl.RECENT  # else it may be the first copy, late
        if again and not _news(M, packet, connection, direction):
            return True
        limit = DUPLICATE_NS if ident != 0 else DUPLICATE_BARE_NS
        if limit == DUPLICATE_NS or packet.wire > 0 or flags & (SYN | FIN):
            for q in range(tl.RECENT):
                seen = direction.ring[q]
                if seen & MARK == mark and seen != 0:
                    apart = (now - (seen >> 40)) & 0xFFFFFF
                    if counted or min(apart, 0x1000000 - apart) << tl.TICK <= limit:
                        return True
        if ident != 0 and _rises(ident, known):
            note_gap(packet, direction, ident)
            direction.ident = known & ~0xFFFF | ident
        _note(direction, mark, now)
    return False


@part
def _mark(packet: Segment) -> Int:
    """40 bits of what tells a packet from others."""
    numbers = (packet.seq << 32) | packet.ack
    rest = (packet.flags & 0xFFFFFFFFFF) | (packet.wire << 40)
    mixed = (numbers * -7046029254386353131) ^ (rest * -4417276706812531889)
    return (mixed ^ (mixed >> 29)) & MARK


@part
def _rises(ident: Int, latest: Int) -> bool:
    """Whether an IP id goes up a little from the one that is known."""
    later = (ident - latest) & 0xFFFF
    return later - 1 < ID_STEP and later > 0


@part
def _note(direction: Direction, mark: Int, now: Int) -> None:
    """Remember a packet."""
    direction.ring[direction.recent] = mark | (now << 40)
    direction.recent = (direction.recent + 1) % tl.RECENT


@part
def note_advance(packet: Segment, direction: Direction) -> None:
    """Remember a packet that brings its direction further, or the other one's acknowledgements."""
    ident = (packet.flags >> 24) & 0xFFFF
    if ident != 0:
        known = direction.ident
        note_gap(packet, direction, ident)
        steps = min((known >> 16) + 1, tl.ID_STEPS) << 16 if _rises(ident, known) else 0
        direction.ident = ident | steps
    _note(direction, _mark(packet), (packet.time >> tl.TICK) & 0xFFFFFF)


@part
def segment_room(packet: Segment) -> Int:
    """Payload bytes that a segment towards the sender of this SYN has room for next to the usual options, 0 unknown."""
    announced = (packet.flags >> MSS_SHIFT) & LARGEST_MSS
    return announced - OPTIONS if OPTIONS < announced < LARGEST_MSS else 0


@part
def note_gap(packet: Segment, direction: Direction, ident: Int) -> None:
    """Notes when the IP id of a packet is beyond the next one where ids count up. Packets before it were not captured,
    or were lost on their way to the capture point."""
    missing = ((ident - direction.ident) & 0xFFFF) - max(direction.id_span, 1)
    if missing > 0:
        direction.gap_at = packet.time
        direction.missing_ids += missing
    direction.id_span = (packet.wire + direction.mss - 1) // direction.mss if direction.mss > 0 else 1


@part
def _advances(packet: Segment, connection: Connection, direction: Direction) -> bool:
    """Whether the packet ends, or acknowledges, beyond all that its direction sent before."""
    if direction.started == 0:
        return packet.wire > 0 or direction.packets == 0
    if packet.wire > 0 and unwrap(packet.seq, direction.next) + packet.wire > direction.highest:
        return True
    other = opposite(connection, direction)
    if packet.flags & ACK_FLAG and other.started > 0 and other.acked != tl.NULL:
        return unwrap(packet.ack, other.next) > other.acked
    return False


@part
def _news(M: Words, packet: Segment, connection: Connection, direction: Direction) -> bool:
    """Whether a packet that does not advance brings anything that its direction did not have: bytes of a hole, or the
    first SYN, FIN or RST."""
    if packet.flags & SYN:
        return direction.isn != packet.seq
    if packet.flags & RST and connection.end != End.RST:
        return True
    if packet.flags & FIN and direction.fin == 0:
        return True
    position = unwrap(packet.seq, direction.next)
    end = position + packet.wire
    position = max(position, direction.next)
    place = direction.ahead_head
    while position < end and place >= 0:
        node = node_at(M, place)
        if node.position > position:
            break
        position = max(position, node.position + (node.length >> 32))
        place = node.next
    return position < end


@part
def bareness(packet: Segment) -> Int:
    """The `bare` of the acknowledgement that a packet carries."""
    return 2 if packet.flags & DSACK != 0 else 1 if packet.wire == 0 else 0


@part
def observe(packet: Segment, connection: Connection, direction: Direction) -> None:
    """Counters, zero windows and round trips of one packet of a direction."""
    direction.packets += 1
    direction.bytes += packet.wire
    if packet.flags & (SYN | RST | FIN) == 0:
        direction.bares += packet.wire == 0
        connection.same_host |= packet.flags & SAME_HOST != 0
    if packet.flags & (SYN | RST) == 0:
        if (packet.flags >> 8) & 0xFFFF == 0:
            if direction.zero_since == tl.NULL:
                direction.zero_since = packet.time
        elif direction.zero_since != tl.NULL:
            direction.zero_total += max(packet.time - direction.zero_since, 0)
            direction.zero_since = tl.NULL
    note_delay(packet, connection, direction)
    other = opposite(connection, direction)
    if packet.flags & ACK_FLAG and other.started > 0:
        acked = unwrap(packet.ack, other.next)
        if acked - other.next <= MAX_AHEAD and (other.acked == tl.NULL or acked > other.acked):
            other.acked_before, other.acked = other.acked, acked
            if packet.flags & RST == 0 and packet.time != 0:
                acknowledged(packet, connection, other, acked)
        else:
            acknowledged_before(packet, other, acked)
            if packet.flags & (SYN | DSACK) == DSACK:
                doubt_answer(packet, connection, other)
    if packet.flags & SYN and packet.flags & RST == 0 and packet.time != 0:
        if direction.sent == 0 and direction.acked == tl.NULL:
            sent(direction, direction.next, packet.time)
        else:
            sent_again(direction, direction.next - 1, packet)


@part
def note_way(arrival: Arrival, connection: Connection, direction: Direction) -> None:
    """Notes what is known now of the way of a packet of a direction."""
    other = opposite(connection, direction)
    arrival.rise = direction.rise
    met = direction.unsettled == 1 or connection.kafka == 0
    arrival.floor = tl.AS_NOW if met else other.floor
    arrival.floor_kind = other.floor_kind


@part
def as_it_came(arrival: Arrival, connection: Connection, direction: Direction) -> None:
    """What is known of the way is what `note_way` noted."""
    other = opposite(connection, direction)
    direction.rise = arrival.rise
    if arrival.floor != tl.AS_NOW:
        other.floor = arrival.floor
        other.floor_kind = arrival.floor_kind


@part
def _wait(
    M: Words, packet: Segment, connection: Connection, direction: Direction, position: Int, at: Int, captured: Int,
    wire: Int,
) -> Int:  # fmt: skip
    """Put what is new of a segment among those that wait; returns how many bytes were new."""
    end = position + wire
    begin = position
    new = 0
    before = -1
    place = direction.ahead_head
    if direction.ahead_tail >= 0:
        tail = node_at(M, direction.ahead_tail)
        if position >= tail.position + (tail.length >> 32):
            before = direction.ahead_tail
            place = -1
    while position < end and control_at(M, tl.CONTROL).nodes_left > 0:
        stop = end
        if place >= 0:
            waiting = node_at(M, place)
            ends = waiting.position + (waiting.length >> 32)
            if ends <= position:
                before = place
                place = waiting.next
                continue
            if waiting.position <= position:
                position = ends
                continue
            stop = min(end, waiting.position)
        fresh = take_node(M)
        node = node_at(M, fresh)
        skip = position - begin
        node.at = at + skip
        node.length = min(max(captured - skip, 0), stop - position) | ((stop - position) << 32)
        node.time = packet.time
        node.packet = packet.packet
        node.position = position
        node.next = place
        behind = node_at(M, place).time if place >= 0 and position > direction.next else tl.NULL
        node.hole_since = behind if behind < packet.time else tl.NULL
        note_way(node.arrival, connection, direction)
        node.arrival.acked = tl.NULL
        if before >= 0:
            node_at(M, before).next = fresh
        else:
            direction.ahead_head = fresh
        if place < 0:
            direction.ahead_tail = fresh
        before = fresh
        new += stop - position
        direction.ahead += 1
        direction.ahead_bytes += stop - position
        position = stop
    return new


@part
def arrive(M: Words, packet: Segment, connection: Connection, direction: Direction, elsewhere: bool) -> bool:
    """Take one packet of a direction, which is no duplicate. True when OUT holds the next bytes of the stream.

    Otherwise the packet had no new bytes, or they wait for others: ask `ready`. `elsewhere`: it was seen at another
    place than what advanced the stream before, so bytes that are known are copies.
    """
    observe(packet, connection, direction)
    wire = packet.wire
    if wire <= 0 or packet.flags & RST:
        return False
    sequence = packet.seq
    if packet.flags & SYN:
        sequence = (sequence + 1) & 0xFFFFFFFF
    if direction.started == 0:
        direction.next = sequence - EARLIER
        direction.started = 1
        direction.unsettled = 1
        direction.highest = sequence
        direction.highest_time = packet.time
    expected = direction.next
    position = unwrap(sequence, expected)
    end = position + wire
    at = packet.at
    captured = packet.len
    if end <= expected:
        if not (elsewhere or (wire <= 1 and position == expected - 1)):
            direction.retransmitted += wire
            sent_again(direction, position, packet)
        return False
    if position - expected > MAX_AHEAD:
        believed = position == direction.wild or (
            direction.acked != tl.NULL and direction.acked >= position - MAX_AHEAD
        )
        direction.wild = end
        if not believed:
            return False
    if position < expected:
        skip = expected - position
        if not elsewhere:
            direction.retransmitted += skip
            sent_again(direction, position, packet)
        at += skip
        captured = max(captured - skip, 0)
        wire -= skip
        position = expected
    if end > direction.highest:
        direction.highest = end
        direction.highest_time = packet.time
        sent(direction, end, packet.time)
    elif not elsewhere:
        if not _news(M, packet, connection, direction):
            sent_again(direction, position, packet)
        elif packet.time - direction.highest_time <= FILLED_LATE_NS:
            direction.out_of_order += 1
            doubted(direction, position)
        else:
            direction.retransmitted += wire
            sent_again(direction, position, packet)
    if position == expected and direction.ahead == 0:
        direction.next = end
        out = outgoing_at(M, tl.OUT)
        out.at = at
        out.captured = captured
        out.wire = wire
        out.time = packet.time
        out.packet = packet.packet
        return True
    if direction.ahead == 0:
        direction.ahead_since = packet.time
    elif position == expected:
        direction.filled_at = packet.time
        direction.filled_from = direction.ahead_since
    new = _wait(M, packet, connection, direction, position, at, captured, wire)
    if not elsewhere:
        direction.retransmitted += wire - new
    return False


@part
def segments_acknowledged(M: Words, packet: Segment, connection: Connection, direction: Direction) -> None:
    """Notes of the segments of a direction that wait behind a hole when they were acknowledged: by a packet of the
    other one, which is observed already."""
    place = direction.ahead_head
    while place >= 0:
        node = node_at(M, place)
        end = node.position + (node.length >> 32)
        if end > direction.acked:
            break
        arrival = node.arrival
        if arrival.acked == tl.NULL:
            arrival.acked = packet.time - opposite(connection, direction).rise
            arrival.bare = bareness(packet)
            arrival.proof = proof_of_silence(packet, connection, direction, node.time)
            copied = lost_by_copies(packet, direction, node.time, end, arrival.acked)
            arrival.resent = 0 if arrival.bare == 2 else copied
        place = node.next


@part
def segments_came_twice(M: Words, packet: Segment, direction: Direction) -> None:
    """Clears the loss of segments behind a hole that a packet reports as arrived twice (D-SACK), just after another
    packet acknowledged them. Copies that look like probes cost them nothing."""
    place = direction.ahead_head
    while place >= 0:
        node = node_at(M, place)
        arrival = node.arrival
        if arrival.acked == tl.NULL:
            break
        if came_first(packet, arrival.acked, arrival.resent):
            arrival.bare, arrival.resent = 2, 0
        place = node.next


@part
def ready(M: Words, direction: Direction) -> bool:
    """The next waiting bytes that continue the stream, into OUT; False when there are none."""
    place = direction.ahead_head
    if place < 0:
        return False
    node = node_at(M, place)
    if node.position > direction.next:
        return False
    direction.ahead_head = node.next
    if direction.ahead_head < 0:
        direction.ahead_tail = -1
    out = outgoing_at(M, tl.OUT)
    out.at = node.at
    out.captured = node.length & 0x7FFFFFFF
    out.wire = node.length >> 32
    out.time = node.time
    out.packet = node.packet
    out.arrival = node.arrival
    if node.hole_since != tl.NULL:
        direction.filled_at = node.time
        direction.filled_from = node.hole_since
    direction.ahead -= 1
    direction.ahead_bytes -= out.wire
    direction.next = node.position + out.wire
    give_node(M, place)
    return True


@part
def hole(M: Words, connection: Connection, direction: Direction) -> Int:
    """Length of the hole in front of the waiting segments if it is now given up (the stream moves behind it), else 0.
    It is -1 if the stream begins with them, so that nothing is missing.

    While a connection is finished nothing more will arrive: bytes that the other side acknowledged without us seeing
    any after them are a hole too.
    """
    running = control_at(M, tl.CONTROL).final == Final.RUNNING
    if direction.ahead_head < 0:
        if running or direction.started == 0 or direction.acked == tl.NULL or direction.acked <= direction.next + 1:
            return 0
        return _give_up(connection, direction, direction.acked)
    begins = node_at(M, direction.ahead_head).position
    if begins <= direction.next:
        return 0
    if direction.unsettled == 1:
        if running and connection.packets < SETTLE_PACKETS:
            return 0
        direction.unsettled = 0
        direction.next = begins
        return -1
    if running and direction.ahead <= AHEAD_SEGMENTS and direction.ahead_bytes <= AHEAD_BYTES:
        if direction.acked == tl.NULL or direction.acked < begins:
            return 0
        if direction.hole_since < 0 or direction.hole_acked < begins:
            direction.hole_since = connection.packets
            direction.hole_acked = direction.acked
        if connection.packets - direction.hole_since < GAP_PACKETS:
            return 0
    return _give_up(connection, direction, begins)


@part
def _give_up(connection: Connection, direction: Direction, position: Int) -> Int:
    """The bytes before `position` will not come; how many they are."""
    length = position - direction.next
    direction.next = position
    direction.missing_total += length
    direction.lost = connection.packets
    return length
