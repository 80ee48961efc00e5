"""Bytes of a direction, in order, into frames.

A frame is a 4-byte length and that many bytes. Bytes missing inside a frame cost that frame alone: the length says
where the next one begins (`gap` counts through). Only when a length itself is missing, or is one that no frame can
have, the place is lost and the direction is searched (`resync`). A stream whose protocol is not known
yet is a stream whose place is lost, at its very beginning.

While a direction is searched its bytes are nodes of a window; afterwards nodes are the pieces of the current frame.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.streams.pairing import request_complete, response_complete
from kdissect.kafka.streams.state import KEPT, KEPT_BASE, be32, place, problem
from kdissect.kernels.kernel import part
from kdissect.tcp.assembly import give_node, take_node
from kdissect.tcp.layout import (
    C_CLIENT,
    C_SASL,
    CUT,
    D_AT,
    D_BEGUN,
    D_BUDGET,
    D_CUT,
    D_CUT_TOTAL,
    D_FIRST,
    D_FRAMES,
    D_HEAD,
    D_LATEST,
    D_LENGTH,
    D_MISSING,
    D_MODE,
    D_NEED,
    D_NEXT,
    D_PACKET,
    D_PREFIX,
    D_PREFIX_BYTES,
    D_SEARCHED,
    D_SIDE,
    D_SIZE,
    D_TAIL,
    D_TRIED,
    D_WINDOW,
    HOLE,
    MODE_FRAMES,
    MODE_SEARCH,
    N_AT,
    N_LENGTH,
    N_NEXT,
    N_PACKET,
    N_POSITION,
    N_TIME,
    SASL_BARE,
)

KIND_BAD_LENGTH = 4
KIND_SNAPPED = 11

LEAST_REQUEST = 8
LEAST_RESPONSE = 4
"""A request has at least key, version and correlation id, a response its correlation id. (An empty frame is a legal
answer to a bare SASL token; as a request it makes the broker close the connection.)"""

MAX_REQUEST = 128 << 20
"""No broker accepts a request beyond socket.request.max.bytes, 100 MiB by default and hardly ever raised."""
MAX_RESPONSE = 1 << 30
"""Clients ask for 50 MiB (fetch.max.bytes) by default and cannot take 2 GiB; tuned ones stay far below this."""

TRIAL_FACTOR = 32
"""How many bytes trials may read for each byte that is searched, so that searching stays linear."""


@part
def push(M, s, at, length, time, packet):  # type: ignore[no-untyped-def]
    """Append a piece (or a gap) to the direction's list of nodes."""
    node = take_node(M)
    M[node + N_AT] = at
    M[node + N_LENGTH] = length
    M[node + N_TIME] = time
    M[node + N_PACKET] = packet
    M[node + N_POSITION] = 0
    if M[s + D_TAIL] >= 0:
        M[M[s + D_TAIL] + N_NEXT] = node
    else:
        M[s + D_HEAD] = node
    M[s + D_TAIL] = node


@part
def _piece(M, s, at, length, time, packet):  # type: ignore[no-untyped-def]
    """Bytes of the current frame. The first piece needs no node, which is all that most frames have."""
    if at >= 0 and M[s + D_AT] < 0 and M[s + D_HEAD] < 0:
        M[s + D_AT] = at
        M[s + D_LENGTH] = length
        return
    if M[s + D_AT] >= 0:
        push(M, s, M[s + D_AT], M[s + D_LENGTH], M[s + D_FIRST], M[s + D_PACKET])
        M[s + D_AT] = -1
    push(M, s, at, length, time, packet)


@part
def forget_frame(M, s):  # type: ignore[no-untyped-def]
    """The direction owns no pieces any more (they were handed on)."""
    M[s + D_AT] = -1
    M[s + D_HEAD] = -1
    M[s + D_TAIL] = -1
    M[s + D_NEED] = -1
    M[s + D_PREFIX_BYTES] = 0
    M[s + D_MISSING] = 0
    M[s + D_CUT] = 0


@part
def drop_nodes(M, s):  # type: ignore[no-untyped-def]
    """Free the direction's nodes."""
    node = M[s + D_HEAD]
    while node >= 0:
        following = M[node + N_NEXT]
        give_node(M, node)
        node = following
    M[s + D_HEAD] = -1
    M[s + D_TAIL] = -1


@part
def complete(M, b, A, c, s):  # type: ignore[no-untyped-def]
    """Hand the current frame on."""
    M[s + D_FRAMES] += 1
    if M[s + D_SIDE] == M[c + C_CLIENT]:
        request_complete(M, b, A, c, s)
    else:
        response_complete(M, b, A, c, s)
    forget_frame(M, s)


@part
def lose(M, s):  # type: ignore[no-untyped-def]
    """The place of the next frame is not known any more."""
    drop_nodes(M, s)
    forget_frame(M, s)
    M[s + D_MODE] = MODE_SEARCH
    M[s + D_WINDOW] = 0
    M[s + D_TRIED] = 0
    M[s + D_SEARCHED] = 0


@part
def _prefix_byte(M, b, A, at):  # type: ignore[no-untyped-def]
    if at >= KEPT:
        o = at - KEPT + KEPT_BASE
        return np.int64(A[o]) if o < A.size else np.int64(-1)
    o = place(M, at)
    return np.int64(b[o]) if o >= 0 else np.int64(-1)


@part
def consume(M, b, A, c, s, at, captured, wire, time, packet):  # type: ignore[no-untyped-def]
    """The next bytes of a direction whose frames are known: `captured` of them at `at`, the rest of `wire` was cut off.

    Returns how many of the bytes were taken: fewer than `wire` when the place was lost inside them.
    """
    left = captured
    cut = wire - captured
    while left > 0 or cut > 0:
        if M[s + D_NEED] < 0:
            if left == 0:
                M[s + D_CUT_TOTAL] += cut
                problem(M, KIND_SNAPPED, c, M[s + D_SIDE], time, packet, M[s + D_NEXT], cut, -1)
                lose(M, s)
                return wire
            if M[s + D_PREFIX_BYTES] == 0:
                M[s + D_FIRST] = time
                M[s + D_LATEST] = time
                M[s + D_PACKET] = packet
                M[s + D_PREFIX] = 0
            o = place(M, at) if left >= 4 and at < KEPT and M[s + D_PREFIX_BYTES] == 0 else np.int64(-1)
            if o >= 0:
                M[s + D_PREFIX] = be32(b, o)
                M[s + D_PREFIX_BYTES] = 4
                at += 4
                left -= 4
            while left > 0 and M[s + D_PREFIX_BYTES] < 4:
                x = _prefix_byte(M, b, A, at)
                if x < 0:
                    lose(M, s)
                    return wire
                M[s + D_PREFIX] = (M[s + D_PREFIX] << 8) | x
                M[s + D_PREFIX_BYTES] += 1
                at += 1
                left -= 1
            M[s + D_LATEST] = max(M[s + D_LATEST], time)
            M[s + D_PACKET] = max(M[s + D_PACKET], packet)
            if M[s + D_PREFIX_BYTES] < 4:
                continue
            size = M[s + D_PREFIX]
            is_request = M[s + D_SIDE] == M[c + C_CLIENT]
            least = LEAST_REQUEST if is_request else LEAST_RESPONSE
            if size == 0:
                if M[c + C_SASL] != SASL_BARE:
                    problem(M, KIND_BAD_LENGTH, c, M[s + D_SIDE], time, packet, M[s + D_NEXT], 4, 0)
                M[s + D_PREFIX_BYTES] = 0
                continue
            most = MAX_REQUEST if is_request else MAX_RESPONSE
            if size > most or (size < least and M[c + C_SASL] != SASL_BARE):
                signed = size if size < 0x80000000 else size - (1 << 32)
                problem(M, KIND_BAD_LENGTH, c, M[s + D_SIDE], time, packet, M[s + D_NEXT], 4, signed)
                lose(M, s)
                return wire - left - cut
            M[s + D_SIZE] = size
            M[s + D_NEED] = size
            continue
        need = M[s + D_NEED]
        M[s + D_LATEST] = max(M[s + D_LATEST], time)
        M[s + D_PACKET] = max(M[s + D_PACKET], packet)
        if left > 0:
            n = min(left, need)
            _piece(M, s, at, n, time, packet)
            at += n
            left -= n
        else:
            n = min(cut, need)
            _piece(M, s, np.int64(CUT), n, time, packet)
            M[s + D_CUT] += n
            M[s + D_CUT_TOTAL] += n
            cut -= n
        M[s + D_NEED] = need - n
        if need == n:
            complete(M, b, A, c, s)
    return wire


@part
def gap(M, b, A, c, s, length, time, packet):  # type: ignore[no-untyped-def]
    """`length` bytes of the direction were never captured."""
    if M[s + D_MODE] == MODE_SEARCH:
        if M[s + D_WINDOW] > 0:
            push(M, s, np.int64(HOLE), length, time, packet)
        else:
            M[s + D_BEGUN] = 0
        return
    if M[s + D_MODE] != MODE_FRAMES:
        return
    need = M[s + D_NEED]
    if need < 0:
        lose(M, s)
        return
    n = min(need, length)
    _piece(M, s, np.int64(HOLE), n, time, packet)
    M[s + D_MISSING] += n
    M[s + D_NEED] = need - n
    if need == n:
        complete(M, b, A, c, s)
    if length > n:
        lose(M, s)


@part
def feed(M, b, A, c, s, at, captured, wire, time, packet):  # type: ignore[no-untyped-def]
    """The next bytes of a direction, whatever is known of it."""
    whole = M[s + D_MODE] != MODE_FRAMES
    if not whole:
        taken = consume(M, b, A, c, s, at, captured, wire, time, packet)
        if taken == wire:
            return
        at += taken
        captured = max(captured - taken, 0)
        wire -= taken
    if M[s + D_MODE] == MODE_SEARCH:
        M[s + D_BUDGET] += TRIAL_FACTOR * captured
        M[s + D_WINDOW] += captured
        if captured > 0:
            push(M, s, at, captured, time, packet)
            M[M[s + D_TAIL] + N_POSITION] = 1 if whole else 0
        if wire > captured:
            M[s + D_CUT_TOTAL] += wire - captured
            if M[s + D_HEAD] >= 0:
                push(M, s, np.int64(CUT), wire - captured, time, packet)
            else:
                M[s + D_BEGUN] = 0
