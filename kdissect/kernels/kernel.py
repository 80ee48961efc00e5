"""How every numba kernel of the project is compiled.

`kernel` is numba's `njit` with one set of options: the result is cached on disk, the GIL is released, integer
division by zero gives numpy's answer instead of raising, and numba's own bounds check stays on as a second net below
the checks which every kernel makes itself (numba's check lets negative indices through). `NUMBA_BOUNDSCHECK=0` would
switch that net off behind our back, so importing this module under it is refused.

Only kernel modules import this one: numba takes longer to load than everything else together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from kdissect.kernels.cache import cache_folder, digest

F = TypeVar("F", bound=Callable[..., Any])

if os.environ.get("NUMBA_BOUNDSCHECK") == "0":
    raise RuntimeError("kdissect does not run with NUMBA_BOUNDSCHECK=0: its kernels read untrusted bytes. Unset it.")


def compiled_before() -> bool:
    """Whether kernels were compiled on this machine before (else the first run takes some seconds longer)."""
    return _BEFORE


import numba  # noqa: E402  (after the environment was looked at)

_FOLDER, _BEFORE = cache_folder(f"{digest()}-{numba.__version__}")
numba.config.CACHE_DIR = str(_FOLDER)

from kdissect.kernels.compiler import KernelCompiler, PartCompiler  # noqa: E402

_OPTIONS: dict[str, Any] = {
    "nogil": True, "boundscheck": True, "error_model": "numpy", "no_cfunc_wrapper": True,
    "_nrt": False,
}  # fmt: skip


def _without_literals(dispatcher: Any) -> Any:
    """Make the calls of other kernels compile one specialisation, whether arguments are constants or not."""
    template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, kws: template([numba.types.unliteral(arg) for arg in args], kws)
    return dispatcher


def kernel(function: F) -> F:
    """Compile `function` with the project's options on first call; later processes load it from the cache."""
    compiled: F = _without_literals(numba.njit(cache=True, pipeline_class=KernelCompiler, **_OPTIONS)(function))
    return compiled


class _Part:
    """A part of kernels. What numba makes of it is made when a kernel that calls it is compiled, not when loaded."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.__name__ = self.__qualname__ = function.__name__
        self.py_func = function
        self._dispatcher: Any = None

    def __call__(self, *args: Any) -> Any:
        """Refuses: there is no code but inside kernels."""
        raise TypeError(f"{self.__name__} is a part of kernels and cannot be called from Python")

    @property
    def _numba_type_(self) -> Any:
        """How numba asks what a name stands for."""
        if self._dispatcher is None:
            self._dispatcher = self._made()
        return numba.types.Dispatcher(self._dispatcher)

    def _made(self) -> Any:
        options = {**_OPTIONS, "no_cpython_wrapper": True}
        dispatcher: Any = numba.njit(pipeline_class=PartCompiler, **options)(self.py_func)

        def add_overload(result: Any) -> None:
            key = object()
            dispatcher.targetctx.insert_user_function(key, result.fndesc, [result.library])
            dispatcher.overloads[tuple(result.signature.args)] = result._replace(entry_point=key)

        dispatcher.add_overload = add_overload
        return _without_literals(dispatcher)


def part(function: F) -> F:
    """Compile `function` as a part of the kernels which call it; from Python it cannot be called."""
    made: Any = _Part(function)
    compiled: F = made
    return compiled
