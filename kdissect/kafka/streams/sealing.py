"""Connections that begin with TLS: their bytes go to the host as rows, plaintext comes back as if TCP had brought it.

A connection is sealed when a direction begins with a record that holds a ClientHello or a ServerHello, which no Kafka
frame begins like (it would be a frame of 352 MiB and more). What TCP delivers of it from then on, in order, becomes
rows S_*, until the host rules the connection out by C_KAFKA.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams.state import (
    S_AT,
    S_BASE,
    S_CONNECTION,
    S_DIRECTION,
    S_LENGTH,
    S_NUMBER,
    S_PACKET,
    S_PACKETS,
    S_ROWS,
    S_TIME,
    S_WIDTH,
    S_WIRE,
    SCRATCH,
    direction_of,
)
from kdissect.kernels.kernel import part
from kdissect.tcp.assembly import give_node
from kdissect.tcp.layout import (
    C_CLIENT,
    C_KAFKA,
    C_NUMBER,
    C_PACKETS,
    C_SEALED,
    D_BEGIN16A,
    D_BEGIN16B,
    D_BEGUN,
    D_HEAD,
    D_MODE,
    D_SEARCHED,
    D_SIDE,
    D_SKIPPED,
    D_TAIL,
    D_WINDOW,
    HOLE,
    K_SEALED,
    K_SEALING,
    MODE_IGNORED,
    MODE_SEARCH,
    N_AT,
    N_LENGTH,
    N_NEXT,
    N_PACKET,
    N_TIME,
)

HELLO = 6
"""Bytes that tell a hello: a record's header and the message's type."""


@part
def begins_sealed(M, A, c, s, n):  # type: ignore[no-untyped-def]
    """Whether the window of `s` (at A[SCRATCH:n]) is the beginning of TLS and the host takes it."""
    if M[K_SEALING] == 0 or M[c + C_SEALED] != 0 or M[c + C_KAFKA] != 0 or M[s + D_SKIPPED] > 0:
        return False
    if n - SCRATCH < HELLO or A[SCRATCH] != 0x16 or A[SCRATCH + 1] != 3 or A[SCRATCH + 2] > 4:
        return False
    return A[SCRATCH + 3] < 0x49 and (A[SCRATCH + 5] == 1 or A[SCRATCH + 5] == 2)


@part
def looks_sealed(M, A, c, s, n):  # type: ignore[no-untyped-def]
    """Whether a stream that was met in its middle seems to be TLS, which is only good for a name."""
    if M[c + C_KAFKA] != 0 or M[s + D_BEGUN] != 0 or M[s + D_SKIPPED] > 0 or n - SCRATCH < HELLO:
        return False
    return 0x14 <= A[SCRATCH] <= 0x17 and A[SCRATCH + 1] == 3 and A[SCRATCH + 2] <= 4 and A[SCRATCH + 3] < 0x49


@part
def seal_row(M, c, s, at, captured, wire, time, packet):  # type: ignore[no-untyped-def]
    """What comes next in a sealed direction; `at` HOLE: bytes that were never captured."""
    if M[c + C_KAFKA] < 0:
        return
    if M[K_SEALED] >= S_ROWS:
        M[c + C_KAFKA] = -1
        return
    row = S_BASE + M[K_SEALED] * S_WIDTH
    M[K_SEALED] += 1
    M[row + S_CONNECTION] = c
    M[row + S_NUMBER] = M[c + C_NUMBER]
    M[row + S_DIRECTION] = M[s + D_SIDE]
    M[row + S_AT] = at
    M[row + S_LENGTH] = captured
    M[row + S_WIRE] = wire
    M[row + S_TIME] = time
    M[row + S_PACKET] = packet
    M[row + S_PACKETS] = M[c + C_PACKETS]


@part
def seal(M, c):  # type: ignore[no-untyped-def]
    """From here on the connection is sealed: both windows become rows, plaintext will begin anew."""
    M[c + C_SEALED] = 1
    first = max(M[c + C_CLIENT], 0)
    for q in range(2):
        s = direction_of(c, first ^ q)
        node = M[s + D_HEAD]
        while node >= 0:
            following = M[node + N_NEXT]
            at = M[node + N_AT]
            length = M[node + N_LENGTH]
            captured = length if at >= 0 else np.int64(0)
            seal_row(M, c, s, max(at, HOLE), captured, length, M[node + N_TIME], M[node + N_PACKET])
            give_node(M, node)
            node = following
        for q in (D_HEAD, D_TAIL):
            M[s + q] = -1
        for q in (D_WINDOW, D_SEARCHED, D_SKIPPED, D_BEGIN16A, D_BEGIN16B):
            M[s + q] = 0
        M[s + D_BEGUN] = 1
        if M[s + D_MODE] != MODE_IGNORED:
            M[s + D_MODE] = MODE_SEARCH
