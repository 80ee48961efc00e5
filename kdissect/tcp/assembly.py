"""One packet at a time into a direction's byte stream (RFC 9293), with the arrival time of every byte.

The rules, per direction:

- Sequence numbers are compared modulo 2^32 and unwrapped to 64-bit positions around the next one expected.
- The first copy of a byte wins, and its time is the byte's time. Bytes seen already are retransmissions, unless the
  packet is a copy of one that was captured before: both ends of a veth, `-i any`, a mirrored port, a tunnel and what is
  in it, two captures put into one file. A keep-alive (at most one byte, just below the next position) is neither.
- A copy is a packet without news (bytes, acknowledgement, SYN, FIN, RST) that was seen at another place (VIEW) than the
  packet that last brought its direction further, however late; or whose IP id is not beyond the latest, where ids count
  up: a segment sent again gets the next id; or whose header fields and id are those of one of the last RECENT packets,
  within DUPLICATE_NS where ids do not count up. Copies count, and touch nothing else.
- Bytes beyond the next position wait, in order, as nodes. They wait until the hole is filled, or until it will not
  be: the other side acknowledged it and GAP_PACKETS more packets of the connection went by (captures reorder
  packets; holes that were acknowledged at the same time wait together), or more than AHEAD_SEGMENTS or AHEAD_BYTES
  wait behind it. Then the hole is an event of known length.
  These limits look at the connection's own packets only, so the result does not depend on what else is in the
  capture.
- A segment further ahead than MAX_AHEAD is believed only when the next one continues it, or the other side
  acknowledged as much: one forged or damaged sequence number must not cost a stream.

Nothing here knows what the bytes mean: `arrive` and `ready` say what comes next in the stream, the caller takes it.
"""

from __future__ import annotations

import numpy as np

from kdissect.kernels.kernel import part
from kdissect.net.segment import ACK, AT, FLAGS, LEN, PACKET, SEQ, TIME, VIEW, WIRE
from kdissect.tcp.layout import (
    C_END,
    C_PACKETS,
    D_ACK_RTT,
    D_ACKED,
    D_AHEAD,
    D_AHEAD_BYTES,
    D_AHEAD_HEAD,
    D_AHEAD_TAIL,
    D_BYTES,
    D_FIN,
    D_HIGHEST,
    D_HIGHEST_TIME,
    D_HOLE_ACKED,
    D_HOLE_SINCE,
    D_IDENT,
    D_ISN,
    D_LOST,
    D_MISSING_TOTAL,
    D_NEXT,
    D_OTHER,
    D_OUT_OF_ORDER,
    D_PACKETS,
    D_RECENT,
    D_RETRANSMITTED,
    D_RING,
    D_STARTED,
    D_TIMED_AT,
    D_TIMED_END,
    D_UNSETTLED,
    D_VIEW,
    D_WILD,
    D_ZERO_SINCE,
    D_ZERO_TOTAL,
    END_RST,
    K_FINAL,
    K_NODE_FREE,
    K_NODES_LEFT,
    N_AT,
    N_LENGTH,
    N_NEXT,
    N_PACKET,
    N_POSITION,
    N_TIME,
    NULL,
    OUT,
    RECENT,
    RUNNING,
    TICK,
)

FIN, SYN, RST, ACK_FLAG = 1, 2, 4, 16

DUPLICATE_NS = 100_000_000
"""A second copy with the same non-zero IP id, where ids do not count up: capture points of one host see it within
microseconds, a mirrored port within milliseconds; an id comes back after 65,536 packets at the earliest."""
DUPLICATE_BARE_NS = 1_000_000
"""The same without an IP id (IPv6, some stacks): shorter than any retransmission timer."""
ID_STEP = 256
"""Linux counts IP ids by connection, one a packet (45 for the largest of segmentation offload), Windows by host."""
ID_STEPS = 2
"""Ids are taken to count up after as many steps in a row; random ones do so once in 2**16 packets."""
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
def take_node(M):  # type: ignore[no-untyped-def]
    """A free node; the caller has made sure that there is one."""
    node = M[K_NODE_FREE]
    M[K_NODE_FREE] = M[node + N_NEXT]
    M[K_NODES_LEFT] -= 1
    M[node + N_NEXT] = -1
    return node


@part
def give_node(M, node):  # type: ignore[no-untyped-def]
    """Put a node back on the free list."""
    M[node + N_NEXT] = M[K_NODE_FREE]
    M[node + N_AT] = -3
    M[K_NODE_FREE] = node
    M[K_NODES_LEFT] += 1


@part
def duplicate(M, g, i, c, s):  # type: ignore[no-untyped-def]
    """Whether the packet is a copy of one that was captured before; remembers it when it is not.

    A packet that carries bytes or acknowledges bytes beyond all before it is not looked for: it has no first copy.
    """
    time = g[i, TIME]
    word = g[i, FLAGS]
    wire = g[i, WIRE]
    numbers = (g[i, SEQ] << 32) | g[i, ACK]
    rest = (word & 0xFFFFFFFFFF) | (wire << 40)
    mixed = (numbers * -7046029254386353131) ^ (rest * -4417276706812531889)
    mark = (mixed ^ (mixed >> 29)) & MARK
    now = (time >> TICK) & 0xFFFFFF
    ident = (word >> 24) & 0xFFFF
    known = M[s + D_IDENT]
    later = (ident - known) & 0xFFFF
    rises = later - 1 < ID_STEP and later > 0
    if _advances(M, g, i, s):
        M[s + D_VIEW] = g[i, VIEW]
        if ident != 0:
            M[s + D_IDENT] = ident | ((min((known >> 16) + 1, ID_STEPS) << 16) if rises else 0)
    else:
        counted = ident != 0 and known >> 16 == ID_STEPS
        again = g[i, VIEW] != M[s + D_VIEW]
        if word & SYN:  # those of Linux that acknowledge have no id; none is sent again once bytes went on
            again |= unwrap((g[i, SEQ] + 1) & 0xFFFFFFFF, M[s + D_NEXT]) < M[s + D_NEXT]
        elif counted and (later == 0 or later >= 0x8000):
            again |= wire > 0 or -later & 0xFFFF >= RECENT  # else it may be the first copy, late
        if again and not _news(M, g, i, c, s):
            return True
        limit = DUPLICATE_NS if ident != 0 else DUPLICATE_BARE_NS
        if limit == DUPLICATE_NS or wire > 0 or word & (SYN | FIN):
            for q in range(s + D_RING, s + D_RING + RECENT):
                if M[q] & MARK == mark and M[q] != 0:
                    apart = (now - (M[q] >> 40)) & 0xFFFFFF
                    if counted or min(apart, 0x1000000 - apart) << TICK <= limit:
                        return True
        if ident != 0 and rises:
            M[s + D_IDENT] = known & ~0xFFFF | ident
    turn = M[s + D_RECENT]
    M[s + D_RECENT] = (turn + 1) % RECENT
    M[s + D_RING + turn] = mark | (now << 40)
    return False


@part
def _advances(M, g, i, s):  # type: ignore[no-untyped-def]
    """Whether the packet ends, or acknowledges, beyond all that its direction sent before."""
    wire = g[i, WIRE]
    if M[s + D_STARTED] == 0:
        return wire > 0 or M[s + D_PACKETS] == 0
    if wire > 0 and unwrap(g[i, SEQ], M[s + D_NEXT]) + wire > M[s + D_HIGHEST]:
        return True
    o = M[s + D_OTHER]
    if g[i, FLAGS] & ACK_FLAG and M[o + D_STARTED] > 0 and M[o + D_ACKED] != NULL:
        return unwrap(g[i, ACK], M[o + D_NEXT]) > M[o + D_ACKED]
    return False


@part
def _news(M, g, i, c, s):  # type: ignore[no-untyped-def]
    """Whether a packet that does not advance brings anything that its direction did not have: bytes of a hole, or the
    first SYN, FIN or RST."""
    flags = g[i, FLAGS]
    if flags & SYN:
        return M[s + D_ISN] != g[i, SEQ]
    if flags & RST and M[c + C_END] != END_RST:
        return True
    if flags & FIN and M[s + D_FIN] < 0:
        return True
    position = unwrap(g[i, SEQ], M[s + D_NEXT])
    end = position + g[i, WIRE]
    position = max(position, M[s + D_NEXT])
    node = M[s + D_AHEAD_HEAD]
    while position < end and node >= 0 and M[node + N_POSITION] <= position:
        position = max(position, M[node + N_POSITION] + (M[node + N_LENGTH] >> 32))
        node = M[node + N_NEXT]
    return position < end


@part
def observe(M, g, i, s):  # type: ignore[no-untyped-def]
    """Counters, zero windows and round trips of one packet from direction `s`."""
    o = M[s + D_OTHER]
    time = g[i, TIME]
    word = g[i, FLAGS]
    M[s + D_PACKETS] += 1
    M[s + D_BYTES] += g[i, WIRE]
    if word & (SYN | RST) == 0:
        if (word >> 8) & 0xFFFF == 0:
            if M[s + D_ZERO_SINCE] == NULL:
                M[s + D_ZERO_SINCE] = time
        elif M[s + D_ZERO_SINCE] != NULL:
            M[s + D_ZERO_TOTAL] += max(time - M[s + D_ZERO_SINCE], 0)
            M[s + D_ZERO_SINCE] = NULL
    if word & ACK_FLAG and M[o + D_STARTED] > 0:
        acked = unwrap(g[i, ACK], M[o + D_NEXT])
        if acked - M[o + D_NEXT] <= MAX_AHEAD and (M[o + D_ACKED] == NULL or acked > M[o + D_ACKED]):
            M[o + D_ACKED] = acked
        if M[o + D_TIMED_END] != NULL and acked >= M[o + D_TIMED_END]:
            trip = time - M[o + D_TIMED_AT]
            if trip >= 0 and (M[o + D_ACK_RTT] == NULL or trip < M[o + D_ACK_RTT]):
                M[o + D_ACK_RTT] = trip
            M[o + D_TIMED_END] = NULL


@part
def _wait(M, s, position, at, captured, wire, time, packet):  # type: ignore[no-untyped-def]
    """Put what is new of a segment among those that wait; returns how many bytes were new."""
    end = position + wire
    begin = position
    new = 0
    before = np.int64(-1)
    tail = M[s + D_AHEAD_TAIL]
    if tail >= 0 and position >= M[tail + N_POSITION] + (M[tail + N_LENGTH] >> 32):
        before = tail
        node = np.int64(-1)
    else:
        node = M[s + D_AHEAD_HEAD]
    while position < end and M[K_NODES_LEFT] > 0:
        if node >= 0:
            begins = M[node + N_POSITION]
            ends = begins + (M[node + N_LENGTH] >> 32)
            if ends <= position:
                before = node
                node = M[node + N_NEXT]
                continue
            if begins <= position:
                position = ends
                continue
            stop = min(end, begins)
        else:
            stop = end
        fresh = take_node(M)
        skip = position - begin
        have = min(max(captured - skip, 0), stop - position)
        M[fresh + N_AT] = at + skip
        M[fresh + N_LENGTH] = have | ((stop - position) << 32)
        M[fresh + N_TIME] = time
        M[fresh + N_PACKET] = packet
        M[fresh + N_POSITION] = position
        M[fresh + N_NEXT] = node
        if before >= 0:
            M[before + N_NEXT] = fresh
        else:
            M[s + D_AHEAD_HEAD] = fresh
        if node < 0:
            M[s + D_AHEAD_TAIL] = fresh
        before = fresh
        new += stop - position
        M[s + D_AHEAD] += 1
        M[s + D_AHEAD_BYTES] += stop - position
        position = stop
    return new


@part
def arrive(M, g, i, s, elsewhere):  # type: ignore[no-untyped-def]
    """Take one packet of direction `s`, which is no duplicate. True when OUT holds the next bytes of the stream: at,
    captured, wire, time, packet.

    Otherwise the packet had no new bytes, or they wait for others: ask `ready`. `elsewhere`: it was seen at another
    place than what advanced the stream before, so bytes that are known are copies.
    """
    observe(M, g, i, s)
    wire = g[i, WIRE]
    if wire <= 0 or g[i, FLAGS] & RST:
        return False
    sequence = g[i, SEQ]
    if g[i, FLAGS] & SYN:
        sequence = (sequence + 1) & 0xFFFFFFFF
    time = g[i, TIME]
    if M[s + D_STARTED] == 0:
        M[s + D_NEXT] = sequence - EARLIER
        M[s + D_STARTED] = 1
        M[s + D_UNSETTLED] = 1
        M[s + D_HIGHEST] = sequence
        M[s + D_HIGHEST_TIME] = time
    expected = M[s + D_NEXT]
    position = unwrap(sequence, expected)
    end = position + wire
    at = g[i, AT]
    captured = g[i, LEN]
    if end <= expected:
        if not (elsewhere or (wire <= 1 and position == expected - 1)):
            M[s + D_RETRANSMITTED] += wire
            M[s + D_TIMED_END] = NULL
        return False
    if position - expected > MAX_AHEAD:
        believed = position == M[s + D_WILD] or (M[s + D_ACKED] != NULL and M[s + D_ACKED] >= position - MAX_AHEAD)
        M[s + D_WILD] = end
        if not believed:
            return False
    if position < expected:
        skip = expected - position
        if not elsewhere:
            M[s + D_RETRANSMITTED] += skip
        at += skip
        captured = max(captured - skip, 0)
        wire -= skip
        position = expected
    if end > M[s + D_HIGHEST]:
        M[s + D_HIGHEST] = end
        M[s + D_HIGHEST_TIME] = time
    elif not elsewhere:
        if time - M[s + D_HIGHEST_TIME] <= FILLED_LATE_NS:
            M[s + D_OUT_OF_ORDER] += 1
        else:
            M[s + D_RETRANSMITTED] += wire
    if position == expected and M[s + D_AHEAD] == 0:
        if M[s + D_TIMED_END] == NULL:
            M[s + D_TIMED_END] = end
            M[s + D_TIMED_AT] = time
        M[s + D_NEXT] = end
        M[OUT + 0] = at
        M[OUT + 1] = captured
        M[OUT + 2] = wire
        M[OUT + 3] = time
        M[OUT + 4] = g[i, PACKET]
        return True
    new = _wait(M, s, position, at, captured, wire, time, g[i, PACKET])
    if not elsewhere:
        M[s + D_RETRANSMITTED] += wire - new
    return False


@part
def ready(M, s):  # type: ignore[no-untyped-def]
    """The next waiting bytes that continue the stream, into OUT; False when there are none."""
    node = M[s + D_AHEAD_HEAD]
    if node < 0 or M[node + N_POSITION] > M[s + D_NEXT]:
        return False
    M[s + D_AHEAD_HEAD] = M[node + N_NEXT]
    if M[s + D_AHEAD_HEAD] < 0:
        M[s + D_AHEAD_TAIL] = -1
    wire = M[node + N_LENGTH] >> 32
    M[s + D_AHEAD] -= 1
    M[s + D_AHEAD_BYTES] -= wire
    M[s + D_NEXT] = M[node + N_POSITION] + wire
    M[OUT + 0] = M[node + N_AT]
    M[OUT + 1] = M[node + N_LENGTH] & 0x7FFFFFFF
    M[OUT + 2] = wire
    M[OUT + 3] = M[node + N_TIME]
    M[OUT + 4] = M[node + N_PACKET]
    give_node(M, node)
    return True


@part
def hole(M, c, s):  # type: ignore[no-untyped-def]
    """Length of the hole in front of the waiting segments if it is now given up (the stream moves behind it), else 0.
    -1: the stream begins with them, nothing is missing.

    While a connection is finished nothing more will arrive: bytes that the other side acknowledged without us seeing
    any after them are a hole too.
    """
    node = M[s + D_AHEAD_HEAD]
    if node < 0:
        if (
            M[K_FINAL] != RUNNING
            and M[s + D_STARTED] > 0
            and M[s + D_ACKED] != NULL
            and M[s + D_ACKED] > M[s + D_NEXT] + 1
        ):
            length = M[s + D_ACKED] - M[s + D_NEXT]
            M[s + D_NEXT] += length
            M[s + D_MISSING_TOTAL] += length
            M[s + D_LOST] = M[c + C_PACKETS]
            return length
        return 0
    begins = M[node + N_POSITION]
    if begins <= M[s + D_NEXT]:
        return 0
    if M[s + D_UNSETTLED] == 1:
        if M[K_FINAL] == RUNNING and M[c + C_PACKETS] < SETTLE_PACKETS:
            return 0
        M[s + D_UNSETTLED] = 0
        M[s + D_NEXT] = begins
        return -1
    if M[K_FINAL] == RUNNING and M[s + D_AHEAD] <= AHEAD_SEGMENTS and M[s + D_AHEAD_BYTES] <= AHEAD_BYTES:
        if M[s + D_ACKED] == NULL or M[s + D_ACKED] < begins:
            return 0
        if M[s + D_HOLE_SINCE] < 0 or M[s + D_HOLE_ACKED] < begins:
            M[s + D_HOLE_SINCE] = M[c + C_PACKETS]
            M[s + D_HOLE_ACKED] = M[s + D_ACKED]
        if M[c + C_PACKETS] - M[s + D_HOLE_SINCE] < GAP_PACKETS:
            return 0
    length = begins - M[s + D_NEXT]
    M[s + D_NEXT] = begins
    M[s + D_MISSING_TOTAL] += length
    M[s + D_LOST] = M[c + C_PACKETS]
    return length
