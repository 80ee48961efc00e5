"""Moving bytes within kernels, and bringing them near: what plain loops cannot do fast enough."""

from __future__ import annotations

from typing import Any

from kdissect.kernels.kernel import intrinsic, part


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
