"""Bytes of packets that lie aside: in memory up to a bound, the oldest in a temporary file.

Bytes are appended in pieces of some megabytes and known by their position, from `STORED` on. A piece goes when none of
its bytes is needed any more; its place in the file is then used again.
"""

from __future__ import annotations

import weakref
from typing import BinaryIO

import numpy as np

from kdissect.kafka.streams.state import copy_out
from kdissect.kernels.kernel import kernel
from kdissect.kernels.memory import copy_bytes
from kdissect.kernels.structs import Bytes, Flags, Words
from kdissect.output import scratch, temporary

STORED = 1 << 60
"""Positions from here on are those of bytes in a store: no logical offset is as large."""
PIECE_BITS = 23
PIECE = 4 << 20
"""Bytes of a piece at most, but for its last payload."""
IN_MEMORY = 32 << 20
"""Bytes that stay in memory. A million payloads of 30 bytes fit."""


@kernel("i8[:] const u1[:] u1[:] i8[:] i8[:] u1[:] i8[:] b1[:]")
def copy_from_window(
    M: Words, b: Bytes, A: Bytes, at: Words, sizes: Words, target: Bytes, places: Words, flags: Flags
) -> None:
    """Copy `sizes[i]` bytes at logical offset `at[i]` to `target[places[i]:]`; `flags`: whether the window had them."""
    for i in range(at.size):
        flags[i] = copy_out(M, b, A, at[i], sizes[i], target, places[i])


@kernel("const u1[:] i8[:] i8[:] u1[:] i8[:]")
def _copy_ranges(source: Bytes, starts: Words, sizes: Words, target: Bytes, places: Words) -> None:
    """Copy `source[starts[i]:starts[i] + sizes[i]]` to `target[places[i]:]`."""
    for i in range(starts.size):
        copy_bytes(target, places[i], source, starts[i], sizes[i])


def distinct_numbers(numbers: Words) -> list[int]:
    """The different numbers of pieces or chunks, in order: small ones, none below 0, which a count finds sooner than
    sorting does."""
    found: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return found


class ByteStore:
    """Bytes by position."""

    def __init__(self) -> None:
        self._pieces: dict[int, Bytes] = {}
        """In memory, by number, the oldest first."""
        self._spilled: dict[int, tuple[int, int]] = {}
        """Where the others lie in the file: place and size."""
        self._needed: dict[int, int] = {}
        """Bytes of a piece that were not dropped yet."""
        self._made = 0
        self._in_memory = 0
        self._file: BinaryIO | None = None
        self._file_end = 0
        self._holes: list[tuple[int, int]] = []
        """Places in the file that are free: place and size."""

    def append(self, piece: Bytes) -> int:
        """Append bytes, at most `PIECE` and one payload more; the position of the first."""
        number = self._made
        self._made += 1
        self._pieces[number] = piece
        self._needed[number] = len(piece)
        self._in_memory += len(piece)
        while self._in_memory > IN_MEMORY:
            self._spill()
        return STORED + (number << PIECE_BITS)

    def get(self, positions: Words, sizes: Words) -> Bytes:
        """The bytes at these positions, one behind the other."""
        out = np.empty(int(sizes.sum()), np.uint8)
        places = np.cumsum(sizes) - sizes
        numbers, starts = self._located(positions)
        for number in distinct_numbers(numbers):
            mine = np.flatnonzero(numbers == number)
            _copy_ranges(self._piece(number), starts[mine], sizes[mine], out, places[mine])
        return out

    def drop(self, positions: Words, sizes: Words) -> None:
        """The bytes at these positions are not needed any more."""
        numbers, _ = self._located(positions)
        for number in distinct_numbers(numbers):
            self._needed[number] -= int(sizes[numbers == number].sum())
            if self._needed[number] == 0:
                self._let_go(number)

    def _located(self, positions: Words) -> tuple[Words, Words]:
        """Numbers of pieces, and where in them positions are."""
        return (positions - STORED) >> PIECE_BITS, (positions - STORED) & ((1 << PIECE_BITS) - 1)

    def _piece(self, number: int) -> Bytes:
        if number in self._pieces:
            return self._pieces[number]
        assert self._file is not None
        place, size = self._spilled[number]
        self._file.seek(place)
        return np.frombuffer(self._file.read(size), np.uint8)

    def _spill(self) -> None:
        """Write the oldest piece that is in memory to the file."""
        number, piece = next(iter(self._pieces.items()))
        if self._file is None:
            self._file = temporary()
            weakref.finalize(self, self._file.close)
        size = len(piece)
        place = self._room(size)
        with scratch():
            self._file.seek(place)
            self._file.write(piece)
        del self._pieces[number]
        self._in_memory -= size
        self._spilled[number] = place, size

    def _room(self, size: int) -> int:
        """A place in the file for so many bytes: the first that is large enough, or its end."""
        for i, (place, room) in enumerate(self._holes):
            if room >= size:
                self._holes[i : i + 1] = [(place + size, room - size)] if room > size else []
                return place
        self._file_end += size
        return self._file_end - size

    def _let_go(self, number: int) -> None:
        del self._needed[number]
        if number in self._pieces:
            self._in_memory -= len(self._pieces.pop(number))
            return
        self._holes.append(self._spilled.pop(number))
        if not self._spilled and self._file is not None:
            self._file.truncate(0)
            self._holes.clear()
            self._file_end = 0
