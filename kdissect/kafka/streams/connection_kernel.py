"""Packets to exchanges, connection by connection: the one pass that everything else rests on.

`run` takes the segments of a block, grouped by flow and in the order of capture within each, and drives every packet
through `kdissect.tcp` (what is next in the stream), `framing` (frames), `resync` (where frames begin) and `pairing`
(requests and responses). All state is per connection and changes only with that connection's own packets, so the rows
are the same however the input is cut into blocks.

A 4-tuple begins a new connection with a SYN of another sequence number, or with any packet more than LINGER_NS after it
ended. `finish` closes a connection's books: holes that will not be filled, frames that were begun, requests that wait.

The kernels never grow an array. Before each step they check that everything it can produce fits (`MARGIN` rows), and
stop in front of it otherwise; the caller makes room and calls again.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams.framing import complete, drop_nodes, feed, forget_frame, gap
from kdissect.kafka.streams.pairing import pop_request, release_held, without_response
from kdissect.kafka.streams.resync import lost_for_good, settle, tell_sides
from kdissect.kafka.streams.sealing import seal_row
from kdissect.kafka.streams.state import (
    E_BASE,
    E_ROWS,
    MARGIN,
    P_ROWS,
    S_ROWS,
    X_BASE,
    X_F_HEAD,
    X_REQUEST,
    X_RESPONSE,
    X_ROWS,
    X_WIDTH,
    direction_of,
    problem,
)
from kdissect.kernels.kernel import kernel, part
from kdissect.net.segment import ACK, AT, FLAGS, LEN, PACKET, SEQ, TIME, VIEW, WIRE
from kdissect.net.segment import FLOW as STREAM
from kdissect.schema.vm import SKIM  # noqa: F401  (named in a signature)
from kdissect.tcp.assembly import (
    ACK_FLAG,
    FIN,
    RST,
    SETTLE_PACKETS,
    SYN,
    arrive,
    duplicate,
    give_node,
    hole,
    ready,
    unwrap,
)
from kdissect.tcp.layout import (
    C_ANSWERED_LAST,
    C_CLIENT,
    C_CLIENT_ID,
    C_DUPLICATES,
    C_END,
    C_FIRST,
    C_FIRST_PACKET,
    C_FLOW,
    C_HELD,
    C_HELD_HEAD,
    C_KAFKA,
    C_LAST,
    C_NEWS,
    C_NUMBER,
    C_PACKETS,
    C_REQUEST_HEAD,
    C_REQUEST_TAIL,
    C_RTT,
    C_SEALED,
    C_SEQUENCE,
    C_START_SEEN,
    C_SYN,
    C_WIDTH,
    CAPTURE_ENDED,
    CONNECTION_WIDTH,
    D_ACK_RTT,
    D_ACKED,
    D_AHEAD,
    D_AHEAD_HEAD,
    D_AHEAD_TAIL,
    D_AT,
    D_BEGUN,
    D_BUDGET,
    D_BYTES,
    D_FIN,
    D_FIRST,
    D_HEAD,
    D_HIGHEST,
    D_HOLE_SINCE,
    D_ISN,
    D_LOST,
    D_MISSING_TOTAL,
    D_MODE,
    D_NEED,
    D_NEXT,
    D_OTHER,
    D_PACKET,
    D_SIDE,
    D_STARTED,
    D_TAIL,
    D_TIMED_END,
    D_UNSETTLED,
    D_VIEW,
    D_WIDTH,
    D_WILD,
    D_WINDOW,
    D_ZERO_SINCE,
    DRAINING,
    END_FIN,
    END_IDLE,
    END_OPEN,
    END_REPLACED,
    END_RST,
    ENDED,
    HOLE,
    K_CONNECTION_FREE,
    K_CONNECTIONS_LEFT,
    K_ENDED,
    K_FINAL,
    K_NODES_LEFT,
    K_NUMBER,
    K_OUT,
    K_PHASE,
    K_PROBLEMS,
    K_REQUESTS_LEFT,
    K_RESUME,
    K_SEALED,
    MODE_FRAMES,
    MODE_SEARCH,
    N_NEXT,
    N_TIME,
    NULL,
    OUT,
    RUNNING,
)

LINGER_NS = 60 * 1_000_000_000
"""Late packets still belong to a connection that ended this long ago: TIME-WAIT as Linux has it (TCP_TIMEWAIT_LEN),
twice the maximum segment lifetime (RFC 9293, section 3.4.2)."""
NODE_MARGIN = 8192
BUDGET = 8 << 20
"""What a search may spend on trials before it has to earn it (see TRIAL_FACTOR)."""
KIND_MISSING, KIND_UNFINISHED = 1, 5
PACKETS, FINISHING, PLAINTEXT = 0, 1, 2
"""What `run` is given."""


@part
def roomy(M):  # type: ignore[no-untyped-def]
    """Whether everything that the next step can produce fits."""
    return (
        M[K_OUT] + MARGIN <= X_ROWS
        and M[K_PROBLEMS] + MARGIN <= P_ROWS
        and M[K_REQUESTS_LEFT] >= MARGIN
        and M[K_NODES_LEFT] >= NODE_MARGIN
        and M[K_CONNECTIONS_LEFT] >= 2
        and M[K_ENDED] + 2 <= E_ROWS
        and M[K_SEALED] + MARGIN <= S_ROWS
    )


@part
def _open(M, conn_of, g, row):  # type: ignore[no-untyped-def]
    """A new connection that begins with this packet."""
    c = M[K_CONNECTION_FREE]
    M[K_CONNECTION_FREE] = M[c + C_FLOW]
    M[K_CONNECTIONS_LEFT] -= 1
    for q in range(C_WIDTH):
        M[c + q] = 0
    stream = g[row, STREAM]
    flow = stream >> 1
    M[c + C_FLOW] = flow
    M[c + C_FIRST] = g[row, TIME]
    M[c + C_LAST] = g[row, TIME]
    M[c + C_SEQUENCE] = g[row, SEQ] | ((stream & 1) << 32)
    M[c + C_FIRST_PACKET] = g[row, PACKET]
    M[c + C_CLIENT] = -1
    M[c + C_NEWS] = 1
    M[c + C_REQUEST_HEAD] = -1
    M[c + C_REQUEST_TAIL] = -1
    M[c + C_HELD_HEAD] = -1
    M[c + C_ANSWERED_LAST] = NULL
    M[c + C_SYN] = NULL
    M[c + C_RTT] = -1
    M[c + C_CLIENT_ID] = -1
    M[c + C_NUMBER] = M[K_NUMBER]
    M[K_NUMBER] += 1
    for side in range(2):
        s = direction_of(c, side)
        for q in range(D_WIDTH):
            M[s + q] = 0
        M[s + D_SIDE] = side
        M[s + D_OTHER] = direction_of(c, 1 - side)
        for q in (D_AT, D_HEAD, D_TAIL, D_AHEAD_HEAD, D_AHEAD_TAIL, D_NEED, D_FIN, D_HOLE_SINCE, D_WILD, D_LOST):
            M[s + q] = -1
        for q in (D_ACKED, D_ZERO_SINCE, D_TIMED_END, D_ACK_RTT, D_ISN):
            M[s + q] = NULL
        M[s + D_BUDGET] = BUDGET
    conn_of[flow] = c
    return c


@part
def _began(M, g, row, s):  # type: ignore[no-untyped-def]
    """Whether a SYN can be the one that began this direction, where it was lost: it stands just below what came."""
    below = M[s + D_NEXT] - unwrap((g[row, SEQ] + 1) & 0xFFFFFFFF, M[s + D_NEXT])
    return M[s + D_STARTED] > 0 and 0 <= below <= M[s + D_BYTES] + M[s + D_MISSING_TOTAL]


@part
def _begins_anew(M, g, row, c):  # type: ignore[no-untyped-def]
    """Why this packet cannot belong to the connection that its 4-tuple had: END_* or END_OPEN when it can."""
    s = direction_of(c, g[row, STREAM] & 1)
    flags = g[row, FLAGS]
    ended = M[c + C_END] != END_OPEN
    if flags & SYN and flags & RST == 0:
        isn = M[s + D_ISN]
        if isn != NULL:
            if isn != g[row, SEQ]:
                return END_REPLACED
        elif (ended or M[c + C_PACKETS] > SETTLE_PACKETS) and (
            M[s + D_VIEW] == g[row, VIEW] or not _began(M, g, row, s)
        ):
            return END_REPLACED
    if ended and g[row, TIME] - M[c + C_LAST] > LINGER_NS:
        return END_IDLE
    return END_OPEN


@part
def _handshake(M, g, row, c, s):  # type: ignore[no-untyped-def]
    """What a SYN, and the packets around it, say: the exact beginning, the client, the round trip."""
    flags = g[row, FLAGS]
    time = g[row, TIME]
    if flags & SYN and flags & RST == 0:
        M[s + D_ISN] = g[row, SEQ]
        if M[s + D_STARTED] == 0:
            M[s + D_NEXT] = (g[row, SEQ] + 1) & 0xFFFFFFFF
            M[s + D_HIGHEST] = M[s + D_NEXT]
            M[s + D_STARTED] = 2
            M[s + D_BEGUN] = 1
        elif M[s + D_UNSETTLED] == 1:
            M[s + D_NEXT] = unwrap((g[row, SEQ] + 1) & 0xFFFFFFFF, M[s + D_NEXT])
            M[s + D_UNSETTLED] = 0
            M[s + D_STARTED] = 2
            M[s + D_BEGUN] = 1
        if M[c + C_KAFKA] == 0:
            M[c + C_CLIENT] = 1 - (M[s + D_SIDE]) if flags & ACK_FLAG else M[s + D_SIDE]
            M[c + C_NEWS] = 1
        if flags & ACK_FLAG == 0:
            M[c + C_START_SEEN] = 1
            M[c + C_SYN] = time
    elif (
        M[c + C_RTT] < 0
        and M[c + C_SYN] != NULL
        and flags & ACK_FLAG
        and flags & RST == 0
        and M[s + D_SIDE] == M[c + C_CLIENT]
    ):
        if M[M[s + D_OTHER] + D_ISN] != NULL and g[row, ACK] == (M[M[s + D_OTHER] + D_ISN] + 1) & 0xFFFFFFFF:
            M[c + C_RTT] = max(time - M[c + C_SYN], 0)
        M[c + C_SYN] = NULL if M[c + C_RTT] >= 0 else M[c + C_SYN]


@part
def _take(M, b, A, sk, c, s):  # type: ignore[no-untyped-def]
    """What OUT says comes next in direction `s`, as TCP brings it."""
    if M[c + C_SEALED] == 1:
        seal_row(M, c, s, M[OUT], M[OUT + 1], M[OUT + 2], M[OUT + 3], M[OUT + 4])
        return
    _read(M, b, A, sk, c, s)


@part
def _read(M, b, A, sk, c, s):  # type: ignore[no-untyped-def]
    """What OUT says comes next in direction `s`; at HOLE, bytes that were never captured."""
    if M[OUT] == HOLE:
        gap(M, b, A, c, s, M[OUT + 2], M[OUT + 3], M[OUT + 4])
    else:
        feed(M, b, A, c, s, M[OUT], M[OUT + 1], M[OUT + 2], M[OUT + 3], M[OUT + 4])
    if M[s + D_MODE] == MODE_SEARCH and M[s + D_WINDOW] > 0:
        settle(M, b, A, sk, c, s)


@part
def _advance(M, b, A, sk, c, s):  # type: ignore[no-untyped-def]
    """Feed what waits and now continues the stream, past holes that are given up; False when room ran out."""
    while True:
        while ready(M, s):
            _take(M, b, A, sk, c, s)
            if not roomy(M):
                return False
        length = hole(M, c, s)
        if length == 0:
            return True
        if length < 0:
            continue
        problem(M, KIND_MISSING, c, M[s + D_SIDE], M[c + C_LAST], np.int64(-1), M[s + D_NEXT] - length, length, -1)
        M[OUT] = HOLE
        M[OUT + 1] = 0
        M[OUT + 2] = length
        M[OUT + 3] = M[c + C_LAST]
        M[OUT + 4] = -1
        _take(M, b, A, sk, c, s)


@part
def _advance_both(M, b, A, sk, c):  # type: ignore[no-untyped-def]
    """`_advance` for both directions, requests first: responses are recognised by the requests that wait.

    Where it is not known which these are, what was held comes in order of arrival: responses that fill the window
    before their requests are seen would be lost.
    """
    while M[c + C_CLIENT] < 0:
        s, o = direction_of(c, 0), direction_of(c, 1)
        node, other = M[s + D_AHEAD_HEAD], M[o + D_AHEAD_HEAD]
        if other >= 0 and (node < 0 or M[other + N_TIME] < M[node + N_TIME]):
            s, node = o, other
        if node < 0:
            break
        if not ready(M, s):
            if M[s + D_UNSETTLED] == 0 or hole(M, c, s) == 0:
                break
            continue
        _take(M, b, A, sk, c, s)
        if not roomy(M):
            return False
    first = max(M[c + C_CLIENT], 0)
    if not _advance(M, b, A, sk, c, direction_of(c, first)):
        return False
    return _advance(M, b, A, sk, c, direction_of(c, 1 - first))


@part
def _unopened(M, c):  # type: ignore[no-untyped-def]
    """Whether the host has to open sealed bytes before the connection can be finished."""
    return M[c + C_SEALED] == 1 and M[K_SEALED] > 0


@part
def finish(M, b, A, sk, conn_of, c, reason):  # type: ignore[no-untyped-def]
    """Close a connection's books and free its row; `reason` END_OPEN: the capture ended. False when room ran out."""
    if M[c + C_END] == END_OPEN:
        M[c + C_END] = reason
    M[K_FINAL] = DRAINING
    if not _advance_both(M, b, A, sk, c):
        M[K_FINAL] = RUNNING
        return False
    M[K_FINAL] = RUNNING
    if _unopened(M, c):
        return False
    M[K_FINAL] = CAPTURE_ENDED if M[c + C_END] == END_OPEN else ENDED
    if M[c + C_CLIENT] < 0 and M[c + C_KAFKA] == 0:
        tell_sides(M, b, A, sk, c)
    for q in range(2):
        s = direction_of(c, M[c + C_CLIENT] ^ q if M[c + C_CLIENT] >= 0 else q)
        if M[s + D_MODE] == MODE_SEARCH and M[s + D_HEAD] >= 0:
            settle(M, b, A, sk, c, s)
    if _unopened(M, c):
        M[K_FINAL] = RUNNING
        return False
    for q in range(2):
        s = direction_of(c, M[c + C_CLIENT] ^ q if M[c + C_CLIENT] >= 0 else q)
        lost_for_good(M, c, s)
        if M[s + D_MODE] == MODE_FRAMES and M[s + D_NEED] > 0:
            problem(
                M, KIND_UNFINISHED, c, M[s + D_SIDE], M[s + D_FIRST], M[s + D_PACKET], M[s + D_NEXT], M[s + D_NEED], -1
            )
            complete(M, b, A, c, s)
        drop_nodes(M, s)
        forget_frame(M, s)
    r = pop_request(M, c)
    while r >= 0:
        without_response(M, c, r)
        r = pop_request(M, c)
    release_held(M, c)
    M[K_FINAL] = RUNNING
    e = E_BASE + M[K_ENDED] * CONNECTION_WIDTH
    M[K_ENDED] += 1
    for q in range(CONNECTION_WIDTH):
        M[e + q] = M[c + q]
    flow = M[c + C_FLOW]
    if conn_of[flow] == c:
        conn_of[flow] = -1
    M[c + C_FLOW] = M[K_CONNECTION_FREE]
    M[c + C_NUMBER] = -1
    M[K_CONNECTION_FREE] = c
    M[K_CONNECTIONS_LEFT] += 1
    return True


@part
def _packet(M, b, A, sk, g, row, c, s):  # type: ignore[no-untyped-def]
    """One packet of direction `s`; False when room ran out behind it."""
    M[c + C_PACKETS] += 1
    elsewhere = M[s + D_VIEW] != g[row, VIEW]
    if duplicate(M, g, row, c, s):
        M[c + C_DUPLICATES] += 1
    else:
        M[c + C_LAST] = max(M[c + C_LAST], g[row, TIME])
        _handshake(M, g, row, c, s)
        if arrive(M, g, row, s, elsewhere):
            _take(M, b, A, sk, c, s)
    waiting = M[s + D_AHEAD] > 0 or M[M[s + D_OTHER] + D_AHEAD] > 0
    if waiting and not _advance_both(M, b, A, sk, c):
        return False
    _endings(M, g, row, c, s)
    return True


@part
def _endings(M, g, row, c, s):  # type: ignore[no-untyped-def]
    """FIN and RST, and responses that were held long enough."""
    flags = g[row, FLAGS]
    if flags & RST:
        if M[c + C_END] == END_OPEN:
            M[c + C_END] = END_RST
    elif flags & FIN and M[s + D_STARTED] > 0:
        M[s + D_FIN] = unwrap((g[row, SEQ] + g[row, WIRE]) & 0xFFFFFFFF, M[s + D_NEXT])
    if M[c + C_END] == END_OPEN and M[s + D_FIN] >= 0 and M[M[s + D_OTHER] + D_FIN] >= 0:
        M[c + C_END] = END_FIN
    if M[c + C_HELD] > 0 and M[c + C_SEALED] == 0:
        release_held(M, c)


@part
def _opened(M, b, A, sk, g, row):  # type: ignore[no-untyped-def]
    """A row of plaintext, which the host made of sealed bytes: its stream is named by the connection's address, and
    SEQ is the value of C_PACKETS when those bytes came."""
    c = g[row, STREAM] >> 1
    if M[c + C_KAFKA] < 0:
        return
    packets = M[c + C_PACKETS]
    M[c + C_PACKETS] = g[row, SEQ]
    M[OUT] = g[row, AT]
    M[OUT + 1] = g[row, LEN]
    M[OUT + 2] = g[row, WIRE]
    M[OUT + 3] = g[row, TIME]
    M[OUT + 4] = g[row, PACKET]
    _read(M, b, A, sk, c, direction_of(c, g[row, STREAM] & 1))
    if M[c + C_HELD] > 0:
        release_held(M, c)
    M[c + C_PACKETS] = packets


@part
def _step(M, b, A, sk, conn_of, g, row):  # type: ignore[no-untyped-def]
    """One segment row; False when room ran out, to be called again with the same row."""
    stream = g[row, STREAM]
    c = conn_of[stream >> 1]
    if M[K_PHASE] == 1:
        if not _advance_both(M, b, A, sk, c):
            return False
        _endings(M, g, row, c, direction_of(c, stream & 1))
        M[K_PHASE] = 0
        return True
    if c >= 0:
        why = _begins_anew(M, g, row, c)
        if why != END_OPEN:
            if not finish(M, b, A, sk, conn_of, c, why) or not roomy(M):
                return False
            c = np.int64(-1)
    if c < 0:
        c = _open(M, conn_of, g, row)
    if not _packet(M, b, A, sk, g, row, c, direction_of(c, stream & 1)):
        M[K_PHASE] = 1
        return False
    return True


@kernel("i8[:] u1[:] u1[:] SKIM i8[:] i8[:,:] i8[:] i8 i8 -> b1")
def run(M, b, A, sk, conn_of, g, order, n, what):  # type: ignore[no-untyped-def]
    """Drive the first `n` of `order`, from where the last call stopped: rows of `g` (PACKETS, PLAINTEXT), or
    connections (FINISHING). True when all are done.

    One kernel for all, because almost all of it is the same code, and compiling it takes seconds.
    """
    i = M[K_RESUME]
    while i < n:
        done = roomy(M)
        if done and what == FINISHING:
            done = finish(M, b, A, sk, conn_of, order[i], END_OPEN)
        elif done and what == PLAINTEXT:
            _opened(M, b, A, sk, g, order[i])
        elif done:
            done = _step(M, b, A, sk, conn_of, g, order[i])
        if not done:
            M[K_RESUME] = i
            return False
        i += 1
    M[K_RESUME] = 0
    return True


@kernel("i8[:,:] i8 i8[:] i8[:]")
def group(g, n, counts, order):  # type: ignore[no-untyped-def]
    """A stable counting sort of segment rows by flow: `order` lists the rows flow by flow, in the order of capture."""
    flows = counts.size - 1
    for q in range(flows + 1):
        counts[q] = 0
    for i in range(n):
        counts[(g[i, STREAM] >> 1) + 1] += 1
    for q in range(flows):
        counts[q + 1] += counts[q]
    for i in range(n):
        q = g[i, STREAM] >> 1
        order[counts[q]] = i
        counts[q] += 1


@kernel("i8[:] i8")
def release_nodes(M, n):  # type: ignore[no-untyped-def]
    """Free the pieces of the first `n` exchanges' frames."""
    for row in range(X_BASE, X_BASE + n * X_WIDTH, X_WIDTH):
        for x in (X_REQUEST, X_RESPONSE):
            node = M[row + x + X_F_HEAD]
            while node >= 0:
                following = M[node + N_NEXT]
                give_node(M, node)
                node = following
            M[row + x + X_F_HEAD] = -1
