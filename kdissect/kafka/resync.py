"""Finding where frames begin: by trial, then confirmation.

A direction is searched when its stream begins and whenever a length prefix was lost. Its bytes are the window. Offsets are
tried in order; each is rejected, accepted, or waits for more bytes:

- A request: a plausible size, a known key and version, a client id that is text, and a body that its layout consumes
  exactly.
- A response: the correlation id of a request that waits, and a body that the layout of that request's version consumes
  exactly. Just before the first request that was captured, an id just below it is taken too (its request came earlier).
- A frame that the window cannot hold whole (too large, cut by the snap length, or with a hole in it) is taken when all of
  it that is there fits, and a waiting id or the connection's own client id vouches for it.
- Where the first bytes of a connection are there, its first frame must be a request: anything else is not Kafka, and the
  connection is left alone. A body that fits no layout is still believed there if its frame ends where the segment ends.

What lies before an accepted offset is skipped. Trials may read TRIAL_FACTOR bytes for each byte searched and no more, so
any input is searched in linear time. Limits look at the direction's own bytes only.
"""

from __future__ import annotations

import numpy as np

from kdissect._kernel import kernel
from kdissect.kafka.fit import FITS, UNREADABLE, fits
from kdissect.kafka.framing import drop_nodes, feed, forget_frame, gap
from kdissect.kafka.pairing import (
    HEAD_BYTES,
    client_matches,
    known_header,
    request_body,
    response_body,
    text_like,
    waiting_with,
)
from kdissect.kafka.state import R_API, R_CORRELATION, R_VERSION, be16, be32, copy_out, problem, signed32
from kdissect.tcp.assembly import give_node
from kdissect.tcp.layout import (
    C_CLIENT,
    C_KAFKA,
    C_NUMBER,
    C_REQUEST_HEAD,
    C_REQUESTS,
    D_BEGIN16A,
    D_BEGIN16B,
    D_BEGUN,
    D_BUDGET,
    D_HEAD,
    D_MODE,
    D_NEED,
    D_NEXT,
    D_SEARCHED,
    D_SKIPPED,
    D_TAIL,
    D_WINDOW,
    HOLE,
    MODE_FRAMES,
    MODE_IGNORED,
    MODE_SEARCH,
    N_AT,
    N_LENGTH,
    N_NEXT,
    N_PACKET,
    N_TIME,
)

WINDOW = 256 << 10
"""Bytes searched at a time: larger frames are taken on their header and the part of the body that is there."""
SCRATCH = WINDOW + (128 << 10)
"""A window may overshoot by one segment (64 KiB, more with segmentation offload)."""
ENOUGH = 512
"""Bytes of a frame too large for the window that must be there before it is judged."""
MAX_FRAME = 1 << 30
"""No broker accepts a request beyond socket.request.max.bytes (100 MiB by default), no client a response beyond 2 GiB;
tuned clusters stay far below this."""
GIVE_UP = 1 << 20
"""Bytes searched in vain after which a connection that never showed a Kafka frame is left alone."""
NEAR = 256
"""How far below the first captured correlation id a response may lie whose request came before the capture began."""

REJECT, ACCEPT, WAIT = 0, 1, 2

KIND_RESYNCHRONISED, KIND_NOT_RESYNCHRONISED = 2, 3


@kernel
def gather(st, s):  # type: ignore[no-untyped-def]
    """The window up to its first gap in `st.scratch`: how many bytes, and whether a gap (or the limit) ends them."""
    w = np.int64(0)
    node = st.D[s, D_HEAD]
    while node >= 0:
        if st.N[node, N_AT] < 0:
            return w, True
        n = st.N[node, N_LENGTH]
        if w + n > SCRATCH or not copy_out(st, st.N[node, N_AT], n, st.scratch, w):
            return w, True
        w += n
        node = st.N[node, N_NEXT]
    return w, False


@kernel
def _trial(st, s, begin, end, program):  # type: ignore[no-untyped-def]
    """`fits` within the direction's budget."""
    st.D[s, D_BUDGET] -= 64 + end - begin
    if begin < 0 or program < 0 or st.D[s, D_BUDGET] < 0:
        return UNREADABLE
    return fits(st, st.scratch, begin, end, program)


@kernel
def _request_candidate(st, c, s, o, n, closed, at_start):  # type: ignore[no-untyped-def]
    """Judge offset `o` of the window's `n` bytes as the beginning of a request; `closed` when no more bytes will follow."""
    buf = st.scratch
    if n - o < 14:
        if closed:
            return REJECT
        if n - o >= 1 and buf[o] >= 0x40:
            return REJECT
        if n - o >= 6 and be16(buf, o + 4) >= st.table.shape[0]:
            return REJECT
        return WAIT
    size = be32(buf, o)
    if size < 8 or size > MAX_FRAME:
        return REJECT
    have = min(n - o - 4, size)
    whole = have == size
    vouched = st.C[c, C_KAFKA] == 1 and client_matches(st, c, buf, o + 4, have)
    if not known_header(st, buf, o + 4, have, size):
        length = be16(buf, o + 12)
        api = be16(buf, o + 4)
        readable = size >= 10 and length <= min(size - 10, HEAD_BYTES) and length > 0
        readable = readable and text_like(buf, o + 14, min(length, have - 10))
        if not readable or not (vouched or (at_start and api < st.table.shape[0])):
            return REJECT
        if whole:
            return ACCEPT if vouched or n - o - 4 == size else REJECT
        return REJECT if closed or not vouched else ACCEPT
    api = be16(buf, o + 4)
    version = be16(buf, o + 6)
    program = st.table[api, version, 0]
    body = request_body(st, buf, o + 4, o + 4 + have, api, version)
    if whole:
        if _trial(st, s, body, o + 4 + size, program) == FITS:
            return ACCEPT
        named = 0 < be16(buf, o + 12) < 0x8000
        return ACCEPT if vouched or (at_start and named and n - o - 4 == size) else REJECT
    if not closed and size <= WINDOW - 4:
        return WAIT
    if not closed and have < ENOUGH:
        return WAIT
    if at_start or vouched:
        return ACCEPT
    if body < 0 or have < 64:
        return REJECT
    return ACCEPT if _trial(st, s, body, o + 4 + have, program) > FITS else REJECT


@kernel
def _response_candidate(st, c, s, o, n, closed, at_start):  # type: ignore[no-untyped-def]
    """Judge offset `o` as the beginning of a response."""
    buf = st.scratch
    if n - o < 8:
        if closed or (n - o >= 1 and buf[o] >= 0x40):
            return REJECT
        return WAIT
    size = be32(buf, o)
    if size < 4 or size > MAX_FRAME:
        return REJECT
    correlation = signed32(buf, o + 4)
    have = min(n - o - 4, size)
    whole = have == size
    r = waiting_with(st, c, correlation)
    if r < 0:
        if at_start:
            return ACCEPT if whole or closed or size > WINDOW - 4 else WAIT
        first = st.C[c, C_REQUEST_HEAD]
        if first < 0 or st.C[c, C_REQUESTS] > NEAR or size < 6 or not whole or n - o - 4 != size:
            return REJECT
        below = st.R[first, R_CORRELATION] - correlation
        return ACCEPT if 0 < below <= NEAR else REJECT
    api = st.R[r, R_API]
    version = st.R[r, R_VERSION]
    known = api < st.table.shape[0] and version < st.table.shape[1] and st.table[api, version, 1] >= 0
    if whole:
        if not known:
            return ACCEPT
        program = st.table[api, version, 1]
        body = response_body(st, buf, o + 4, o + 4 + size, api, version)
        if _trial(st, s, body, o + 4 + size, program) == FITS:
            return ACCEPT
        if api == 18 and _trial(st, s, np.int64(o + 8), o + 4 + size, st.table[18, 0, 1]) == FITS:
            return ACCEPT
        return ACCEPT if at_start else REJECT
    if not closed and (size <= WINDOW - 4 or have < ENOUGH):
        return WAIT
    if at_start or not known:
        return ACCEPT
    body = response_body(st, buf, o + 4, o + 4 + have, api, version)
    if body < 0:
        return REJECT
    return ACCEPT if _trial(st, s, body, o + 4 + have, st.table[api, version, 1]) > FITS else REJECT


@kernel
def _drop_before(st, s, n):  # type: ignore[no-untyped-def]
    """Forget the first `n` captured bytes of the window, and gaps among them."""
    D = st.D
    N = st.N
    while n > 0 and D[s, D_HEAD] >= 0:
        node = D[s, D_HEAD]
        length = N[node, N_LENGTH]
        if N[node, N_AT] >= 0 and length > n:
            N[node, N_AT] += n
            N[node, N_LENGTH] = length - n
            D[s, D_WINDOW] -= n
            D[s, D_SKIPPED] += n
            return
        if N[node, N_AT] >= 0:
            n -= length
            D[s, D_WINDOW] -= length
            D[s, D_SKIPPED] += length
        D[s, D_HEAD] = N[node, N_NEXT]
        give_node(N, st.K, node)
    if D[s, D_HEAD] < 0:
        D[s, D_TAIL] = -1


@kernel
def _drop_gaps(st, s):  # type: ignore[no-untyped-def]
    """Forget gaps at the window's beginning."""
    D = st.D
    while D[s, D_HEAD] >= 0 and st.N[D[s, D_HEAD], N_AT] < 0:
        node = D[s, D_HEAD]
        D[s, D_HEAD] = st.N[node, N_NEXT]
        give_node(st.N, st.K, node)
    if D[s, D_HEAD] < 0:
        D[s, D_TAIL] = -1


@kernel
def ignore(st, c):  # type: ignore[no-untyped-def]
    """The connection is not Kafka: leave it alone."""
    st.C[c, C_KAFKA] = -1
    for s in range(2 * c, 2 * c + 2):
        drop_nodes(st, s)
        forget_frame(st, s)
        st.D[s, D_WINDOW] = 0
        st.D[s, D_MODE] = MODE_IGNORED


@kernel
def _adopt(st, c, s, o):  # type: ignore[no-untyped-def]
    """Frames begin at offset `o` of the window: feed what is there again, as frames."""
    D = st.D
    N = st.N
    if o > 0 or D[s, D_SKIPPED] > 0:
        _drop_before(st, s, o)
        node = D[s, D_HEAD]
        problem(st, KIND_RESYNCHRONISED, c, st.C[c, C_NUMBER], N[node, N_TIME], N[node, N_PACKET], s & 1,
                D[s, D_NEXT], D[s, D_SKIPPED], -1)
    node = D[s, D_HEAD]
    D[s, D_HEAD] = -1
    D[s, D_TAIL] = -1
    D[s, D_WINDOW] = 0
    D[s, D_SEARCHED] = 0
    D[s, D_SKIPPED] = 0
    D[s, D_BEGUN] = 0
    D[s, D_MODE] = MODE_FRAMES
    D[s, D_NEED] = -1
    while node >= 0:
        following = N[node, N_NEXT]
        at = N[node, N_AT]
        length = N[node, N_LENGTH]
        time = N[node, N_TIME]
        packet = N[node, N_PACKET]
        give_node(N, st.K, node)
        if at >= 0:
            cut = np.int64(0)
            if following >= 0 and N[following, N_AT] == -2:
                cut = N[following, N_LENGTH]
                after = N[following, N_NEXT]
                give_node(N, st.K, following)
                following = after
            feed(st, c, s, at, length, length + cut, time, packet)
        elif at == HOLE:
            gap(st, c, s, length, time, packet)
        else:
            feed(st, c, s, np.int64(0), np.int64(0), length, time, packet)
        node = following


@kernel
def _search(st, c, s, final):  # type: ignore[no-untyped-def]
    """Search one direction's window; True when frames were found (the other direction may then know more)."""
    C = st.C
    D = st.D
    buf = st.scratch
    while D[s, D_MODE] == MODE_SEARCH:
        _drop_gaps(st, s)
        if D[s, D_HEAD] < 0:
            return False
        n, stopped = gather(st, s)
        at_start = D[s, D_BEGUN] == 1 and D[s, D_SKIPPED] == 0
        if at_start and D[s, D_BEGIN16A] == 0 and n >= 4:
            for q in range(min(n, 16)):
                if q < 8:
                    D[s, D_BEGIN16A] |= np.int64(buf[q]) << (8 * (7 - q)) if q > 0 else (np.int64(buf[q]) & 127) << 56
                else:
                    D[s, D_BEGIN16B] |= np.int64(buf[q]) << (8 * (15 - q)) if q > 8 else (np.int64(buf[q]) & 127) << 56
        full = n >= WINDOW
        closed = stopped or final
        side = -1
        if C[c, C_CLIENT] >= 0:
            side = 0 if C[c, C_CLIENT] == s & 1 else 1
        if side == 1 and C[c, C_KAFKA] == 0 and not (closed or full):
            return False
        o = D[s, D_SEARCHED]
        verdict = REJECT
        while o < n:
            if buf[o] < 0x40:
                begins = at_start and o == 0
                if side == 1:
                    verdict = _response_candidate(st, c, s, o, n, closed, begins)
                else:
                    verdict = _request_candidate(st, c, s, o, n, closed, begins and side == 0)
                if verdict != REJECT:
                    break
            if at_start and side == 0:
                ignore(st, c)
                return False
            o += 1
        if verdict == ACCEPT:
            if side != 1:
                C[c, C_CLIENT] = s & 1
                C[c, C_KAFKA] = 1
                D[s ^ 1, D_SEARCHED] = 0
            _adopt(st, c, s, o)
            if side != 1:
                return True
            continue
        if verdict == WAIT:
            D[s, D_SEARCHED] = o
            if side >= 0 and o > 0:
                _drop_before(st, s, o)
                D[s, D_SEARCHED] = 0
            return False
        if stopped or final:
            _drop_before(st, s, n)
            _drop_gaps(st, s)
            D[s, D_SEARCHED] = 0
        elif side >= 0:
            _drop_before(st, s, n)
            D[s, D_SEARCHED] = 0
        else:
            D[s, D_SEARCHED] = n
            if full:
                _drop_before(st, s, n)
                D[s, D_SEARCHED] = 0
        if C[c, C_KAFKA] == 0 and D[s, D_SKIPPED] > GIVE_UP:
            ignore(st, c)
        if not (stopped or final):
            return False
    return False


@kernel
def settle(st, c, s, final):  # type: ignore[no-untyped-def]
    """Search the direction `s`, and the other one when what was found helps there."""
    if _search(st, c, s, final) and st.D[s ^ 1, D_MODE] == MODE_SEARCH:
        _search(st, c, s ^ 1, final)


@kernel
def lost_for_good(st, c, s):  # type: ignore[no-untyped-def]
    """At the end: a direction that is still searched is a problem of its own, if the connection is Kafka at all."""
    D = st.D
    if D[s, D_MODE] == MODE_SEARCH and st.C[c, C_KAFKA] == 1 and D[s, D_SKIPPED] > 0:
        problem(st, KIND_NOT_RESYNCHRONISED, c, st.C[c, C_NUMBER], st.C[c, 3], np.int64(-1), s & 1, D[s, D_NEXT],
                D[s, D_SKIPPED], -1)
