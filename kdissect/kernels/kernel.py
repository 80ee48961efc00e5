"""How every kernel is declared: a `kernel` is called from Python, a `part` from kernels, an `intrinsic` is LLVM's.

    @kernel("u1[:] i8 -> i8")
    def first_of(b, i): ...

The decorator says what the kernel takes and gives (`kdissect.kernels.signature`). Where the code comes from is settled
when this module is imported:

- An installed package brings all kernels compiled in one shared object. Neither numba nor LLVM is needed.
- In a checkout numba compiles a kernel when it is first called, and keeps it on disk, unless a shared object of just
  these sources was made there (`python -m kdissect.kernels.shared_object`).
- With `NUMBA_DISABLE_JIT=1` kernels and parts are what they look like, Python functions: for debuggers and coverage.

Compiled kernels release the GIL, and integer division by zero gives numpy's answer. Numba's own bounds check stays on
as a second net below the checks which every kernel makes itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

from kdissect.kernels import native
from kdissect.kernels.signature import Signature, parse

F = TypeVar("F", bound=Callable[..., Any])

PLAIN = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
"""Whether kernels run as Python."""
if PLAIN:
    np.seterr(over="ignore")  # numpy's integers come round as the kernels' do, and warn
LIBRARY = None if PLAIN else native.find_library()
"""The shared object of all kernels."""

if not PLAIN and LIBRARY is None:
    if os.environ.get("NUMBA_BOUNDSCHECK") == "0":
        raise RuntimeError(
            "kdissect does not run with NUMBA_BOUNDSCHECK=0: its kernels read untrusted bytes. Unset it."
        )
    if find_spec("numba") is None:
        from kdissect.installed_copy import install_command

        raise ImportError(
            "kdissect's kernels are not compiled and numba is not there to do it: install the package instead of the "
            f"checkout, or what changing it needs ({install_command('dev')})"
        )

KERNELS: dict[str, Kernel] = {}
"""Every kernel of the modules imported so far, by module and name."""


def compiled_before() -> bool:
    """Whether there is compiled code (else the first run takes some seconds longer)."""
    if PLAIN or LIBRARY is not None:
        return True
    from kdissect.kernels.jit import cached_before

    return cached_before()


class Part:
    """A part of kernels. Numba compiles it when a kernel that calls it is compiled, not when loaded."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.__name__ = self.__qualname__ = function.__name__
        self.py_func = function
        self.dispatcher: Any = None

    def __call__(self, *args: Any) -> Any:
        """Refuses: there is no code but inside kernels."""
        raise TypeError(f"{self.__name__} is a part of kernels and cannot be called from Python")

    @property
    def _numba_type_(self) -> Any:
        """How numba asks what a name stands for."""
        from kdissect.kernels.jit import as_part, type_of_dispatcher

        if self.dispatcher is None:
            self.dispatcher = as_part(self.py_func)
        return type_of_dispatcher(self.dispatcher)


class Kernel(Part):
    """A function that Python calls. For a kernel that calls it, it is a part."""

    def __init__(self, function: Callable[..., Any], declared: tuple[str, ...]) -> None:
        super().__init__(function)
        self.declared = declared
        self._code: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """Module and name."""
        return f"{self.__module__}.{self.__name__}"

    @property
    def signatures(self) -> list[Signature]:
        """The kernel's arguments and results, in each of the declared forms. Raises TypeError where a declaration is
        none."""
        names: dict[str, Any] = getattr(self.py_func, "__globals__", {})
        return [parse(text, names) for text in self.declared]

    def __call__(self, *args: Any) -> Any:
        """Run it. Raises TypeError for arguments that are not as declared."""
        if self._code is None:
            self._code = self._resolve()
        return self._code(*args)

    def _resolve(self) -> Callable[..., Any]:
        if LIBRARY is not None and self.name in LIBRARY:
            return LIBRARY.function(self.name, self.signatures)
        from kdissect.kernels.jit import as_kernel

        code: Callable[..., Any] = as_kernel(self.py_func, self.signatures)
        return code


class Intrinsic:
    """A function of LLVM instructions within kernels; from Python, a function that does the same."""

    def __init__(self, definition: Callable[..., Any], plain: Callable[..., Any]) -> None:
        self.__doc__, self.__name__ = definition.__doc__, definition.__name__
        self._definition, self._plain, self._type = definition, plain, None

    def __call__(self, *args: Any) -> Any:
        """The same by Python."""
        return self._plain(*args)

    @property
    def _numba_type_(self) -> Any:
        """How numba asks what a name stands for."""
        from kdissect.kernels.jit import type_of_intrinsic

        if self._type is None:
            self._type = type_of_intrinsic(self, self._definition)
        return self._type


def kernel(*declared: str) -> Callable[[F], F]:
    """Declare a kernel by what it takes and gives, once or in several forms; the first that fits is called."""
    if not declared or not all(isinstance(one, str) for one in declared):
        name = getattr(declared[0], "__name__", "") if declared else ""
        raise TypeError(f'kernel {name} declares nothing: write what it takes and gives, as @kernel("u1[:] i8 -> i8")')

    def decorate(function: F) -> F:
        if PLAIN:
            return function
        found = Kernel(function, declared)
        KERNELS[found.name] = found
        same: Any = found
        return same  # type: ignore[no-any-return]

    return decorate


def part(function: F) -> F:
    """Declare a part of the kernels which call it; from Python it cannot be called."""
    if PLAIN:
        return function
    made: Any = Part(function)
    return made  # type: ignore[no-any-return]


def intrinsic(plain: Callable[..., Any]) -> Callable[[Callable[..., Any]], Intrinsic]:
    """Declare a numba intrinsic (see `numba.extending.intrinsic`) and what does the same in Python."""
    return lambda definition: Intrinsic(definition, plain)
