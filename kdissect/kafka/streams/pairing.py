"""A complete frame becomes a request that waits, or a response that finds its request.

The rules:

- A broker answers the requests of one connection in the order in which they came. So a response belongs to the oldest
  waiting request with its correlation id; requests in front of that one will not be answered any more (`unanswered`).
- Ids repeat (0.8's SimpleConsumer always sends 0), so order decides, never the id alone. Where bytes were lost, order
  does not decide either. For a client that was never seen to send a request before it had its answer, an answer then
  belongs to the last request that was sent before it. Other clients' requests with the same id get no answer: it may be
  that of any of them. A held response answers no request that was sent after it: one that acknowledges it, with any id.
- Produce with acks=0 is never answered: it is finished at once (`no_response`).
- A response can be captured before its own request. Unmatched ones are held for HOLD_PACKETS packets of the connection,
  and while earlier requests wait behind a hole, before they are called orphans.
- After a SaslHandshake v0 request, frames are bare tokens of the mechanism until one reads as a Kafka request again, or
  the broker refuses the handshake. Whether its answer was captured makes no difference: tokens are credentials.
- A request that was not answered before bytes of the other direction were lost is `partial`: its answer may be among
  them.
- A frame with bytes missing is `partial`; its last byte's time is unknown when bytes were never captured, but known
  when a snap length cut them (they did arrive).
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.completed import Status
from kdissect.kafka.streams import state as st
from kdissect.kafka.streams.state import (
    Exchange,
    Frame,
    Request,
    copy_out,
    damage,
    exchange_at,
    place,
    problem,
    program_of,
    request_at,
    uvarint,
)
from kdissect.kernels.kernel import part
from kdissect.kernels.memory import be16, int32_at, same_bytes
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.net.segment import Segment
from kdissect.problems import Kind
from kdissect.schema.apikeys import ApiKey
from kdissect.tcp import layout as tl
from kdissect.tcp.assembly import bareness, opposite
from kdissect.tcp.layout import CONTROL, NULL, Connection, Direction, End, Final, Rise, Sasl, Way, control_at, node_at
from kdissect.tcp.one_way import rise_known
from kdissect.tcp.roundtrip import (
    LOCAL_NS,
    PROOF_NS,
    Found,
    acks_removed,
    came_first,
    floor_doubted,
    in_force,
    lost_by_copies,
    may_be_needless,
    network_share,
    proof_of_silence,
    sent_again_between,
)

HOLD_PACKETS = 64
"""How many packets of its connection a response waits for a request that was captured late; see GAP_PACKETS."""
HELD = 256
"""Responses held per connection at most; the oldest becomes an orphan."""
MAX_WAITING = 8192
"""Requests waiting per connection at most (Kafka's clients keep 5 in flight, librdkafka up to 1,000,000 by setting
but a broker reads one at a time); the oldest is finished as never answered."""
REPEATS = 1
"""A client whose ids repeat has sent the same one so often again: those that count them up never do."""
NEXT_FEW = 16
"""Waiting requests that are looked at for captures out of order: packets change places over short distances only."""
MAX_SKIPPED = 1024
"""How far behind the oldest waiting request a response's id is looked for."""


@part
def _is_name(M: Words, A: Bytes, code: Int, buf: Bytes, o: Int, n: Int) -> bool:
    """Whether the client id of this code is `buf[o:o + n]`."""
    a = M[st.NAME_ENDS + code]
    return M[st.NAME_ENDS + code + 1] - a == n and same_bytes(A, st.NAMES + a, buf, o, n)


@part
def client_code(M: Words, A: Bytes, connection: Connection, buf: Bytes, o: Int, n: Int) -> Int:
    """The code of the client id at `buf[o:o + n]`, new ones are added; -1 when there is no room."""
    code = connection.client_id
    if code >= 0 and _is_name(M, A, code, buf, o, n):
        return code
    h = np.int64(1469598103)
    for q in range(n):
        h = ((h ^ np.int64(buf[o + q])) * 16777619) & 0x7FFFFFFF
    mask = st.NAME_SLOTS - 1
    h &= mask
    while M[st.NAME_TABLE + h] >= 0:
        code = M[st.NAME_TABLE + h]
        if _is_name(M, A, code, buf, o, n):
            return code
        h = (h + 1) & mask
    control = control_at(M, CONTROL)
    code = control.client_ids
    a = control.client_bytes
    if code >= st.MAX_NAMES or a + n > st.NAME_BYTES:
        return -1
    for q in range(n):
        A[st.NAMES + a + q] = buf[o + q]
    M[st.NAME_ENDS + code + 1] = a + n
    M[st.NAME_TABLE + h] = code
    control.client_ids = code + 1
    control.client_bytes = a + n
    return code


@part
def after_tags(buf: Bytes, o: Int, e: Int) -> Int:
    """Offset behind a tag buffer (KIP-482), -1 when it does not end before `e`."""
    count, o = uvarint(buf, o, e)
    while o >= 0 and count > 0:
        _, o = uvarint(buf, o, e)
        if o < 0:
            return o
        size, o = uvarint(buf, o, e)
        if o < 0 or size > e - o:
            return -1
        o += size
        count -= 1
    return o


@part
def request_body(M: Words, buf: Bytes, o: Int, e: Int, api: Int, version: Int) -> Int:
    """Offset in `buf` of the message behind a request's header (`o` is the frame without its prefix), -1 unknown."""
    if api == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
        return o + 8
    if e - o < 10:
        return -1
    n = be16(buf, o + 8)
    p = o + 10
    if n < 0x8000:
        if n > e - p:
            return -1
        p += n
    if api < st.KEYS and version >= M[st.FLEXIBLE + 2 * api]:
        return after_tags(buf, p, e)
    return p


@part
def response_body(M: Words, buf: Bytes, o: Int, e: Int, api: Int, version: Int) -> Int:
    """Offset in `buf` of the message behind a response's header, -1 unknown."""
    if e - o < 4:
        return -1
    if api < st.KEYS and api != ApiKey.API_VERSIONS and version >= M[st.FLEXIBLE + 2 * api + 1]:
        return after_tags(buf, o + 4, e)
    return o + 4


@part
def acks_of(buf: Bytes, o: Int, e: Int, version: Int) -> Int:
    """The acks of a Produce request whose message begins at `o`; 1 when they are out of reach."""
    if version >= 9:
        n, o = uvarint(buf, o, e)
        if o < 0:
            return 1
        if n > 1:
            o += n - 1
    elif version >= 3:
        if o + 2 > e:
            return 1
        n = be16(buf, o)
        o += 2
        if n < 0x8000:
            o += n
    if o + 2 > e:
        return 1
    return be16(buf, o)


@part
def _head_place(M: Words, direction: Direction) -> Int:
    """Where the direction's current frame lies in the window, -1 when it does not lie there in one piece."""
    at = direction.at
    return place(M, at) if 0 <= at < st.KEPT else -1


@part
def frame_head(M: Words, b: Bytes, A: Bytes, direction: Direction) -> Int:
    """The first bytes of the direction's current frame at `A[HEAD:]`; how many there are."""
    if direction.at >= 0:
        n = min(direction.length, st.HEAD_BYTES)
        return n if copy_out(M, b, A, direction.at, n, A, st.HEAD) else 0
    w = 0
    piece = direction.head
    while piece >= 0 and w < st.HEAD_BYTES:
        node = node_at(M, piece)
        n = min(node.length, st.HEAD_BYTES - w)
        if node.at < 0 or not copy_out(M, b, A, node.at, n, A, st.HEAD + w):
            break
        w += n
        piece = node.next
    return w


@part
def _copy_frame(frame: Frame, direction: Direction, body: Int) -> None:
    """Write the direction's current frame into `frame`, which owns its nodes from now on."""
    frame.first = direction.first
    frame.last = NULL if direction.missing > 0 or direction.need > 0 else direction.latest
    frame.bytes = direction.size + 4
    frame.packet = direction.packet
    frame.at = direction.at
    frame.length = direction.length
    frame.head = direction.head
    frame.body = body
    frame.missing = direction.missing + max(direction.need, 0)
    frame.cut = direction.cut


@part
def _no_frame(frame: Frame) -> None:
    frame.first = NULL
    frame.last = NULL
    frame.bytes = -1
    frame.packet = -1
    frame.at = -1
    frame.length = -1
    frame.head = -1
    frame.body = -1
    frame.missing = 0
    frame.cut = 0


@part
def _damaged(frame: Frame) -> bool:
    """Whether bytes of the frame are not there."""
    return frame.missing > 0 or frame.cut > 0


@part
def _request_columns(exchange: Exchange, request: Request) -> None:
    exchange.request = request.frame
    exchange.n = request.n
    exchange.orphan = 0
    exchange.api = request.api
    exchange.version = request.version
    exchange.correlation = request.correlation
    exchange.client = request.client
    exchange.in_flight = request.in_flight
    exchange.think = request.think
    exchange.unseen_until = request.unseen_until
    exchange.end = request.end


@part
def _no_request(exchange: Exchange, n: Int, correlation: Int, status: Int) -> None:
    """An exchange whose request is not known."""
    exchange.n = n
    exchange.api = -1
    exchange.version = -1
    exchange.correlation = correlation
    exchange.client = -1
    exchange.in_flight = -1
    exchange.end = -1
    exchange.status = status


@part
def _new_row(M: Words, connection: Connection) -> Exchange:
    control = control_at(M, CONTROL)
    exchange = exchange_at(M, st.X_BASE + control.out * st.EXCHANGE_WIDTH)
    control.out += 1
    exchange.connection = connection.number
    exchange.queued_from = NULL
    exchange.direction = connection.client
    exchange.network = -1
    exchange.network_kind = -1
    exchange.network_down = NULL
    exchange.request_resent = -1
    exchange.response_resent = -1
    exchange.think = -1
    exchange.unseen_until = NULL
    exchange.abandoned = -1
    connection.exchanges += 1
    return exchange


@part
def _free_request(M: Words, place: Int) -> None:
    control = control_at(M, CONTROL)
    request = request_at(M, place)
    request.frame.bytes = 0
    request.next = control.request_free
    control.request_free = place
    control.requests_left += 1


@part
def _take_request(M: Words) -> Int:
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
def without_response(M: Words, connection: Connection, r: Int) -> None:
    """Finish the oldest waiting request `r` (already off the list) as never answered."""
    request = request_at(M, r)
    exchange = _new_row(M, connection)
    _request_columns(exchange, request)
    _no_frame(exchange.response)
    answering = connection.directions[1 - connection.client]
    if answering.packets == 0:
        status = Status.ONE_WAY
    elif _damaged(request.frame) or answering.lost >= request.packets:
        status = Status.PARTIAL
    elif control_at(M, CONTROL).final == Final.CAPTURE_ENDED and connection.end == End.OPEN:
        status = Status.PENDING
    else:
        status = Status.UNANSWERED
    exchange.status = status
    _free_request(M, r)


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
def _set_way(way: Way, connection: Connection, frame: Frame) -> None:
    """Sets what is known of the way of the current frame of the direction from the broker, which is `frame`: the next
    one stands behind it, whether its request was captured or not."""
    asking = connection.directions[connection.client]
    answering = connection.directions[1 - connection.client]
    plain = connection.sealed == 0
    way.rise = answering.first_rise if plain else 0
    way.rise_known = rise_known(connection, answering, way.rise) if plain else Rise.KNOWN
    way.last_rise = answering.rise if plain else 0
    way.floor = asking.floor
    way.floor_kind = asking.floor_kind
    first, last, hole, filled = answering.first, answering.latest, answering.filled_from, answering.filled_at
    way.first_hole = hole if plain and filled == first and hole < first else NULL
    way.last_hole = hole if plain and filled == last and hole < last else NULL
    way.skipped, way.behind, way.behind_rise = connection.skipped, connection.answered_last, connection.answered_rise
    connection.skipped = frame.last == NULL
    if frame.last != NULL:
        connection.answered_last, connection.answered_rise = frame.last, way.last_rise


@part
def _answer_columns(connection: Connection, exchange: Exchange, request: Request, answered_last: Int) -> None:
    """The network's share and status of a row that has a response to `request`, which came as its `way` says."""
    _network_columns(connection, exchange, request)
    exchange.status = Status.PARTIAL if _damaged(exchange.request) or _damaged(exchange.response) else Status.OK
    _thinks_from(connection, answered_last)


@part
def _thinks_from(connection: Connection, answered_last: Int) -> None:
    """Notes that the client's time until its next request begins with an answer that ended at `answered_last`, NULL:
    that it is not known."""
    connection.think_from = answered_last
    connection.think_packets = connection.packets


@part
def _network_columns(connection: Connection, exchange: Exchange, request: Request) -> None:
    """The network's share of an exchange, as far as its own connection's packets show it."""
    way = request.way
    asked, answered, arrived = exchange.request.last, exchange.response.first, exchange.response.last
    _abandoned(connection, exchange, answered)
    if way.floor >= 0:
        in_force(connection, way.floor)
    if request.acked != NULL:
        exchange.request_resent = max(request.resent, 0)
    if connection.sealed == 0 and arrived != NULL:
        late = way.last_hole != NULL and arrived > answered
        exchange.response_resent = arrived - max(way.last_hole, answered) if late else 0
    if asked == NULL or asked == 0 or answered == NULL or answered == 0:
        return
    asking = connection.directions[connection.client]
    share, kind = network_share(
        connection, asking, asked, answered, request.acked, request.bare, request.proof, request.resent, way
    )
    alone = request.in_flight == 1 and asking.lost < connection.think_packets
    if way.skipped == 1 and not alone:  # how long it lay behind its predecessor is not known
        share, kind = np.int64(-1), np.int64(-1)
        exchange.queued_from = NULL
    needless = may_be_needless(asking, connection.directions[1 - connection.client], asked, request.resent)
    if needless and kind >= 0 and request.resent <= PROOF_NS:  # of a timer's copy the time is the network's either way
        kind = np.int64(Found.BOUND)
    if kind < 0 or needless:
        exchange.request_resent = -1
    if kind < 0 and exchange.queued_from != NULL:  # the answer before it left the broker sooner by so much more
        exchange.queued_from += min(way.rise - way.behind_rise, 0)
    if kind == Found.TIMESTAMPS:
        exchange.network_down = way.rise
        if exchange.queued_from != NULL:
            exchange.queued_from += way.rise - way.behind_rise
    exchange.network = share
    exchange.network_kind = kind


@part
def _abandoned(connection: Connection, exchange: Exchange, answered: Int) -> None:
    """Whether the client had closed before the answer's first byte."""
    if answered != NULL:
        closed = connection.directions[connection.client].closed_at
        exchange.abandoned = 1 if closed != NULL and closed < answered else 0


@part
def _way_back(connection: Connection) -> Int:
    """How long packets take to the client and back at the request that is taken now, ns, -1 unknown.

    The client's time is less by it. It is unknown also where only a bound is known, or where acknowledgements that
    would have raised it may be missing from the capture."""
    asking, answering = connection.directions[connection.client], connection.directions[1 - connection.client]
    removed = connection.same_host == 0 and acks_removed(connection)
    if removed or answering.floor < 0 or answering.floor_kind == Found.BOUND or floor_doubted(answering, asking):
        return -1
    rise = asking.first_rise if connection.sealed == 0 else np.int64(0)
    return answering.floor + rise if rise_known(connection, asking, rise) == Rise.KNOWN else np.int64(-1)


@part
def _time_to_think(connection: Connection, since: Int, first: Int, way_back: Int, doubted_at: Int) -> Int:
    """The client's time until a request from the answer before it, ns, -1 unknown. `doubted_at`: of the connection when
    the request came.

    It is unknown where bytes of the broker were sent again meanwhile: the client may have had the answer only then. Its
    host may say that it had them before (D-SACK, RFC 2883). Of a connection that was met in its middle the way may take
    less than it did since."""
    if since == NULL or since == 0 or first < since or way_back < 0 or doubted_at > since:
        return -1
    answering = connection.directions[1 - connection.client]
    if answering.copies > answering.copies_told and sent_again_between(answering, since, first):
        return -1
    thought = first - since - way_back
    met = answering.isn == NULL
    return -1 if met and way_back > LOCAL_NS and way_back > thought // 10 else max(thought, 0)


@part
def _answered_since(M: Words, connection: Connection, first: Int) -> bool:
    """Whether a held response, whose request was not captured yet, came since the client waits for nothing and before
    its request's first byte at `first`, or may have."""
    h = connection.held_head
    while h >= 0:
        frame = request_at(M, h).frame
        if frame.first <= first and (frame.last == NULL or frame.last > connection.think_from):
            return True
        h = request_at(M, h).next
    return False


@part
def _think(M: Words, connection: Connection, first: Int, way_back: Int) -> Int:
    """The client's time until a request that is taken now, where nothing was in flight, ns, -1 unknown. Unknown too
    where bytes of either direction are missing since the response."""
    asking, answering = connection.directions[connection.client], connection.directions[1 - connection.client]
    if connection.requests_open > 0 or answering.lost >= connection.think_packets:
        return -1
    if connection.sealed == 1:
        if asking.lost >= connection.think_packets or connection.held > 0:
            return -1
    else:
        if asking.missing_total != connection.asked_missing or _answered_since(M, connection, first):
            return -1
        if answering.started > 0 and answering.acked > answering.next + 1:
            return -1
    return _time_to_think(connection, connection.think_from, first, way_back, connection.doubted_at)


@part
def _think_behind(M: Words, connection: Connection, answered: Int, end: Int, missing: Int, n: Int) -> None:
    """Sets the client's time until the next request, where that was captured before this answer: the answer's bytes lay
    behind a hole.

    The answer ended at the instant `answered`, and at the position `end`. The request's packet acknowledges just that.
    `missing`, `n`: those of the request that was answered. One in between may have asked for no answer."""
    following = request_at(M, connection.request_head)
    is_next = following.n == n + 1 and following.missing == missing
    if connection.sealed == 0 and is_next and following.answered_to == end:
        following.think = _time_to_think(
            connection, answered, following.frame.first, following.way_back, following.doubted_at
        )


@part
def _is_server_token(correlation: Int) -> bool:
    """Whether a frame's first bytes, read as a correlation id, are those of a SCRAM server's message (RFC 5802, 7):
    `r=`, `v=` or `e=`. Clients count their requests from 0 on, and none sends 1.7 billion on a connection."""
    begin = correlation >> 16
    return begin == 0x723D or begin == 0x763D or begin == 0x653D


@part
def _is_client_token(api: Int) -> bool:
    """Whether a frame's first bytes, read as an API key, begin a SCRAM client's message (RFC 5802, 7): `n,`, `y,` or
    `p=` of the first, `c=` of the last. No API has such a key."""
    return api == 0x6E2C or api == 0x792C or api == 0x703D or api == 0x633D


@part
def orphan(M: Words, connection: Connection, h: Int) -> None:
    """Finish a held response (already off the list) as one whose request was not captured; a bare SASL token is kept
    apart from exchanges."""
    held = request_at(M, h)
    exchange = _new_row(M, connection)
    if _is_server_token(held.correlation):
        connection.exchanges -= 1
        _no_frame(exchange.request)
        exchange.response = held.frame
        exchange.orphan = 1
        _no_request(exchange, connection.tokens, 0, st.TOKEN)
        connection.tokens += 1
        _free_request(M, h)
        return
    _no_frame(exchange.request)
    exchange.response = held.frame
    exchange.orphan = 1
    _no_request(exchange, connection.orphans, held.correlation, Status.ORPHAN)
    connection.orphans += 1
    frame = held.frame
    _abandoned(connection, exchange, frame.first)
    if (
        frame.last == NULL or frame.last >= connection.answered_last
    ):  # later ones may have found their requests meanwhile
        _thinks_from(connection, frame.last)
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
    _free_request(M, h)


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
        orphan(M, connection, h)


@part
def _last_before(M: Words, connection: Connection, request: Request, held_response: Request) -> bool:
    """Whether a held response came after this request, and, where one request waits for the other's answer, before the
    next one, which may wait behind a hole."""
    if request.frame.first > held_response.frame.first:
        return False
    following = connection.directions[connection.client].ahead_head
    return connection.pipelined == 1 or following < 0 or node_at(M, following).time > held_response.frame.first


@part
def _meet_held(M: Words, connection: Connection, r: Int) -> bool:
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
            exchange = _new_row(M, connection)
            exchange.queued_from = held.way.behind
            if before >= 0:
                request_at(M, before).next = held.next
            else:
                connection.held_head = held.next
            connection.held -= 1
            _request_columns(exchange, request)
            exchange.response = held.frame
            exchange.response.body = -2
            request.way = held.way
            _answer_columns(connection, exchange, request, held.frame.last)
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
            _free_request(M, h)
            _free_request(M, r)
            return True
        before = h
        h = held.next
    return False


@part
def text_like(buf: Bytes, o: Int, n: Int) -> bool:
    """No control characters: what a client id looks like."""
    for q in range(n):
        x = buf[o + q]
        if x < 32 or x == 127:
            return False
    return True


@part
def known_header(M: Words, A: Bytes, o: Int, have: Int, size: Int) -> bool:
    """Whether the first bytes of a frame read as the header of a request whose API and version we know."""
    if have < 8 or size < 8:
        return False
    api = be16(A, o)
    version = be16(A, o + 2)
    if program_of(M, api, version, 0) < 0:
        return False
    if api == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
        return True
    if have < 10:
        return False
    n = be16(A, o + 8)
    return n == 0xFFFF if n >= 0x8000 else n <= size - 10


@part
def clean_client(A: Bytes, o: Int, have: Int) -> bool:
    """Whether the client id of a request header (or as much of it as is there) is text."""
    n = be16(A, o + 8)
    return n >= 0x8000 or text_like(A, o + 10, min(n, have - 10))


@part
def _token(M: Words, connection: Connection, direction: Direction) -> None:
    """A bare SASL token: kept apart from exchanges. A client that has sent one waits for the broker's."""
    exchange = _new_row(M, connection)
    connection.exchanges -= 1
    _no_frame(exchange.request)
    _no_frame(exchange.response)
    if direction.side == connection.client:
        exchange.orphan = 0
        _copy_frame(exchange.request, direction, 0)
        _thinks_from(connection, np.int64(NULL))
    else:
        exchange.orphan = 1
        _copy_frame(exchange.response, direction, 0)
        _thinks_from(connection, exchange.response.last)
    _no_request(exchange, connection.tokens, 0, st.TOKEN)
    connection.tokens += 1


@part
def request_complete(M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction) -> None:
    """The direction's current frame is a request (as much of it as will ever come)."""
    o = _head_place(M, direction)
    if o >= 0:
        take_request(M, A, connection, direction, b, o, min(direction.length, st.HEAD_BYTES))
    else:
        take_request(M, A, connection, direction, A, st.HEAD, frame_head(M, b, A, direction))


@part
def take_request(
    M: Words, A: Bytes, connection: Connection, direction: Direction, buf: Bytes, o: Int, have: Int
) -> None:
    """A request whose first `have` bytes are at `buf[o:]`."""
    size = direction.size
    if connection.sasl == Sasl.BARE:
        if not known_header(M, buf, o, have, size) or not clean_client(buf, o, have):
            _token(M, connection, direction)
            return
        connection.sasl = tl.LOGINS[connection.sasl, tl.Login.REQUEST]
    if have < 8:
        _bad_header(M, connection, direction)
        return
    api = be16(buf, o)
    if _is_client_token(api):
        _token(M, connection, direction)
        return
    version = be16(buf, o + 2)
    body = request_body(M, buf, o, o + have, api, version)
    if body >= 0:
        body -= o
    client = -1
    if have >= 10 and not (api == ApiKey.CONTROLLED_SHUTDOWN and version == 0):
        n = be16(buf, o + 8)
        if n < 0x8000 and n <= have - 10:
            client = client_code(M, A, connection, buf, o + 10, n)
    if connection.client_id < 0:
        connection.client_id = client
    if connection.requests_open >= MAX_WAITING:
        without_response(M, connection, pop_request(M, connection))
    r = _take_request(M)
    request = request_at(M, r)
    request.api = api
    request.version = version
    request.correlation = int32_at(buf, o + 4)
    request.client = client
    _copy_frame(request.frame, direction, body)
    request.n = connection.requests
    again = connection.requests > 0 and connection.asked == request.correlation
    if again:
        connection.repeats += 1
    connection.asked = request.correlation
    answered_to = opposite(connection, direction).acked
    at_once = direction.latest >= connection.last  # it did not wait behind a hole
    if connection.requests_open > 0 and at_once and answered_to != NULL and answered_to == connection.answered_to:
        connection.pipelined = 1
    connection.answered_to = answered_to
    connection.requests += 1
    request.in_flight = connection.requests_open + 1
    request.packets = connection.packets
    request.end = direction.next
    waited = direction.waited
    request.acked = waited.acked
    request.bare = waited.bare if waited.acked != NULL else 0
    request.proof = waited.proof if waited.acked != NULL else 0
    request.resent = waited.resent if waited.acked != NULL else 0
    request.answered_to = answered_to
    if not at_once:
        request.answered_to = NULL
    request.way_back = _way_back(connection)
    request.think = _think(M, connection, direction.first, request.way_back)
    request.missing = direction.missing_total
    request.doubted_at = connection.doubted_at
    connection.asked_missing = direction.missing_total
    request.unseen_until = direction.unseen_until
    if _damaged(request.frame):
        direction.unseen_until = direction.latest
    if api == ApiKey.SASL_HANDSHAKE and version == 0:
        connection.sasl = tl.LOGINS[connection.sasl, tl.Login.HANDSHAKE]
    if api == ApiKey.PRODUCE and body >= 0 and acks_of(buf, o + body, o + have, version) == 0:
        exchange = _new_row(M, connection)
        _request_columns(exchange, request)
        _no_frame(exchange.response)
        exchange.status = Status.PARTIAL if _damaged(request.frame) else Status.NO_RESPONSE
        connection.think_from = NULL
        _free_request(M, r)
        return
    if connection.held > 0 and _meet_held(M, connection, r):
        return
    if connection.request_tail >= 0:
        tail = request_at(M, connection.request_tail)
        tail.next = r
        if tail.correlation >= request.correlation:
            connection.unordered = 1
    else:
        connection.request_head = r
        connection.unordered = 0
    connection.request_tail = r
    connection.requests_open += 1
    known = direction.acked != NULL and direction.acked >= request.end
    if connection.unacked < 0 and not known and connection.sealed == 0:
        connection.unacked = r


@part
def _bad_header(M: Words, connection: Connection, direction: Direction) -> None:
    """A frame that is too short for its header, or whose beginning is not there."""
    damage(M, Kind.BAD_HEADER, connection, direction, direction.size + 4, -1)
    _token(M, connection, direction)


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
def _of_equals(M: Words, connection: Connection, direction: Direction, oldest: Int) -> Int:
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
def _not_in_flight(M: Words, connection: Connection, answered: Int) -> None:
    """Requests that were captured before this answer but sent after it (a capture out of order) did not overlap it."""
    r = connection.request_head
    steps = 0
    while r >= 0 and steps < NEXT_FEW:
        request = request_at(M, r)
        if request.frame.first > answered:
            request.in_flight -= 1
        r = request.next
        steps += 1


@part
def response_complete(M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction) -> None:
    """The direction's current frame is a response (as much of it as will ever come)."""
    o = _head_place(M, direction)
    if o >= 0:
        take_response(M, connection, direction, b, o, min(direction.length, st.HEAD_BYTES))
    else:
        take_response(M, connection, direction, A, st.HEAD, frame_head(M, b, A, direction))


@part
def take_response(M: Words, connection: Connection, direction: Direction, buf: Bytes, o: Int, have: Int) -> None:
    """A response whose first `have` bytes are at `buf[o:]`."""
    if have < 4:
        _bad_header(M, connection, direction)
        return
    correlation = int32_at(buf, o)
    r, _ = waiting_with(M, connection, correlation)
    if r < 0 and connection.sasl == Sasl.BARE:
        _token(M, connection, direction)
        return
    if r >= 0 and connection.repeats >= REPEATS:
        r = _of_equals(M, connection, direction, r)
    if r < 0:
        _hold(M, connection, direction, correlation)
        return
    while True:
        first = pop_request(M, connection)
        if first == r:
            break
        without_response(M, connection, first)
    _not_in_flight(M, connection, direction.latest)
    request = request_at(M, r)
    exchange = _new_row(M, connection)
    _request_columns(exchange, request)
    body = response_body(M, buf, o, o + have, request.api, request.version)
    if body >= 0:
        body -= o
    _copy_frame(exchange.response, direction, body)
    _set_way(request.way, connection, exchange.response)
    exchange.queued_from = request.way.behind
    _answer_columns(connection, exchange, request, exchange.response.last)
    if connection.request_head >= 0:
        _think_behind(M, connection, exchange.response.last, direction.next, request.missing, request.n)
    latest = request.n == connection.requests - 1
    if request.api == ApiKey.SASL_HANDSHAKE and latest and have >= 6 and be16(buf, o + 4) != 0:
        connection.sasl = tl.LOGINS[connection.sasl, tl.Login.REFUSED]
    _free_request(M, r)


@part
def _hold(M: Words, connection: Connection, direction: Direction, correlation: Int) -> None:
    """The direction's current frame answers a request that was not captured yet: it is held."""
    h = _take_request(M)
    held = request_at(M, h)
    held.correlation = correlation
    _copy_frame(held.frame, direction, -1)
    held.n = direction.next
    _set_way(held.way, connection, held.frame)
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


@part
def client_matches(M: Words, A: Bytes, connection: Connection, o: Int, have: Int) -> bool:
    """Whether a request header (frame without prefix at `o`) carries the client id that this connection is known by."""
    code = connection.client_id
    if code < 0 or have < 10:
        return False
    n = be16(A, o + 8)
    return 0 < n < 0x8000 and n <= have - 10 and _is_name(M, A, code, A, o + 10, n)
