"""A complete frame becomes a request that waits, or a response that finds its request.

The rules:

- A broker answers the requests of one connection in the order in which they came, so a response belongs to the oldest
  waiting request with its correlation id; requests in front of that one will not be answered any more (`unanswered`).
- Ids repeat (0.8's SimpleConsumer always sends 0), so order decides, never the id alone.
- Produce with acks=0 is never answered: it is finished at once (`no_response`).
- A response can be captured before its own request. Unmatched ones are held for HOLD_PACKETS packets of the connection
  before they are called orphans.
- After SaslHandshake v0 was answered, frames are bare tokens of the mechanism until one reads as a Kafka request again.
- A frame with bytes missing is `partial`; its last byte's time is unknown when bytes were never captured, but known when a
  snap length cut them (they did arrive).
"""

from __future__ import annotations

import numpy as np

from kdissect._kernel import kernel
from kdissect.kafka.state import (
    R_API,
    R_AT,
    R_BODY,
    R_BYTES,
    R_CLIENT,
    R_CORRELATION,
    R_CUT,
    R_FIRST,
    R_HEAD,
    R_IN_FLIGHT,
    R_LAST,
    R_LENGTH,
    R_MISSING,
    R_N,
    R_NEXT,
    R_PACKET,
    R_PACKETS,
    R_VERSION,
    TOKEN,
    X_API,
    X_CLIENT,
    X_CONNECTION,
    X_CORRELATION,
    X_DIRECTION,
    X_IN_FLIGHT,
    X_N,
    X_ORPHAN,
    X_QUEUED_FROM,
    X_REQUEST,
    X_RESPONSE,
    X_STATUS,
    X_VERSION,
    be16,
    be32,
    copy_out,
    place,
    problem,
    signed32,
    uvarint,
)
from kdissect.tcp.layout import (
    C_ANSWERED_LAST,
    C_CLIENT,
    C_CLIENT_ID,
    C_EXCHANGES,
    C_HELD,
    C_HELD_HEAD,
    C_NUMBER,
    C_ORPHANS,
    C_PACKETS,
    C_REQUEST_HEAD,
    C_REQUEST_TAIL,
    C_REQUESTS,
    C_REQUESTS_OPEN,
    C_SASL,
    C_TOKENS,
    D_AT,
    D_CUT,
    D_FIRST,
    D_HEAD,
    D_LATEST,
    D_LENGTH,
    D_MISSING,
    D_NEED,
    D_NEXT,
    D_PACKET,
    D_PACKETS,
    D_SIZE,
    K_CLIENT_BYTES,
    K_CLIENT_IDS,
    K_OUT,
    K_REQUEST_FREE,
    K_REQUESTS_LEFT,
    N_AT,
    N_LENGTH,
    N_NEXT,
    NULL,
    SASL_ASKED,
    SASL_BARE,
    SASL_NONE,
)

HEAD_BYTES = 1280
"""Bytes of a frame that are looked at to read its header: an id of 1,024 bytes and its tags fit (Kafka's own clients send
far shorter ones; a longer id is shown as null and the body is not decoded)."""
HOLD_PACKETS = 64
"""How many packets of its connection a response waits for a request that was captured late; see GAP_PACKETS."""
HELD = 64
"""Responses held per connection at most; the oldest becomes an orphan."""
MAX_WAITING = 8192
"""Requests waiting per connection at most (Kafka's clients keep 5 in flight, librdkafka up to 1,000,000 by setting but a
broker reads one at a time); the oldest is finished as never answered."""
MAX_SKIPPED = 1024
"""How far behind the oldest waiting request a response's id is looked for."""

OK, ORPHAN, PARTIAL, NO_RESPONSE, ONE_WAY, UNANSWERED, PENDING = 4, 0, 1, 5, 6, 7, 8
"""Codes of `kdissect.kafka.completed.STATUS`; what a body says about errors is added after decoding."""

KIND_ORPHAN, KIND_BAD_HEADER, KIND_UNKNOWN_VERSION, KIND_UNKNOWN_API = 6, 14, 8, 9

PRODUCE, CONTROLLED_SHUTDOWN, SASL_HANDSHAKE, API_VERSIONS = 0, 7, 17, 18


@kernel
def client_code(st, buf, o, n):  # type: ignore[no-untyped-def]
    """The code of a client id, new ones are added; -1 when there is no room."""
    h = np.int64(1469598103)
    for q in range(n):
        h = ((h ^ np.int64(buf[o + q])) * 16777619) & 0x7FFFFFFF
    mask = st.name_table.size - 1
    ends = st.name_ends
    h &= mask
    while st.name_table[h] >= 0:
        code = st.name_table[h]
        a = ends[code]
        if ends[code + 1] - a == n:
            same = True
            for q in range(n):
                if st.names[a + q] != buf[o + q]:
                    same = False
                    break
            if same:
                return code
        h = (h + 1) & mask
    code = st.K[K_CLIENT_IDS]
    a = st.K[K_CLIENT_BYTES]
    if (code + 2) * 2 > st.name_table.size or code + 2 > ends.size or a + n > st.names.size:
        return np.int64(-1)
    for q in range(n):
        st.names[a + q] = buf[o + q]
    ends[code + 1] = a + n
    st.name_table[h] = code
    st.K[K_CLIENT_IDS] = code + 1
    st.K[K_CLIENT_BYTES] = a + n
    return code


@kernel
def after_tags(buf, o, e):  # type: ignore[no-untyped-def]
    """Offset behind a tag buffer (KIP-482), -1 when it does not end before `e`."""
    count, o = uvarint(buf, o, e)
    while o >= 0 and count > 0:
        _, o = uvarint(buf, o, e)
        if o < 0:
            return o
        size, o = uvarint(buf, o, e)
        if o < 0 or size > e - o:
            return np.int64(-1)
        o += size
        count -= 1
    return o


@kernel
def request_body(st, buf, o, e, api, version):  # type: ignore[no-untyped-def]
    """Offset in `buf` of the message behind a request's header (`o` is the frame without its prefix), -1 unknown."""
    if api == CONTROLLED_SHUTDOWN and version == 0:
        return np.int64(o + 8)
    if e - o < 10:
        return np.int64(-1)
    n = be16(buf, o + 8)
    p = o + 10
    if n < 0x8000:
        if n > e - p:
            return np.int64(-1)
        p += n
    if api < st.flexible.shape[0] and version >= st.flexible[api, 0]:
        return after_tags(buf, p, e)
    return np.int64(p)


@kernel
def response_body(st, buf, o, e, api, version):  # type: ignore[no-untyped-def]
    """Offset in `buf` of the message behind a response's header, -1 unknown."""
    if e - o < 4:
        return np.int64(-1)
    if api < st.flexible.shape[0] and api != API_VERSIONS and version >= st.flexible[api, 1]:
        return after_tags(buf, o + 4, e)
    return np.int64(o + 4)


@kernel
def acks_of(buf, o, e, version):  # type: ignore[no-untyped-def]
    """The acks of a Produce request whose message begins at `o`; 1 when they are out of reach."""
    if version >= 9:
        n, o = uvarint(buf, o, e)
        if o < 0:
            return np.int64(1)
        if n > 1:
            o += n - 1
    elif version >= 3:
        if o + 2 > e:
            return np.int64(1)
        n = be16(buf, o)
        o += 2
        if n < 0x8000:
            o += n
    if o + 2 > e:
        return np.int64(1)
    return be16(buf, o)


@kernel
def frame_head(st, s):  # type: ignore[no-untyped-def]
    """The first bytes of the direction's current frame in `st.head`; how many there are."""
    D = st.D
    if D[s, D_AT] >= 0:
        n = min(D[s, D_LENGTH], HEAD_BYTES)
        return n if copy_out(st, D[s, D_AT], n, st.head, 0) else np.int64(0)
    w = np.int64(0)
    node = D[s, D_HEAD]
    while node >= 0 and w < HEAD_BYTES:
        if st.N[node, N_AT] < 0:
            break
        n = min(st.N[node, N_LENGTH], HEAD_BYTES - w)
        if not copy_out(st, st.N[node, N_AT], n, st.head, w):
            break
        w += n
        node = st.N[node, N_NEXT]
    return w


@kernel
def _frame_columns(st, s, row, x, body):  # type: ignore[no-untyped-def]
    """Write the direction's current frame into ten columns of X; the frame's nodes now belong to that row."""
    D = st.D
    X = st.X
    X[row, x] = D[s, D_FIRST]
    unknown = D[s, D_MISSING] > 0 or D[s, D_NEED] > 0
    X[row, x + 1] = NULL if unknown else D[s, D_LATEST]
    X[row, x + 2] = D[s, D_SIZE] + 4
    X[row, x + 3] = D[s, D_PACKET]
    X[row, x + 4] = D[s, D_AT]
    X[row, x + 5] = D[s, D_LENGTH]
    X[row, x + 6] = D[s, D_HEAD]
    X[row, x + 7] = body
    X[row, x + 8] = D[s, D_MISSING] + max(D[s, D_NEED], 0)
    X[row, x + 9] = D[s, D_CUT]


@kernel
def _no_frame(st, row, x):  # type: ignore[no-untyped-def]
    X = st.X
    X[row, x] = NULL
    X[row, x + 1] = NULL
    for q in range(2, 10):
        X[row, x + q] = -1
    X[row, x + 8] = 0
    X[row, x + 9] = 0


@kernel
def _request_columns(st, r, row):  # type: ignore[no-untyped-def]
    R = st.R
    X = st.X
    x = X_REQUEST
    X[row, x] = R[r, R_FIRST]
    X[row, x + 1] = R[r, R_LAST]
    X[row, x + 2] = R[r, R_BYTES]
    X[row, x + 3] = R[r, R_PACKET]
    X[row, x + 4] = R[r, R_AT]
    X[row, x + 5] = R[r, R_LENGTH]
    X[row, x + 6] = R[r, R_HEAD]
    X[row, x + 7] = R[r, R_BODY]
    X[row, x + 8] = R[r, R_MISSING]
    X[row, x + 9] = R[r, R_CUT]
    X[row, X_N] = R[r, R_N]
    X[row, X_ORPHAN] = 0
    X[row, X_API] = R[r, R_API]
    X[row, X_VERSION] = R[r, R_VERSION]
    X[row, X_CORRELATION] = R[r, R_CORRELATION]
    X[row, X_CLIENT] = R[r, R_CLIENT]
    X[row, X_IN_FLIGHT] = R[r, R_IN_FLIGHT]


@kernel
def _new_row(st, c):  # type: ignore[no-untyped-def]
    row = st.K[K_OUT]
    st.K[K_OUT] = row + 1
    st.X[row, X_CONNECTION] = st.C[c, C_NUMBER]
    st.X[row, X_QUEUED_FROM] = NULL
    st.X[row, X_DIRECTION] = st.C[c, C_CLIENT]
    st.C[c, C_EXCHANGES] += 1
    return row


@kernel
def _free_request(st, r):  # type: ignore[no-untyped-def]
    st.R[r, R_BYTES] = 0
    st.R[r, R_NEXT] = st.K[K_REQUEST_FREE]
    st.K[K_REQUEST_FREE] = r
    st.K[K_REQUESTS_LEFT] += 1


@kernel
def _take_request(st):  # type: ignore[no-untyped-def]
    r = st.K[K_REQUEST_FREE]
    st.K[K_REQUEST_FREE] = st.R[r, R_NEXT]
    st.K[K_REQUESTS_LEFT] -= 1
    st.R[r, R_NEXT] = -1
    return r


@kernel
def without_response(st, c, r, final):  # type: ignore[no-untyped-def]
    """Finish the oldest waiting request `r` (already off the list) as never answered."""
    row = _new_row(st, c)
    _request_columns(st, r, row)
    _no_frame(st, row, X_RESPONSE)
    answering = 2 * c + 1 - st.C[c, C_CLIENT]
    if st.D[answering, D_PACKETS] == 0:
        status = ONE_WAY
    elif st.R[r, R_MISSING] > 0 or st.R[r, R_CUT] > 0:
        status = PARTIAL
    elif final:
        status = PENDING
    else:
        status = UNANSWERED
    st.X[row, X_STATUS] = status
    _free_request(st, r)


@kernel
def pop_request(st, c):  # type: ignore[no-untyped-def]
    """Take the oldest waiting request off the list, -1 when there is none."""
    C = st.C
    r = C[c, C_REQUEST_HEAD]
    if r >= 0:
        C[c, C_REQUEST_HEAD] = st.R[r, R_NEXT]
        if C[c, C_REQUEST_HEAD] < 0:
            C[c, C_REQUEST_TAIL] = -1
        C[c, C_REQUESTS_OPEN] -= 1
    return r


@kernel
def _answer_columns(st, c, row, answered_last):  # type: ignore[no-untyped-def]
    """Queueing and status of a row that has a response."""
    X = st.X
    X[row, X_QUEUED_FROM] = st.C[c, C_ANSWERED_LAST]
    q = X_REQUEST + 8
    s = X_RESPONSE + 8
    damaged = X[row, q] > 0 or X[row, q + 1] > 0 or X[row, s] > 0 or X[row, s + 1] > 0
    X[row, X_STATUS] = PARTIAL if damaged else OK
    if answered_last != NULL:
        st.C[c, C_ANSWERED_LAST] = answered_last


@kernel
def _held_columns(st, h, row):  # type: ignore[no-untyped-def]
    """A held response's frame into X."""
    R = st.R
    X = st.X
    x = X_RESPONSE
    X[row, x] = R[h, R_FIRST]
    X[row, x + 1] = R[h, R_LAST]
    X[row, x + 2] = R[h, R_BYTES]
    X[row, x + 3] = R[h, R_PACKET]
    X[row, x + 4] = R[h, R_AT]
    X[row, x + 5] = R[h, R_LENGTH]
    X[row, x + 6] = R[h, R_HEAD]
    X[row, x + 8] = R[h, R_MISSING]
    X[row, x + 9] = R[h, R_CUT]


@kernel
def orphan(st, c, h):  # type: ignore[no-untyped-def]
    """Finish a held response (already off the list) as one whose request was not captured."""
    row = _new_row(st, c)
    X = st.X
    _no_frame(st, row, X_REQUEST)
    _held_columns(st, h, row)
    X[row, X_RESPONSE + 7] = -1
    X[row, X_N] = st.C[c, C_ORPHANS]
    X[row, X_ORPHAN] = 1
    X[row, X_API] = -1
    X[row, X_VERSION] = -1
    X[row, X_CORRELATION] = st.R[h, R_CORRELATION]
    X[row, X_CLIENT] = -1
    X[row, X_IN_FLIGHT] = -1
    X[row, X_STATUS] = ORPHAN
    st.C[c, C_ORPHANS] += 1
    if st.R[h, R_LAST] != NULL:
        st.C[c, C_ANSWERED_LAST] = st.R[h, R_LAST]
    direction = 1 - st.C[c, C_CLIENT]
    problem(st, KIND_ORPHAN, c, st.C[c, C_NUMBER], st.R[h, R_FIRST], st.R[h, R_PACKET], direction,
            st.D[2 * c + direction, D_NEXT], st.R[h, R_BYTES], st.R[h, R_CORRELATION])
    _free_request(st, h)


@kernel
def release_held(st, c, everything):  # type: ignore[no-untyped-def]
    """Responses held too long become orphans."""
    C = st.C
    while C[c, C_HELD_HEAD] >= 0:
        h = C[c, C_HELD_HEAD]
        late = C[c, C_PACKETS] - st.R[h, R_PACKETS] >= HOLD_PACKETS
        if not (everything or late or C[c, C_HELD] > HELD):
            return
        C[c, C_HELD_HEAD] = st.R[h, R_NEXT]
        C[c, C_HELD] -= 1
        orphan(st, c, h)


@kernel
def _meet_held(st, c, r):  # type: ignore[no-untyped-def]
    """A request that was captured after its response; True when one was waiting for it."""
    C = st.C
    R = st.R
    before = np.int64(-1)
    h = C[c, C_HELD_HEAD]
    while h >= 0:
        if R[h, R_CORRELATION] == R[r, R_CORRELATION] and R[h, R_FIRST] != NULL:
            if before >= 0:
                R[before, R_NEXT] = R[h, R_NEXT]
            else:
                C[c, C_HELD_HEAD] = R[h, R_NEXT]
            C[c, C_HELD] -= 1
            row = _new_row(st, c)
            _request_columns(st, r, row)
            _held_columns(st, h, row)
            st.X[row, X_RESPONSE + 7] = -2
            _answer_columns(st, c, row, R[h, R_LAST])
            _free_request(st, h)
            _free_request(st, r)
            return True
        before = h
        h = R[h, R_NEXT]
    return False


@kernel
def text_like(buf, o, n):  # type: ignore[no-untyped-def]
    """No control characters: what a client id looks like."""
    for q in range(n):
        x = buf[o + q]
        if x < 32 or x == 127:
            return False
    return True


@kernel
def known_header(st, buf, o, have, size):  # type: ignore[no-untyped-def]
    """Whether the first bytes of a frame read as the header of a request whose API and version we know."""
    if have < 8 or size < 8:
        return False
    api = be16(buf, o)
    version = be16(buf, o + 2)
    if api >= st.table.shape[0] or version >= st.table.shape[1] or st.table[api, version, 0] < 0:
        return False
    if api == CONTROLLED_SHUTDOWN and version == 0:
        return True
    if have < 10:
        return False
    n = be16(buf, o + 8)
    if n >= 0x8000:
        return n == 0xFFFF
    return n <= size - 10 and text_like(buf, o + 10, min(n, have - 10))


@kernel
def _token(st, c, s, direction):  # type: ignore[no-untyped-def]
    """A bare SASL token: kept apart from exchanges."""
    row = _new_row(st, c)
    st.C[c, C_EXCHANGES] -= 1
    X = st.X
    _no_frame(st, row, X_REQUEST)
    _no_frame(st, row, X_RESPONSE)
    _frame_columns(st, s, row, X_REQUEST if direction == 0 else X_RESPONSE, 0)
    X[row, X_N] = st.C[c, C_TOKENS]
    X[row, X_ORPHAN] = direction
    X[row, X_API] = -1
    X[row, X_VERSION] = -1
    X[row, X_CORRELATION] = 0
    X[row, X_CLIENT] = -1
    X[row, X_IN_FLIGHT] = -1
    X[row, X_STATUS] = TOKEN
    st.C[c, C_TOKENS] += 1


@kernel
def request_complete(st, c, s):  # type: ignore[no-untyped-def]
    """The direction's current frame is a request (as much of it as will ever come)."""
    C = st.C
    D = st.D
    R = st.R
    size = D[s, D_SIZE]
    have = frame_head(st, s)
    buf = st.head
    if C[c, C_SASL] == SASL_BARE:
        if not known_header(st, buf, 0, have, size):
            _token(st, c, s, 0)
            return
        C[c, C_SASL] = SASL_NONE
    if have < 8:
        problem(st, KIND_BAD_HEADER, c, C[c, C_NUMBER], D[s, D_FIRST], D[s, D_PACKET], s & 1, D[s, D_NEXT], size + 4, -1)
        _token(st, c, s, 0)
        return
    api = be16(buf, 0)
    version = be16(buf, 2)
    body = request_body(st, buf, 0, have, api, version)
    client = np.int64(-1)
    if have >= 10 and not (api == CONTROLLED_SHUTDOWN and version == 0):
        n = be16(buf, 8)
        if n < 0x8000 and n <= have - 10:
            client = client_code(st, buf, 10, n)
    if C[c, C_CLIENT_ID] < 0:
        C[c, C_CLIENT_ID] = client
    if C[c, C_REQUESTS_OPEN] >= MAX_WAITING:
        without_response(st, c, pop_request(st, c), False)
    r = _take_request(st)
    R[r, R_API] = api
    R[r, R_VERSION] = version
    R[r, R_CORRELATION] = signed32(buf, 4)
    R[r, R_CLIENT] = client
    R[r, R_FIRST] = D[s, D_FIRST]
    R[r, R_LAST] = NULL if D[s, D_MISSING] > 0 or D[s, D_NEED] > 0 else D[s, D_LATEST]
    R[r, R_BYTES] = size + 4
    R[r, R_PACKET] = D[s, D_PACKET]
    R[r, R_AT] = D[s, D_AT]
    R[r, R_LENGTH] = D[s, D_LENGTH]
    R[r, R_HEAD] = D[s, D_HEAD]
    R[r, R_BODY] = body
    R[r, R_MISSING] = D[s, D_MISSING] + max(D[s, D_NEED], 0)
    R[r, R_CUT] = D[s, D_CUT]
    R[r, R_N] = C[c, C_REQUESTS]
    C[c, C_REQUESTS] += 1
    R[r, R_IN_FLIGHT] = C[c, C_REQUESTS_OPEN] + 1
    R[r, R_PACKETS] = C[c, C_PACKETS]
    if api == SASL_HANDSHAKE and version == 0:
        C[c, C_SASL] = SASL_ASKED
    if api == PRODUCE and body >= 0 and acks_of(buf, body, have, version) == 0:
        row = _new_row(st, c)
        _request_columns(st, r, row)
        _no_frame(st, row, X_RESPONSE)
        damaged = R[r, R_MISSING] > 0 or R[r, R_CUT] > 0
        st.X[row, X_STATUS] = PARTIAL if damaged else NO_RESPONSE
        _free_request(st, r)
        return
    if C[c, C_HELD] > 0 and _meet_held(st, c, r):
        return
    if C[c, C_REQUEST_TAIL] >= 0:
        R[C[c, C_REQUEST_TAIL], R_NEXT] = r
    else:
        C[c, C_REQUEST_HEAD] = r
    C[c, C_REQUEST_TAIL] = r
    C[c, C_REQUESTS_OPEN] += 1


@kernel
def waiting_with(st, c, correlation):  # type: ignore[no-untyped-def]
    """The oldest waiting request with a correlation id, -1 when there is none near the front."""
    r = st.C[c, C_REQUEST_HEAD]
    steps = 0
    while r >= 0 and steps < MAX_SKIPPED:
        if st.R[r, R_CORRELATION] == correlation:
            return r
        r = st.R[r, R_NEXT]
        steps += 1
    return np.int64(-1)


@kernel
def response_complete(st, c, s):  # type: ignore[no-untyped-def]
    """The direction's current frame is a response (as much of it as will ever come)."""
    C = st.C
    D = st.D
    R = st.R
    have = frame_head(st, s)
    buf = st.head
    if have < 4:
        problem(st, KIND_BAD_HEADER, c, C[c, C_NUMBER], D[s, D_FIRST], D[s, D_PACKET], s & 1, D[s, D_NEXT],
                D[s, D_SIZE] + 4, -1)
        _token(st, c, s, 1)
        return
    correlation = signed32(buf, 0)
    r = waiting_with(st, c, correlation)
    if r < 0 and C[c, C_SASL] == SASL_BARE:
        _token(st, c, s, 1)
        return
    if r < 0:
        h = _take_request(st)
        R[h, R_CORRELATION] = correlation
        R[h, R_FIRST] = D[s, D_FIRST]
        R[h, R_LAST] = NULL if D[s, D_MISSING] > 0 or D[s, D_NEED] > 0 else D[s, D_LATEST]
        R[h, R_BYTES] = D[s, D_SIZE] + 4
        R[h, R_PACKET] = D[s, D_PACKET]
        R[h, R_AT] = D[s, D_AT]
        R[h, R_LENGTH] = D[s, D_LENGTH]
        R[h, R_HEAD] = D[s, D_HEAD]
        R[h, R_MISSING] = D[s, D_MISSING] + max(D[s, D_NEED], 0)
        R[h, R_CUT] = D[s, D_CUT]
        R[h, R_PACKETS] = C[c, C_PACKETS]
        tail = C[c, C_HELD_HEAD]
        if tail < 0:
            C[c, C_HELD_HEAD] = h
        else:
            while R[tail, R_NEXT] >= 0:
                tail = R[tail, R_NEXT]
            R[tail, R_NEXT] = h
        C[c, C_HELD] += 1
        release_held(st, c, False)
        return
    while True:
        first = pop_request(st, c)
        if first == r:
            break
        without_response(st, c, first, False)
    api = R[r, R_API]
    version = R[r, R_VERSION]
    row = _new_row(st, c)
    _request_columns(st, r, row)
    body = response_body(st, buf, 0, have, api, version)
    _frame_columns(st, s, row, X_RESPONSE, body)
    _answer_columns(st, c, row, st.X[row, X_RESPONSE + 1])
    if C[c, C_SASL] == SASL_ASKED and api == SASL_HANDSHAKE and have >= 6 and be16(buf, 4) == 0:
        C[c, C_SASL] = SASL_BARE
    _free_request(st, r)


@kernel
def client_matches(st, c, buf, o, have):  # type: ignore[no-untyped-def]
    """Whether a request header (frame without prefix at `o`) carries the client id that this connection is known by."""
    code = st.C[c, C_CLIENT_ID]
    if code < 0 or have < 10:
        return False
    n = be16(buf, o + 8)
    a = st.name_ends[code]
    if n >= 0x8000 or n == 0 or n > have - 10 or st.name_ends[code + 1] - a != n:
        return False
    for q in range(n):
        if st.names[a + q] != buf[o + 10 + q]:
            return False
    return True
