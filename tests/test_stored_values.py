"""No pickle is read from a disk: whoever can write it would run code in the next run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kdissect

PACKAGE = Path(kdissect.__file__).parent
READERS = {"load", "loads", "Unpickler", "open", "read_pickle"}
"""Names by which modules read pickles, and what is like them."""
MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "shelve", "joblib"}
BETWEEN_PROCESSES = {
    "engine/saving/second_process.py": "a pipe between this process and the one that it started",
    "kernels/native.py": "memory of this process, which a kernel has filled",
    "spark/whole_dataset.py": "what a task gives to its driver",
    "spark/stages/analysing.py": "what a task gives to the next one of its job",
    "schema/parsed.py": "a part of the installed package, beside its modules and as trusted as they are",
}
"""Modules that may read them, and where the bytes come from."""


def reads(path: Path) -> Iterator[int]:
    """Lines of a module that read a pickle, or take a function that does."""
    tree = ast.parse(path.read_text())
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.asname or one.name: one.name for one in node.names if one.name.split(".")[0] in MODULES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield from (node.lineno for one in node.names if one.name in READERS or one.name == "*")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        of_module = isinstance(node.value, ast.Name) and node.value.id in names
        if node.attr in READERS and (of_module or node.attr == "read_pickle"):
            yield node.lineno
    yield from (node.lineno for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "allow_pickle")


def test_pickles_are_read_of_processes_only() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if (lines := list(reads(path)))
    }
    assert found.keys() == BETWEEN_PROCESSES.keys(), found


def test_what_would_be_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    for text in (
        "import pickle\npickle.load(open('x', 'rb'))",
        "import pickle as p\nf = p.loads",
        "def f():\n    from pickle import loads\n",
        "import numpy\nnumpy.load('x', allow_pickle=True)",
        "import pandas\npandas.read_pickle('x')",
    ):
        module.write_text(text)
        assert list(reads(module)), text
    module.write_text("import json\njson.loads('1')")
    assert not list(reads(module))
