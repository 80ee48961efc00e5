"""Packets to exchanges, connection by connection: the one pass that everything else rests on.

`run` takes the segments of a block, grouped by flow and in the order of capture within each, and drives every packet
through `kdissect.tcp` (what is next in the stream), `framing` (frames), `resync` (where frames begin) and `pairing`
(requests and responses). All state is per connection and changes only with that connection's own packets, so the rows are
the same however the input is cut into blocks.

A 4-tuple begins a new connection with a SYN of another sequence number, or with any packet more than LINGER_NS after it
ended. `finish` closes a connection's books: holes that will not be filled, frames that were begun, requests that wait.

The kernels never grow an array. Before each step they check that everything it can produce fits (`MARGIN` rows), and stop
in front of it otherwise; the caller makes room and calls again.
"""

from __future__ import annotations

import numpy as np

from kdissect._kernel import kernel
from kdissect.kafka.framing import complete, drop_nodes, feed, forget_frame, gap
from kdissect.kafka.pairing import pop_request, release_held, without_response
from kdissect.kafka.resync import lost_for_good, settle
from kdissect.kafka.state import X_F_HEAD, X_REQUEST, X_RESPONSE, problem
from kdissect.net.segment import ACK, FLAGS, PACKET, SEQ, TIME, WIRE
from kdissect.net.segment import FLOW as STREAM
from kdissect.tcp.assembly import ACK_FLAG, FIN, RST, SYN, arrive, give_node, hole, ready, unwrap
from kdissect.tcp.layout import (
    C_CLIENT,
    C_CLIENT_ID,
    C_END,
    C_FIRST,
    C_FIRST_PACKET,
    C_FLOW,
    C_HELD,
    C_HELD_HEAD,
    C_KAFKA,
    C_LAST,
    C_NUMBER,
    C_PACKETS,
    C_REQUEST_HEAD,
    C_REQUEST_TAIL,
    C_RTT,
    C_SEQUENCE,
    C_START_SEEN,
    C_SYN,
    C_WIDTH,
    C_ANSWERED_LAST,
    D_ACK_RTT,
    D_ACKED,
    D_AHEAD,
    D_AHEAD_HEAD,
    D_AHEAD_TAIL,
    D_AT,
    D_BEGUN,
    D_BUDGET,
    D_FIN,
    D_FIRST,
    D_HEAD,
    D_HIGHEST,
    D_HOLE_SINCE,
    D_ISN,
    D_MODE,
    D_NEED,
    D_NEXT,
    D_PACKET,
    D_STARTED,
    D_TAIL,
    D_TIMED_END,
    D_WIDTH,
    D_WILD,
    D_WINDOW,
    D_ZERO_SINCE,
    END_FIN,
    END_IDLE,
    END_OPEN,
    END_REPLACED,
    END_RST,
    K_CONNECTION_FREE,
    K_CONNECTIONS_LEFT,
    K_NODES_LEFT,
    K_NUMBER,
    K_OUT,
    K_PHASE,
    K_PROBLEMS,
    K_REQUESTS_LEFT,
    K_RESUME,
    K_SINGLE,
    MODE_FRAMES,
    MODE_SEARCH,
    N_NEXT,
    NULL,
)

LINGER_NS = 120 * 1_000_000_000
"""Late packets still belong to a connection that ended this long ago: twice the maximum segment lifetime of Linux."""
MARGIN = 48 << 10
"""Rows of output that one step can produce at most: a full search window of the smallest frames, and all that wait."""
NODE_MARGIN = 8192
BUDGET = 8 << 20
"""What a search may spend on trials before it has to earn it (see TRIAL_FACTOR)."""
KIND_UNFINISHED = 5
E_WIDTH = C_WIDTH + 2 * D_WIDTH
"""A finished connection: its row of C and both rows of D."""


@kernel
def roomy(st, E):  # type: ignore[no-untyped-def]
    """Whether everything that the next step can produce fits."""
    K = st.K
    return (
        K[K_OUT] + MARGIN <= st.X.shape[0]
        and K[K_PROBLEMS] + MARGIN <= st.P.shape[0]
        and K[K_REQUESTS_LEFT] >= MARGIN
        and K[K_NODES_LEFT] >= NODE_MARGIN
        and K[K_CONNECTIONS_LEFT] >= 2
        and K[K_SINGLE] + 2 <= E.shape[0]
    )


@kernel
def _open(st, g, row):  # type: ignore[no-untyped-def]
    """A new connection that begins with this packet."""
    K = st.K
    C = st.C
    D = st.D
    c = K[K_CONNECTION_FREE]
    K[K_CONNECTION_FREE] = C[c, C_FLOW]
    K[K_CONNECTIONS_LEFT] -= 1
    for q in range(C_WIDTH):
        C[c, q] = 0
    stream = g[row, STREAM]
    flow = stream >> 1
    C[c, C_FLOW] = flow
    C[c, C_FIRST] = g[row, TIME]
    C[c, C_LAST] = g[row, TIME]
    C[c, C_SEQUENCE] = g[row, SEQ] | ((stream & 1) << 32)
    C[c, C_FIRST_PACKET] = g[row, PACKET]
    C[c, C_CLIENT] = -1
    C[c, C_REQUEST_HEAD] = -1
    C[c, C_REQUEST_TAIL] = -1
    C[c, C_HELD_HEAD] = -1
    C[c, C_ANSWERED_LAST] = NULL
    C[c, C_SYN] = NULL
    C[c, C_RTT] = -1
    C[c, C_CLIENT_ID] = -1
    C[c, C_NUMBER] = K[K_NUMBER]
    K[K_NUMBER] += 1
    for s in range(2 * c, 2 * c + 2):
        for q in range(D_WIDTH):
            D[s, q] = 0
        for q in (D_AT, D_HEAD, D_TAIL, D_AHEAD_HEAD, D_AHEAD_TAIL, D_NEED, D_FIN, D_HOLE_SINCE, D_WILD):
            D[s, q] = -1
        for q in (D_ACKED, D_ZERO_SINCE, D_TIMED_END, D_ACK_RTT, D_ISN):
            D[s, q] = NULL
        D[s, D_BUDGET] = BUDGET
        for q in range(st.recent.shape[1]):
            st.recent[s, q, 0] = 0
            st.recent[s, q, 1] = NULL >> 1
    st.conn_of[flow] = c
    return c


@kernel
def _begins_anew(st, g, row, c):  # type: ignore[no-untyped-def]
    """Why this packet cannot belong to the connection that its 4-tuple had: END_* or END_OPEN when it can."""
    C = st.C
    s = 2 * c + (g[row, STREAM] & 1)
    flags = g[row, FLAGS]
    ended = C[c, C_END] != END_OPEN
    if flags & SYN and flags & RST == 0:
        isn = st.D[s, D_ISN]
        if isn != NULL:
            if isn != g[row, SEQ]:
                return END_REPLACED
        elif ended or C[c, C_PACKETS] > 8:
            return END_REPLACED
    if ended and g[row, TIME] - C[c, C_LAST] > LINGER_NS:
        return END_IDLE
    return END_OPEN


@kernel
def _handshake(st, g, row, c, s):  # type: ignore[no-untyped-def]
    """What a SYN, and the packets around it, say: the exact beginning, the client, the round trip."""
    C = st.C
    D = st.D
    flags = g[row, FLAGS]
    time = g[row, TIME]
    if flags & SYN and flags & RST == 0:
        D[s, D_ISN] = g[row, SEQ]
        if D[s, D_STARTED] == 0:
            D[s, D_NEXT] = (g[row, SEQ] + 1) & 0xFFFFFFFF
            D[s, D_HIGHEST] = D[s, D_NEXT]
            D[s, D_STARTED] = 2
            D[s, D_BEGUN] = 1
        elif D[s, D_STARTED] == 1 and unwrap((g[row, SEQ] + 1) & 0xFFFFFFFF, D[s, D_NEXT]) <= D[s, D_NEXT]:
            D[s, D_STARTED] = 2
        if C[c, C_KAFKA] == 0:
            C[c, C_CLIENT] = 1 - (s & 1) if flags & ACK_FLAG else s & 1
        if flags & ACK_FLAG == 0:
            C[c, C_START_SEEN] = 1
            C[c, C_SYN] = time
    elif C[c, C_RTT] < 0 and C[c, C_SYN] != NULL and flags & ACK_FLAG and flags & RST == 0 and s & 1 == C[c, C_CLIENT]:
        if D[s ^ 1, D_ISN] != NULL and g[row, ACK] == (D[s ^ 1, D_ISN] + 1) & 0xFFFFFFFF:
            C[c, C_RTT] = max(time - C[c, C_SYN], 0)
        C[c, C_SYN] = NULL if C[c, C_RTT] >= 0 else C[c, C_SYN]


@kernel
def _advance(st, c, s, E, final):  # type: ignore[no-untyped-def]
    """Feed what waits and now continues the stream, past holes that are given up; False when room ran out."""
    out = st.out
    while True:
        while ready(s, st.D, st.N, st.K, out):
            feed(st, c, s, out[0], out[1], out[2], out[3], out[4])
            if st.D[s, D_MODE] == MODE_SEARCH and st.D[s, D_WINDOW] > 0:
                settle(st, c, s, False)
            if not roomy(st, E):
                return False
        length = hole(c, s, st.C, st.D, st.N, final)
        if length <= 0:
            return True
        problem(st, 1, c, st.C[c, C_NUMBER], st.C[c, C_LAST], np.int64(-1), s & 1, st.D[s, D_NEXT] - length, length, -1)
        gap(st, c, s, length, st.C[c, C_LAST], np.int64(-1))
        if st.D[s, D_MODE] == MODE_SEARCH and st.D[s, D_WINDOW] > 0:
            settle(st, c, s, False)


@kernel
def finish(st, c, reason, E):  # type: ignore[no-untyped-def]
    """Close a connection's books and free its row; `reason` END_OPEN: the capture ended. False when room ran out."""
    C = st.C
    D = st.D
    for s in range(2 * c, 2 * c + 2):
        if not _advance(st, c, s, E, True):
            return False
    for q in range(2):
        s = 2 * c + (C[c, C_CLIENT] ^ q if C[c, C_CLIENT] >= 0 else q)
        if D[s, D_MODE] == MODE_SEARCH and D[s, D_HEAD] >= 0:
            settle(st, c, s, True)
    for q in range(2):
        s = 2 * c + (C[c, C_CLIENT] ^ q if C[c, C_CLIENT] >= 0 else q)
        lost_for_good(st, c, s)
        if D[s, D_MODE] == MODE_FRAMES and D[s, D_NEED] > 0:
            problem(st, KIND_UNFINISHED, c, C[c, C_NUMBER], D[s, D_FIRST], D[s, D_PACKET], s & 1, D[s, D_NEXT],
                    D[s, D_NEED], -1)
            complete(st, c, s)
        drop_nodes(st, s)
        forget_frame(st, s)
    if C[c, C_END] == END_OPEN:
        C[c, C_END] = reason
    r = pop_request(st, c)
    while r >= 0:
        without_response(st, c, r, reason == END_OPEN and C[c, C_END] == END_OPEN)
        r = pop_request(st, c)
    release_held(st, c, True)
    row = st.K[K_SINGLE]
    st.K[K_SINGLE] += 1
    for q in range(C_WIDTH):
        E[row, q] = C[c, q]
    for s in range(2):
        for q in range(D_WIDTH):
            E[row, C_WIDTH + s * D_WIDTH + q] = D[2 * c + s, q]
    flow = C[c, C_FLOW]
    if st.conn_of[flow] == c:
        st.conn_of[flow] = -1
    C[c, C_FLOW] = st.K[K_CONNECTION_FREE]
    C[c, C_NUMBER] = -1
    st.K[K_CONNECTION_FREE] = c
    st.K[K_CONNECTIONS_LEFT] += 1
    return True


@kernel
def _packet(st, g, row, c, s, E):  # type: ignore[no-untyped-def]
    """One packet of direction `s`; False when room ran out behind it."""
    C = st.C
    D = st.D
    C[c, C_PACKETS] += 1
    C[c, C_LAST] = max(C[c, C_LAST], g[row, TIME])
    _handshake(st, g, row, c, s)
    if arrive(g, row, c, s, s ^ 1, C, D, st.N, st.K, st.recent, st.out):
        out = st.out
        feed(st, c, s, out[0], out[1], out[2], out[3], out[4])
        if D[s, D_MODE] == MODE_SEARCH and D[s, D_WINDOW] > 0:
            settle(st, c, s, False)
    if D[s, D_AHEAD] > 0 or D[s ^ 1, D_AHEAD] > 0:
        if not _advance(st, c, s, E, False) or not _advance(st, c, s ^ 1, E, False):
            return False
    _endings(st, g, row, c, s)
    return True


@kernel
def _endings(st, g, row, c, s):  # type: ignore[no-untyped-def]
    """FIN and RST, and responses that were held long enough."""
    C = st.C
    D = st.D
    flags = g[row, FLAGS]
    if flags & RST:
        if C[c, C_END] == END_OPEN:
            C[c, C_END] = END_RST
    elif flags & FIN and D[s, D_STARTED] > 0:
        D[s, D_FIN] = unwrap((g[row, SEQ] + g[row, WIRE]) & 0xFFFFFFFF, D[s, D_NEXT])
    if C[c, C_END] == END_OPEN and D[s, D_FIN] >= 0 and D[s ^ 1, D_FIN] >= 0:
        C[c, C_END] = END_FIN
    if C[c, C_HELD] > 0:
        release_held(st, c, False)


@kernel
def run(st, g, order, n, E):  # type: ignore[no-untyped-def]
    """Drive the first `n` rows of `order` (rows of `g`) from where the last call stopped; True when all are done."""
    K = st.K
    i = K[K_RESUME]
    while i < n:
        if not roomy(st, E):
            K[K_RESUME] = i
            return False
        row = order[i]
        stream = g[row, STREAM]
        c = st.conn_of[stream >> 1]
        if K[K_PHASE] == 1:
            s = 2 * c + (stream & 1)
            if not _advance(st, c, s, E, False) or not _advance(st, c, s ^ 1, E, False):
                K[K_RESUME] = i
                return False
            _endings(st, g, row, c, s)
            K[K_PHASE] = 0
            i += 1
            continue
        if c >= 0:
            why = _begins_anew(st, g, row, c)
            if why != END_OPEN:
                if not finish(st, c, why, E):
                    K[K_RESUME] = i
                    return False
                c = np.int64(-1)
                if not roomy(st, E):
                    K[K_RESUME] = i
                    return False
        if c < 0:
            c = _open(st, g, row)
        if not _packet(st, g, row, c, 2 * c + (stream & 1), E):
            K[K_RESUME] = i
            K[K_PHASE] = 1
            return False
        i += 1
    K[K_RESUME] = 0
    return True


@kernel
def finish_some(st, which, begin, E, reason):  # type: ignore[no-untyped-def]
    """Finish the connections `which[begin:]` (rows of C); returns where it stopped."""
    i = begin
    while i < which.size:
        if not roomy(st, E):
            return i
        if not finish(st, which[i], reason, E):
            return i
        i += 1
    return i


@kernel
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


@kernel
def release_nodes(st, n):  # type: ignore[no-untyped-def]
    """Free the pieces of the first `n` exchanges' frames."""
    for row in range(n):
        for x in (X_REQUEST, X_RESPONSE):
            node = st.X[row, x + X_F_HEAD]
            while node >= 0:
                following = st.N[node, N_NEXT]
                give_node(st.N, st.K, node)
                node = following
            st.X[row, x + X_F_HEAD] = -1
