"""A leaner numba pipeline for the project's kernels: less to wait for when they are compiled, and faster code.

numba compiles each function on its own and once more inside each of its callers, and theirs, so that a chain of calls
twelve deep is optimised twelve times. Here a *part* is only lowered; a *kernel* links all parts below it once,
optimises them together and emits them. The passes are those that plain loops over arrays and numbers need.

This is numba's documented way to customise its compiler (`pipeline_class`, `PassManager`), but for the two libraries,
which override `finalize`.
"""

from __future__ import annotations

from typing import Any

from llvmlite.binding import Linkage
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
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


class _Compiler(CompilerBase):
    """The passes, and which library the code goes to."""

    library: type[JITCodeLibrary]

    def __init__(self, typing: Any, target: Any, library: Any, args: Any, result: Any, flags: Any, local: Any) -> None:
        made = self.library(target.codegen(), self.library.__name__)
        made.enable_object_caching()
        super().__init__(typing, target, made, args, result, flags, local)

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
