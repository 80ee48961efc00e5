"""Finding where frames begin: by trial, then confirmation.

A direction is searched when its stream begins and whenever a length prefix was lost. Its bytes are the window.
Offsets are tried in order; each is rejected, accepted, or waits for more bytes:

- A request: a plausible size, a known key and version, a client id that is text, and a body that its layout consumes
  exactly.
- A response: the correlation id of a request that waits, and a body that the layout of that request's version consumes
  exactly. Where the connection began before the capture, the first response may also have an id just below that of the
  first request captured (its own request came earlier), if the next response follows it.
- A frame that the window cannot hold whole (too large, cut by the snap length, or with a hole in it) is taken when it
  begins a segment, all of it that is there fits, and a waiting id or a client id vouches for it.
- Where the first bytes of a connection are there, its first frame must be a request: anything else is not Kafka, and
  the connection is left alone. A body that fits no layout is still believed there if its frame ends where the segment
  ends.

While one offset waits, later ones are tried too, and taken if they fit exactly where a segment begins: data may look
like a length for a while. What lies before an accepted offset is skipped. Trials may read TRIAL_FACTOR bytes for each
byte searched and no more, so any input is searched in linear time. Limits look at the direction's own bytes only.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams.fit import FITS, UNREADABLE, fits
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
from kdissect.kafka.streams.pairing import (
    CONTROLLED_SHUTDOWN,
    clean_client,
    client_matches,
    known_header,
    request_body,
    request_waits,
    response_body,
    text_like,
    waiting_with,
)
from kdissect.kafka.streams.sealing import begins_sealed, looks_sealed, seal
from kdissect.kafka.streams.state import (
    HEAD_BYTES,
    KEYS,
    R_API,
    R_CORRELATION,
    R_N,
    R_VERSION,
    SCRATCH,
    SCRATCH_BYTES,
    WINDOW,
    be16,
    be32,
    copy_out,
    problem,
    program_of,
    signed32,
)
from kdissect.kernels.kernel import part
from kdissect.tcp.assembly import give_node
from kdissect.tcp.layout import (
    C_CLIENT,
    C_KAFKA,
    C_LAST,
    C_NEWS,
    C_REQUEST_HEAD,
    C_WIDTH,
    CONNECTION_WIDTH,
    D_AHEAD,
    D_BEGIN16A,
    D_BEGIN16B,
    D_BEGUN,
    D_BUDGET,
    D_BYTES,
    D_FRAMES,
    D_HEAD,
    D_MODE,
    D_NEED,
    D_NEXT,
    D_OTHER,
    D_SEARCHED,
    D_SIDE,
    D_SKIPPED,
    D_STARTED,
    D_TAIL,
    D_TRIED,
    D_WIDTH,
    D_WINDOW,
    HOLE,
    K_FINAL,
    MODE_FRAMES,
    MODE_IGNORED,
    MODE_SEARCH,
    N_AT,
    N_LENGTH,
    N_NEXT,
    N_PACKET,
    N_POSITION,
    N_TIME,
    RUNNING,
)

ENOUGH = 512
"""Bytes of a frame too large for the window that must be there before it is judged."""
GIVE_UP = 1 << 20
"""Bytes searched in vain after which a connection that never showed a Kafka frame is left alone."""
GIVE_UP_ALONE = 64 << 20
"""The same while the other direction is silent: a capture may begin in a response (or a request) of as much as
fetch.max.bytes, 50 MiB unless set, and who reads it says nothing meanwhile."""
NEAR = 256
"""How far below the first captured correlation id a response may lie whose request came before the capture began."""
STEP = 4
"""What looking at one of the requests that wait costs, in bytes read by trials."""

REJECT, ACCEPT, WAIT, HOLD = 0, 1, 2, 3
"""HOLD: requests wait behind a hole, among them perhaps the one that is answered here."""

KIND_RESYNCHRONISED, KIND_NOT_RESYNCHRONISED = 2, 3


@part
def gather(M, b, A, s):  # type: ignore[no-untyped-def]
    """The window up to its first gap at `A[SCRATCH:]`: where it ends, and whether a gap (or the limit) ends them."""
    w = np.int64(SCRATCH)
    node = M[s + D_HEAD]
    while node >= 0:
        if M[node + N_AT] < 0:
            return w, True
        n = M[node + N_LENGTH]
        if w + n > SCRATCH + SCRATCH_BYTES or not copy_out(M, b, A, M[node + N_AT], n, A, w):
            return w, True
        w += n
        node = M[node + N_NEXT]
    return w, False


@part
def _begins_segment(M, s, o):  # type: ignore[no-untyped-def]
    """Whether a captured segment begins at offset `o` of the window: where a peer that writes a message begins it."""
    w = np.int64(SCRATCH)
    node = M[s + D_HEAD]
    while node >= 0 and w < o:
        w += M[node + N_LENGTH]
        node = M[node + N_NEXT]
    return w == o and node >= 0 and M[node + N_POSITION] == 1


@part
def _asked_late(M, s, o):  # type: ignore[no-untyped-def]
    """Whether the request of what begins at offset `o` of the window may wait behind a hole."""
    other = M[s + D_OTHER]
    if M[other + D_AHEAD] == 0:
        return False
    w = np.int64(SCRATCH)
    node = M[s + D_HEAD]
    while M[node + N_NEXT] >= 0 and w + M[node + N_LENGTH] <= o:
        w += M[node + N_LENGTH]
        node = M[node + N_NEXT]
        M[s + D_BUDGET] -= STEP
    return request_waits(M, other, M[node + N_TIME], M[node + N_PACKET])


@part
def _waiting(M, c, s, correlation):  # type: ignore[no-untyped-def]
    """`waiting_with` within the direction's budget."""
    if M[s + D_BUDGET] < 0:
        return np.int64(-1)
    r, steps = waiting_with(M, c, correlation)
    M[s + D_BUDGET] -= STEP * steps
    return r


@part
def _trial(M, A, sk, s, begin, end, program):  # type: ignore[no-untyped-def]
    """`fits` within the direction's budget."""
    M[s + D_BUDGET] -= 64 + end - begin
    if begin < 0 or program < 0 or M[s + D_BUDGET] < 0:
        return UNREADABLE
    return fits(A, begin, end, program, sk)


@part
def _seconded(M, A, s, o, n, closed, correlation):  # type: ignore[no-untyped-def]
    """Judge a first request that fits but does not name its client, as small numbers in any protocol might: the other
    direction must begin with an answer to it, or the frame behind it (at `o`) read as a request too."""
    other = M[s + D_OTHER]
    begins = M[other + D_BEGIN16A]
    if M[other + D_BEGUN] == 1 and begins != 0:
        size = (begins >> 32) & 0xFFFFFFFF
        answers = ((begins + 0x80000000) & 0xFFFFFFFF) - 0x80000000 == correlation
        return ACCEPT if answers and LEAST_RESPONSE <= size <= MAX_RESPONSE else REJECT
    if n - o >= 14:
        size = be32(A, o)
        follows = LEAST_REQUEST <= size <= MAX_REQUEST and known_header(M, A, o + 4, min(n - o - 4, size), size)
        return ACCEPT if follows else REJECT
    return ACCEPT if closed else WAIT


@part
def _request_candidate(M, A, sk, c, s, o, n, closed, at_start):  # type: ignore[no-untyped-def]
    """Judge offset `o` of the window, which ends at `n`, as the beginning of a request; `closed` when no more bytes
    will follow."""
    if n - o < 14:
        if closed:
            return REJECT
        if n - o >= 1 and A[o] >= 0x40:
            return REJECT
        if n - o >= 6 and be16(A, o + 4) >= KEYS:
            return REJECT
        return WAIT
    size = be32(A, o)
    if size < LEAST_REQUEST or size > MAX_REQUEST:
        return REJECT
    have = min(n - o - 4, size)
    whole = have == size
    vouched = M[c + C_KAFKA] == 1 and client_matches(M, A, c, o + 4, have)
    if not known_header(M, A, o + 4, have, size):
        length = be16(A, o + 12)
        readable = size >= 10 and length <= min(size - 10, HEAD_BYTES) and length > 0
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
    clean = clean_client(A, o + 4, have) or (api == CONTROLLED_SHUTDOWN and version == 0)
    if not clean and not (at_start and whole):
        return REJECT
    if whole:
        named = 0 < be16(A, o + 12) < 0x8000
        if _trial(M, A, sk, s, body, o + 4 + size, program) == FITS:
            if named or M[c + C_KAFKA] == 1:
                return ACCEPT
            return _seconded(M, A, s, o + 4 + size, n, closed, signed32(A, o + 8))
        return ACCEPT if vouched or (at_start and clean and named and n - o - 4 == size) else REJECT
    if not closed and size <= WINDOW - 4:
        return WAIT
    if not closed and have < ENOUGH:
        return WAIT
    if at_start or vouched:
        return ACCEPT
    named = 0 < be16(A, o + 12) < 0x8000
    if body < 0 or not named or not _begins_segment(M, s, o):
        return REJECT
    return ACCEPT if _trial(M, A, sk, s, body, o + 4 + have, program) > FITS else REJECT


@part
def _response_candidate(M, A, sk, c, s, o, n, closed, at_start):  # type: ignore[no-untyped-def]
    """Judge offset `o` as the beginning of a response."""
    if n - o < 8:
        if closed or (n - o >= 1 and A[o] >= 0x40):
            return REJECT
        return WAIT
    size = be32(A, o)
    if size < LEAST_RESPONSE or size > MAX_RESPONSE:
        return REJECT
    correlation = signed32(A, o + 4)
    have = min(n - o - 4, size)
    whole = have == size
    r = _waiting(M, c, s, correlation)
    if r < 0:
        if at_start:
            return ACCEPT if whole or closed or size > WINDOW - 4 else WAIT
        first = M[c + C_REQUEST_HEAD]
        if n - SCRATCH < WINDOW and _asked_late(M, s, o):
            return HOLD
        late = M[s + D_STARTED] != 2 and M[s + D_FRAMES] == 0 and first >= 0 and M[first + R_N] == 0
        if not late or size < 6 or not whole or not _begins_segment(M, s, o):
            return REJECT
        after = o + 4 + size
        if after != n:
            if n - after < 8:
                return REJECT if closed else WAIT
            following = signed32(A, after + 4)
            if _waiting(M, c, s, following) < 0 and not 0 < following - correlation <= NEAR:
                return REJECT
        below = M[first + R_CORRELATION] - correlation
        return ACCEPT if 0 < below <= NEAR else REJECT
    api = M[r + R_API]
    version = M[r + R_VERSION]
    known = program_of(M, api, version, 1) >= 0
    if whole:
        if not known:
            return ACCEPT if _begins_segment(M, s, o) else REJECT
        program = program_of(M, api, version, 1)
        body = response_body(M, A, o + 4, o + 4 + size, api, version)
        if _trial(M, A, sk, s, body, o + 4 + size, program) == FITS:
            return ACCEPT
        if api == 18 and _trial(M, A, sk, s, np.int64(o + 8), o + 4 + size, program_of(M, 18, 0, 1)) == FITS:
            return ACCEPT
        return ACCEPT if at_start else REJECT
    if not closed and (size <= WINDOW - 4 or have < ENOUGH):
        return WAIT
    if at_start:
        return ACCEPT
    if not known:
        return REJECT
    body = response_body(M, A, o + 4, o + 4 + have, api, version)
    if body < 0 or size > MAX_REQUEST or not _begins_segment(M, s, o):
        return REJECT
    return ACCEPT if _trial(M, A, sk, s, body, o + 4 + have, program_of(M, api, version, 1)) > FITS else REJECT


@part
def _drop_before(M, s, n):  # type: ignore[no-untyped-def]
    """Forget the first `n` captured bytes of the window, and gaps among them."""
    while n > 0 and M[s + D_HEAD] >= 0:
        node = M[s + D_HEAD]
        length = M[node + N_LENGTH]
        if M[node + N_AT] >= 0 and length > n:
            M[node + N_AT] += n
            M[node + N_POSITION] = 0
            M[node + N_LENGTH] = length - n
            M[s + D_WINDOW] -= n
            M[s + D_SKIPPED] += n
            return
        if M[node + N_AT] >= 0:
            n -= length
            M[s + D_WINDOW] -= length
            M[s + D_SKIPPED] += length
        M[s + D_HEAD] = M[node + N_NEXT]
        give_node(M, node)
    if M[s + D_HEAD] < 0:
        M[s + D_TAIL] = -1


@part
def _drop_gaps(M, s):  # type: ignore[no-untyped-def]
    """Forget gaps at the window's beginning."""
    while M[s + D_HEAD] >= 0 and M[M[s + D_HEAD] + N_AT] < 0:
        node = M[s + D_HEAD]
        M[s + D_HEAD] = M[node + N_NEXT]
        give_node(M, node)
    if M[s + D_HEAD] < 0:
        M[s + D_TAIL] = -1


@part
def ignore(M, c):  # type: ignore[no-untyped-def]
    """The connection is not Kafka: leave it alone."""
    M[c + C_KAFKA] = -1
    for s in range(c + C_WIDTH, c + CONNECTION_WIDTH, D_WIDTH):
        drop_nodes(M, s)
        forget_frame(M, s)
        M[s + D_WINDOW] = 0
        M[s + D_MODE] = MODE_IGNORED


@part
def _adopt(M, b, A, c, s, o):  # type: ignore[no-untyped-def]
    """Frames begin at offset `o` of the window: feed what is there again, as frames."""
    if o > 0 or M[s + D_SKIPPED] > 0:
        _drop_before(M, s, o)
        node = M[s + D_HEAD]
        problem(
            M,
            KIND_RESYNCHRONISED,
            c,
            M[s + D_SIDE],
            M[node + N_TIME],
            M[node + N_PACKET],
            M[s + D_NEXT],
            M[s + D_SKIPPED],
            -1,
        )
    node = M[s + D_HEAD]
    M[s + D_HEAD] = -1
    M[s + D_TAIL] = -1
    M[s + D_WINDOW] = 0
    M[s + D_SEARCHED] = 0
    M[s + D_SKIPPED] = 0
    M[s + D_BEGUN] = 0
    M[s + D_MODE] = MODE_FRAMES
    M[s + D_NEED] = -1
    while node >= 0:
        following = M[node + N_NEXT]
        at = M[node + N_AT]
        length = M[node + N_LENGTH]
        time = M[node + N_TIME]
        packet = M[node + N_PACKET]
        give_node(M, node)
        if at >= 0:
            cut = np.int64(0)
            if following >= 0 and M[following + N_AT] == -2:
                cut = M[following + N_LENGTH]
                after = M[following + N_NEXT]
                give_node(M, following)
                following = after
            feed(M, b, A, c, s, at, length, length + cut, time, packet)
        elif at == HOLE:
            gap(M, b, A, c, s, length, time, packet)
        else:
            feed(M, b, A, c, s, np.int64(0), np.int64(0), length, time, packet)
        node = following


@part
def _search(M, b, A, sk, c, s):  # type: ignore[no-untyped-def]
    """Search one direction's window; True when frames were found (the other direction may then know more)."""
    while M[s + D_MODE] == MODE_SEARCH:
        _drop_gaps(M, s)
        if M[s + D_HEAD] < 0:
            return False
        n, stopped = gather(M, b, A, s)
        at_start = M[s + D_BEGUN] == 1 and M[s + D_SKIPPED] == 0
        named = at_start or looks_sealed(M, A, c, s, n)
        if named and M[s + D_BEGIN16A] == 0 and n - SCRATCH >= 4:
            for q in range(min(n - SCRATCH, 16)):
                if q < 8:
                    M[s + D_BEGIN16A] |= np.int64(A[SCRATCH + q]) << (8 * (7 - q))
                else:
                    M[s + D_BEGIN16B] |= np.int64(A[SCRATCH + q]) << (8 * (15 - q))
        if begins_sealed(M, A, c, s, n):
            seal(M, c)
            return False
        full = n - SCRATCH >= WINDOW
        closed = stopped or M[K_FINAL] > RUNNING
        side = -1
        if M[c + C_CLIENT] >= 0:
            side = 0 if M[c + C_CLIENT] == M[s + D_SIDE] else 1
        if side == 1 and M[c + C_KAFKA] == 0 and not (closed or full):
            return False
        o = SCRATCH + M[s + D_SEARCHED]
        verdict = REJECT
        waits = np.int64(-1)
        while o < n:
            if A[o] < 0x40:
                begins = at_start and o == SCRATCH
                if side == 1:
                    verdict = _response_candidate(M, A, sk, c, s, o, n, closed, begins)
                else:
                    verdict = _request_candidate(M, A, sk, c, s, o, n, closed, begins and side == 0)
                if verdict >= WAIT and waits < 0:
                    waits = o
                if verdict == HOLD:
                    break
                if verdict == ACCEPT and (waits < 0 or _begins_segment(M, s, o)):
                    break
                if verdict == WAIT and begins:
                    break
                verdict = REJECT
            if at_start and side == 0:
                ignore(M, c)
                return False
            o += 1
        if verdict == ACCEPT:
            if side != 1:
                M[c + C_CLIENT] = M[s + D_SIDE]
                M[c + C_NEWS] = 1
                M[c + C_KAFKA] = 1
                M[M[s + D_OTHER] + D_SEARCHED] = 0
            _adopt(M, b, A, c, s, o - SCRATCH)
            if side != 1:
                return True
            continue
        if waits >= 0:
            # The first that waits stays; offsets behind it are tried again with more bytes, while that is affordable.
            M[s + D_BUDGET] -= n - waits
            again = waits if M[s + D_BUDGET] > 0 else n
            if side >= 0 and waits > SCRATCH:
                _drop_before(M, s, waits - SCRATCH)
                again -= waits - SCRATCH
            M[s + D_SEARCHED] = again - SCRATCH
            return False
        if stopped and side < 0 and M[K_FINAL] <= RUNNING and M[s + D_WINDOW] < WINDOW:
            # Perhaps responses: the other direction may soon tell.
            return False
        if stopped or M[K_FINAL] > RUNNING:
            _drop_before(M, s, n - SCRATCH)
            _drop_gaps(M, s)
            M[s + D_SEARCHED] = 0
        elif side >= 0:
            _drop_before(M, s, n - SCRATCH)
            M[s + D_SEARCHED] = 0
        else:
            M[s + D_SEARCHED] = n - SCRATCH
            if full:
                _drop_before(M, s, n - SCRATCH)
                M[s + D_SEARCHED] = 0
        enough = GIVE_UP if M[M[s + D_OTHER] + D_BYTES] > 0 else GIVE_UP_ALONE
        if M[c + C_KAFKA] == 0 and M[s + D_SKIPPED] > enough:
            ignore(M, c)
        if not (stopped or M[K_FINAL] > RUNNING):
            return False
    return False


@part
def settle(M, b, A, sk, c, s):  # type: ignore[no-untyped-def]
    """Search the direction `s`, and the other one when what was found helps there.

    A search that spent its budget waits until its window is twice as large: reading it again and again costs too.
    """
    if M[s + D_BUDGET] < 0 and M[s + D_WINDOW] < min(2 * M[s + D_TRIED], WINDOW) and M[K_FINAL] == RUNNING:
        return
    undecided = M[c + C_KAFKA] == 0
    found = _search(M, b, A, sk, c, s)
    M[s + D_TRIED] = M[s + D_WINDOW]
    o = M[s + D_OTHER]
    if M[o + D_MODE] != MODE_SEARCH or M[o + D_HEAD] < 0:
        return
    if found:
        _search(M, b, A, sk, c, o)
    elif undecided and M[c + C_CLIENT] == M[o + D_SIDE] and _search(M, b, A, sk, c, o):
        _search(M, b, A, sk, c, s)


@part
def _requests_somewhere(M, b, A, sk, c, s):  # type: ignore[no-untyped-def]
    """Whether a request begins a segment anywhere in the window, which stays as it is."""
    first = M[s + D_HEAD]
    found = False
    node = first
    while node >= 0 and not found:
        if M[node + N_AT] < 0:
            node = M[node + N_NEXT]
            continue
        M[s + D_HEAD] = node
        n, _ = gather(M, b, A, s)
        o = np.int64(SCRATCH)
        while node >= 0 and M[node + N_AT] >= 0:
            if M[node + N_POSITION] == 1 and o < n and not found:
                found = _request_candidate(M, A, sk, c, s, o, n, True, False) == ACCEPT
            o += M[node + N_LENGTH]
            node = M[node + N_NEXT]
    M[s + D_HEAD] = first
    return found


@part
def tell_sides(M, b, A, sk, c):  # type: ignore[no-untyped-def]
    """At the end of a connection whose client is not known: which direction has requests, maybe behind a gap. What is
    searched next is dropped where nothing is found, and responses are only found when their requests are known."""
    for s in range(c + C_WIDTH, c + CONNECTION_WIDTH, D_WIDTH):
        if M[c + C_CLIENT] < 0 and M[s + D_MODE] == MODE_SEARCH and _requests_somewhere(M, b, A, sk, c, s):
            M[c + C_CLIENT] = M[s + D_SIDE]
            M[c + C_NEWS] = 1


@part
def lost_for_good(M, c, s):  # type: ignore[no-untyped-def]
    """At the end: a direction that is still searched is a problem of its own, if the connection is Kafka at all."""
    if M[s + D_MODE] == MODE_SEARCH and M[c + C_KAFKA] == 1 and M[s + D_SKIPPED] > 0:
        problem(
            M,
            KIND_NOT_RESYNCHRONISED,
            c,
            M[s + D_SIDE],
            M[c + C_LAST],
            np.int64(-1),
            M[s + D_NEXT],
            M[s + D_SKIPPED],
            -1,
        )
