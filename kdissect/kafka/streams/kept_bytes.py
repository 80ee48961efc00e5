"""Bytes that must outlive the window.

The window forgets its oldest slot before it reads on. What the stream kernels may still look at then moves to `kept`:
the beginnings of frames that are being received, windows that are being searched, and segments ahead of a hole. The
bulk of a large frame stays where it is, as extents of the file, where the input can be read again; where it cannot (a
pipe, a compressed file, plaintext of TLS) it moves too, or is given up when too much would be kept: such a frame is
still paired and timed. `kept` is packed anew each time, so it holds live bytes only.
"""

from __future__ import annotations

import numpy as np

from kdissect.capture.window import EXTRA
from kdissect.kafka.streams.state import HEAD_BYTES, KEPT, KEPT_BASE, R_AT, R_BYTES, R_HEAD, R_LENGTH, copy_out
from kdissect.kernels.kernel import kernel, part
from kdissect.tcp.layout import (
    C_NUMBER,
    C_WIDTH,
    CONNECTION_WIDTH,
    CUT,
    D_AHEAD_HEAD,
    D_AT,
    D_HEAD,
    D_LENGTH,
    D_MODE,
    D_WIDTH,
    MODE_SEARCH,
    N_AT,
    N_LENGTH,
    N_NEXT,
)

LEAVE, MOVE, GIVE_UP = 0, 1, 2
"""What becomes of the bulk of large frames: it stays where it can be read again, it moves, it is given up."""
SMALL_REQUEST = 4096
"""Waiting requests up to this size are kept: cheaper than reading each of them again."""


@part
def _leaving(at, low, high):  # type: ignore[no-untyped-def]
    """Whether bytes at `at` have to move: the window forgets [low, high); bytes put together by us rotate on their
    own."""
    return low <= at < high or at >= EXTRA


@part
def _move(M, b, A, at, n, fresh, w, fill):  # type: ignore[no-untyped-def]
    """Copy a piece to the new `kept`; its new address, CUT when its bytes are gone or there is no room."""
    if not fill:
        return np.int64(KEPT)
    return np.int64(KEPT + w) if copy_out(M, b, A, at, n, fresh, KEPT_BASE + w) else np.int64(CUT)


@part
def _nodes(M, b, A, node, bulk, low, high, fresh, w, fill):  # type: ignore[no-untyped-def]
    """Move the pieces of one list: those within the first HEAD_BYTES, and of the bulk what `bulk` says; what is not in
    the input moves in any case, unless it is given up."""
    seen = np.int64(0)
    while node >= 0:
        n = M[node + N_LENGTH] & 0x7FFFFFFF
        at = M[node + N_AT]
        if at >= 0 and n > 0 and _leaving(at, low, high):
            if seen < HEAD_BYTES or bulk == MOVE or (bulk == LEAVE and at >= EXTRA):
                if fill:
                    M[node + N_AT] = _move(M, b, A, at, n, fresh, w, fill)
                w += n
            elif bulk == GIVE_UP and fill:
                M[node + N_AT] = CUT
        seen += n
        node = M[node + N_NEXT]
    return w


@kernel("i8[:] const u1[:] u1[:] i8[:] i8[:] i8 i8 i8 u1[:] b1 -> i8")
def keep(M, b, A, connections, requests, low, high, bulk, fresh, fill):  # type: ignore[no-untyped-def]
    """Move (or, without `fill`, only measure) what has to leave the window; returns the bytes.

    `connections` and `requests` are the addresses of all such structs, free ones too. `fresh` becomes the new `A`.
    `bulk`: LEAVE, MOVE or GIVE_UP.
    """
    w = np.int64(0)
    for c in connections:
        if M[c + C_NUMBER] < 0:
            continue
        for s in range(c + C_WIDTH, c + CONNECTION_WIDTH, D_WIDTH):
            at = M[s + D_AT]
            if at >= 0 and _leaving(at, low, high):
                if fill:
                    M[s + D_AT] = _move(M, b, A, at, M[s + D_LENGTH], fresh, w, fill)
                w += M[s + D_LENGTH]
            if M[s + D_HEAD] >= 0:
                mine = np.int64(MOVE) if M[s + D_MODE] == MODE_SEARCH else bulk
                w = _nodes(M, b, A, M[s + D_HEAD], mine, low, high, fresh, w, fill)
            if M[s + D_AHEAD_HEAD] >= 0:
                w = _nodes(M, b, A, M[s + D_AHEAD_HEAD], np.int64(MOVE), low, high, fresh, w, fill)
    for r in requests:
        if M[r + R_BYTES] <= 0:
            continue
        at = M[r + R_AT]
        if at >= 0 and _leaving(at, low, high) and (M[r + R_BYTES] <= SMALL_REQUEST or bulk == MOVE or at >= EXTRA):
            if fill:
                M[r + R_AT] = _move(M, b, A, at, M[r + R_LENGTH], fresh, w, fill)
            w += M[r + R_LENGTH]
        if M[r + R_HEAD] >= 0:
            w = _nodes(M, b, A, M[r + R_HEAD], bulk, low, high, fresh, w, fill)
    return w
