"""Compiles kernels and layouts into the wheel: what is installed needs neither numba nor LLVM, whatever Python it is.
The script that draws the report's charts is made here too: what makes it is V8.

An editable install has none: there numba compiles what is called, from the sources as they are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MADE = {
    "kdissect.kernels.shared_object": "kdissect/kernels/compiled.so",
    "kdissect.schema.library": "kdissect/schema/layouts.bin",
    "kdissect.schema.parsed_file": "kdissect/schema/messages.bin",
    "kdissect.report.charts_library": "kdissect/report/assets/charts.js.z",
}
"""What a wheel brings beside the sources, by the module that makes it."""


class KernelBuildHook(BuildHookInterface):
    """The hook, by the name that hatchling looks for."""

    _folder: str | None = None

    def dependencies(self) -> list[str]:
        """A linker from the package index where the system has none."""
        return ["ziglang>=0.13"] if sys.platform != "linux" or shutil.which("ld") is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the wheel after the platform alone."""
        if self.target_name != "wheel" or version == "editable":
            return
        self._folder = tempfile.mkdtemp(prefix="kdissect-wheel-")
        for module, place in MADE.items():
            made = str(Path(self._folder) / Path(place).name)
            subprocess.run([sys.executable, "-m", module, made], cwd=self.root, check=True)
            build_data["force_include"][made] = place
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Nothing is left behind."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def platform_tag() -> str:
    """The platform of the wheel. On Linux any C library of the last ten years will do: none is linked."""
    system, _, machine = sysconfig.get_platform().partition("-")
    if system == "linux":
        return f"manylinux_2_17_{machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
