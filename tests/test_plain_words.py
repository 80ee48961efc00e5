"""Words that stay out of what kdissect prints: strings of the command line, of findings and of the report."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDERS = ("cli", "analysis/findings", "report")
OLD = {
    "anew": "again", "whoever": "the caller, the reader", "nobody": "no client, no broker", "beside": "next to, also",
    "begun": "started", "dearer": "more expensive", "is told": "is reported", "are told": "are reported",
    "was told": "got", "told of": "reported for", "nothing to worry about": "also seen",
}  # fmt: skip
"""Words with a plain one in their place."""
FILES = [path for folder in FOLDERS for path in sorted((ROOT / "kdissect" / folder).rglob("*.py"))]


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every string with a blank in it, docstrings left out but those of commands, which are help."""
    tree = ast.parse(path.read_text())
    docs: dict[int, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            command = isinstance(node, ast.FunctionDef) and any("command" in ast.dump(d) for d in node.decorator_list)
            for n, statement in enumerate(node.body):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    docs[id(statement.value)] = command and n == 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or not docs.get(id(node), True):
            continue
        if " " in node.value.strip():
            yield node.lineno, node.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_strings_have_plain_words(path: Path) -> None:
    found = [
        f"{line}: {old!r} -> {plain}: {text[:80]}"
        for line, text in strings(path)
        for old, plain in OLD.items()
        if re.search(rf"\b{old}\b", text, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


def test_the_lamp_sees_a_word(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Nobody reads docstrings of modules aloud."""\nTEXT = f"{1} is read anew"\n')
    assert [text for _, text in strings(module)] == [" is read anew"]
