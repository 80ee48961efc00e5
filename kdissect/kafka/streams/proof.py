"""Whether a connection is Kafka, where its first frame does not say so by itself.

Many protocols begin their messages with lengths, small numbers and zeros. A Kafka request has a known key and version,
a client id that is text, and a body that its layout consumes exactly. Messages with less of it need more evidence:

- A first request that fits but does not name its client needs an answer with its correlation id, or a second request.
  Without both, the stream must begin with a captured SYN and consist of this request, which must be ApiVersions or
  contain a word.
- If it is not known which end is the client, a first request may need a second one or an answer. It does when it begins
  inside a segment, or also fits a response's layout. A Produce response (version 0, correlation id 0) reads as a
  Produce request of a client with the topic's name; so do parts of responses. It would be read the wrong way round.
- Responses without captured requests, on a connection whose opening was captured, need bodies that fit the layouts of a
  single API and contain lists or texts. One ApiVersions response is enough, or two others with correlation ids near
  each other.

A connection without such evidence gives no exchanges.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams import state as st
from kdissect.kafka.streams.framing import LEAST_REQUEST, LEAST_RESPONSE, MAX_REQUEST, MAX_RESPONSE
from kdissect.kafka.streams.pairing.message_headers import known_header, request_body, response_body
from kdissect.kafka.streams.state import program_of
from kdissect.kernels.kernel import part
from kdissect.kernels.memory import be16, be32, int32_at
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.fit import FITS, UNREADABLE, fits
from kdissect.schema.vm import Skim
from kdissect.tcp.layout import Direction

NEAR = 256
"""How far apart the correlation ids of messages are that follow each other, or of requests before and behind the
beginning of a capture."""
WORD = 3
"""Letters and digits in a row that are a word: the shortest names of topics and clients in use."""
TELLING = 16
"""Bytes of a response's body that can tell its API: shorter ones are a few numbers."""
MOST_TELLING = st.HEAD_BYTES
"""Bytes of a body that is tried with all layouts: those of ApiVersions have 300 to 900."""
MOST_FRAMES = 16
"""Responses that are looked at for proof."""
PROVED = 2
"""Responses of which one API is known that prove Kafka; one of ApiVersions is as good."""

REJECT, ACCEPT, WAIT, HOLD = 0, 1, 2, 3
"""Verdicts on an offset of a window. HOLD: requests wait behind a hole, perhaps the one that is answered here."""


@part
def trial(A: Bytes, sk: Skim, direction: Direction, begin: Int, end: Int, program: Int) -> Int:
    """`fits` within the direction's budget."""
    direction.budget -= 64 + end - begin
    if begin < 0 or program < 0 or direction.budget < 0:
        return UNREADABLE
    return fits(A, begin, end, program, sk)


@part
def request_fits(M: Words, A: Bytes, sk: Skim, direction: Direction, o: Int, end: Int, api: Int, version: Int) -> bool:
    """Whether a whole request fits its layout, from its key at `o` to its end. That of ApiVersions version 0 may have a
    null array behind it, as librdkafka 0.9 to 1.3 sends it for "all APIs"."""
    body = request_body(M, A, o, end, api, version)
    if api == ApiKey.API_VERSIONS and version == 0 and body >= 0 and end - body == 4 and be32(A, body) == 0:
        return True
    return trial(A, sk, direction, body, end, program_of(M, api, version, 0)) == FITS


@part
def _has_word(A: Bytes, o: Int, end: Int) -> bool:
    """Whether there is a word in `A[o:end]`."""
    run = 0
    for q in range(o, end):
        x = A[q] | 0x20
        run = run + 1 if 0x61 <= x <= 0x7A or 0x30 <= A[q] <= 0x39 else 0
        if run == WORD:
            return True
    return False


@part
def seconded(
    M: Words, A: Bytes, direction: Direction, reverse: Direction, first: Int, o: Int, n: Int, closed: bool
) -> Int:
    """Judge a first request that fits but does not name its client, as small numbers in any protocol might. The
    `reverse` direction must begin with an answer to it, or the frame behind it (at `o`) read as a request too. With an
    empty client id, which any zeros are, that frame must be one of the same key and version and a higher id. Where no
    more will come of either, see the module."""
    begins = reverse.begin16a
    correlation = int32_at(A, first + 8)
    empty = be16(A, first + 12) == 0
    if reverse.begun == 1 and begins != 0:
        size = (begins >> 32) & 0xFFFFFFFF
        answers = ((begins + 0x80000000) & 0xFFFFFFFF) - 0x80000000 == correlation
        return ACCEPT if answers and LEAST_RESPONSE <= size <= MAX_RESPONSE else REJECT
    if n - o >= 14:
        size = be32(A, o)
        follows = LEAST_REQUEST <= size <= MAX_REQUEST and known_header(M, A, o + 4, min(n - o - 4, size), size)
        if empty:
            follows = follows and be32(A, o + 4) == be32(A, first + 4) and 0 < int32_at(A, o + 8) - correlation <= NEAR
        return ACCEPT if follows else REJECT
    if not closed:
        return WAIT
    if not empty:
        return ACCEPT
    alone = (
        direction.started == 2 and direction.begun == 1 and direction.skipped == 0 and first == st.SCRATCH and o == n
    )
    if alone and (be16(A, first + 4) == ApiKey.API_VERSIONS or _has_word(A, first + 14, o)):
        return ACCEPT
    return REJECT


@part
def chained(M: Words, A: Bytes, first: Int, o: Int, n: Int, closed: bool) -> Int:
    """Judge a request that fits, at `first`, on a connection whose client is not known, where it may be bytes of a
    response. Behind it (at `o`) another one of the same client must stand, with an id a little higher."""
    if n - o < 14:
        return REJECT if closed else WAIT
    size = be32(A, o)
    have = min(n - o - 4, size)
    if size < LEAST_REQUEST or size > MAX_REQUEST or not known_header(M, A, o + 4, have, size):
        return REJECT
    if not 0 < int32_at(A, o + 8) - int32_at(A, first + 8) <= NEAR or be16(A, o + 12) != be16(A, first + 12):
        return REJECT
    length = be16(A, first + 12)
    for q in range(min(length, n - o - 14) if length < 0x8000 else 0):
        if A[o + 14 + q] != A[first + 14 + q]:
            return REJECT
    return ACCEPT


@part
def may_be_response(M: Words, A: Bytes, sk: Skim, direction: Direction, o: Int, end: Int) -> bool:
    """Whether the layout of some response consumes a frame, whose correlation id would be at `o`: short ones alone are
    tried."""
    if end - o > MOST_TELLING:
        return False
    for api in range(st.KEYS):
        for version in range(st.VERSIONS):
            program = program_of(M, api, version, 1)
            if program >= 0:
                body = response_body(M, A, o, end, api, version)
                if body >= 0 and trial(A, sk, direction, body, end, program) == FITS:
                    return True
    return False


@part
def _api_of(M: Words, A: Bytes, sk: Skim, direction: Direction, o: Int, end: Int) -> Int:
    """The only API whose responses' layouts consume a frame, whose correlation id is at `o`. It is -1 where none or
    several do, or one that would do so with zeros alone: then there is nothing in it that has a length."""
    found = np.int64(-1)
    for q in range(end - o):
        A[st.HEAD + q] = 0
    for api in range(st.KEYS):
        for version in range(st.VERSIONS):
            program = program_of(M, api, version, 1)
            if program < 0:
                continue
            body = response_body(M, A, o, end, api, version)
            if body < 0 or trial(A, sk, direction, body, end, program) != FITS:
                continue
            if found >= 0 and found != api:
                return np.int64(-1)
            if trial(A, sk, direction, st.HEAD + body - o, st.HEAD + end - o, program) == FITS:
                return np.int64(-1)
            found = np.int64(api)
    return found


@part
def proved_by_responses(M: Words, A: Bytes, sk: Skim, direction: Direction, o: Int, n: Int) -> bool:
    """Whether what begins at `o` of the window, which ends at `n`, can be nothing but a broker's responses."""
    proofs, before = 0, np.int64(0)
    for frame in range(MOST_FRAMES):
        if n - o < 8:
            return False
        size, correlation = be32(A, o), int32_at(A, o + 4)
        if size < LEAST_RESPONSE or size > n - o - 4:
            return False
        if frame > 0 and not 0 <= correlation - before <= NEAR:
            proofs = 0
        if TELLING <= size - 4 <= MOST_TELLING - 4:
            api = _api_of(M, A, sk, direction, o + 4, o + 4 + size)
            proofs += PROVED if api == ApiKey.API_VERSIONS else 1 if api >= 0 else 0
            if proofs >= PROVED:
                return True
        before = correlation
        o += 4 + size
    return False
