"""The headers of requests and responses as they stand in a frame, and the client ids that requests name.

A message begins behind its header at a place that depends on the API and its version (KIP-482 adds tags). Headers tell
frames from other bytes (`known_header`, `clean_client`), SASL tokens among them, which have none.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams import state as st
from kdissect.kafka.streams.state import program_of, uvarint
from kdissect.kernels.kernel import part
from kdissect.kernels.memory import be16, same_bytes
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.schema.apikeys import ApiKey
from kdissect.tcp.layout import CONTROL, Connection, control_at


@part
def is_name(M: Words, A: Bytes, code: Int, buf: Bytes, o: Int, n: Int) -> bool:
    """Whether the client id of this code is `buf[o:o + n]`."""
    a = M[st.NAME_ENDS + code]
    return M[st.NAME_ENDS + code + 1] - a == n and same_bytes(A, st.NAMES + a, buf, o, n)


@part
def client_code(M: Words, A: Bytes, connection: Connection, buf: Bytes, o: Int, n: Int) -> Int:
    """The code of the client id at `buf[o:o + n]`, new ones are added; -1 when there is no room."""
    code = connection.client_id
    if code >= 0 and is_name(M, A, code, buf, o, n):
        return code
    h = np.int64(1469598103)
    for q in range(n):
        h = ((h ^ np.int64(buf[o + q])) * 16777619) & 0x7FFFFFFF
    mask = st.NAME_SLOTS - 1
    h &= mask
    while M[st.NAME_TABLE + h] >= 0:
        code = M[st.NAME_TABLE + h]
        if is_name(M, A, code, buf, o, n):
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
def client_matches(M: Words, A: Bytes, connection: Connection, o: Int, have: Int) -> bool:
    """Whether a request header (frame without prefix at `o`) carries the client id that this connection is known by."""
    code = connection.client_id
    if code < 0 or have < 10:
        return False
    n = be16(A, o + 8)
    return 0 < n < 0x8000 and n <= have - 10 and is_name(M, A, code, A, o + 10, n)


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
def is_server_token(correlation: Int) -> bool:
    """Whether a frame's first bytes, read as a correlation id, are those of a SCRAM server's message (RFC 5802, 7):
    `r=`, `v=` or `e=`. Clients count their requests from 0 on, and none sends 1.7 billion on a connection."""
    begin = correlation >> 16
    return begin == 0x723D or begin == 0x763D or begin == 0x653D


@part
def is_client_token(api: Int) -> bool:
    """Whether a frame's first bytes, read as an API key, begin a SCRAM client's message (RFC 5802, 7): `n,`, `y,` or
    `p=` of the first, `c=` of the last. No API has such a key."""
    return api == 0x6E2C or api == 0x792C or api == 0x703D or api == 0x633D
