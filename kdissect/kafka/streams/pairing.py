"""A complete frame becomes a request that waits, or a response that finds its request.

The rules:

- A broker answers the requests of one connection in the order in which they came, so a response belongs to the oldest
  waiting request with its correlation id; requests in front of that one will not be answered any more (`unanswered`).
- Ids repeat (0.8's SimpleConsumer always sends 0), so order decides, never the id alone.
- Produce with acks=0 is never answered: it is finished at once (`no_response`).
- A response can be captured before its own request. Unmatched ones are held for HOLD_PACKETS packets of the connection,
  and while earlier requests wait behind a hole, before they are called orphans.
- After SaslHandshake v0 was answered, frames are bare tokens of the mechanism until one reads as a Kafka request again.
- A request that was not answered before bytes of the other direction were lost is `partial`: its answer may be among
  them.
- A frame with bytes missing is `partial`; its last byte's time is unknown when bytes were never captured, but known
  when a snap length cut them (they did arrive).
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams.state import (
    FLEXIBLE,
    HEAD,
    HEAD_BYTES,
    KEPT,
    KEYS,
    MAX_NAMES,
    NAME_BYTES,
    NAME_ENDS,
    NAME_SLOTS,
    NAME_TABLE,
    NAMES,
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
    X_BASE,
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
    X_WIDTH,
    be16,
    copy_out,
    direction_of,
    place,
    problem,
    program_of,
    signed32,
    uvarint,
)
from kdissect.kernels.kernel import part
from kdissect.tcp.layout import (
    C_ANSWERED_LAST,
    C_CLIENT,
    C_CLIENT_ID,
    C_END,
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
    C_UNORDERED,
    CAPTURE_ENDED,
    D_AHEAD_HEAD,
    D_AT,
    D_CUT,
    D_FIRST,
    D_HEAD,
    D_LATEST,
    D_LENGTH,
    D_LOST,
    D_MISSING,
    D_NEED,
    D_NEXT,
    D_PACKET,
    D_PACKETS,
    D_SIDE,
    D_SIZE,
    END_OPEN,
    K_CLIENT_BYTES,
    K_CLIENT_IDS,
    K_FINAL,
    K_OUT,
    K_REQUEST_FREE,
    K_REQUESTS_LEFT,
    N_AT,
    N_LENGTH,
    N_NEXT,
    N_PACKET,
    N_TIME,
    NULL,
    RUNNING,
    SASL_ASKED,
    SASL_BARE,
    SASL_NONE,
)

HOLD_PACKETS = 64
"""How many packets of its connection a response waits for a request that was captured late; see GAP_PACKETS."""
HELD = 256
"""Responses held per connection at most; the oldest becomes an orphan."""
MAX_WAITING = 8192
"""Requests waiting per connection at most (Kafka's clients keep 5 in flight, librdkafka up to 1,000,000 by setting
but a broker reads one at a time); the oldest is finished as never answered."""
NEXT_FEW = 16
"""Waiting requests that are looked at for captures out of order: packets change places over short distances only."""
MAX_SKIPPED = 1024
"""How far behind the oldest waiting request a response's id is looked for."""

OK, ORPHAN, PARTIAL, NO_RESPONSE, ONE_WAY, UNANSWERED, PENDING = 4, 0, 1, 5, 6, 7, 8
"""Codes of `kdissect.kafka.exchanges.completed.STATUS`; what a body says about errors is added after decoding."""

KIND_ORPHAN, KIND_BAD_HEADER, KIND_UNKNOWN_VERSION, KIND_UNKNOWN_API = 6, 14, 8, 9

PRODUCE, CONTROLLED_SHUTDOWN, SASL_HANDSHAKE, API_VERSIONS = 0, 7, 17, 18


@part
def _is_name(M, A, code, buf, o, n):  # type: ignore[no-untyped-def]
    """Whether the client id of this code is `buf[o:o + n]`."""
    a = M[NAME_ENDS + code]
    if M[NAME_ENDS + code + 1] - a != n:
        return False
    q = 0
    while q < n and A[NAMES + a + q] == buf[o + q]:
        q += 1
    return q == n


@part
def client_code(M, A, c, buf, o, n):  # type: ignore[no-untyped-def]
    """The code of the client id at `buf[o:o + n]`, new ones are added; -1 when there is no room."""
    code = M[c + C_CLIENT_ID]
    if code >= 0 and _is_name(M, A, code, buf, o, n):
        return code
    h = np.int64(1469598103)
    for q in range(n):
        h = ((h ^ np.int64(buf[o + q])) * 16777619) & 0x7FFFFFFF
    mask = NAME_SLOTS - 1
    h &= mask
    while M[NAME_TABLE + h] >= 0:
        code = M[NAME_TABLE + h]
        if _is_name(M, A, code, buf, o, n):
            return code
        h = (h + 1) & mask
    code = M[K_CLIENT_IDS]
    a = M[K_CLIENT_BYTES]
    if code >= MAX_NAMES or a + n > NAME_BYTES:
        return np.int64(-1)
    for q in range(n):
        A[NAMES + a + q] = buf[o + q]
    M[NAME_ENDS + code + 1] = a + n
    M[NAME_TABLE + h] = code
    M[K_CLIENT_IDS] = code + 1
    M[K_CLIENT_BYTES] = a + n
    return code


@part
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


@part
def request_body(M, buf, o, e, api, version):  # type: ignore[no-untyped-def]
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
    if api < KEYS and version >= M[FLEXIBLE + 2 * api + 0]:
        return after_tags(buf, p, e)
    return np.int64(p)


@part
def response_body(M, buf, o, e, api, version):  # type: ignore[no-untyped-def]
    """Offset in `buf` of the message behind a response's header, -1 unknown."""
    if e - o < 4:
        return np.int64(-1)
    if api < KEYS and api != API_VERSIONS and version >= M[FLEXIBLE + 2 * api + 1]:
        return after_tags(buf, o + 4, e)
    return np.int64(o + 4)


@part
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


@part
def _head_place(M, s):  # type: ignore[no-untyped-def]
    """Where the direction's current frame lies in the window, -1 when it does not lie there in one piece."""
    at = M[s + D_AT]
    return place(M, at) if 0 <= at < KEPT else np.int64(-1)


@part
def frame_head(M, b, A, s):  # type: ignore[no-untyped-def]
    """The first bytes of the direction's current frame at `A[HEAD:]`; how many there are."""
    if M[s + D_AT] >= 0:
        n = min(M[s + D_LENGTH], HEAD_BYTES)
        return n if copy_out(M, b, A, M[s + D_AT], n, A, HEAD) else np.int64(0)
    w = np.int64(0)
    node = M[s + D_HEAD]
    while node >= 0 and w < HEAD_BYTES:
        if M[node + N_AT] < 0:
            break
        n = min(M[node + N_LENGTH], HEAD_BYTES - w)
        if not copy_out(M, b, A, M[node + N_AT], n, A, HEAD + w):
            break
        w += n
        node = M[node + N_NEXT]
    return w


@part
def _frame_columns(M, s, f, body):  # type: ignore[no-untyped-def]
    """Write the direction's current frame into ten columns of X; the frame's nodes now belong to that row."""
    M[f] = M[s + D_FIRST]
    unknown = M[s + D_MISSING] > 0 or M[s + D_NEED] > 0
    M[f + 1] = NULL if unknown else M[s + D_LATEST]
    M[f + 2] = M[s + D_SIZE] + 4
    M[f + 3] = M[s + D_PACKET]
    M[f + 4] = M[s + D_AT]
    M[f + 5] = M[s + D_LENGTH]
    M[f + 6] = M[s + D_HEAD]
    M[f + 7] = body
    M[f + 8] = M[s + D_MISSING] + max(M[s + D_NEED], 0)
    M[f + 9] = M[s + D_CUT]


@part
def _no_frame(M, f):  # type: ignore[no-untyped-def]
    M[f] = NULL
    M[f + 1] = NULL
    for q in range(2, 10):
        M[f + q] = -1
    M[f + 8] = 0
    M[f + 9] = 0


@part
def _request_columns(M, r, row):  # type: ignore[no-untyped-def]
    x = X_REQUEST
    M[row + x] = M[r + R_FIRST]
    M[row + x + 1] = M[r + R_LAST]
    M[row + x + 2] = M[r + R_BYTES]
    M[row + x + 3] = M[r + R_PACKET]
    M[row + x + 4] = M[r + R_AT]
    M[row + x + 5] = M[r + R_LENGTH]
    M[row + x + 6] = M[r + R_HEAD]
    M[row + x + 7] = M[r + R_BODY]
    M[row + x + 8] = M[r + R_MISSING]
    M[row + x + 9] = M[r + R_CUT]
    M[row + X_N] = M[r + R_N]
    M[row + X_ORPHAN] = 0
    M[row + X_API] = M[r + R_API]
    M[row + X_VERSION] = M[r + R_VERSION]
    M[row + X_CORRELATION] = M[r + R_CORRELATION]
    M[row + X_CLIENT] = M[r + R_CLIENT]
    M[row + X_IN_FLIGHT] = M[r + R_IN_FLIGHT]


@part
def _new_row(M, c):  # type: ignore[no-untyped-def]
    row = X_BASE + M[K_OUT] * X_WIDTH
    M[K_OUT] += 1
    M[row + X_CONNECTION] = M[c + C_NUMBER]
    M[row + X_QUEUED_FROM] = NULL
    M[row + X_DIRECTION] = M[c + C_CLIENT]
    M[c + C_EXCHANGES] += 1
    return row


@part
def _free_request(M, r):  # type: ignore[no-untyped-def]
    M[r + R_BYTES] = 0
    M[r + R_NEXT] = M[K_REQUEST_FREE]
    M[K_REQUEST_FREE] = r
    M[K_REQUESTS_LEFT] += 1


@part
def _take_request(M):  # type: ignore[no-untyped-def]
    r = M[K_REQUEST_FREE]
    M[K_REQUEST_FREE] = M[r + R_NEXT]
    M[K_REQUESTS_LEFT] -= 1
    M[r + R_NEXT] = -1
    return r


@part
def without_response(M, c, r):  # type: ignore[no-untyped-def]
    """Finish the oldest waiting request `r` (already off the list) as never answered."""
    row = _new_row(M, c)
    _request_columns(M, r, row)
    _no_frame(M, row + X_RESPONSE)
    answering = direction_of(c, 1 - M[c + C_CLIENT])
    if M[answering + D_PACKETS] == 0:
        status = ONE_WAY
    elif M[r + R_MISSING] > 0 or M[r + R_CUT] > 0 or M[answering + D_LOST] >= M[r + R_PACKETS]:
        status = PARTIAL
    elif M[K_FINAL] == CAPTURE_ENDED and M[c + C_END] == END_OPEN:
        status = PENDING
    else:
        status = UNANSWERED
    M[row + X_STATUS] = status
    _free_request(M, r)


@part
def pop_request(M, c):  # type: ignore[no-untyped-def]
    """Take the oldest waiting request off the list, -1 when there is none."""
    r = M[c + C_REQUEST_HEAD]
    if r >= 0:
        M[c + C_REQUEST_HEAD] = M[r + R_NEXT]
        if M[c + C_REQUEST_HEAD] < 0:
            M[c + C_REQUEST_TAIL] = -1
        M[c + C_REQUESTS_OPEN] -= 1
    return r


@part
def _answer_columns(M, c, row, answered_last):  # type: ignore[no-untyped-def]
    """Queueing and status of a row that has a response."""
    M[row + X_QUEUED_FROM] = M[c + C_ANSWERED_LAST]
    q = X_REQUEST + 8
    s = X_RESPONSE + 8
    damaged = M[row + q] > 0 or M[row + q + 1] > 0 or M[row + s] > 0 or M[row + s + 1] > 0
    M[row + X_STATUS] = PARTIAL if damaged else OK
    if answered_last != NULL:
        M[c + C_ANSWERED_LAST] = answered_last


@part
def _held_columns(M, h, row):  # type: ignore[no-untyped-def]
    """A held response's frame into X."""
    x = X_RESPONSE
    M[row + x] = M[h + R_FIRST]
    M[row + x + 1] = M[h + R_LAST]
    M[row + x + 2] = M[h + R_BYTES]
    M[row + x + 3] = M[h + R_PACKET]
    M[row + x + 4] = M[h + R_AT]
    M[row + x + 5] = M[h + R_LENGTH]
    M[row + x + 6] = M[h + R_HEAD]
    M[row + x + 8] = M[h + R_MISSING]
    M[row + x + 9] = M[h + R_CUT]


@part
def orphan(M, c, h):  # type: ignore[no-untyped-def]
    """Finish a held response (already off the list) as one whose request was not captured."""
    row = _new_row(M, c)
    _no_frame(M, row + X_REQUEST)
    _held_columns(M, h, row)
    M[row + X_RESPONSE + 7] = -1
    M[row + X_N] = M[c + C_ORPHANS]
    M[row + X_ORPHAN] = 1
    M[row + X_API] = -1
    M[row + X_VERSION] = -1
    M[row + X_CORRELATION] = M[h + R_CORRELATION]
    M[row + X_CLIENT] = -1
    M[row + X_IN_FLIGHT] = -1
    M[row + X_STATUS] = ORPHAN
    M[c + C_ORPHANS] += 1
    if M[h + R_LAST] != NULL:
        M[c + C_ANSWERED_LAST] = M[h + R_LAST]
    direction = 1 - M[c + C_CLIENT]
    problem(
        M,
        KIND_ORPHAN,
        c,
        direction,
        M[h + R_FIRST],
        M[h + R_PACKET],
        M[h + R_N],
        M[h + R_BYTES],
        M[h + R_CORRELATION],
    )
    _free_request(M, h)


@part
def request_waits(M, s, time, packet):  # type: ignore[no-untyped-def]
    """Whether a request that was sent before `time` may wait behind a hole of its direction `s`, or one that was
    captured before `packet`: two interfaces can have two clocks."""
    node = M[s + D_AHEAD_HEAD]
    steps = 0
    while node >= 0 and steps < NEXT_FEW:
        if M[node + N_TIME] <= time or M[node + N_PACKET] <= packet:
            return True
        node = M[node + N_NEXT]
        steps += 1
    return False


@part
def release_held(M, c):  # type: ignore[no-untyped-def]
    """Responses held too long become orphans."""
    while M[c + C_HELD_HEAD] >= 0:
        h = M[c + C_HELD_HEAD]
        late = M[c + C_PACKETS] - M[h + R_PACKETS] >= HOLD_PACKETS
        late = late and not request_waits(M, direction_of(c, M[c + C_CLIENT]), M[h + R_FIRST], M[h + R_PACKET])
        if not (M[K_FINAL] > RUNNING or late or M[c + C_HELD] > HELD):
            return
        M[c + C_HELD_HEAD] = M[h + R_NEXT]
        M[c + C_HELD] -= 1
        orphan(M, c, h)


@part
def _meet_held(M, c, r):  # type: ignore[no-untyped-def]
    """A request that was captured after its response; True when one was waiting for it."""
    before = np.int64(-1)
    h = M[c + C_HELD_HEAD]
    while h >= 0:
        if M[h + R_CORRELATION] == M[r + R_CORRELATION] and M[h + R_FIRST] != NULL:
            if before >= 0:
                M[before + R_NEXT] = M[h + R_NEXT]
            else:
                M[c + C_HELD_HEAD] = M[h + R_NEXT]
            M[c + C_HELD] -= 1
            row = _new_row(M, c)
            _request_columns(M, r, row)
            _held_columns(M, h, row)
            M[row + X_RESPONSE + 7] = -2
            _answer_columns(M, c, row, M[h + R_LAST])
            _free_request(M, h)
            _free_request(M, r)
            return True
        before = h
        h = M[h + R_NEXT]
    return False


@part
def text_like(buf, o, n):  # type: ignore[no-untyped-def]
    """No control characters: what a client id looks like."""
    for q in range(n):
        x = buf[o + q]
        if x < 32 or x == 127:
            return False
    return True


@part
def known_header(M, A, o, have, size):  # type: ignore[no-untyped-def]
    """Whether the first bytes of a frame read as the header of a request whose API and version we know."""
    if have < 8 or size < 8:
        return False
    api = be16(A, o)
    version = be16(A, o + 2)
    if program_of(M, api, version, 0) < 0:
        return False
    if api == CONTROLLED_SHUTDOWN and version == 0:
        return True
    if have < 10:
        return False
    n = be16(A, o + 8)
    return n == 0xFFFF if n >= 0x8000 else n <= size - 10


@part
def clean_client(A, o, have):  # type: ignore[no-untyped-def]
    """Whether the client id of a request header (or as much of it as is there) is text."""
    n = be16(A, o + 8)
    return n >= 0x8000 or text_like(A, o + 10, min(n, have - 10))


@part
def _token(M, c, s):  # type: ignore[no-untyped-def]
    """A bare SASL token: kept apart from exchanges."""
    direction = 0 if M[s + D_SIDE] == M[c + C_CLIENT] else 1
    row = _new_row(M, c)
    M[c + C_EXCHANGES] -= 1
    _no_frame(M, row + X_REQUEST)
    _no_frame(M, row + X_RESPONSE)
    _frame_columns(M, s, row + (X_REQUEST if direction == 0 else X_RESPONSE), np.int64(0))
    M[row + X_N] = M[c + C_TOKENS]
    M[row + X_ORPHAN] = direction
    M[row + X_API] = -1
    M[row + X_VERSION] = -1
    M[row + X_CORRELATION] = 0
    M[row + X_CLIENT] = -1
    M[row + X_IN_FLIGHT] = -1
    M[row + X_STATUS] = TOKEN
    M[c + C_TOKENS] += 1


@part
def request_complete(M, b, A, c, s):  # type: ignore[no-untyped-def]
    """The direction's current frame is a request (as much of it as will ever come)."""
    o = _head_place(M, s)
    if o >= 0:
        _request(M, A, c, s, b, o, min(M[s + D_LENGTH], HEAD_BYTES))
    else:
        _request(M, A, c, s, A, HEAD, frame_head(M, b, A, s))


@part
def _request(M, A, c, s, buf, o, have):  # type: ignore[no-untyped-def]
    """A request whose first `have` bytes are at `buf[o:]`."""
    size = M[s + D_SIZE]
    if M[c + C_SASL] == SASL_BARE:
        if not known_header(M, buf, o, have, size) or not clean_client(buf, o, have):
            _token(M, c, s)
            return
        M[c + C_SASL] = SASL_NONE
    if have < 8:
        problem(M, KIND_BAD_HEADER, c, M[s + D_SIDE], M[s + D_FIRST], M[s + D_PACKET], M[s + D_NEXT], size + 4, -1)
        _token(M, c, s)
        return
    api = be16(buf, o)
    version = be16(buf, o + 2)
    body = request_body(M, buf, o, o + have, api, version)
    if body >= 0:
        body -= o
    client = np.int64(-1)
    if have >= 10 and not (api == CONTROLLED_SHUTDOWN and version == 0):
        n = be16(buf, o + 8)
        if n < 0x8000 and n <= have - 10:
            client = client_code(M, A, c, buf, o + 10, n)
    if M[c + C_CLIENT_ID] < 0:
        M[c + C_CLIENT_ID] = client
    if M[c + C_REQUESTS_OPEN] >= MAX_WAITING:
        without_response(M, c, pop_request(M, c))
    r = _take_request(M)
    M[r + R_API] = api
    M[r + R_VERSION] = version
    M[r + R_CORRELATION] = signed32(buf, o + 4)
    M[r + R_CLIENT] = client
    M[r + R_FIRST] = M[s + D_FIRST]
    M[r + R_LAST] = NULL if M[s + D_MISSING] > 0 or M[s + D_NEED] > 0 else M[s + D_LATEST]
    M[r + R_BYTES] = size + 4
    M[r + R_PACKET] = M[s + D_PACKET]
    M[r + R_AT] = M[s + D_AT]
    M[r + R_LENGTH] = M[s + D_LENGTH]
    M[r + R_HEAD] = M[s + D_HEAD]
    M[r + R_BODY] = body
    M[r + R_MISSING] = M[s + D_MISSING] + max(M[s + D_NEED], 0)
    M[r + R_CUT] = M[s + D_CUT]
    M[r + R_N] = M[c + C_REQUESTS]
    M[c + C_REQUESTS] += 1
    M[r + R_IN_FLIGHT] = M[c + C_REQUESTS_OPEN] + 1
    M[r + R_PACKETS] = M[c + C_PACKETS]
    if api == SASL_HANDSHAKE and version == 0:
        M[c + C_SASL] = SASL_ASKED
    if api == PRODUCE and body >= 0 and acks_of(buf, o + body, o + have, version) == 0:
        row = _new_row(M, c)
        _request_columns(M, r, row)
        _no_frame(M, row + X_RESPONSE)
        damaged = M[r + R_MISSING] > 0 or M[r + R_CUT] > 0
        M[row + X_STATUS] = PARTIAL if damaged else NO_RESPONSE
        _free_request(M, r)
        return
    if M[c + C_HELD] > 0 and _meet_held(M, c, r):
        return
    tail = M[c + C_REQUEST_TAIL]
    if tail >= 0:
        M[tail + R_NEXT] = r
        if M[tail + R_CORRELATION] >= M[r + R_CORRELATION]:
            M[c + C_UNORDERED] = 1
    else:
        M[c + C_REQUEST_HEAD] = r
        M[c + C_UNORDERED] = 0
    M[c + C_REQUEST_TAIL] = r
    M[c + C_REQUESTS_OPEN] += 1


@part
def waiting_with(M, c, correlation):  # type: ignore[no-untyped-def]
    """The oldest waiting request with a correlation id, -1 when there is none near the front; how many were passed."""
    r = M[c + C_REQUEST_HEAD]
    steps = np.int64(0)
    ordered = r >= 0 and M[c + C_UNORDERED] == 0
    if ordered and M[M[c + C_REQUEST_TAIL] + R_CORRELATION] < correlation:
        return np.int64(-1), steps
    while r >= 0 and steps < MAX_SKIPPED:
        if M[r + R_CORRELATION] == correlation:
            return r, steps
        if ordered and M[r + R_CORRELATION] > correlation:
            break
        r = M[r + R_NEXT]
        steps += 1
    return np.int64(-1), steps


@part
def _not_in_flight(M, c, answered):  # type: ignore[no-untyped-def]
    """Requests that were captured before this answer but sent after it (a capture out of order) did not overlap it."""
    r = M[c + C_REQUEST_HEAD]
    steps = 0
    while r >= 0 and steps < NEXT_FEW:
        if M[r + R_FIRST] > answered:
            M[r + R_IN_FLIGHT] -= 1
        r = M[r + R_NEXT]
        steps += 1


@part
def response_complete(M, b, A, c, s):  # type: ignore[no-untyped-def]
    """The direction's current frame is a response (as much of it as will ever come)."""
    o = _head_place(M, s)
    if o >= 0:
        _response(M, c, s, b, o, min(M[s + D_LENGTH], HEAD_BYTES))
    else:
        _response(M, c, s, A, HEAD, frame_head(M, b, A, s))


@part
def _response(M, c, s, buf, o, have):  # type: ignore[no-untyped-def]
    """A response whose first `have` bytes are at `buf[o:]`."""
    if have < 4:
        problem(
            M, KIND_BAD_HEADER, c, M[s + D_SIDE], M[s + D_FIRST], M[s + D_PACKET], M[s + D_NEXT], M[s + D_SIZE] + 4, -1
        )
        _token(M, c, s)
        return
    correlation = signed32(buf, o)
    r, _ = waiting_with(M, c, correlation)
    if r < 0 and M[c + C_SASL] == SASL_BARE:
        _token(M, c, s)
        return
    if r < 0:
        h = _take_request(M)
        M[h + R_CORRELATION] = correlation
        M[h + R_FIRST] = M[s + D_FIRST]
        M[h + R_LAST] = NULL if M[s + D_MISSING] > 0 or M[s + D_NEED] > 0 else M[s + D_LATEST]
        M[h + R_BYTES] = M[s + D_SIZE] + 4
        M[h + R_PACKET] = M[s + D_PACKET]
        M[h + R_AT] = M[s + D_AT]
        M[h + R_LENGTH] = M[s + D_LENGTH]
        M[h + R_HEAD] = M[s + D_HEAD]
        M[h + R_MISSING] = M[s + D_MISSING] + max(M[s + D_NEED], 0)
        M[h + R_CUT] = M[s + D_CUT]
        M[h + R_N] = M[s + D_NEXT]
        M[h + R_PACKETS] = M[c + C_PACKETS]
        tail = M[c + C_HELD_HEAD]
        if tail < 0:
            M[c + C_HELD_HEAD] = h
        else:
            while M[tail + R_NEXT] >= 0:
                tail = M[tail + R_NEXT]
            M[tail + R_NEXT] = h
        M[c + C_HELD] += 1
        release_held(M, c)
        return
    while True:
        first = pop_request(M, c)
        if first == r:
            break
        without_response(M, c, first)
    _not_in_flight(M, c, M[s + D_LATEST])
    api = M[r + R_API]
    version = M[r + R_VERSION]
    row = _new_row(M, c)
    _request_columns(M, r, row)
    body = response_body(M, buf, o, o + have, api, version)
    if body >= 0:
        body -= o
    _frame_columns(M, s, row + X_RESPONSE, body)
    _answer_columns(M, c, row, M[row + X_RESPONSE + 1])
    if M[c + C_SASL] == SASL_ASKED and api == SASL_HANDSHAKE and have >= 6 and be16(buf, o + 4) == 0:
        M[c + C_SASL] = SASL_BARE
    _free_request(M, r)


@part
def client_matches(M, A, c, o, have):  # type: ignore[no-untyped-def]
    """Whether a request header (frame without prefix at `o`) carries the client id that this connection is known by."""
    code = M[c + C_CLIENT_ID]
    if code < 0 or have < 10:
        return False
    n = be16(A, o + 8)
    return 0 < n < 0x8000 and n <= have - 10 and _is_name(M, A, code, A, o + 10, n)
