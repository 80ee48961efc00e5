"""How every numba kernel of the project is compiled.

`kernel` is numba's `njit` with one set of options: the result is cached on disk, the GIL is released, integer
division by zero gives numpy's answer instead of raising, and numba's own bounds check stays on as a second net below
the checks which every kernel makes itself (numba's check lets negative indices through). `NUMBA_BOUNDSCHECK=0` would
switch that net off behind our back, so importing this module under it is refused.

Only kernel modules import this one: numba takes longer to load than everything else together.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

if os.environ.get("NUMBA_BOUNDSCHECK") == "0":
    raise RuntimeError("kdissect does not run with NUMBA_BOUNDSCHECK=0: its kernels read untrusted bytes. Unset it.")


_PACKAGE = Path(__file__).parent.parent
_PREFIX = "kernels-"


def _writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        return os.access(path, os.W_OK)
    except OSError:
        return False


def _digest() -> str:
    """A digest of the kernels' sources and of the modules whose constants they use.

    numba looks at the file that a kernel stands in only, while kernels share layouts and call each other across
    files: a folder of its own for each state of the sources keeps stale code from being loaded.
    """
    sources = {path.relative_to(_PACKAGE).as_posix(): path.read_bytes() for path in _PACKAGE.rglob("*.py")}
    kernels = {name for name, text in sources.items() if b"\n@kernel\n" in text or b"\n@part\n" in text}
    used = {module for name in kernels for module in re.findall(rb"from kdissect\.([\w.]+) import", sources[name])}
    kernels |= {module.decode().replace(".", "/") + ".py" for module in used}
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(kernels & sources.keys()):
        digest.update(name.encode() + sources[name])
    return digest.hexdigest()


def _cache_directory() -> Path:
    """Where compiled kernels go: `NUMBA_CACHE_DIR`, the package's own folder, the user's cache, or a private
    temporary one.

    numba raises at import when it finds no place that it can write to.
    """
    asked = os.environ.get("NUMBA_CACHE_DIR")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    places = [Path(asked)] if asked else []
    places += [
        _PACKAGE / "__pycache__",
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kdissect",
        Path(tempfile.gettempdir()) / f"kdissect-{user}",
    ]
    place = next((place for place in places if _writable(place)), places[-1])
    mine = place / f"{_PREFIX}{_digest()}"
    if not mine.exists():
        for old in place.glob(f"{_PREFIX}*"):
            shutil.rmtree(old, ignore_errors=True)
    return mine


def compiled_before() -> bool:
    """Whether kernels were compiled on this machine before (else the first run takes some seconds longer)."""
    return _BEFORE


import numba  # noqa: E402  (after the environment was looked at)

_DIRECTORY = _cache_directory()
_BEFORE = _DIRECTORY.exists()
numba.config.CACHE_DIR = str(_DIRECTORY)

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
