"""Where files are: a name says which file is meant, and a folder can be taken in at a glance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.conftest import PACKAGE

ANYWHERE = {"__init__.py", "__main__.py", "model.py", "layout.py"}
"""Names that stand in more than one folder."""
MOST = 15
LARGE = {"schema", "tables"}
"""Folders with a file for each of many things."""


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def test_no_file_name_stands_twice() -> None:
    names = Counter(path.name for path in modules() if path.name not in ANYWHERE)
    assert [name for name, count in names.items() if count > 1] == []


def test_a_folder_holds_fifteen_files_at_most() -> None:
    folders = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert {str(folder): count for folder, count in folders.items() if count > MOST and str(folder) not in LARGE} == {}
