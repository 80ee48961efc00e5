"""Words and sentences for readers: what kdissect prints, its docs and README.

Some words stay out of strings altogether. A measure counts old words, long sentences, and sentences whose subject is no
noun, in all prose for readers: pages, and strings and docstrings of the command line, of findings and of the report.

    python -m tests.test_plain_words            lists what it counts
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import PACKAGE, ROOT

FOLDERS = ("cli", "analysis/findings", "report")
OLD = {
    "anew": "again", "whoever": "the caller, the reader", "nobody": "no client, no broker", "beside": "next to, also",
    "begun": "started", "dearer": "more expensive", "is told": "is reported", "are told": "are reported",
    "was told": "got", "told of": "reported for", "nothing to worry about": "also seen",
}  # fmt: skip
"""Words with a plain one in their place: none of them in a string."""
OLDER = {*OLD, "whatever", "of which", "whereof", "dear", "dearest", "it says", "as it were", "what is more"}
"""Words that prose should seldom have."""
WORDS = 30
"""A sentence with more is long."""
NOUNLESS = re.compile(
    r"^(What|Whoever|Whatever|That which|Those (that|of|who)|The same (of|as|for)|Such as|Which)\b(?!.*\?$)"
)
"""How sentences begin whose subject cannot be pointed at."""
MOST = {"old words": 20, "long sentences": 100, "sentences without a noun for a subject": 50}
"""Places that all prose has at most."""
FILES = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).rglob("*.py"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


class Place(NamedTuple):
    """Something that the measure counts."""

    kind: str
    path: Path
    line: int
    sentence: str


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


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every docstring of a module, a class or a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def sentences(text: str) -> Iterator[str]:
    """Sentences of prose, code in backticks as one word; fences, tables, examples and headings are none."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||>>>|\$|#)", line)]
    for block in re.split(r"\n\s*\n|\n\s*[-*] |\n> ?\n", "\n".join(lines)):
        flat = re.sub(r"`[^`]*`", "`x`", " ".join(block.split()))
        yield from (one for one in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`])", flat) if one.strip())


def measure(path: Path, line: int, text: str) -> Iterator[Place]:
    """What there is to count in a text."""
    for one in sentences(text):
        if len(one.split()) > WORDS:
            yield Place("long sentences", path, line, one)
        if NOUNLESS.match(one):
            yield Place("sentences without a noun for a subject", path, line, one)
        for old in OLDER:
            if re.search(rf"\b{old}\b", one, re.IGNORECASE):
                yield Place("old words", path, line, f"{old}: {one}")


def everything() -> list[Place]:
    """What there is to count in all prose for readers."""
    found = [place for page in PAGES for place in measure(page, 0, page.read_text())]
    for path in FILES:
        told = [*docstrings(path)]
        known = {" ".join(text.split()) for _, text in told}
        told += [(line, text) for line, text in strings(path) if " ".join(text.split()) not in known]
        found += [place for line, text in told for place in measure(path, line, text)]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_strings_have_plain_words(path: Path) -> None:
    found = [
        f"{line}: {old!r} -> {plain}: {text[:80]}"
        for line, text in strings(path)
        for old, plain in OLD.items()
        if re.search(rf"\b{old}\b", text, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


def test_prose_is_plain() -> None:
    found = everything()
    counts = Counter(place.kind for place in found)
    over = {kind for kind, most in MOST.items() if counts[kind] > most}
    shown = [f"{place.path}:{place.line}: {place.sentence[:100]}" for place in found if place.kind in over]
    assert not over, f"{dict(counts)}\n" + "\n".join(shown)


def test_the_lamp_sees_a_word(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Nobody reads docstrings of modules aloud."""\nTEXT = f"{1} is read anew"\n')
    assert [text for _, text in strings(module)] == [" is read anew"]
    assert [text for _, text in docstrings(module)] == ["Nobody reads docstrings of modules aloud."]


def test_the_measure_counts() -> None:
    text = "What was not read is nowhere. A plain sentence.\n- Whoever reads `a long command here` reads it anew."
    assert Counter(place.kind for place in measure(ROOT, 0, text)) == {
        "sentences without a noun for a subject": 2, "old words": 2
    }  # fmt: skip
    assert [place.kind for place in measure(ROOT, 0, "word " * 31 + "end.")] == ["long sentences"]
    assert list(measure(ROOT, 0, "| " + "word " * 40 + "|\n```text\n" + "word " * 40 + "\n```")) == []


if __name__ == "__main__":
    for place in everything():
        print(f"{place.kind}: {place.path}:{place.line}: {place.sentence}")
