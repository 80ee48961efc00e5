"""Frames of finished exchanges as contiguous bytes, ready to decode.

Most frames lie in one piece of the window and are decoded where they are. The others are put together in the window's
room for work; pieces that the window no longer holds are read again from the input, many at a time.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

from kdissect.kafka.streams.pairing.message_headers import request_body, response_body
from kdissect.kafka.streams.state import EXCHANGE_WIDTH, KEPT, X_BASE, Frame, copy_out, exchange_at, frame_of, place
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import Bytes, Flags, Int, Records, Words, struct, view, width
from kdissect.schema.vm import apart_at
from kdissect.tcp.layout import node_at


class Reader(Protocol):
    """Input that can be read again at logical offsets."""

    @property
    def rereadable(self) -> bool:
        """Whether `read_many` works."""

    def read_many(self, at: Words, length: Words, out: Bytes, place: Words) -> Any:
        """Copy `length[i]` bytes at logical offset `at[i]` to `out[place[i]:]`."""


@struct
class Absent:
    """A piece of a frame that has to be read again."""

    at: int
    """Its logical offset; below 0, or from EXTRA on: that cannot be done."""
    length: int
    """Its bytes."""
    place: int
    """Where it belongs."""


absent_at = view(Absent)


def room_for_pieces(least: int, size: int = 0) -> Words:
    """Rows of `Absent`: so many at least, and enough for a frame of `size` bytes in pieces of 64 bytes."""
    return np.zeros((max(least, size // 64), width(Absent)), np.int64)


def read_again(reader: Reader, pieces: Records, out: Bytes) -> None:
    """Read pieces, structs `Absent`, to their places in `out`."""
    reader.read_many(pieces["at"], pieces["length"], out, pieces["place"])


class Target(NamedTuple):
    """Where frames that lie in several pieces are brought together."""

    memory: Bytes
    place: Int
    """Where it is free from."""
    limit: Int
    """Where it ends."""
    together: Int
    """Whether all frames are copied there, those in one piece too."""


TARGET = fields(Target, "u1[:] i8 i8 b1")
"""What kernels that take it declare."""


@part
def _copy_piece(
    M: Words, b: Bytes, A: Bytes, at: Int, n: Int, target: Bytes, w: Int, absent: Words, missing: Int
) -> Int:
    """Copy one piece to `target[w:]`, or note that it has to be read again; returns the number of such notes."""
    if not copy_out(M, b, A, at, n, target, w) and missing < absent.shape[0]:
        piece = absent_at(absent, missing)
        piece.at, piece.length, piece.place = at, n, w
        missing += 1
    return missing


@part
def _pieces(M: Words, frame: Frame) -> Int:
    """Number of pieces of a frame."""
    count = 1
    piece = frame.head
    while piece >= 0:
        count += 1
        piece = node_at(M, piece).next
    return count


@part
def located(
    M: Words, b: Bytes, A: Bytes, frame: Frame, target: Target, w: Int, absent: Words, missing: Int
) -> tuple[Int, Int, Int]:
    """Where a frame lies behind its length prefix: in the window where it is in one piece there (unless all are to be
    together), else in the target from `w` on. Rows of `absent` have to be read again.

    Returns that place, -1 for want of room, where the target is free then, and the number of rows of `absent`.
    """
    at = frame.at
    length = frame.bytes - 4
    if at >= 0 and at < KEPT and not target.together:
        o = place(M, at)
        if o >= 0:
            return o, w, missing
    if length > target.limit - w or missing + _pieces(M, frame) > absent.shape[0]:
        return -1, w, missing
    o = w
    if at >= 0:
        missing = _copy_piece(M, b, A, at, frame.length, target.memory, w, absent, missing)
    piece = frame.head
    while piece >= 0:
        node = node_at(M, piece)
        missing = _copy_piece(M, b, A, node.at, node.length, target.memory, w, absent, missing)
        w += node.length
        piece = node.next
    return o, o + length, missing


@part
def set_apart(
    M: Words, b: Bytes, A: Bytes, frame: Frame, target: Target, w: Int, absent: Words, missing: Int, apart: Words,
    rows: Int,
) -> tuple[Int, Int, Int, Int]:  # fmt: skip
    """`located` for a frame in several pieces: those in the window stay where they are, in rows of `apart`.
    Returns what `located` does, and the number of these rows."""
    if frame.bytes - 4 > target.limit - w or missing + _pieces(M, frame) > absent.shape[0]:
        return -1, w, missing, rows
    o = w
    piece = frame.head
    while piece >= 0:
        node = node_at(M, piece)
        p: Int = place(M, node.at) if 0 <= node.at < KEPT else np.int64(-1)
        if p >= 0 and node.length <= b.size - p and rows < apart.shape[0]:
            left = apart_at(apart, rows)
            left.place, left.length, left.at = w, node.length, p
            rows += 1
        else:
            missing = _copy_piece(M, b, A, node.at, node.length, target.memory, w, absent, missing)
        w += node.length
        piece = node.next
    return o, w, missing, rows


@part
def behind_header(M: Words, s: Bytes, side: Int, begin: Int, end: Int, api: Int, version: Int) -> Int:
    """Where the body of a frame at s[begin:end] begins whose header was not read yet; -1 where that cannot be read."""
    if api < 0:
        return np.int64(-1)
    if side == 0:
        return request_body(M, s, begin, end, api, version)
    return response_body(M, s, begin, end, api, version)


@kernel("i8[:] const u1[:] const u1[:] i8 i8 b1[:,:] TARGET i8[:,:] i8[:,:] i8[:,:] -> i8 i8 i8")
def collect(
    M: Words, b: Bytes, A: Bytes, first: Int, n: Int, need: Flags, target: Target, begin: Words, end: Words,
    absent: Words,
) -> tuple[Int, Int, Int]:  # fmt: skip
    """Find the frames of the exchanges first..n-1 that `need` asks for (one column a side).

    `begin` and `end` get the places of the messages behind their headers, see `located`. Returns the exchange it
    stopped at for want of room, the number of rows of `absent`, and where the target is free then.
    """
    w = target.place
    missing = 0
    for i in range(first, n):
        exchange = exchange_at(M, X_BASE + i * EXCHANGE_WIDTH)
        mark = missing
        start = w
        for side in range(2):
            if not need[i, side]:
                begin[i, side] = 0
                end[i, side] = 0
                continue
            frame = frame_of(exchange, side)
            o, w, missing = located(M, b, A, frame, target, w, absent, missing)
            if o < 0:
                return i, mark, start
            begin[i, side] = o
            end[i, side] = o + frame.bytes - 4
    return n, missing, w


@kernel("i8[:] i8 i8 b1[:,:] const u1[:] i8[:,:] i8[:,:]")
def bodies(M: Words, first: Int, n: Int, need: Flags, s: Bytes, begin: Words, end: Words) -> None:
    """Move `begin` behind the headers; -1 where the header cannot be read."""
    for i in range(first, n):
        exchange = exchange_at(M, X_BASE + i * EXCHANGE_WIDTH)
        for side in range(2):
            if not need[i, side]:
                continue
            body = frame_of(exchange, side).body
            if body < 0:
                start, stop = begin[i, side], end[i, side]
                begin[i, side] = behind_header(M, s, side, start, stop, exchange.api, exchange.version)
            else:
                begin[i, side] += body
