"""Bytes that must outlive the window.

The window forgets its oldest slot before it reads on. What the stream kernels may still look at then moves to `kept`: the
beginnings of frames that are being received, windows that are being searched, and segments ahead of a hole. The bulk of a
large frame stays where it is, as extents of the file, where the input can be read again; where it cannot (a pipe, a
compressed file) it moves too. `kept` is packed anew each time, so it holds live bytes only.
"""

from __future__ import annotations

import numpy as np

from kdissect._kernel import kernel
from kdissect.capture.window import EXTRA
from kdissect.kafka.pairing import HEAD_BYTES
from kdissect.kafka.state import KEPT, R_AT, R_BYTES, R_HEAD, R_LENGTH, copy_out
from kdissect.tcp.layout import C_NUMBER, CUT, D_AHEAD_HEAD, D_AT, D_HEAD, D_LENGTH, D_MODE, MODE_SEARCH, N_AT, N_LENGTH, N_NEXT

SMALL_REQUEST = 4096
"""Waiting requests up to this size are kept: cheaper than reading each of them again."""


@kernel
def _leaving(at, low, high):  # type: ignore[no-untyped-def]
    """Whether bytes at `at` have to move: the window forgets [low, high); bytes put together by us rotate on their own."""
    return low <= at < high or at >= EXTRA


@kernel
def _move(st, at, n, fresh, w, fill):  # type: ignore[no-untyped-def]
    """Copy a piece to the new `kept`; its new address, CUT when its bytes are gone or there is no room."""
    if not fill:
        return np.int64(KEPT)
    return np.int64(KEPT + w) if copy_out(st, at, n, fresh, w) else np.int64(CUT)


@kernel
def _nodes(st, node, everything, low, high, fresh, w, fill):  # type: ignore[no-untyped-def]
    """Move the pieces of one list; all of them, or only those within the first HEAD_BYTES."""
    N = st.N
    seen = np.int64(0)
    while node >= 0 and (everything or seen < HEAD_BYTES):
        n = N[node, N_LENGTH] & 0x7FFFFFFF
        at = N[node, N_AT]
        if at >= 0 and n > 0 and _leaving(at, low, high):
            if fill:
                N[node, N_AT] = _move(st, at, n, fresh, w, fill)
            w += n
        seen += n
        node = N[node, N_NEXT]
    return w


@kernel
def keep(st, low, high, all_of_it, fresh, fill):  # type: ignore[no-untyped-def]
    """Move (or, without `fill`, only measure) what has to leave the window; returns the bytes.

    `all_of_it`: the input cannot be read again, so the bulk of large frames moves too.
    """
    C = st.C
    D = st.D
    R = st.R
    w = np.int64(0)
    for c in range(C.shape[0]):
        if C[c, C_NUMBER] < 0:
            continue
        for s in range(2 * c, 2 * c + 2):
            at = D[s, D_AT]
            if at >= 0 and _leaving(at, low, high):
                if fill:
                    D[s, D_AT] = _move(st, at, D[s, D_LENGTH], fresh, w, fill)
                w += D[s, D_LENGTH]
            if D[s, D_HEAD] >= 0:
                everything = D[s, D_MODE] == MODE_SEARCH or all_of_it
                w = _nodes(st, D[s, D_HEAD], everything, low, high, fresh, w, fill)
            if D[s, D_AHEAD_HEAD] >= 0:
                w = _nodes(st, D[s, D_AHEAD_HEAD], True, low, high, fresh, w, fill)
    for r in range(R.shape[0]):
        if R[r, R_BYTES] <= 0:
            continue
        at = R[r, R_AT]
        if at >= 0 and _leaving(at, low, high) and (R[r, R_BYTES] <= SMALL_REQUEST or all_of_it):
            if fill:
                R[r, R_AT] = _move(st, at, R[r, R_LENGTH], fresh, w, fill)
            w += R[r, R_LENGTH]
        if R[r, R_HEAD] >= 0:
            w = _nodes(st, R[r, R_HEAD], all_of_it, low, high, fresh, w, fill)
    return w
