"""What the stream kernels share above TCP: the layout of requests and finished exchanges, and how bytes are found.

Three arrays make up the state: the heap `M` of int64 words (see `kdissect.tcp.layout`), the window `b` of recent
input, and `A`, bytes of our own: the beginning of a frame that lies in several pieces, a search window in one piece,
the client ids seen, and bytes kept from before the window. Requests (R_*) wait in the order in which they were sent;
rows of exchanges (X_*) are read by the engine after each call.
"""

from __future__ import annotations

import numpy as np

from kdissect.kernels.kernel import part
from kdissect.kernels.memory import copy_bytes
from kdissect.tcp.layout import (
    C_NUMBER,
    C_PROBLEMS,
    C_WIDTH,
    CONNECTION_WIDTH,
    D_WIDTH,
    HEAP,
    K_PROBLEMS,
    K_SLOT,
    MAX_SLOTS,
    P_WIDTH,
    SLOTS,
)

KEPT = 1 << 58
"""Logical offsets from here on lie in `kept`: bytes moved out of the window before it forgot them."""

R_NEXT = 0
R_API = 1
R_VERSION = 2
R_CORRELATION = 3
R_CLIENT = 4
R_FIRST = 5
R_LAST = 6
R_BYTES = 7
R_PACKET = 8
R_AT = 9
"""Where the body (all after the length prefix) lies when it is in one piece, else -1."""
R_LENGTH = 10
R_HEAD = 11
"""First node of its pieces, -1 none."""
R_BODY = 12
"""Offset of the message behind its header, -1 unknown."""
R_MISSING = 13
R_CUT = 14
R_N = 15
"""Ordinal of a request; stream position behind a held response."""
R_IN_FLIGHT = 16
R_PACKETS = 17
"""Value of C_PACKETS when it was put here (held responses)."""
R_WIDTH = 18

X_CONNECTION = 0
X_N = 1
X_ORPHAN = 2
X_API = 3
X_VERSION = 4
X_CORRELATION = 5
X_CLIENT = 6
X_STATUS = 7
X_QUEUED_FROM = 8
X_IN_FLIGHT = 9
X_DIRECTION = 10
"""Which direction of the connection carried the request (for problems)."""
X_REQUEST = 11
"""First of ten columns: X_F_* of the request."""
X_RESPONSE = 21
"""First of ten columns: X_F_* of the response."""
X_WIDTH = 31
X_F_FIRST, X_F_LAST, X_F_BYTES, X_F_PACKET, X_F_AT, X_F_LENGTH, X_F_HEAD, X_F_BODY, X_F_MISSING, X_F_CUT = range(10)

S_CONNECTION = 0
"""Sealed bytes: address of the connection's struct."""
S_NUMBER = 1
S_DIRECTION = 2
S_AT = 3
"""Where they lie, or HOLE."""
S_LENGTH = 4
"""Bytes captured."""
S_WIRE = 5
"""Bytes sent."""
S_TIME = 6
S_PACKET = 7
S_PACKETS = 8
"""Value of C_PACKETS then."""
S_WIDTH = 9

TOKEN = 20
"""Status of a bare SASL token, which is no exchange; the engine reads mechanism and user from it and drops it."""


# ---- the heap above TCP
KEYS = 128
VERSIONS = 32
"""Keys and versions that programs are looked up for; Kafka has 95 keys and 19 versions of the busiest."""
FLEXIBLE = HEAP
"""First version with a flexible header: [KEYS, 2]."""
TABLE = FLEXIBLE + 2 * KEYS
"""Program of each message: [KEYS, VERSIONS, 2], -1 unknown."""
MAX_NAMES = 1 << 16
"""Distinct client ids that are told apart; later ones are shown as null. Fleets have thousands."""
NAME_SLOTS = 1 << 17
NAME_TABLE = TABLE + 2 * KEYS * VERSIONS
"""Open addressing: code of a client id, or -1."""
NAME_ENDS = NAME_TABLE + NAME_SLOTS
"""Where each client id ends in `A`."""
MARGIN = 48 << 10
"""Rows of output that one step can produce at most: a full search window of the smallest frames, and all that wait."""
X_ROWS = 3 * MARGIN
X_BASE = NAME_ENDS + MAX_NAMES + 2
P_ROWS = 2 * MARGIN
P_BASE = X_BASE + X_ROWS * X_WIDTH
E_ROWS = 4096
"""Finished connections per call of a kernel."""
E_BASE = P_BASE + P_ROWS * P_WIDTH
S_ROWS = 2 * MARGIN
S_BASE = E_BASE + E_ROWS * CONNECTION_WIDTH
STRUCTS = S_BASE + S_ROWS * S_WIDTH
"""Where the heap's structs begin."""

# ---- bytes of our own
HEAD = 0
HEAD_BYTES = 1280
"""Bytes of a frame that are looked at to read its header: an id of 1,024 bytes and its tags fit (Kafka's own clients
send far shorter ones; a longer id is shown as null and the body is not decoded)."""
SCRATCH = HEAD + HEAD_BYTES
WINDOW = 256 << 10
"""Bytes searched at a time: larger frames are taken on their header and the part of the body that is there."""
SCRATCH_BYTES = WINDOW + (128 << 10)
"""A window may overshoot by one segment (64 KiB, more with segmentation offload)."""
NAMES = SCRATCH + SCRATCH_BYTES
NAME_BYTES = 4 << 20
"""Room for client ids: 64 bytes for each that is told apart."""
KEPT_BASE = NAMES + NAME_BYTES
"""Bytes from before the window begin here; `KEPT` is the logical offset of the first."""


@part
def program_of(M, api, version, side):  # type: ignore[no-untyped-def]
    """The skim program of a message, -1 when the API or version is not known."""
    if api < 0 or api >= KEYS or version < 0 or version >= VERSIONS:
        return np.int64(-1)
    return M[TABLE + (api * VERSIONS + version) * 2 + side]


@part
def direction_of(c, side):  # type: ignore[no-untyped-def]
    """Address of one direction of the connection at `c`."""
    return c + C_WIDTH + side * D_WIDTH


@part
def be16(b, o):  # type: ignore[no-untyped-def]
    """Unsigned 16-bit big endian."""
    return (np.int64(b[o]) << 8) | np.int64(b[o + 1])


@part
def be32(b, o):  # type: ignore[no-untyped-def]
    """Unsigned 32-bit big endian."""
    return (np.int64(b[o]) << 24) | (np.int64(b[o + 1]) << 16) | (np.int64(b[o + 2]) << 8) | np.int64(b[o + 3])


@part
def signed32(b, o):  # type: ignore[no-untyped-def]
    """Signed 32-bit big endian."""
    return ((be32(b, o) + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@part
def uvarint(b, o, e):  # type: ignore[no-untyped-def]
    """Unsigned varint at `o`: value and next offset, which is -1 when it runs past `e` or past five bytes."""
    value = np.int64(0)
    shift = np.int64(0)
    while o < e and shift < 35:
        c = np.int64(b[o])
        o += 1
        value |= (c & 127) << shift
        if c < 128:
            return value, o
        shift += 7
    return value, np.int64(-1)


@part
def place(M, at):  # type: ignore[no-untyped-def]
    """Where a logical offset lies in the window, -1 when the window no longer holds it.

    Of two slots that hold it, the one that ends later: the other one ends inside the record.
    """
    q = M[K_SLOT]
    if M[q] <= at < M[q + 1]:
        return M[q + 2] + at - M[q]
    o = np.int64(-1)
    end = at
    for q in range(SLOTS, SLOTS + 3 * MAX_SLOTS, 3):
        if M[q] <= at and end < M[q + 1]:
            end = M[q + 1]
            o = M[q + 2] + at - M[q]
    return o


@part
def copy_out(M, b, A, at, n, to, w):  # type: ignore[no-untyped-def]
    """Copy `n` bytes at a logical offset to `to[w:]`; False when they are gone or do not fit."""
    if n > to.size - w:
        return False
    if at >= KEPT:
        o = at - KEPT + KEPT_BASE
        if n > A.size - o:
            return False
        copy_bytes(to, w, A, o, n)
        return True
    o = place(M, at)
    if o < 0 or n > b.size - o:
        return False
    copy_bytes(to, w, b, o, n)
    return True


@part
def problem(M, kind, c, direction, time, packet, position, size, detail):  # type: ignore[no-untyped-def]
    """A row of problems about the connection at `c`; the engine keeps room for them."""
    row = M[K_PROBLEMS]
    if row >= P_ROWS:
        return
    p = P_BASE + row * P_WIDTH
    M[p] = kind
    M[p + 1] = M[c + C_NUMBER]
    M[p + 2] = time
    M[p + 3] = packet
    M[p + 4] = direction
    M[p + 5] = position
    M[p + 6] = size
    M[p + 7] = detail
    M[K_PROBLEMS] = row + 1
    M[c + C_PROBLEMS] += 1
