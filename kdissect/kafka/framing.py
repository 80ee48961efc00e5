"""Bytes of a direction, in order, into frames.

A frame is a 4-byte length and that many bytes. Bytes missing inside a frame cost that frame alone: the length says where
the next one begins (`gap` counts through). Only when a length itself is missing, or is one that no frame can have, the
place is lost and the direction is searched (`kdissect.kafka.resync`). A stream whose protocol is not known yet is a stream
whose place is lost, at its very beginning.

While a direction is searched its bytes are nodes of a window; afterwards nodes are the pieces of the current frame.
"""

from __future__ import annotations

import numpy as np

from kdissect._kernel import kernel
from kdissect.kafka.pairing import request_complete, response_complete
from kdissect.kafka.state import KEPT, place, problem
from kdissect.tcp.assembly import give_node, take_node
from kdissect.tcp.layout import (
    C_CLIENT,
    C_NUMBER,
    C_SASL,
    CUT,
    D_AT,
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
    D_SIZE,
    D_TAIL,
    D_WINDOW,
    HOLE,
    MODE_FRAMES,
    MODE_SEARCH,
    N_AT,
    N_LENGTH,
    N_NEXT,
    N_PACKET,
    N_TIME,
    SASL_BARE,
)

KIND_BAD_LENGTH = 4
KIND_SNAPPED = 11

LEAST_REQUEST = 8
LEAST_RESPONSE = 4
"""A request has at least key, version and correlation id, a response its correlation id. (An empty frame is a legal answer
to a bare SASL token; as a request it makes the broker close the connection.)"""

TRIAL_FACTOR = 32
"""How many bytes trials may read for each byte that is searched, so that searching stays linear."""


@kernel
def push(st, s, at, length, time, packet):  # type: ignore[no-untyped-def]
    """Append a piece (or a gap) to the direction's list of nodes."""
    node = take_node(st.N, st.K)
    N = st.N
    D = st.D
    N[node, N_AT] = at
    N[node, N_LENGTH] = length
    N[node, N_TIME] = time
    N[node, N_PACKET] = packet
    if D[s, D_TAIL] >= 0:
        N[D[s, D_TAIL], N_NEXT] = node
    else:
        D[s, D_HEAD] = node
    D[s, D_TAIL] = node


@kernel
def _piece(st, s, at, length, time, packet):  # type: ignore[no-untyped-def]
    """Bytes of the current frame. The first piece needs no node, which is all that most frames have."""
    D = st.D
    if at >= 0 and D[s, D_AT] < 0 and D[s, D_HEAD] < 0:
        D[s, D_AT] = at
        D[s, D_LENGTH] = length
        return
    if D[s, D_AT] >= 0:
        push(st, s, D[s, D_AT], D[s, D_LENGTH], D[s, D_FIRST], D[s, D_PACKET])
        D[s, D_AT] = -1
    push(st, s, at, length, time, packet)


@kernel
def forget_frame(st, s):  # type: ignore[no-untyped-def]
    """The direction owns no pieces any more (they were handed on)."""
    D = st.D
    D[s, D_AT] = -1
    D[s, D_HEAD] = -1
    D[s, D_TAIL] = -1
    D[s, D_NEED] = -1
    D[s, D_PREFIX_BYTES] = 0
    D[s, D_MISSING] = 0
    D[s, D_CUT] = 0


@kernel
def drop_nodes(st, s):  # type: ignore[no-untyped-def]
    """Free the direction's nodes."""
    node = st.D[s, D_HEAD]
    while node >= 0:
        following = st.N[node, N_NEXT]
        give_node(st.N, st.K, node)
        node = following
    st.D[s, D_HEAD] = -1
    st.D[s, D_TAIL] = -1


@kernel
def complete(st, c, s):  # type: ignore[no-untyped-def]
    """Hand the current frame on."""
    st.D[s, D_FRAMES] += 1
    if s & 1 == st.C[c, C_CLIENT]:
        request_complete(st, c, s)
    else:
        response_complete(st, c, s)
    forget_frame(st, s)


@kernel
def lose(st, s):  # type: ignore[no-untyped-def]
    """The place of the next frame is not known any more."""
    drop_nodes(st, s)
    forget_frame(st, s)
    D = st.D
    D[s, D_MODE] = MODE_SEARCH
    D[s, D_WINDOW] = 0
    D[s, D_SEARCHED] = 0


@kernel
def _prefix_byte(st, at):  # type: ignore[no-untyped-def]
    if at >= KEPT:
        return np.int64(st.kept[at - KEPT]) if at - KEPT < st.kept.size else np.int64(-1)
    o = place(st, at)
    return np.int64(st.b[o]) if o >= 0 else np.int64(-1)


@kernel
def consume(st, c, s, at, captured, wire, time, packet):  # type: ignore[no-untyped-def]
    """The next bytes of a direction whose frames are known: `captured` of them at `at`, the rest of `wire` was cut off.

    Returns how many of the bytes were taken: fewer than `wire` when the place was lost inside them.
    """
    D = st.D
    left = captured
    cut = wire - captured
    while left > 0 or cut > 0:
        if D[s, D_NEED] < 0:
            if left == 0:
                D[s, D_CUT_TOTAL] += cut
                problem(st, KIND_SNAPPED, c, st.C[c, C_NUMBER], time, packet, s & 1, D[s, D_NEXT], cut, -1)
                lose(st, s)
                return wire
            if D[s, D_PREFIX_BYTES] == 0:
                D[s, D_FIRST] = time
                D[s, D_LATEST] = time
                D[s, D_PACKET] = packet
                D[s, D_PREFIX] = 0
            while left > 0 and D[s, D_PREFIX_BYTES] < 4:
                x = _prefix_byte(st, at)
                if x < 0:
                    lose(st, s)
                    return wire
                D[s, D_PREFIX] = (D[s, D_PREFIX] << 8) | x
                D[s, D_PREFIX_BYTES] += 1
                at += 1
                left -= 1
            D[s, D_LATEST] = max(D[s, D_LATEST], time)
            D[s, D_PACKET] = max(D[s, D_PACKET], packet)
            if D[s, D_PREFIX_BYTES] < 4:
                continue
            size = D[s, D_PREFIX]
            is_request = s & 1 == st.C[c, C_CLIENT]
            least = LEAST_REQUEST if is_request else LEAST_RESPONSE
            if size == 0:
                if st.C[c, C_SASL] != SASL_BARE:
                    problem(st, KIND_BAD_LENGTH, c, st.C[c, C_NUMBER], time, packet, s & 1, D[s, D_NEXT], 4, 0)
                D[s, D_PREFIX_BYTES] = 0
                continue
            if size >= 0x80000000 or (size < least and st.C[c, C_SASL] != SASL_BARE):
                signed = size if size < 0x80000000 else size - (1 << 32)
                problem(st, KIND_BAD_LENGTH, c, st.C[c, C_NUMBER], time, packet, s & 1, D[s, D_NEXT], 4, signed)
                lose(st, s)
                return wire - left - cut
            D[s, D_SIZE] = size
            D[s, D_NEED] = size
            continue
        need = D[s, D_NEED]
        D[s, D_LATEST] = max(D[s, D_LATEST], time)
        D[s, D_PACKET] = max(D[s, D_PACKET], packet)
        if left > 0:
            n = min(left, need)
            _piece(st, s, at, n, time, packet)
            at += n
            left -= n
        else:
            n = min(cut, need)
            _piece(st, s, CUT, n, time, packet)
            D[s, D_CUT] += n
            D[s, D_CUT_TOTAL] += n
            cut -= n
        D[s, D_NEED] = need - n
        if need == n:
            complete(st, c, s)
    return wire


@kernel
def gap(st, c, s, length, time, packet):  # type: ignore[no-untyped-def]
    """`length` bytes of the direction were never captured."""
    D = st.D
    if D[s, D_MODE] == MODE_SEARCH:
        if D[s, D_WINDOW] > 0:
            push(st, s, HOLE, length, time, packet)
        return
    if D[s, D_MODE] != MODE_FRAMES:
        return
    need = D[s, D_NEED]
    if need < 0:
        lose(st, s)
        return
    n = min(need, length)
    _piece(st, s, HOLE, n, time, packet)
    D[s, D_MISSING] += n
    D[s, D_NEED] = need - n
    if need == n:
        complete(st, c, s)
    if length > n:
        lose(st, s)


@kernel
def feed(st, c, s, at, captured, wire, time, packet):  # type: ignore[no-untyped-def]
    """The next bytes of a direction, whatever is known of it."""
    D = st.D
    if D[s, D_MODE] == MODE_FRAMES:
        taken = consume(st, c, s, at, captured, wire, time, packet)
        if taken == wire:
            return
        at += taken
        captured = max(captured - taken, 0)
        wire -= taken
    if D[s, D_MODE] == MODE_SEARCH:
        D[s, D_BUDGET] += TRIAL_FACTOR * captured
        D[s, D_WINDOW] += captured
        if captured > 0:
            push(st, s, at, captured, time, packet)
        if wire > captured:
            D[s, D_CUT_TOTAL] += wire - captured
            if D[s, D_HEAD] >= 0:
                push(st, s, CUT, wire - captured, time, packet)
