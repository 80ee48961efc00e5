"""How this process finds modules of packages: as Python does, in a quarter of the time.

A module of a package whose folder holds `name.py` and its compiled form is taken from there, where that form is of just
this source (size and time of change, as Python asks). Everything else is left to Python: names without a package,
modules in C, packages in several folders or in archives, and compiled forms that are missing or old.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from marshal import loads
from struct import pack
from types import CodeType

_COMPILED = f".{sys.implementation.cache_tag}.pyc"
_HEAD = MAGIC_NUMBER + bytes(4)
"""Of a compiled form that is known by its source's time and size (PEP 552)."""


class Compiled(SourceFileLoader):
    """Loads a module from its compiled form."""

    def __init__(self, name: str, path: str, compiled: str) -> None:
        super().__init__(name, path)
        self._compiled = compiled

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code; as Python finds it, where there is no compiled form of this source."""
        try:
            file = os.open(self._compiled, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.read(file, os.fstat(file).st_size)
            finally:
                os.close(file)
            source = os.stat(self.path)
        except OSError:
            return super().get_code(fullname)
        if data[:16] != pack("<8sII", _HEAD, int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF):
            return super().get_code(fullname)
        code: CodeType = loads(memoryview(data)[16:])
        return code


class Finder:
    """To be asked first, but for `others`: names of modules that are not to be taken from their files."""

    def __init__(self, others: Collection[str]) -> None:
        self._others = frozenset(others)
        self._folders: dict[str, frozenset[str]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Where the module is, None where somebody else has to look for it."""
        if path is None or len(path) != 1 or name in self._others:
            return None
        (folder,) = path
        known = self._folders.get(folder)
        if known is None:
            try:
                known = frozenset(os.listdir(folder))
            except OSError:
                known = frozenset()
            self._folders[folder] = known
        last = name.rpartition(".")[2]
        if last in known:
            inner = f"{folder}/{last}"
            return self._spec(name, f"{inner}/__init__.py", f"{inner}/__pycache__/__init__{_COMPILED}", inner)
        if f"{last}.py" not in known or any(last + suffix in known for suffix in EXTENSION_SUFFIXES):
            return None
        return self._spec(name, f"{folder}/{last}.py", f"{folder}/__pycache__/{last}{_COMPILED}", None)

    @staticmethod
    def _spec(name: str, source: str, compiled: str, inner: str | None) -> ModuleSpec | None:
        if inner is not None and not os.path.exists(source):
            return None
        spec = ModuleSpec(name, Compiled(name, source, compiled), origin=source, is_package=inner is not None)
        spec.cached, spec.has_location = compiled, True
        if inner is not None:
            spec.submodule_search_locations = [inner]
        return spec
