"""Packets to exchanges, connection by connection: the one pass that everything else rests on.

`run` takes the segments of a block, grouped by flow and in the order of capture within each. It drives every packet
through `kdissect.tcp` (which bytes come next in the stream), `framing` (frames), `resync` (where frames begin) and
`pairing` (requests and responses). All state is per connection and changes only with that connection's own packets, so
the rows are the same however the input is cut into blocks.

A 4-tuple begins a new connection with a SYN of another sequence number, or with any packet more than LINGER_NS after it
ended. `finish` closes a connection's books: holes that will not be filled, incomplete frames, requests that wait.

The kernels never grow an array. Before each step they check that everything it can produce fits (`MARGIN` rows), and
stop in front of it otherwise; the caller makes room and calls again.
"""

from __future__ import annotations

from kdissect.kafka.streams import state as st
from kdissect.kafka.streams.encryption.sealing import seal_row
from kdissect.kafka.streams.fast_lane import in_lane
from kdissect.kafka.streams.framing import complete, drop_nodes, feed, forget_frame, gap
from kdissect.kafka.streams.pairing.held_responses import release_held
from kdissect.kafka.streams.pairing.waiting_requests import (
    copies_not_needed,
    pop_request,
    requests_acknowledged,
    without_response,
)
from kdissect.kafka.streams.repeats import compare
from kdissect.kafka.streams.resync import lost_for_good, settle, tell_sides
from kdissect.kafka.streams.state import Frame, damage, exchange_at, mark_news, place, problem
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import fetch
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.net.segment import ACK_FLAG, DSACK, FIN, RST, SEGMENT_COLUMNS, SYN, Segment, segment_at
from kdissect.problems import Kind
from kdissect.schema.vm import SKIM, Skim  # noqa: F401  (SKIM is named in a signature)
from kdissect.tcp import layout as tl
from kdissect.tcp.assembly import (
    SETTLE_PACKETS,
    arrive,
    as_it_came,
    duplicate,
    give_node,
    hole,
    opposite,
    ready,
    segment_room,
    segments_acknowledged,
    segments_came_twice,
    unwrap,
)
from kdissect.tcp.layout import Connection, Direction, End, Final, Mode, connection_at, control_at, node_at, outgoing_at

LINGER_NS = 60 * 1_000_000_000
"""Late packets still belong to a connection that ended this long ago: TIME-WAIT as Linux has it (TCP_TIMEWAIT_LEN),
twice the maximum segment lifetime (RFC 9293, section 3.4.2)."""
NODE_MARGIN = 8192
BUDGET = 8 << 20
"""What a search may spend on trials before it has to earn it (see TRIAL_FACTOR)."""
HEADER = 40
"""Bytes of a request up to the end of most client ids: often in the next cache line."""
AHEAD = 4
"""Rows between asking for memory and using it."""
PACKETS, FINISHING, PLAINTEXT = 0, 1, 2
"""What `run` is given."""


@part
def roomy(M: Words) -> bool:
    """Whether everything that the next step can produce fits."""
    control = control_at(M, tl.CONTROL)
    return (
        control.out + st.MARGIN <= st.X_ROWS
        and control.problems + st.MARGIN <= st.P_ROWS
        and control.requests_left >= st.MARGIN
        and control.nodes_left >= NODE_MARGIN
        and control.connections_left >= 2
        and control.ended + 2 <= st.E_ROWS
        and control.sealed + st.MARGIN <= st.S_ROWS
    )


@part
def _open(M: Words, conn_of: Words, packet: Segment) -> Connection:
    """A new connection that begins with this packet."""
    control = control_at(M, tl.CONTROL)
    place = control.connection_free
    connection = connection_at(M, place)
    control.connection_free = connection.flow
    control.connections_left -= 1
    for q in range(place, place + tl.CONNECTION_WIDTH):
        M[q] = 0
    connection.flow = packet.flow >> 1
    connection.place = place
    connection.first = packet.time
    connection.last = packet.time
    connection.sequence = packet.seq | ((packet.flow & 1) << 32)
    connection.first_packet = packet.packet
    connection.client = -1
    mark_news(M, connection)
    connection.request_head = -1
    connection.request_tail = -1
    connection.held_head = -1
    connection.answered_last = tl.NULL
    connection.think_from = tl.NULL
    connection.doubted_at = tl.NULL
    connection.unacked = -1
    connection.round_min = -1
    connection.round_max = -1
    connection.client_id = -1
    connection.number = control.number
    control.number += 1
    for side in range(2):
        direction = connection.directions[side]
        direction.side = side
        forget_frame(direction)
        direction.ahead_head = -1
        direction.ahead_tail = -1
        direction.hole_since = -1
        direction.wild = -1
        direction.lost = -1
        direction.acked = tl.NULL
        direction.zero_since = tl.NULL
        direction.isn = tl.NULL
        direction.filled_at = tl.NULL
        direction.waited.acked = tl.NULL
        direction.closed_at = tl.NULL
        direction.gap_at = tl.NULL
        direction.unseen_until = tl.NULL
        direction.floor = -1
        direction.floor_kind = -1
        direction.candidate = -1
        direction.work = -1
        direction.budget = BUDGET
    conn_of[connection.flow] = place
    return connection


@part
def _began(packet: Segment, direction: Direction) -> bool:
    """Whether a SYN can be the one that began this direction, where it was lost: it stands just below what came."""
    below = direction.next - unwrap((packet.seq + 1) & 0xFFFFFFFF, direction.next)
    return direction.started > 0 and 0 <= below <= direction.bytes + direction.missing_total


@part
def _begins_anew(packet: Segment, connection: Connection) -> Int:
    """Why this packet cannot belong to the connection that its 4-tuple had: an `End`, End.OPEN when it can."""
    direction = connection.directions[packet.flow & 1]
    flags = packet.flags
    ended = connection.end != End.OPEN
    if flags & SYN and flags & RST == 0:
        isn = direction.isn
        if isn != tl.NULL:
            if isn != packet.seq:
                return End.REPLACED
        elif (ended or connection.packets > SETTLE_PACKETS) and (
            direction.viewpoint == packet.viewpoint or not _began(packet, direction)
        ):
            return End.REPLACED
    if ended and packet.time - connection.last > LINGER_NS:
        return End.IDLE
    return End.OPEN


@part
def _handshake(M: Words, packet: Segment, connection: Connection, direction: Direction) -> None:
    """Reads a SYN: the exact beginning, the client."""
    flags = packet.flags
    if flags & SYN and flags & RST == 0:
        direction.isn = packet.seq
        opposite(connection, direction).mss = segment_room(packet)
        if direction.started == 0:
            direction.next = (packet.seq + 1) & 0xFFFFFFFF
            direction.highest = direction.next
            direction.started = 2
            direction.begun = 1
        elif direction.unsettled == 1:
            direction.next = unwrap((packet.seq + 1) & 0xFFFFFFFF, direction.next)
            direction.unsettled = 0
            direction.started = 2
            direction.begun = 1
        if connection.kafka == 0:
            connection.client = 1 - direction.side if flags & ACK_FLAG else direction.side
            mark_news(M, connection)
        if flags & ACK_FLAG == 0:
            connection.start_seen = 1


@part
def _deliver(M: Words, b: Bytes, A: Bytes, sk: Skim, connection: Connection, direction: Direction) -> None:
    """Reads the bytes of OUT, the next ones in a direction, as TCP delivers them."""
    if connection.sealed == 1:
        out = outgoing_at(M, tl.OUT)
        seal_row(M, connection, direction, out.at, out.captured, out.wire, out.time, out.packet)
        return
    _read(M, b, A, sk, connection, direction)


@part
def _read(M: Words, b: Bytes, A: Bytes, sk: Skim, connection: Connection, direction: Direction) -> None:
    """Reads the bytes of OUT, the next ones in a direction; at HOLE, bytes that were never captured."""
    out = outgoing_at(M, tl.OUT)
    if out.at == tl.HOLE:
        gap(M, b, A, connection, direction, out.wire, out.time, out.packet)
    else:
        feed(M, b, A, connection, direction, out.at, out.captured, out.wire, out.time, out.packet)
    if direction.mode == Mode.SEARCH and direction.window > 0:
        settle(M, b, A, sk, connection, direction)


@part
def _take_waiting(M: Words, b: Bytes, A: Bytes, sk: Skim, connection: Connection, direction: Direction) -> None:
    """Reads the bytes of OUT, the next ones in a direction: a segment that waited, with the round trips known when it
    arrived."""
    other = opposite(connection, direction)
    rise, floor, kind = direction.rise, other.floor, other.floor_kind
    direction.waited = outgoing_at(M, tl.OUT).arrival
    as_it_came(direction.waited, connection, direction)
    _deliver(M, b, A, sk, connection, direction)
    direction.waited.acked = tl.NULL
    direction.rise = rise
    other.floor = floor
    other.floor_kind = kind


@part
def _advance(M: Words, b: Bytes, A: Bytes, sk: Skim, connection: Connection, direction: Direction) -> bool:
    """Feed what waits and now continues the stream, past holes that are given up; False when room ran out."""
    while True:
        while ready(M, direction):
            _take_waiting(M, b, A, sk, connection, direction)
            if not roomy(M):
                return False
        length = hole(M, connection, direction)
        if length == 0:
            return True
        if length < 0:
            continue
        kind, where = Kind.MISSING_BYTES, direction.next - length
        problem(M, kind, connection, direction.side, connection.last, -1, where, length, -1)
        out = outgoing_at(M, tl.OUT)
        out.at = tl.HOLE
        out.captured = 0
        out.wire = length
        out.time = connection.last
        out.packet = -1
        _deliver(M, b, A, sk, connection, direction)


@part
def _advance_both(M: Words, b: Bytes, A: Bytes, sk: Skim, connection: Connection) -> bool:
    """`_advance` for both directions, requests first: responses are recognised by the requests that wait.

    Where it is not known which these are, what was held comes in order of arrival: responses that fill the window
    before their requests are seen would be lost.
    """
    while connection.client < 0:
        head, other = connection.directions[0].ahead_head, connection.directions[1].ahead_head
        if head < 0 and other < 0:
            break
        second = head < 0 or (other >= 0 and node_at(M, other).time < node_at(M, head).time)
        direction = connection.directions[1 if second else 0]
        if not ready(M, direction):
            if direction.unsettled == 0 or hole(M, connection, direction) == 0:
                break
            continue
        _take_waiting(M, b, A, sk, connection, direction)
        if not roomy(M):
            return False
    first = max(connection.client, 0)
    if not _advance(M, b, A, sk, connection, connection.directions[first]):
        return False
    return _advance(M, b, A, sk, connection, connection.directions[1 - first])


@part
def _unopened(M: Words, connection: Connection) -> bool:
    """Whether the host has to open sealed bytes before the connection can be finished."""
    return connection.sealed == 1 and control_at(M, tl.CONTROL).sealed > 0


@part
def finish(M: Words, b: Bytes, A: Bytes, sk: Skim, conn_of: Words, connection: Connection, reason: Int) -> bool:
    """Close a connection's books and free its row; `reason` End.OPEN: the capture ended. False when room ran out."""
    control = control_at(M, tl.CONTROL)
    if connection.end == End.OPEN:
        connection.end = reason
    control.final = Final.DRAINING
    if not _advance_both(M, b, A, sk, connection):
        control.final = Final.RUNNING
        return False
    control.final = Final.RUNNING
    if _unopened(M, connection):
        return False
    control.final = Final.CAPTURE_ENDED if connection.end == End.OPEN else Final.ENDED
    if connection.client < 0 and connection.kafka == 0:
        tell_sides(M, b, A, sk, connection)
    for q in range(2):
        direction = connection.directions[max(connection.client, 0) ^ q]
        if direction.mode == Mode.SEARCH and direction.head >= 0:
            settle(M, b, A, sk, connection, direction)
    if _unopened(M, connection):
        control.final = Final.RUNNING
        return False
    for q in range(2):
        direction = connection.directions[max(connection.client, 0) ^ q]
        lost_for_good(M, connection, direction)
        if direction.mode == Mode.FRAMES and direction.need > 0:
            damage(M, Kind.UNFINISHED_FRAME, connection, direction, direction.need, -1)
            complete(M, b, A, connection, direction)
        drop_nodes(M, direction)
        forget_frame(direction)
    r = pop_request(M, connection)
    while r >= 0:
        without_response(M, connection, r)
        r = pop_request(M, connection)
    release_held(M, connection)
    control.final = Final.RUNNING
    e = st.E_BASE + control.ended * tl.CONNECTION_WIDTH
    control.ended += 1
    for q in range(tl.CONNECTION_WIDTH):
        M[e + q] = M[connection.place + q]
    if conn_of[connection.flow] == connection.place:
        conn_of[connection.flow] = -1
    connection.flow = control.connection_free
    connection.number = -1
    control.connection_free = connection.place
    control.connections_left += 1
    return True


@part
def _packet(
    M: Words, b: Bytes, A: Bytes, sk: Skim, packet: Segment, connection: Connection, direction: Direction
) -> bool:
    """One packet of a direction; False when room ran out behind it."""
    connection.packets += 1
    elsewhere = direction.viewpoint != packet.viewpoint
    highest = direction.highest if direction.started > 0 else tl.NULL
    if duplicate(M, packet, connection, direction):
        connection.duplicates += 1
        compare(M, b, A, packet, connection, direction, highest)
    else:
        connection.last = max(connection.last, packet.time)
        _handshake(M, packet, connection, direction)
        other = opposite(connection, direction)
        acked = other.acked
        more = arrive(M, packet, connection, direction, elsewhere)
        compare(M, b, A, packet, connection, direction, highest)
        if connection.unacked >= 0 and other.acked != acked:
            requests_acknowledged(M, packet, connection, other)
        if other.acked == acked and packet.flags & (SYN | DSACK) == DSACK:
            copies_not_needed(M, packet, connection, other)
            segments_came_twice(M, packet, other)
        if other.ahead > 0 and other.acked != acked:
            segments_acknowledged(M, packet, connection, other)
        if more:
            _deliver(M, b, A, sk, connection, direction)
    waiting = direction.ahead > 0 or opposite(connection, direction).ahead > 0
    if waiting and not _advance_both(M, b, A, sk, connection):
        return False
    _endings(M, packet, connection, direction)
    return True


@part
def _closer(packet: Segment, connection: Connection, direction: Direction) -> Int:
    """The `closer` of a connection whose first captured FIN or RST this is. A FIN takes a sequence number (RFC 9293,
    section 3.4): where the packet acknowledges more than the other side was seen to send, that may have been one."""
    other = opposite(connection, direction)
    if other.started == 0 or (packet.flags & ACK_FLAG and unwrap(packet.ack, other.next) > other.highest):
        return tl.UNTOLD
    return 1 + direction.side


@part
def _endings(M: Words, packet: Segment, connection: Connection, direction: Direction) -> None:
    """FIN and RST, and responses that were held long enough."""
    flags = packet.flags
    if flags & (FIN | RST) and direction.closed_at == tl.NULL:
        direction.closed_at = packet.time
        if connection.closer == 0:
            connection.closer = _closer(packet, connection, direction)
    if flags & RST:
        if connection.end == End.OPEN:
            connection.end = End.RST
    elif flags & FIN:
        direction.fin = 1
    if connection.end == End.OPEN and direction.fin == 1 and opposite(connection, direction).fin == 1:
        connection.end = End.FIN
    if connection.held > 0 and connection.sealed == 0:
        release_held(M, connection)


@part
def _drive_plaintext(M: Words, b: Bytes, A: Bytes, sk: Skim, packet: Segment) -> None:
    """Drives a row of plaintext, which the host made of sealed bytes. Its stream is named by the connection's address,
    and `seq` is the value of `packets` of the connection when those bytes came; `ack`, `viewpoint` and `flags` are the
    round trips of then."""
    connection = connection_at(M, packet.flow >> 1)
    if connection.kafka < 0:
        return
    packets = connection.packets
    connection.packets = packet.seq
    first, second = connection.directions[0], connection.directions[1]
    floor, other, kind, of_other = first.floor, second.floor, first.floor_kind, second.floor_kind
    first.floor = packet.ack
    second.floor = packet.viewpoint
    first.floor_kind = (packet.flags & 0xFF) - 1
    second.floor_kind = (packet.flags >> 8) - 1
    out = outgoing_at(M, tl.OUT)
    out.at = packet.at
    out.captured = packet.len
    out.wire = packet.wire
    out.time = packet.time
    out.packet = packet.packet
    _read(M, b, A, sk, connection, connection.directions[packet.flow & 1])
    if connection.held > 0:
        release_held(M, connection)
    connection.packets = packets
    first.floor = floor
    second.floor = other
    first.floor_kind = kind
    second.floor_kind = of_other


@part
def _step(M: Words, b: Bytes, A: Bytes, sk: Skim, conn_of: Words, packet: Segment) -> bool:
    """One segment; False when room ran out, to be called again with the same one."""
    control = control_at(M, tl.CONTROL)
    known = conn_of[packet.flow >> 1]
    if control.phase == tl.Phase.TAKEN:
        connection = connection_at(M, known)
        if not _advance_both(M, b, A, sk, connection):
            return False
        _endings(M, packet, connection, connection.directions[packet.flow & 1])
        control.phase = tl.Phase.NEW
        return True
    if known >= 0:
        connection = connection_at(M, known)
        why = _begins_anew(packet, connection)
        if why != End.OPEN:
            if not finish(M, b, A, sk, conn_of, connection, why) or not roomy(M):
                return False
            known = -1
    if known < 0:
        connection = _open(M, conn_of, packet)
    if not _packet(M, b, A, sk, packet, connection, connection.directions[packet.flow & 1]):
        control.phase = tl.Phase.TAKEN
        return False
    return True


@part
def _in_lane(M: Words, b: Bytes, A: Bytes, conn_of: Words, packet: Segment) -> bool:
    """Take a segment by the fast lane, if it is one for it."""
    control = control_at(M, tl.CONTROL)
    known = conn_of[packet.flow >> 1]
    if known < 0 or control.lane == 0 or control.phase != tl.Phase.NEW:
        return False
    connection = connection_at(M, known)
    if not in_lane(M, b, A, packet, connection, connection.directions[packet.flow & 1]):
        return False
    control.lane += 1
    return True


@part
def _look_ahead(M: Words, b: Bytes, conn_of: Words, g: Words, order: Words, n: Int, i: Int) -> None:
    """Ask for the bytes and the state that later rows need: memory is what most packets wait for."""
    if i + 2 * AHEAD < n:
        row = order[i + 2 * AHEAD] * SEGMENT_COLUMNS
        fetch(g, row)
        fetch(g, row + 8)
    if i + AHEAD < n:
        packet = segment_at(g, order[i + AHEAD])
        if packet.len > 0:
            o = place(M, packet.at)
            fetch(b, o)
            fetch(b, o + HEADER)
        known = conn_of[packet.flow >> 1]
        if known >= 0 and packet.flow >> 1 != segment_at(g, order[i + AHEAD - 1]).flow >> 1:
            for line in range(0, tl.CONNECTION_WIDTH, 8):
                fetch(M, known + line)


@kernel("i8[:] u1[:] u1[:] SKIM i8[:] i8[:,:] i8[:] i8 i8 -> b1")
def run(M: Words, b: Bytes, A: Bytes, sk: Skim, conn_of: Words, g: Words, order: Words, n: Int, task: Int) -> bool:
    """Drive the first `n` of `order`, from where the last call stopped: rows of `g` (PACKETS, PLAINTEXT), or
    connections (FINISHING). True when all are done.

    One kernel for all, because almost all of it is the same code, and compiling it takes seconds.
    """
    control = control_at(M, tl.CONTROL)
    i = control.resume
    while i < n:
        done = roomy(M)
        if done and task == FINISHING:
            done = finish(M, b, A, sk, conn_of, connection_at(M, order[i]), End.OPEN)
        elif done and task == PLAINTEXT:
            _drive_plaintext(M, b, A, sk, segment_at(g, order[i]))
        elif done:
            _look_ahead(M, b, conn_of, g, order, n, i)
            packet = segment_at(g, order[i])
            done = _in_lane(M, b, A, conn_of, packet) or _step(M, b, A, sk, conn_of, packet)
        if not done:
            control.resume = i
            return False
        i += 1
    control.resume = 0
    return True


@kernel("i8[:,:] i8 i8[:] i8[:]")
def group(g: Words, n: Int, counts: Words, order: Words) -> None:
    """A stable counting sort of segment rows by flow: `order` lists the rows flow by flow, in the order of capture."""
    flows = counts.size - 1
    for q in range(flows + 1):
        counts[q] = 0
    for i in range(n):
        counts[(segment_at(g, i).flow >> 1) + 1] += 1
    for q in range(flows):
        counts[q + 1] += counts[q]
    for i in range(n):
        q = segment_at(g, i).flow >> 1
        order[counts[q]] = i
        counts[q] += 1


@kernel("i8[:] i8")
def release_nodes(M: Words, n: Int) -> None:
    """Free the pieces of the first `n` exchanges' frames."""
    for i in range(n):
        exchange = exchange_at(M, st.X_BASE + i * st.EXCHANGE_WIDTH)
        _release(M, exchange.request)
        _release(M, exchange.response)


@part
def _release(M: Words, frame: Frame) -> None:
    piece = frame.head
    while piece >= 0:
        following = node_at(M, piece).next
        give_node(M, piece)
        piece = following
    frame.head = -1
