"""Modules are found where Python finds them, and what is compiled of another source is not run."""

from __future__ import annotations

import importlib
import os
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdissect.cli.modules import Compiled, Finder


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a module, both compiled, found by a Finder."""
    folder = tmp_path / "lean_example"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "inner").mkdir()
    for name in ("inner/__init__.py", "one.py"):
        (folder / name).write_text("VALUE = 1")
        py_compile.compile(str(folder / name))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [Finder({"lean_example.other"}), *sys.meta_path])
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "lean_example"]:
        del sys.modules[name]


def test_a_module_is_what_python_makes_of_it(package: Path) -> None:
    for name in ("lean_example.one", "lean_example.inner"):
        found = importlib.import_module(name)
        assert isinstance(found.__loader__, Compiled)
        assert (found.VALUE, found.__package__) == (1, name if name.endswith("inner") else "lean_example")
        expected = importlib.machinery.PathFinder.find_spec(name, [str(package)])
        assert expected is not None
        assert (found.__file__, found.__cached__) == (expected.origin, expected.cached)
        assert getattr(found, "__path__", None) == expected.submodule_search_locations
        del sys.modules[name]


def test_compiled_code_of_another_source_is_not_run(package: Path) -> None:
    (package / "one.py").write_text("VALUE = 22")
    assert importlib.import_module("lean_example.one").VALUE == 22
    (package / "inner" / "__init__.py").write_text("VALUE = 3")  # as long, and later
    os.utime(package / "inner" / "__init__.py", (2e9, 2e9))
    assert importlib.import_module("lean_example.inner").VALUE == 3


def test_damaged_and_missing_code_is_compiled(package: Path) -> None:
    (package / "__pycache__" / f"one.{sys.implementation.cache_tag}.pyc").write_bytes(b"odd")
    assert importlib.import_module("lean_example.one").VALUE == 1
    (package / "two.py").write_text("VALUE = 2")
    importlib.invalidate_caches()
    del sys.modules["lean_example.one"]
    assert importlib.import_module("lean_example.one").VALUE == 1


def test_others_are_left_to_others(package: Path) -> None:
    finder, path = Finder({"lean_example.one"}), [str(package)]
    assert finder.find_spec("lean_example.one", path) is None
    assert finder.find_spec("lean_example.none", path) is None
    assert finder.find_spec("lean_example.inner", ["", *path]) is None  # the current folder, whatever it is
    assert finder.find_spec("lean_example.inner", [str(package / "one.py"), *path]) is None  # perhaps an archive
    assert finder.find_spec("lean_example.inner", [str(package / "nowhere"), *path]) is not None
    assert finder.find_spec("sys") is None
    assert finder.find_spec("os") is None or sys.version_info < (3, 11)
    (package / f"fast{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    (package / "fast.py").write_text("")
    (package / "bare").mkdir()
    assert Finder(()).find_spec("lean_example.fast", path) is None
    assert Finder(()).find_spec("lean_example.bare", path) is None


def test_modules_without_a_package(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one.startswith("/")])
    for name in ("lean_example", "textwrap", "json", "click"):
        found, expected = Finder(()).find_spec(name), importlib.machinery.PathFinder.find_spec(name)
        assert found is not None
        assert expected is not None
        assert (found.origin, found.cached, found.submodule_search_locations) == (
            expected.origin, expected.cached, expected.submodule_search_locations,
        )  # fmt: skip
