"""Structs of 64-bit words, declared once as classes, for kernels and Python alike: integers, two to a word where they
are `Half`, and numbers as float64.

    @struct
    class Node:
        next: int
        position: int

    node_at = view(Node)

`node_at(M, place)` is the struct whose first word is `M[place]`: `node.position` reads and writes `M`, in kernels and
in Python. A place is checked once, for the whole struct, and a negative one is out of bounds; `next` and other places
that the struct holds are checked when they are followed. A view must not outlive the array that it was taken of.

Python that looks at one field of many structs asks for its offset, `M[places + offsets(Node).position]`, or takes rows
of them by name, `structs(Node, M, first, n)["position"]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt

from kdissect.kernels.kernel import intrinsic

S = TypeVar("S")

Int = Any
"""An integer: int64 inside kernels, Python's or numpy's where they run as Python."""
Words = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Records = npt.NDArray[Any]
"""A structured array of structs."""

Half = Annotated[int, np.int32]
"""A field of 32 bits."""

_WORD, _REAL, _HALF = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.int32)
_DTYPES: dict[Any, np.dtype[Any]] = {int: _WORD, float: _REAL, Half: _HALF}
_OFFSETS: dict[Any, Any] = {}
_PLAIN: dict[Any, Any] = {"int": int, "float": float, "Half": Half}
"""What nearly all fields are, and needs no evaluation."""


def _accessor(name: str) -> property:
    return property(lambda self: self[name], lambda self, value: self.__setitem__(name, value))


def struct(declared: type[S]) -> type[S]:
    """Give a class of annotated fields its layout: `int` and `float` are one word, `Half` is half of one, another
    struct lies inside, `Annotated[list[...], n]` is `n` of either, one behind the other."""
    module = vars(sys.modules[declared.__module__])
    fields: list[tuple[Any, ...]] = []
    for name, text in declared.__annotations__.items():
        kind = _PLAIN.get(text) or (eval(text, module) if isinstance(text, str) else text)
        count = () if kind in _DTYPES else getattr(kind, "__metadata__", ())
        if count:
            (kind,) = kind.__origin__.__args__
        fields.append((name, _DTYPES.get(kind, _WORD), *count))
    plain = np.dtype(fields, align=True)
    if plain.itemsize % _WORD.itemsize:  # an odd number of halves
        fields.append(("_", _HALF))
        plain = np.dtype(fields, align=True)
    row = type(declared.__name__, (np.void,), {name: _accessor(name) for name in plain.names or ()})
    _DTYPES[declared] = np.dtype((row, plain))
    return declared


def record(kind: type) -> np.dtype[Any]:
    """A struct's numpy dtype: its fields by name, int64 or structs."""
    return _DTYPES[kind]


def width(kind: type) -> int:
    """Words of a struct."""
    return _DTYPES[kind].itemsize // _WORD.itemsize


def offsets(kind: type[S]) -> S:
    """An object with a struct's fields, each of them the word where it begins; of an inner struct such an object, of
    several a list. Halves have none. One for all who ask."""
    if kind not in _OFFSETS:
        _OFFSETS[kind] = _offsets(kind, _DTYPES[kind], 0)
    found: S = _OFFSETS[kind]
    return found


def _offsets(kind: type[S], layout: np.dtype[Any], begin: int) -> S:
    found = object.__new__(kind)
    for name in layout.names or ():
        inner, offset = layout.fields[name][:2]  # type: ignore[index]
        at = begin + offset // _WORD.itemsize
        element, count = inner.subdtype or (inner, ())
        if element == _HALF:
            continue
        own = None if element in (_WORD, _REAL) else next(own for own, known in _DTYPES.items() if known == element)
        if own is None:
            setattr(found, name, at)
        elif count:
            size = element.itemsize // _WORD.itemsize
            setattr(found, name, [_offsets(own, element, at + i * size) for i in range(*count)])
        else:
            setattr(found, name, _offsets(own, element, at))
    return found


def structs(kind: type, M: Words, begin: int, count: int) -> Records:
    """`count` structs one behind the other from word `begin` of `M` on, as a structured array: a view."""
    return M[begin : begin + count * width(kind)].view(_DTYPES[kind])


def rows_of(kind: type, matrix: Words) -> Records:
    """A matrix of a struct's words, a row each, as a structured array [rows] whose columns are read by name: a view."""
    return matrix.view(_DTYPES[kind])[:, 0]


def words(records: Records) -> Words:
    """Structs that were taken as a structured array as a matrix of their words, a row each, for kernels: a view."""
    return records.view(np.int64).reshape(len(records), -1)


def view(kind: type[S]) -> Callable[[Any, Int], S]:
    """A function that makes a struct of the words of an int64 array in one piece: those from a place on; of a matrix,
    those of a row. IndexError where they are not in the array, or its rows are not of this struct."""
    layout, size = _DTYPES[kind], width(kind)

    def plain(M: Any, place: Int) -> Any:
        if place < 0 or place + (size if M.ndim == 1 else 1) > len(M) or (M.ndim == 2 and M.shape[1] != size):
            raise IndexError("struct is out of bounds")
        return (M[place : place + size] if M.ndim == 1 else M[place]).view(layout)[0]

    def at(typing: Any, M: Any, place: Any) -> Any:
        from numba.core import types
        from numba.np import numpy_support

        made = numpy_support.from_dtype(layout)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            bound, begin = builder.extract_value(array.shape, 0), args[1]
            if M.ndim == 1:
                bound = builder.sub(bound, bound.type(size - 1))
                bound = builder.select(builder.icmp_signed("<", bound, bound.type(0)), bound.type(0), bound)
            else:
                own = builder.icmp_signed("==", builder.extract_value(array.shape, 1), bound.type(size))
                bound, begin = builder.select(own, bound, bound.type(0)), builder.mul(begin, bound.type(size))
            with builder.if_then(builder.icmp_unsigned(">=", args[1], bound), likely=False):
                context.call_conv.return_user_exc(builder, IndexError, ("struct is out of bounds",))
            return builder.bitcast(builder.gep(array.data, [begin], inbounds=True), context.get_value_type(made))

        return made(M, types.int64), generate

    at.__name__ = f"{kind.__name__}_at"
    made: Any = intrinsic(plain)(at)
    return made  # type: ignore[no-any-return]
