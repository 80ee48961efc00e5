"""Many ranges of a file into one array, by pread(2) from within a kernel: no Python for each range."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.kernels.kernel import intrinsic, kernel, part
from kdissect.kernels.memory import copy_bytes

Words = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

NEAR = 1 << 12
"""Ranges no farther apart than this are read in one go: a call costs what copying some KB costs."""
TOGETHER = 1 << 18
"""Bytes that are read in one go at most, but for a range that is longer by itself: they stay in the cache."""


def _read(fd: Any, out: Any, at: Any, size: Any, offset: Any) -> int:
    return os.preadv(fd, [out[at : at + size]], offset)


@intrinsic(_read)
def _pread(typing: Any, fd: Any, out: Any, at: Any, size: Any, offset: Any) -> Any:
    """pread(fd, &out[at], size, offset), unchecked; its result."""
    from llvmlite import ir
    from numba.core import cgutils, types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[1])(context, builder, args[1]).data
        place = builder.bitcast(builder.gep(data, [args[2]]), ir.IntType(8).as_pointer())
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [ir.IntType(32), place.type, word, word])
        called = cgutils.get_or_insert_function(builder.module, kind, "pread")
        return builder.call(called, [builder.trunc(args[0], ir.IntType(32)), place, args[3], args[4]])

    return types.int64(types.int64, out, types.int64, types.int64, types.int64), generate


@part
def read(fd: Any, out: Bytes, at: Any, size: Any, offset: Any) -> None:
    """Fill `out[at:at + size]` from `offset` of the file, with zeros where it has nothing more."""
    if size < 0 or at < 0 or offset < 0 or size > out.size - at:
        raise IndexError("range lies outside of its array")
    done = 0
    while done < size:
        got = _pread(fd, out, at + done, size - done, offset + done)
        if got <= 0:
            break
        done += got
    for i in range(at + done, at + size):
        out[i] = 0


@kernel("i8 const i8[:] const i8[:] u1[:] const i8[:] u1[:]")
def _read_ranges(fd: int, offset: Words, length: Words, out: Bytes, place: Words, scratch: Bytes) -> None:
    """Copy `length[i]` bytes at `offset[i]` of the file to `out[place[i]:]`; near ones in one go, by `scratch`."""
    first = 0
    while first < len(offset):
        begin = offset[first]
        end = begin + length[first]
        stop = first + 1
        while stop < len(offset):
            ahead = offset[stop] + length[stop]
            if offset[stop] < end or offset[stop] - end > NEAR or ahead - begin > len(scratch):
                break
            end = ahead
            stop += 1
        if stop == first + 1:
            read(fd, out, place[first], length[first], begin)
        else:
            read(fd, scratch, 0, end - begin, begin)
            for i in range(first, stop):
                copy_bytes(out, place[i], scratch, offset[i] - begin, length[i])
        first = stop


def read_ranges(path: Path, offset: Words, length: Words, out: Bytes, place: Words) -> None:
    """Copy `length[i]` bytes at `offset[i]` of a file to `out[place[i]:]`, for all i; quickest with offsets that grow.

    Where the file has nothing any more, zeros. Raises OSError when it cannot be opened, IndexError for ranges that do
    not fit `out`.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        _read_ranges(fd, offset, length, out, place, np.empty(TOGETHER, np.uint8))
    finally:
        os.close(fd)
