"""Frames of finished exchanges as contiguous bytes, ready to decode.

Most frames lie in one piece of the window and are decoded where they are. The others are put together in the window's
room for work; pieces that the window no longer holds are read again from the input, many at a time.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kdissect.kafka.streams.pairing import request_body, response_body
from kdissect.kafka.streams.state import (
    KEPT,
    X_API,
    X_BASE,
    X_F_AT,
    X_F_BODY,
    X_F_BYTES,
    X_F_HEAD,
    X_F_LENGTH,
    X_REQUEST,
    X_RESPONSE,
    X_VERSION,
    X_WIDTH,
    copy_out,
    place,
)
from kdissect.kernels.kernel import kernel, part
from kdissect.tcp.layout import N_AT, N_LENGTH, N_NEXT

Words = npt.NDArray[np.int64]


class Reader(Protocol):
    """Input that can be read again at logical offsets."""

    @property
    def rereadable(self) -> bool:
        """Whether `read_many` works."""

    def read_many(self, at: Words, length: Words, out: npt.NDArray[np.uint8], place: Words) -> Any:
        """Copy `length[i]` bytes at logical offset `at[i]` to `out[place[i]:]`."""


@part
def _copy_piece(M, b, A, at, n, target, w, absent, missing):  # type: ignore[no-untyped-def]
    """Copy one piece to `target[w:]`, or note that it has to be read again; returns the number of such notes."""
    if not copy_out(M, b, A, at, n, target, w) and missing < absent.shape[0]:
        absent[missing, 0] = at
        absent[missing, 1] = n
        absent[missing, 2] = w
        missing += 1
    return missing


@part
def _pieces(M, row, x):  # type: ignore[no-untyped-def]
    """Number of pieces of a frame."""
    count = np.int64(1)
    node = M[row + x + X_F_HEAD]
    while node >= 0:
        count += 1
        node = M[node + N_NEXT]
    return count


@kernel("i8[:] const u1[:] const u1[:] i8 i8 b1[:,:] b1 u1[:] i8 i8 i8[:,:] i8[:,:] i8[:,:] -> i8 i8 i8")
def collect(M, b, A, first, n, need, together, target, w, limit, begin, end, absent):  # type: ignore[no-untyped-def]
    """Find the frames of the exchanges first..n-1 that `need` asks for (one column a side).

    `begin` and `end` get the places of the messages behind their headers: in the window where they are in one piece
    there (unless `together`), else in `target` from `w` on, up to `limit`. Rows of `absent` (at, length, place) have
    to be read again. Returns the exchange it stopped at for want of room, and the number of rows of `absent`.
    """
    missing = np.int64(0)
    for i in range(first, n):
        row = X_BASE + i * X_WIDTH
        mark = missing
        start = w
        for side in range(2):
            x = X_REQUEST if side == 0 else X_RESPONSE
            if not need[i, side]:
                begin[i, side] = 0
                end[i, side] = 0
                continue
            at = M[row + x + X_F_AT]
            node = M[row + x + X_F_HEAD]
            length = M[row + x + X_F_BYTES] - 4
            o = np.int64(-1)
            if at >= 0 and at < KEPT and not together:
                o = place(M, at)
            if o < 0:
                if length > limit - w or missing + _pieces(M, row, x) > absent.shape[0]:
                    return i, mark, start
                o = w
                if at >= 0:
                    missing = _copy_piece(M, b, A, at, M[row + x + X_F_LENGTH], target, w, absent, missing)
                while node >= 0:
                    missing = _copy_piece(M, b, A, M[node + N_AT], M[node + N_LENGTH], target, w, absent, missing)
                    w += M[node + N_LENGTH]
                    node = M[node + N_NEXT]
                w = o + length
            begin[i, side] = o
            end[i, side] = o + length
    return n, missing, w


@kernel("i8[:] i8 i8 b1[:,:] const u1[:] i8[:,:] i8[:,:]")
def bodies(M, first, n, need, s, begin, end):  # type: ignore[no-untyped-def]
    """Move `begin` behind the headers; -1 where the header cannot be read."""
    for i in range(first, n):
        row = X_BASE + i * X_WIDTH
        for side in range(2):
            if not need[i, side]:
                continue
            body = M[row + (X_REQUEST if side == 0 else X_RESPONSE) + X_F_BODY]
            if body < 0:
                api = M[row + X_API]
                version = M[row + X_VERSION]
                if api < 0:
                    begin[i, side] = -1
                elif side == 0:
                    begin[i, side] = request_body(M, s, begin[i, side], end[i, side], api, version)
                else:
                    begin[i, side] = response_body(M, s, begin[i, side], end[i, side], api, version)
            else:
                begin[i, side] += body
