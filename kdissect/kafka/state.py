"""The arrays that the stream kernels share, and how bytes are found in them.

`State` bundles them so that a kernel takes one argument. Rows of requests (`R`) wait for their response in the order in
which they were sent; rows of `X` are finished exchanges, read by the engine after each block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kdissect._kernel import kernel
from kdissect.tcp.layout import C_PROBLEMS, K_PROBLEMS, K_SLOT

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

TOKEN = 20
"""Status of a bare SASL token, which is no exchange; the engine reads mechanism and user from it and drops it."""


class State(NamedTuple):
    """Arrays of the stream kernels (all int64 matrices unless said)."""

    C: Any
    D: Any
    N: Any
    R: Any
    K: Any
    P: Any
    X: Any
    recent: Any
    """int64 [directions, RECENT, 3]."""
    conn_of: Any
    """int64 [flows]: row of C, -1 none."""
    b: Any
    """uint8: the window."""
    slots: Any
    """int64 [slots, 3]: logical start, logical end, place of the start in `b`."""
    kept: Any
    """uint8."""
    head: Any
    """uint8 [HEAD_BYTES]: the first bytes of a frame that lies in several pieces."""
    scratch: Any
    """uint8: a search window in one piece."""
    names: Any
    """uint8: client ids one behind the other."""
    name_ends: Any
    """int64 [codes + 1]: where each begins."""
    name_table: Any
    """int64: open addressing, code or -1."""
    table: Any
    """int32 [keys, versions, 2]: program of each message, -1 unknown."""
    flexible: Any
    """int16 [keys, 2]: first version with a flexible header."""
    programs: Any
    """The arrays that `fits` needs, see `kdissect.schema.vm`."""
    out: Any
    """int64 [8]: scratch of `arrive` and `ready`."""


@kernel
def be16(b, o):  # type: ignore[no-untyped-def]
    return (np.int64(b[o]) << 8) | np.int64(b[o + 1])


@kernel
def be32(b, o):  # type: ignore[no-untyped-def]
    return (np.int64(b[o]) << 24) | (np.int64(b[o + 1]) << 16) | (np.int64(b[o + 2]) << 8) | np.int64(b[o + 3])


@kernel
def signed32(b, o):  # type: ignore[no-untyped-def]
    return ((be32(b, o) + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@kernel
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


@kernel
def place(st, at):  # type: ignore[no-untyped-def]
    """Where a logical offset lies in the window, -1 when the window no longer holds it."""
    slots = st.slots
    q = st.K[K_SLOT]
    if slots[q, 0] <= at < slots[q, 1]:
        return slots[q, 2] + at - slots[q, 0]
    for q in range(slots.shape[0]):
        if slots[q, 0] <= at < slots[q, 1]:
            return slots[q, 2] + at - slots[q, 0]
    return np.int64(-1)


@kernel
def copy_out(st, at, n, to, w):  # type: ignore[no-untyped-def]
    """Copy `n` bytes at a logical offset to `to[w:]`; False when they are gone or do not fit."""
    if n > to.size - w:
        return False
    if at >= KEPT:
        o = at - KEPT
        if n > st.kept.size - o:
            return False
        for q in range(n):
            to[w + q] = st.kept[o + q]
        return True
    o = place(st, at)
    if o < 0 or n > st.b.size - o:
        return False
    for q in range(n):
        to[w + q] = st.b[o + q]
    return True


@kernel
def problem(st, kind, c, number, time, packet, direction, position, size, detail):  # type: ignore[no-untyped-def]
    """A row of problems; the engine keeps room for them."""
    row = st.K[K_PROBLEMS]
    if row >= st.P.shape[0]:
        return
    P = st.P
    P[row, 0] = kind
    P[row, 1] = number
    P[row, 2] = time
    P[row, 3] = packet
    P[row, 4] = direction
    P[row, 5] = position
    P[row, 6] = size
    P[row, 7] = detail
    st.K[K_PROBLEMS] = row + 1
    st.C[c, C_PROBLEMS] += 1
