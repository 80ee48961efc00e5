"""Copying bytes within kernels: the one thing that a loop with checks at each byte is too slow for."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kdissect._kernel import part


@intrinsic  # type: ignore[untyped-decorator]
def _move(typing: Any, to: Any, w: Any, source: Any, o: Any, n: Any) -> Any:
    """memmove of `n` bytes from `source[o:]` to `to[w:]`, unchecked."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, args[0])
        origin = context.make_array(signature.args[2])(context, builder, args[2])
        ends = builder.gep(target.data, [args[1]]), builder.gep(origin.data, [args[3]])
        cgutils.raw_memmove(builder, *ends, args[4], 1)
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.int64), generate


@part
def copy_bytes(to, w, source, o, n):  # type: ignore[no-untyped-def]
    """Copy `source[o:o + n]` to `to[w:w + n]`; both are uint8 arrays in one piece. Raises IndexError out of range."""
    if n < 0 or w < 0 or o < 0 or n > to.size - w or n > source.size - o:
        raise IndexError("bytes to copy lie outside of their array")
    _move(to, w, source, o, n)
