"""The process behind the command line: what it leaves out to start and to leave quickly, then `main`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, ClassVar, cast

from kdissect.cli.modules import Finder
from kdissect.cli.substitutes import stand_ins

_DOCUMENTATION = "pyarrow.vendored.docscrape"
_HELP = ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars")
"""Modules that write help texts onto what numpy has in C."""
NEEDS_PANDAS = ("spark",)
"""Commands that work with DataFrames."""


class Without:
    """pyarrow imports pandas and dateutil, if they are there, the first time that it makes an array; tables are printed
    without. Its `acero`, which groups and filters, imports datasets with all file systems (S3, TLS), and does without.
    numba imports colorama, which sends an escape sequence to the terminal when the program ends."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Says that there is no such module."""
        if name in self.names:
            raise ImportError(name)
        return None


class LeanCompute:
    """pyarrow.compute makes a documented function of each of Arrow's 300 when it is imported, which takes as long as
    to read a small capture. Here it makes each when it is asked for."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """pyarrow.compute, to be loaded by this class."""
        spec = PathFinder.find_spec(name, path) if name == "pyarrow.compute" else None
        if spec is not None:
            spec.loader = cast("Any", cls(spec.loader))
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As always."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Import it with a registry that lists next to nothing; whole, where that does not work."""
        from pyarrow import _compute

        made: Any = module
        real, before = _compute.function_registry, dict(vars(module))
        _compute.function_registry = lambda: _Few(real())
        # What makes their documentation takes longer than they, and loads pydoc.
        sys.modules[_DOCUMENTATION] = documentation = ModuleType(_DOCUMENTATION)
        vars(documentation)["NumpyDocString"] = lambda text: {"Parameters": []}
        inspect, sys.modules["inspect"] = sys.modules.get("inspect"), cast("Any", _Unseen)
        try:
            self._whole.exec_module(module)
            wrap = made._wrap_function
        except Exception:  # another pyarrow, made in another way
            wrap = None
        finally:
            _compute.function_registry = real
            del sys.modules[_DOCUMENTATION], sys.modules["inspect"]
            if inspect is not None:
                sys.modules["inspect"] = inspect
        if wrap is None:
            vars(module).clear()
            vars(module).update(before)
            self._whole.exec_module(module)
            return
        made.function_registry = real
        made.inspect = importlib.import_module("inspect")
        made._make_signature = lambda *of: None  # what only `help` reads
        made._decorate_compute_function = lambda wrapper, *of: wrapper

        def on_demand(name: str) -> Any:
            try:
                found = wrap(name, real().get_function({"and_": "and", "or_": "or"}.get(name, name)))
            except KeyError:
                raise AttributeError(f"module 'pyarrow.compute' has no attribute {name!r}") from None
            setattr(module, name, found)
            return found

        made.__getattr__ = on_demand


class Lean:
    """Modules that are loaded by a class of this kind instead: it makes what is asked of them in this process."""

    NAMES: tuple[str, ...] = ()

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """One of NAMES, to be loaded by this class."""
        return ModuleSpec(name, cast("Any", cls), is_package=True) if name in cls.NAMES else None

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType | None:
        """As always."""
        return None


class LeanMasks(Lean):
    """numpy's masked arrays, which numpy and pyarrow load to ask whether an array is one. None is, in this process;
    who asks for more gets the whole module."""

    NAMES = ("numpy.ma",)

    @classmethod
    def exec_module(cls, module: ModuleType) -> None:
        """Answer the one question."""

        def whole(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            import numpy as np

            sys.meta_path.remove(cls)
            del sys.modules["numpy.ma"]
            vars(np)["ma"] = found = importlib.import_module("numpy.ma")
            return getattr(found, name)

        def no(array: object) -> bool:
            return False

        vars(module).update(isMaskedArray=no, isMA=no, is_masked=no, __getattr__=whole)
        vars(module)["MaskedArray"] = type("MaskedArray", (), {})


class LeanTypes(Lean):
    """numpy.typing, which makes some hundred types for annotations. Nobody reads these in this process; who asks for
    another name gets the whole module."""

    NAMES = ("numpy.typing", "numpy._typing")

    @classmethod
    def exec_module(cls, module: ModuleType) -> None:
        """What annotations name, without a meaning."""

        def whole(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if cls in sys.meta_path:
                sys.meta_path.remove(cls)
                for one in cls.NAMES:
                    sys.modules.pop(one, None)
            return getattr(importlib.import_module(module.__name__), name)

        vars(module).update(NDArray=_Array, ArrayLike=object, DTypeLike=object, __getattr__=whole)


class _Array:
    """An array of any kind."""

    def __class_getitem__(cls, kind: object) -> type[_Array]:
        return cls


class LeanOverrides:
    """numpy compares the signatures of 264 functions with those of what dispatches them, each time that it is
    imported: of interest to who writes numpy."""

    NAME = "numpy._core.overrides"

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """That module, to be loaded by this class."""
        spec = PathFinder.find_spec(name, path) if name == cls.NAME else None
        if spec is not None:
            spec.loader = cast("Any", cls(spec.loader))
        return spec

    def __init__(self, whole: Any) -> None:
        self._whole = whole

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As always."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """As always, and without the comparison."""
        self._whole.exec_module(module)
        vars(module)["verify_matching_signatures"] = lambda *of: None


class _Unseen:
    """In the place of inspect: what makes signatures that nobody sees."""

    class Parameter:
        """One of no function."""

        POSITIONAL_ONLY = POSITIONAL_OR_KEYWORD = KEYWORD_ONLY = VAR_POSITIONAL = 0

        def __init__(self, *of: Any, **named: Any) -> None: ...

    @staticmethod
    def signature(of: object) -> Any:
        """Without parameters."""
        return _Unseen

    @staticmethod
    def Signature(of: object) -> None:  # noqa: N802
        """None."""

    parameters: ClassVar[dict[str, Any]] = {}


class _Few:
    """Arrow's functions, of which only those are listed that the module itself uses while it is imported."""

    def __init__(self, registry: Any) -> None:
        self.get_function = registry.get_function
        self._all = registry.list_functions

    def list_functions(self) -> list[str]:
        """Names."""
        return [name for name in ("utf8_zero_fill",) if name in self._all()]


def run() -> None:
    """Run the command line and leave."""
    gc.set_threshold(500_000, 20, 50)  # imports make many objects, and nearly all of them stay
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads for matrices, of which there are none, spin
    os.environ.setdefault("MIMALLOC_ARENA_RESERVE", "32768")  # KiB: Arrow's allocator takes a GB of addresses, else
    others = [
        "pandas",
        "colorama",
        "pyarrow.compute",
        "pyarrow.dataset",
        LeanOverrides.NAME,
        *LeanMasks.NAMES,
        *LeanTypes.NAMES,
    ]
    sys.meta_path.insert(0, LeanCompute)
    if not any(name in sys.argv[1:2] for name in NEEDS_PANDAS):
        sys.meta_path.insert(0, cast("Any", Without("pyarrow.dataset")))
        little = [one for one in stand_ins() if one.name not in sys.modules]
        others += [one.name for one in little]
        stand = [LeanMasks, LeanTypes, LeanOverrides, *little]
        sys.meta_path[:0] = [cast("Any", Without("pandas", "colorama")), *cast("Any", stand)]
        sys.modules.update({name: ModuleType(name) for name in _HELP})
        sys.modules["dateutil"] = cast("Any", None)  # asked for with each array
    sys.meta_path.insert(0, cast("Any", Finder(others)))
    from kdissect.cli.classes import LeanDataclasses  # what stands in for others is there now

    LeanDataclasses().install()
    from kdissect.cli.main import main

    leave(main())


def leave(code: int) -> None:
    """End the process as `sys.exit` does, but leave its memory to the system: taking thousands of modules' objects
    apart one by one takes longer than to read a small capture."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(code)
