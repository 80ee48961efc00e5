"""numba's side of the kernels: dispatchers for what is compiled when it is called, numba's types of what is declared.

Only imported where something has to be compiled: numba takes longer to load than everything else together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core.typing.templates import make_intrinsic_template

from kdissect.kernels.cache import cache_folder, compiled_sources, digest
from kdissect.kernels.compiler import KernelCompiler, PartCompiler
from kdissect.kernels.signature import Array, Fields, Kind, Number, Signature

types: Any = numba.types

_OPTIONS: dict[str, Any] = {
    "nogil": True, "boundscheck": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False,
}  # fmt: skip
_NUMBERS: dict[str, Any] = {
    "b1": types.boolean, "i1": types.int8, "i2": types.int16, "i4": types.int32, "i8": types.int64,
    "u1": types.uint8, "u2": types.uint16, "u4": types.uint32, "u8": types.uint64, "f8": types.float64,
}  # fmt: skip


@functools.cache
def _prepared() -> bool:
    """Tell numba where to keep what it compiles; whether something was kept there before."""
    folder, before = cache_folder(f"{digest(compiled_sources())}-{numba.__version__}")
    numba.config.CACHE_DIR = str(folder)
    return before


def cached_before() -> bool:
    """Whether kernels of these sources were compiled on this machine before."""
    return _prepared()


def type_of(kind: Kind) -> Any:
    """numba's type of a declared argument or result."""
    match kind:
        case Number(code):
            return _NUMBERS[code]
        case Array(code, dimensions, const):
            return types.Array(_NUMBERS[code], dimensions, "C", readonly=const)
        case Fields(tuple_kind, parts):
            return types.BaseTuple.from_types([type_of(part) for part in parts], tuple_kind)


def argument_types(signature: Signature) -> tuple[Any, ...]:
    """numba's types of what a kernel takes."""
    return tuple(map(type_of, signature.taken))


def result_types(signature: Signature) -> Any:
    """numba's type of what a kernel gives."""
    results = [type_of(one) for one in signature.given]
    if len(results) > 1:
        return types.BaseTuple.from_types(results)
    return results[0] if results else types.none


def compile_form(dispatcher: Any, signature: Signature) -> Any:
    """Compile one declared form; numba's result. Raises TypeError where the kernel gives something else."""
    dispatcher.compile(argument_types(signature))
    made = dispatcher.overloads[argument_types(signature)]
    if made.signature.return_type != result_types(signature):
        name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__name__}"
        raise TypeError(f"{name} gives {made.signature.return_type}, which is not what it declares: {signature}")
    return made


def dispatcher_of(function: Callable[..., Any], *, cache: bool) -> Any:
    """The compiler of a kernel that Python calls."""
    return numba.njit(cache=cache, pipeline_class=KernelCompiler, **_OPTIONS)(function)


def as_kernel(function: Callable[..., Any], signatures: list[Signature]) -> Any:
    """The kernel in its declared forms, compiled or from the cache; anything else is refused with a TypeError."""
    _prepared()
    dispatcher = dispatcher_of(function, cache=True)
    for signature in signatures:
        compile_form(dispatcher, signature)
    dispatcher.disable_compile()
    if not any(isinstance(kind, Fields) and any(map(_is_const, kind.parts)) for kind in signatures[0].taken):
        return dispatcher

    def call(*args: Any) -> Any:
        return dispatcher(*map(_as_declared, args, signatures[0].taken))

    return call


def _is_const(kind: Kind) -> bool:
    return isinstance(kind, Array) and kind.const


def _as_declared(value: Any, kind: Kind) -> Any:
    """A tuple whose arrays are read only where its fields are declared so. numba takes an array that may be written for
    one that is only read, but not within a tuple."""
    if not isinstance(kind, Fields) or not isinstance(value, kind.kind):
        return value
    return kind.kind(*map(_read_only, value, kind.parts))


def _read_only(value: Any, kind: Kind) -> Any:
    if not _is_const(kind) or not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def as_part(function: Callable[..., Any]) -> Any:
    """The compiler of a part for the kernels that call it: one specialisation, whether arguments are constants or
    not."""
    dispatcher: Any = numba.njit(pipeline_class=PartCompiler, no_cpython_wrapper=True, **_OPTIONS)(function)

    def add_overload(result: Any) -> None:
        key = object()
        dispatcher.targetctx.insert_user_function(key, result.fndesc, [result.library])
        dispatcher.overloads[tuple(result.signature.args)] = result._replace(entry_point=key)

    template = dispatcher.get_call_template
    dispatcher.add_overload = add_overload
    dispatcher.get_call_template = lambda args, kws: template([types.unliteral(arg) for arg in args], kws)
    return dispatcher


def type_of_dispatcher(dispatcher: Any) -> Any:
    """numba's type of a part."""
    return types.Dispatcher(dispatcher)


def type_of_intrinsic(handle: Any, definition: Callable[..., Any]) -> Any:
    """numba's type of an intrinsic."""
    return types.Function(make_intrinsic_template(handle, definition, definition.__name__))
