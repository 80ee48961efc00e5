"""Moving bytes within kernels, and bringing them near: what plain loops cannot do fast enough."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdissect.kernels.kernel import intrinsic, part

HIGH = np.int64(-0x7F7F7F7F7F7F7F80)
"""The highest bit of each byte of a word."""
FACTOR = np.int64(-7046029254386353131)
"""The golden ratio of 2**64, odd: a product with it has every word once."""


def _moved(to: Any, w: Any, source: Any, o: Any, n: Any) -> None:
    to[w : w + n] = source[o : o + n].copy()


@intrinsic(_moved)
def _move(typing: Any, to: Any, w: Any, source: Any, o: Any, n: Any) -> Any:
    """memmove of `n` bytes from `source[o:]` to `to[w:]`, unchecked."""
    from numba.core import cgutils, errors, types

    if not to.mutable:
        raise errors.TypingError("bytes cannot be moved to a const array")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, args[0])
        origin = context.make_array(signature.args[2])(context, builder, args[2])
        ends = builder.gep(target.data, [args[1]]), builder.gep(origin.data, [args[3]])
        cgutils.raw_memmove(builder, *ends, args[4], 1)
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.int64), generate


@part
def copy_bytes(to: Any, w: Any, source: Any, o: Any, n: Any) -> None:
    """Copy `source[o:o + n]` to `to[w:w + n]`; both are uint8 arrays in one piece. Raises IndexError out of range."""
    if n < 0 or w < 0 or o < 0 or n > to.size - w or n > source.size - o:
        raise IndexError("bytes to copy lie outside of their array")
    _move(to, w, source, o, n)


def _eight(source: Any, o: Any) -> Any:
    return source[o : o + 8].view("<i8")[0]


@intrinsic(_eight)
def _word(typing: Any, source: Any, o: Any) -> Any:
    """Eight bytes from `source[o:]` on as an int64, unchecked, wherever they stand."""
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.int64(source, types.int64), generate


def _loaded(size: int) -> Any:
    """A function that loads so many bytes, most significant first, as an int64 of at least 0, unchecked, at any
    alignment."""

    def plain(source: Any, o: Any) -> Any:
        return np.int64(int.from_bytes(source[o : o + size].tobytes(), "big"))

    def loaded(typing: Any, source: Any, o: Any) -> Any:
        from llvmlite import ir
        from numba.core import types

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            kind = ir.IntType(8 * size)
            place = builder.bitcast(builder.gep(data, [args[1]]), kind.as_pointer())
            return builder.zext(builder.bswap(builder.load(place, align=1)), ir.IntType(64))

        return types.int64(source, types.int64), generate

    return intrinsic(plain)(loaded)


_load16, _load32 = _loaded(2), _loaded(4)


@part
def be16(source: Any, o: Any) -> Any:
    """Two bytes of a uint8 array in one piece, big-endian. Raises IndexError out of range."""
    at = np.int64(o)
    if at < 0 or at > source.size - 2:
        raise IndexError("bytes lie outside of their array")
    return _load16(source, at)


@part
def be32(source: Any, o: Any) -> Any:
    """Four bytes of a uint8 array in one piece, big-endian. Raises IndexError out of range."""
    at = np.int64(o)
    if at < 0 or at > source.size - 4:
        raise IndexError("bytes lie outside of their array")
    return _load32(source, at)


@part
def int16_at(source: Any, o: Any) -> Any:
    """Two bytes, big-endian with a sign. Raises IndexError out of range."""
    value = be16(source, o)
    return value - (1 << 16) if value >= 1 << 15 else value


@part
def int32_at(source: Any, o: Any) -> Any:
    """Four bytes, big-endian with a sign. Raises IndexError out of range."""
    value = be32(source, o)
    return value - (1 << 32) if value >= 1 << 31 else value


@part
def as_int16(value: Any) -> Any:
    """Two bytes that were read without a sign, 0 to 65535, as the signed number that Kafka means. -1 stays -1."""
    return value - (1 << 16) if value >= 1 << 15 else value


@part
def int64_at(source: Any, o: Any) -> Any:
    """Eight bytes, big-endian with a sign. Raises IndexError out of range."""
    return (int32_at(source, o) << 32) | be32(source, o + 4)


def _eight_put(to: Any, w: Any, value: Any) -> None:
    to[w : w + 8].view("<u8")[0] = value


@intrinsic(_eight_put)
def _put_word(typing: Any, to: Any, w: Any, value: Any) -> Any:
    """Eight bytes from a uint64 to `to[w:]`, unchecked, wherever they stand."""
    from llvmlite import ir
    from numba.core import errors, types

    if not to.mutable:
        raise errors.TypingError("bytes cannot be put into a const array")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer())
        builder.store(args[2], place, align=1)
        return context.get_dummy_value()

    return types.void(to, types.int64, types.uint64), generate


@part
def put_word(to: Any, w: Any, value: Any) -> None:
    """Put a uint64 into `to[w:w + 8]`, uint8 in one piece, the least byte first. Raises IndexError out of range."""
    if w < 0 or to.size - w < 8:
        raise IndexError("bytes to write lie outside of their array")
    _put_word(to, w, value)


@part
def copy_text(source: Any, o: Any, to: Any, w: Any, n: Any) -> Any:
    """Copy `source[o:o + n]` to `to[w:w + n]`, most often a few bytes; both are uint8 arrays in one piece. Whether any
    is above 127. Raises IndexError out of range."""
    if n < 0 or o < 0 or w < 0 or n > source.size - o or n > to.size - w:
        raise IndexError("bytes to copy lie outside of their array")
    bits = np.int64(0)
    q = np.int64(0)
    while q + 8 <= n:
        word = _word(source, o + q)
        _put_word(to, w + q, np.uint64(word))
        bits |= word
        q += 8
    high = bits & HIGH != 0
    while q < n:
        byte = source[o + q]
        to[w + q] = byte
        high |= byte >= 128
        q += 1
    return high


@part
def same_bytes(first: Any, o: Any, second: Any, p: Any, n: Any) -> Any:
    """Whether `first[o:o + n]` and `second[p:p + n]` are the same; both are uint8 arrays in one piece. Raises
    IndexError out of range."""
    if n < 0 or o < 0 or p < 0 or n > first.size - o or n > second.size - p:
        raise IndexError("bytes lie outside of their array")
    q = np.int64(0)
    while q + 8 <= n:
        if _word(first, o + q) != _word(second, p + q):
            return False
        q += 8
    while q < n:
        if first[o + q] != second[p + q]:
            return False
        q += 1
    return True


@part
def fingerprint(source, o, n):  # type: ignore[no-untyped-def]
    """An int64 of `source[o:o + n]` (uint8, in one piece): another one wherever eight bytes in a row are others, and
    nearly always where more are. Raises IndexError out of range."""
    if n < 0 or o < 0 or n > source.size - o:
        raise IndexError("bytes lie outside of their array")
    first, second = np.int64(n), np.int64(1)
    third, fourth = np.int64(2), np.int64(3)
    end = o + n
    while o + 32 <= end:  # four at a time, for a product takes longer than the next one waits
        first = (first ^ _word(source, o)) * FACTOR
        second = (second ^ _word(source, o + 8)) * FACTOR
        third = (third ^ _word(source, o + 16)) * FACTOR
        fourth = (fourth ^ _word(source, o + 24)) * FACTOR
        o += 32
    while o + 8 <= end:
        first = (first ^ _word(source, o)) * FACTOR
        o += 8
    while o < end:
        second = (second ^ np.int64(source[o])) * FACTOR
        o += 1
    first = (first ^ (second >> 29)) * FACTOR + second
    third = (third ^ (fourth >> 29)) * FACTOR + fourth
    return (first ^ (third >> 31)) * FACTOR + third


def _nothing(array: Any, i: Any) -> None:
    pass


@intrinsic(_nothing)
def _fetch(typing: Any, array: Any, i: Any) -> Any:
    """Ask for the cache line of the flat element `i`, which must exist."""
    from llvmlite import ir
    from numba.core import cgutils, types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(prefetch, [place, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@part
def fetch(array: Any, i: Any) -> None:
    """Ask for the cache line of `array.flat[i]` ahead of its use; of an array in one piece, nothing where it ends."""
    if 0 <= i < array.size:
        _fetch(array, i)
