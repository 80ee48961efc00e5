"""A leaner numba pipeline for the project's kernels, because the first run ever waits for it.

numba compiles each function on its own and once more inside each of its callers, and theirs, so that a chain of calls
twelve deep is optimised twelve times. Here a *part* is only lowered; a *kernel* links all parts below it once,
optimises them together and emits them. The passes are those that plain loops over arrays and numbers need, and what
was found for an operator and the types of its operands is remembered.

This is numba's documented way to customise its compiler (`pipeline_class`, `PassManager`), but for the two libraries,
which override `finalize`.
"""

from __future__ import annotations

from typing import Any

from llvmlite.binding import Linkage
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, Flags
from numba.core.compiler_machinery import PassManager
from numba.core.typed_passes import (
    IRLegalization,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import FixupArgs, GenericRewrites, IRProcessing, ReconstructSSA, TranslateByteCode

from kdissect.kernels.lowering import LeanLowering


class PartLibrary(JITCodeLibrary):
    """The code of one part: kept as it was lowered, for the kernels that call it to link."""

    def finalize(self) -> None:
        """Nothing: what calls this part links, optimises and emits it."""
        self._finalized = True

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout


class KernelLibrary(JITCodeLibrary):
    """The code of a kernel with all the parts below it, each linked once."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        """Link the parts that parts call as well, then go on as numba does."""
        libraries = dict.fromkeys(self._linking_libraries)
        waiting = list(libraries)
        while waiting:
            library = waiting.pop()
            if isinstance(library, PartLibrary):
                waiting += [below for below in library._linking_libraries if below not in libraries]
                libraries.update(dict.fromkeys(library._linking_libraries))
        self._linking_libraries = list(libraries)
        super().finalize()

    def _optimize_final_module(self) -> None:
        """One run of LLVM's passes, without vectorising: as fast on our loops as numba's two runs, in half the time.

        Parts become private to the kernel, so that LLVM may drop arguments which they do not use.
        """
        for function in self._final_module.functions:
            if function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.internal
        passes, builder = self._codegen._module_pass_manager(opt=2, loop_vectorize=False, slp_vectorize=False)
        passes.run(self._final_module, builder)


class _Flags(Flags):
    """Flags that are compared by what is set, not by building a table of all that could be."""

    def __hash__(self) -> int:
        return hash(frozenset(self._values))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Flags) and self._values == other._values)


def _remembering(context: Any) -> Any:
    """The typing context with a memory: the same state, but an operator is resolved once for the same types."""
    kind: Any = type(context)

    class Remembering(kind):
        found: dict[Any, Any] = {}  # noqa: RUF012

        def _once(self, key: Any, resolve: Any) -> Any:
            answer = self.found.get(key)
            if answer is None:
                answer = self.found[key] = resolve()
            return answer

        def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
            if kws or isinstance(func, types.Dispatcher | str):
                return super().resolve_function_type(func, args, kws)
            return self._once((func, tuple(args)), lambda: kind.resolve_function_type(self, func, args, kws))

        def resolve_setitem(self, target: Any, index: Any, value: Any) -> Any:
            return self._once((target, index, value), lambda: kind.resolve_setitem(self, target, index, value))

    made = object.__new__(Remembering)
    made.__dict__ = context.__dict__
    return made


_contexts: dict[int, Any] = {}


class _Compiler(CompilerBase):
    """The passes, and which library the code goes to."""

    library: type[JITCodeLibrary]

    def __init__(self, typing: Any, target: Any, library: Any, args: Any, result: Any, flags: Any, local: Any) -> None:
        made = self.library(target.codegen(), self.library.__name__)
        made.enable_object_caching()
        if id(typing) not in _contexts:
            _contexts[id(typing)] = _remembering(typing)
        super().__init__(_contexts[id(typing)], target, made, args, result, _Flags(flags), local)

    def define_pipelines(self) -> list[PassManager]:
        """One pipeline."""
        passes = PassManager("kdissect")
        for step in (
            TranslateByteCode, FixupArgs, IRProcessing, GenericRewrites, ReconstructSSA, NopythonTypeInference,
            PreLowerStripPhis, IRLegalization, LeanLowering, NoPythonBackend,
        ):  # fmt: skip
            passes.add_pass(step, step.__name__)
        passes.finalize()
        return [passes]


class KernelCompiler(_Compiler):
    """For what Python calls."""

    library = KernelLibrary


class PartCompiler(_Compiler):
    """For what kernels call: stops after lowering."""

    library = PartLibrary

    def __init__(self, typing: Any, target: Any, library: Any, args: Any, result: Any, flags: Any, local: Any) -> None:
        flags.no_compile = True
        super().__init__(typing, target, library, args, result, flags, local)
