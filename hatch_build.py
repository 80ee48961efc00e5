"""Compiles kernels and layouts into the wheel: what is installed needs neither numba nor LLVM, whatever Python it is.
The script that draws the report's charts is made here too: what makes it is V8.

`KDISSECT_TARGET` names another system that the wheel is for (`kdissect/kernels/targets.py`), `KDISSECT_KERNELS` a
folder where `python -m kdissect.kernels.shared_object --all FOLDER` compiled the kernels before. `.ci/wheels` makes the
wheels of all systems.

An editable install has none: there numba compiles what is called, from the sources as they are.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

KERNELS = "kdissect.kernels.shared_object"
MADE = {
    KERNELS: "kdissect/kernels/compiled.so",
    "kdissect.schema.library": "kdissect/schema/layouts.bin",
    "kdissect.schema.parsed_file": "kdissect/schema/messages.bin",
    "kdissect.schema.index": "kdissect/schema/texts.bin",
    "kdissect.report.charts_library": "kdissect/report/assets/charts.js.z",
}
"""What a wheel brings beside the sources, by the module that makes it."""


class KernelBuildHook(BuildHookInterface):
    """The hook, by the name that hatchling looks for."""

    _folder: str | None = None

    def dependencies(self) -> list[str]:
        """A linker from the package index where the system has none for the target."""
        own = self._target() == self._target("")
        return [] if own and sys.platform == "linux" and shutil.which("ld") else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the wheel after the platform alone."""
        if self.target_name != "wheel" or version == "editable":
            return
        self._folder = tempfile.mkdtemp(prefix="kdissect-wheel-")
        for module, place in MADE.items():
            made = str(Path(self._folder) / Path(place).name)
            further = (
                [os.environ.get("KDISSECT_TARGET", ""), os.environ.get("KDISSECT_KERNELS", "")]
                if module == KERNELS
                else []
            )
            subprocess.run([sys.executable, "-m", module, made, *further], cwd=self.root, check=True)
            build_data["force_include"][made] = place
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{self._target().tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Nothing is left behind."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _target(self, name: str | None = None) -> Any:
        """The system of this name, of an empty one the system that runs; None: the one that the wheel is for."""
        targets = runpy.run_path(str(Path(self.root) / "kdissect" / "kernels" / "targets.py"))
        return targets["target_named"](os.environ.get("KDISSECT_TARGET", "") if name is None else name)


class AddressHook(MetadataHookInterface):
    """Links and the README of the package index, from the project's one address; none while it is empty."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in `urls` and `readme`."""
        root = Path(self.root)
        address = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["kdissect"]["address"].rstrip("/")
        text = (root / "README.md").read_text()
        metadata["urls"] = links(address)
        metadata["readme"] = {"content-type": "text/markdown", "text": with_address(text, address)}


def links(address: str) -> dict[str, str]:
    """The project's links by name."""
    places = {
        "Source": "",
        "Issues": "/issues",
        "Changes": "/blob/main/CHANGELOG.md",
        "Documentation": "/tree/main/docs",
    }
    return {name: address + place for name, place in places.items()} if address else {}


def with_address(text: str, address: str) -> str:
    """Markdown whose links to files of the project begin with its address: images with their raw files."""
    if not address:
        return text
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{address}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{address}/blob/main/", text)
