"""Names that say nothing of their thing: docs/names.md has each one that stays, with its reason, and no others."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache

from tests.conftest import PACKAGE, ROOT

EMPTY = frozenset(
    {
        "take", "takes", "taken", "told", "tell", "tells", "named", "wanted", "known", "found", "find", "rest",
        "whole", "listed", "asked", "made", "opened", "shown", "joined", "given", "gives", "kept", "left",
        "parted", "one", "ones", "other", "others", "thing", "things", "what", "which", "aside", "alone",
        "spare", "later", "begun", "gone", "put", "held", "here", "there",
    }
)  # fmt: skip
"""Names that fit anything."""
MANY = 5
"""Modules that may not define functions of one name without a reason."""


@cache
def functions() -> tuple[tuple[str, ast.FunctionDef | ast.ClassDef, bool], ...]:
    """(module's path, function or class, whether it is of module level)."""
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    return tuple(
        (path, node, node in tree.body)
        for path, tree in sorted(trees.items())
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )


def explained(heading: str) -> set[tuple[str, ...]]:
    """Rows of the table below a heading of the page: the name, and each place where it stands if there is a column."""
    page = (ROOT / "docs" / "names.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert all(len(row[-1].split()) > 2 for row in rows), "a name has no reason"
    names, places = ([re.findall(r"`([^`]+)`", row[at]) for row in rows] for at in (0, 1))
    if len(rows[0]) == 2:
        return {(name,) for row in names for name in row}
    return {(name, place) for row, many in zip(names, places, strict=True) for name in row for place in many}


def test_functions_and_properties() -> None:
    """A row with several names and places has each name in some of these places."""
    found = {(node.name.strip("_"), path) for path, node, _ in functions() if node.name.strip("_") in EMPTY}
    allowed = explained("Functions and properties")
    assert found <= allowed
    assert {name for name, _ in found} == {name for name, _ in allowed}
    assert {place for _, place in found} == {place for _, place in allowed}


def test_parameters() -> None:
    found = {
        (argument.arg, node.name)
        for _, node, _ in functions()
        if isinstance(node, ast.FunctionDef) and not re.match("__", node.name)
        for argument in [*node.args.args, *node.args.kwonlyargs]
        if argument.arg in EMPTY
    }
    assert found == explained("Parameters")


def test_one_name_in_many_modules() -> None:
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for path, node, outermost in functions():
        if outermost and isinstance(node, ast.FunctionDef):
            modules[node.name.strip("_")].add(path)
    assert {(name,) for name, paths in modules.items() if len(paths) >= MANY} == explained("One name in many modules")
