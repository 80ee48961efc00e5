"""Finding where frames begin: by trial, then confirmation.

A direction is searched when its stream begins and whenever a length prefix was lost. Its bytes are the window.
Offsets are tried in order; each is rejected, accepted, or waits for more bytes:

- A request: a plausible size, a known key and version, a client id that is text, and a body that its layout consumes
  exactly.
- A response: the correlation id of a request that waits, and a body that the layout of that request's version consumes
  exactly. Where the connection began before the capture, the first response may also have an id just below that of the
  first request captured (its own request came earlier). Then the next response must follow it.
- A frame that the window cannot hold whole (too large, cut by the snap length, or with a hole in it) needs more. It is
  accepted when it begins a segment, all of it that is there fits, and a waiting id or a client id vouches for it. The
  first request of a connection that is not known to be Kafka may not be cut, for messages of gRPC fit, too: there
  headers must tell.
- Where packets are cut and the connection was met in its middle no body can be tried. There requests are recognized by
  their headers alone, one behind the other (`tiling`).
- Where the first bytes of a connection are there, its first frame must be a request: anything else is not Kafka, and
  the connection is left alone. A body that fits no layout is still believed there if its frame ends where the segment
  ends.

While one offset waits, later ones are tried too, and taken if they fit exactly where a segment begins: data may look
like a length for a while. Bytes before an accepted offset are skipped. Trials may read TRIAL_FACTOR bytes for each byte
searched and no more, so any input is searched in linear time. Limits look at the direction's own bytes only.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams import state as st
from kdissect.kafka.streams.encryption.sealing import begins_sealed, looks_sealed, seal
from kdissect.kafka.streams.framing import (
    LEAST_REQUEST,
    LEAST_RESPONSE,
    MAX_REQUEST,
    MAX_RESPONSE,
    drop_nodes,
    feed,
    forget_frame,
    gap,
)
from kdissect.kafka.streams.pairing.held_responses import REPEATS, request_waits
from kdissect.kafka.streams.pairing.message_headers import (
    clean_client,
    client_matches,
    known_header,
    request_body,
    response_body,
    text_like,
)
from kdissect.kafka.streams.pairing.waiting_requests import last_asked, waiting_with
from kdissect.kafka.streams.proof import (
    ACCEPT,
    HOLD,
    NEAR,
    REJECT,
    WAIT,
    chained,
    may_be_response,
    proved_by_responses,
    request_fits,
    seconded,
    trial,
)
from kdissect.kafka.streams.state import copy_out, mark_news, problem, program_of, request_at
from kdissect.kafka.streams.tiling import BROKEN, TILED, answered, judged
from kdissect.kernels.kernel import part
from kdissect.kernels.memory import be16, be32, int32_at
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.problems import Kind
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.fit import FITS
from kdissect.schema.vm import Skim
from kdissect.tcp import layout as tl
from kdissect.tcp.assembly import as_it_came, give_node, opposite
from kdissect.tcp.layout import CONTROL, CUT, HOLE, Connection, Direction, Final, Mode, Node, control_at, node_at

ENOUGH = 512
"""Bytes of a frame too large for the window that must be there before it is judged."""
GIVE_UP = 1 << 20
"""Bytes searched in vain after which a connection that never showed a Kafka frame is left alone."""
GIVE_UP_ALONE = 64 << 20
"""The same while the other direction is silent: a capture may begin in a response (or a request) of as much as
fetch.max.bytes, 50 MiB unless set, and who reads it says nothing meanwhile."""
STEP = 4
"""What looking at one of the requests that wait costs, in bytes read by trials."""

TILE = 64
"""What looking at one header costs."""
MICRO = 1000
"""ns: instants of tables are whole microseconds, so this is just before one."""


@part
def gather(M: Words, b: Bytes, A: Bytes, direction: Direction) -> tuple[Int, bool]:
    """The window up to its first gap at `A[SCRATCH:]`: where it ends, and whether a gap (or the limit) ends them."""
    w = st.SCRATCH
    piece = direction.head
    while piece >= 0:
        node = node_at(M, piece)
        fits_in = node.at >= 0 and w + node.length <= st.SCRATCH + st.SCRATCH_BYTES
        if not fits_in or not copy_out(M, b, A, node.at, node.length, A, w):
            return w, True
        w += node.length
        piece = node.next
    return w, False


@part
def _begins_segment(M: Words, direction: Direction, o: Int) -> bool:
    """Whether a captured segment begins at offset `o` of the window: where a peer that writes a message begins it."""
    w = st.SCRATCH
    piece = direction.head
    while piece >= 0 and w < o:
        node = node_at(M, piece)
        w += node.length
        piece = node.next
    return w == o and piece >= 0 and node_at(M, piece).position == 1


@part
def _piece_with(M: Words, direction: Direction, o: Int) -> Node:
    """The piece of the window that has its offset `o`."""
    w = st.SCRATCH
    node = node_at(M, direction.head)
    while node.next >= 0 and w + node.length <= o:
        w += node.length
        node = node_at(M, node.next)
        direction.budget -= STEP
    return node


@part
def _asked_late(M: Words, connection: Connection, direction: Direction, o: Int) -> bool:
    """Whether the request of what begins at offset `o` of the window may wait behind a hole."""
    other = opposite(connection, direction)
    if other.ahead == 0:
        return False
    node = _piece_with(M, direction, o)
    return request_waits(M, other, node.time, node.packet)


@part
def _arrival(M: Words, direction: Direction, o: Int) -> Int:
    """When the byte at offset `o` of the window arrived."""
    return _piece_with(M, direction, o).time


@part
def _waiting(M: Words, connection: Connection, direction: Direction, correlation: Int) -> Int:
    """`waiting_with` within the direction's budget."""
    if direction.budget < 0:
        return -1
    r, steps = waiting_with(M, connection, correlation)
    direction.budget -= STEP * steps
    return r


@part
def _beyond_doubt(
    M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction, first: Int, o: Int, n: Int, closed: bool
) -> Int:
    """Judge a request that fits, at `first`, and may be bytes of a response. It is a request if another one stands
    behind it (at `o`), or if the other direction has an answer with its id."""
    verdict = chained(M, A, first, o, n, closed)
    if verdict == ACCEPT:
        return verdict
    correlation = int32_at(A, first + 8)
    found, steps = answered(M, b, A, opposite(connection, direction), correlation, correlation)
    direction.budget -= TILE * steps
    return ACCEPT if found else verdict


@part
def _request_candidate(
    M: Words, b: Bytes, A: Bytes, sk: Skim, connection: Connection, direction: Direction, o: Int, n: Int, closed: bool,
    at_start: bool,
) -> Int:  # fmt: skip
    """Judge offset `o` of the window, which ends at `n`, as the beginning of a request; `closed` when no more bytes
    will follow."""
    if n - o < 14:
        if closed:
            return REJECT
        if n - o >= 1 and A[o] >= 0x40:
            return REJECT
        if n - o >= 6 and be16(A, o + 4) >= st.KEYS:
            return REJECT
        return WAIT
    size = be32(A, o)
    if size < LEAST_REQUEST or size > MAX_REQUEST:
        return REJECT
    have = min(n - o - 4, size)
    whole = have == size
    vouched = connection.kafka == 1 and client_matches(M, A, connection, o + 4, have)
    if not known_header(M, A, o + 4, have, size):
        length = be16(A, o + 12)
        readable = size >= 10 and length <= min(size - 10, st.HEAD_BYTES) and length > 0
        readable = readable and text_like(A, o + 14, min(length, have - 10))
        if not readable or not (vouched or at_start):
            return REJECT
        if whole:
            return ACCEPT if vouched or n - o - 4 == size else REJECT
        return REJECT if closed or not vouched else ACCEPT
    api = be16(A, o + 4)
    version = be16(A, o + 6)
    program = program_of(M, api, version, 0)
    body = request_body(M, A, o + 4, o + 4 + have, api, version)
    clean = clean_client(A, o + 4, have) or (api == ApiKey.CONTROLLED_SHUTDOWN and version == 0)
    if not clean and not (at_start and whole):
        return REJECT
    if whole:
        named = 0 < be16(A, o + 12) < 0x8000
        if request_fits(M, A, sk, direction, o + 4, o + 4 + size, api, version):
            if connection.client < 0 and (
                not _begins_segment(M, direction, o) or may_be_response(M, A, sk, direction, o + 4, o + 4 + size)
            ):
                verdict = _beyond_doubt(M, b, A, connection, direction, o, o + 4 + size, n, closed)
                if verdict != ACCEPT:
                    return verdict
            if named or connection.kafka == 1:
                return ACCEPT
            return seconded(M, A, direction, opposite(connection, direction), o, o + 4 + size, n, closed)
        return ACCEPT if vouched or (at_start and clean and named and n - o - 4 == size) else REJECT
    if not closed and size <= st.WINDOW - 4:
        return WAIT
    if not closed and have < ENOUGH:
        return WAIT
    if at_start and be16(A, o + 12) == 0:
        return REJECT  # zeros, such as those that a client of Zookeeper begins with, or a record of FastCGI
    if at_start or vouched:
        return ACCEPT
    named = 0 < be16(A, o + 12) < 0x8000
    if body < 0 or not named or not _begins_segment(M, direction, o):
        return REJECT
    if connection.kafka == 0 and closed:
        return REJECT  # many bytes fit as far as they go: what stands before and behind them must tell (`tiling`)
    return ACCEPT if trial(A, sk, direction, body, o + 4 + have, program) > FITS else REJECT


@part
def _response_candidate(
    M: Words, A: Bytes, sk: Skim, connection: Connection, direction: Direction, o: Int, n: Int, closed: bool,
    at_start: bool,
) -> Int:  # fmt: skip
    """Judge offset `o` as the beginning of a response."""
    if n - o < 8:
        if closed or (n - o >= 1 and A[o] >= 0x40):
            return REJECT
        return WAIT
    size = be32(A, o)
    if size < LEAST_RESPONSE or size > MAX_RESPONSE:
        return REJECT
    correlation = int32_at(A, o + 4)
    have = min(n - o - 4, size)
    whole = have == size
    r = _waiting(M, connection, direction, correlation)
    if r < 0:
        if at_start:
            return ACCEPT if whole or closed or size > st.WINDOW - 4 else WAIT
        first = connection.request_head
        if n - st.SCRATCH < st.WINDOW and _asked_late(M, connection, direction, o):
            return HOLD
        late = direction.started != 2 and direction.frames == 0 and first >= 0 and request_at(M, first).n == 0
        if not late or size < 6 or not whole or not _begins_segment(M, direction, o):
            return REJECT
        after = o + 4 + size
        if after != n:
            if n - after < 8:
                return REJECT if closed else WAIT
            following = int32_at(A, after + 4)
            if _waiting(M, connection, direction, following) < 0 and not 0 < following - correlation <= NEAR:
                return REJECT
        below = request_at(M, first).correlation - correlation
        return ACCEPT if 0 < below <= NEAR else REJECT
    if connection.repeats >= REPEATS and connection.pipelined == 0:
        r, _ = last_asked(M, r, _arrival(M, direction, o))
        if r < 0:
            return REJECT
    request = request_at(M, r)
    api, version = request.api, request.version
    program = program_of(M, api, version, 1)
    if whole:
        if program < 0:
            return ACCEPT if _begins_segment(M, direction, o) else REJECT
        body = response_body(M, A, o + 4, o + 4 + size, api, version)
        if trial(A, sk, direction, body, o + 4 + size, program) == FITS:
            return ACCEPT
        oldest = program_of(M, api, 0, 1)
        if api == ApiKey.API_VERSIONS and trial(A, sk, direction, o + 8, o + 4 + size, oldest) == FITS:
            return ACCEPT
        return ACCEPT if at_start else REJECT
    if not closed and (size <= st.WINDOW - 4 or have < ENOUGH):
        return WAIT
    if at_start:
        return ACCEPT
    if program < 0:
        return REJECT
    body = response_body(M, A, o + 4, o + 4 + have, api, version)
    if body < 0 or size > MAX_REQUEST or not _begins_segment(M, direction, o):
        return REJECT
    return ACCEPT if trial(A, sk, direction, body, o + 4 + have, program) > FITS else REJECT


@part
def _drop_first(M: Words, direction: Direction) -> None:
    """Forget the first node of the window."""
    first = direction.head
    direction.head = node_at(M, first).next
    give_node(M, first)
    if direction.head < 0:
        direction.tail = -1


@part
def _drop_before(M: Words, direction: Direction, n: Int) -> None:
    """Forget the first `n` captured bytes of the window, and gaps among them."""
    while n > 0 and direction.head >= 0:
        node = node_at(M, direction.head)
        if node.at >= 0:
            gone = min(node.length, n)
            direction.window -= gone
            direction.skipped += gone
            if node.length > n:
                node.at += n
                node.position = 0
                node.length -= n
                return
            n -= gone
        _drop_first(M, direction)


@part
def _drop_gaps(M: Words, direction: Direction) -> None:
    """Forget gaps at the window's beginning."""
    while direction.head >= 0 and node_at(M, direction.head).at < 0:
        _drop_first(M, direction)


@part
def ignore(M: Words, connection: Connection) -> None:
    """The connection is not Kafka: leave it alone."""
    connection.kafka = -1
    for side in range(2):
        direction = connection.directions[side]
        drop_nodes(M, direction)
        forget_frame(direction)
        direction.window = 0
        direction.mode = tl.MODES[direction.mode, tl.Sight.REFUSED]


@part
def _adopt(M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction, o: Int) -> None:
    """Frames begin at offset `o` of the window: feed what is there again, as frames."""
    if o > 0 or direction.skipped > 0:
        _drop_before(M, direction, o)
        node = node_at(M, direction.head)
        kind, where = Kind.RESYNCHRONISED, direction.next
        problem(M, kind, connection, direction.side, node.time, node.packet, where, direction.skipped, -1)
    first = direction.started == 2 and direction.frames == 0 and direction.lost < 0
    if not first or o > 0 or direction.skipped > 0:
        direction.unseen_until = node_at(M, direction.head).time - MICRO
    piece = direction.head
    direction.head = -1
    direction.tail = -1
    direction.window = 0
    direction.searched = 0
    direction.skipped = 0
    direction.begun = 0
    direction.mode = tl.MODES[direction.mode, tl.Sight.FOUND]
    direction.need = -1
    other = opposite(connection, direction)
    rise, floor, floor_kind = direction.rise, other.floor, other.floor_kind
    while piece >= 0:
        node = node_at(M, piece)
        at, length, time, packet, following = node.at, node.length, node.time, node.packet, node.next
        give_node(M, piece)
        if at >= 0:
            cut = 0
            if following >= 0 and node_at(M, following).at == CUT:
                cut = node_at(M, following).length
                after = node_at(M, following).next
                give_node(M, following)
                following = after
            as_it_came(node.arrival, connection, direction)
            feed(M, b, A, connection, direction, at, length, length + cut, time, packet)
        elif at == HOLE:
            gap(M, b, A, connection, direction, length, time, packet)
        else:
            feed(M, b, A, connection, direction, 0, 0, length, time, packet)
        piece = following
    direction.rise, other.floor, other.floor_kind = rise, floor, floor_kind


@part
def _first_bytes(A: Bytes, o: Int, n: Int) -> Int:
    """Up to eight bytes at `o`, as many as there are before `n`, as a big-endian word: zeros stand for the others."""
    word = np.int64(0)
    for q in range(min(n - o, 8)):
        word |= np.int64(A[o + q]) << (8 * (7 - q))
    return word


@part
def _by_headers(M: Words, b: Bytes, A: Bytes, connection: Connection, direction: Direction) -> Int:
    """Look for requests whose bodies were cut off. ACCEPT: the first one is the window's beginning now."""
    before = np.int64(0)
    piece = direction.head
    while piece >= 0 and direction.budget > 0:
        node = node_at(M, piece)
        following, length = node.next, node.length if node.at >= 0 else 0
        if node.position == 1 and node.at >= 0:
            verdict, steps = judged(M, b, A, connection, direction, opposite(connection, direction), piece)
            direction.budget -= TILE * steps
            if verdict == TILED:
                _drop_before(M, direction, before)
                _drop_gaps(M, direction)
                return ACCEPT
            if connection.kafka == 1 and verdict != BROKEN:
                return WAIT if before == 0 else REJECT
        if connection.kafka == 1:
            return REJECT
        before += length
        piece = following
    return REJECT


@part
def _search(M: Words, b: Bytes, A: Bytes, sk: Skim, connection: Connection, direction: Direction) -> bool:
    """Search one direction's window; True when requests were found, or the connection is now known to be Kafka (the
    other direction may then know more). Bytes behind a hole of the window are searched in the same call: no later
    packet need come that would start another search."""
    found = False
    final = control_at(M, CONTROL).final
    other = opposite(connection, direction)
    while direction.mode == Mode.SEARCH:
        _drop_gaps(M, direction)
        if direction.head < 0:
            return found
        n, stopped = gather(M, b, A, direction)
        at_start = direction.begun == 1 and direction.skipped == 0
        named = at_start or looks_sealed(A, connection, direction, n)
        if named and direction.begin16a == 0 and n - st.SCRATCH >= 4:
            direction.begin16a = _first_bytes(A, st.SCRATCH, n)
            direction.begin16b = _first_bytes(A, st.SCRATCH + 8, n)
        if begins_sealed(M, A, connection, direction, n):
            seal(M, connection)
            return found
        full = n - st.SCRATCH >= st.WINDOW
        closed = stopped or final > Final.RUNNING
        side = -1
        if connection.client >= 0:
            side = 0 if connection.client == direction.side else 1
        o = st.SCRATCH + direction.searched
        if side == 1 and connection.kafka == 0:
            if not (closed or full):
                return found
            if at_start and o < n and proved_by_responses(M, A, sk, direction, st.SCRATCH, n):
                connection.kafka = 1
                other.searched = 0
                _adopt(M, b, A, connection, direction, 0)
                return True
            direction.searched = n - st.SCRATCH
            if final <= Final.RUNNING and direction.window < st.WINDOW:
                return False  # requests may still prove it
            if at_start and n - st.SCRATCH >= 8 and LEAST_RESPONSE <= be32(A, st.SCRATCH) <= MAX_RESPONSE:
                node = node_at(M, direction.head)
                size = n - st.SCRATCH
                problem(M, Kind.UNPROVED, connection, direction.side, node.time, node.packet, direction.next, size, -1)
            o = n
        verdict = REJECT
        waits = -1
        while o < n:
            if A[o] < 0x40:
                begins = at_start and o == st.SCRATCH
                if side == 1:
                    verdict = _response_candidate(M, A, sk, connection, direction, o, n, closed, begins)
                else:
                    verdict = _request_candidate(M, b, A, sk, connection, direction, o, n, closed, begins and side == 0)
                if verdict >= WAIT and waits < 0:
                    waits = o
                if verdict == HOLD:
                    break
                if verdict == ACCEPT and (waits < 0 or _begins_segment(M, direction, o)):
                    break
                if verdict == WAIT and begins:
                    break
                verdict = REJECT
            if at_start and side == 0 and connection.kafka == 0:
                ignore(M, connection)
                return found
            o += 1
        if stopped and side != 1 and not at_start and verdict != ACCEPT and waits < 0:
            verdict = _by_headers(M, b, A, connection, direction)
            if verdict == WAIT and final <= Final.RUNNING:
                return found
            o = st.SCRATCH
        if verdict == ACCEPT:
            if side != 1:
                connection.client = direction.side
                mark_news(M, connection)
                connection.kafka = 1
                other.searched = 0
            _adopt(M, b, A, connection, direction, o - st.SCRATCH)
            found = found or side != 1
            continue
        if waits >= 0:
            # The first that waits stays; offsets behind it are tried again with more bytes, while that is affordable.
            direction.budget -= n - waits
            again = waits if direction.budget > 0 else n
            if side >= 0 and waits > st.SCRATCH:
                _drop_before(M, direction, waits - st.SCRATCH)
                again -= waits - st.SCRATCH
            direction.searched = again - st.SCRATCH
            return found
        if stopped and side < 0 and final <= Final.RUNNING and direction.window < st.WINDOW:
            # Perhaps responses: the other direction may soon tell.
            return found
        if stopped or final > Final.RUNNING:
            _drop_before(M, direction, n - st.SCRATCH)
            _drop_gaps(M, direction)
            direction.searched = 0
        elif side >= 0:
            _drop_before(M, direction, n - st.SCRATCH)
            direction.searched = 0
        else:
            direction.searched = n - st.SCRATCH
            if full:
                _drop_before(M, direction, n - st.SCRATCH)
                direction.searched = 0
        enough = GIVE_UP if other.bytes > 0 else GIVE_UP_ALONE
        if connection.kafka == 0 and direction.skipped > enough:
            ignore(M, connection)
        if not (stopped or final > Final.RUNNING):
            return found
    return found


@part
def settle(M: Words, b: Bytes, A: Bytes, sk: Skim, connection: Connection, direction: Direction) -> None:
    """Search a direction, and the other one when what was found helps there.

    A search that spent its budget waits until its window is twice as large: reading it again and again costs too.
    """
    running = control_at(M, CONTROL).final == Final.RUNNING
    if running and direction.budget < 0 and direction.window < min(2 * direction.tried, st.WINDOW):
        return
    undecided = connection.kafka == 0
    found = _search(M, b, A, sk, connection, direction)
    direction.tried = direction.window
    other = opposite(connection, direction)
    if other.mode != Mode.SEARCH or other.head < 0:
        return
    if found:
        _search(M, b, A, sk, connection, other)
        _search(M, b, A, sk, connection, direction)  # what lies behind a hole
    elif undecided and connection.client == other.side and _search(M, b, A, sk, connection, other):
        _search(M, b, A, sk, connection, direction)


@part
def _requests_somewhere(M: Words, b: Bytes, A: Bytes, sk: Skim, connection: Connection, direction: Direction) -> bool:
    """Whether a request begins a segment anywhere in the window, which stays as it is."""
    first = direction.head
    found = False
    piece = first
    while piece >= 0 and not found:
        if node_at(M, piece).at < 0:
            piece = node_at(M, piece).next
            continue
        direction.head = piece
        n, _ = gather(M, b, A, direction)
        o = st.SCRATCH
        while piece >= 0 and node_at(M, piece).at >= 0:
            node = node_at(M, piece)
            if node.position == 1 and o < n and not found:
                found = _request_candidate(M, b, A, sk, connection, direction, o, n, True, False) == ACCEPT
            o += node.length
            piece = node.next
    direction.head = first
    return found


@part
def tell_sides(M: Words, b: Bytes, A: Bytes, sk: Skim, connection: Connection) -> None:
    """At the end of a connection whose client is not known: which direction has requests, maybe behind a gap. The
    direction that is searched next is dropped where nothing is found, and responses are only found when their requests
    are known."""
    for side in range(2):
        direction = connection.directions[side]
        searched = connection.client < 0 and direction.mode == Mode.SEARCH
        if searched and _requests_somewhere(M, b, A, sk, connection, direction):
            connection.client = side
            mark_news(M, connection)


@part
def lost_for_good(M: Words, connection: Connection, direction: Direction) -> None:
    """At the end: a direction that is still searched is a problem of its own, if the connection is Kafka at all."""
    if direction.mode == Mode.SEARCH and connection.kafka == 1 and direction.skipped > 0:
        kind, where = Kind.NOT_RESYNCHRONISED, direction.next
        problem(M, kind, connection, direction.side, connection.last, -1, where, direction.skipped, -1)
