"""The column that docs/contributing.md adds, put into a copy of the package: whatever line is left out is named."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "contributing.md").read_text()
DECLARED = re.search(r"^ *(Column\(\"cluster_id\".*\),)$", PAGE, re.MULTILINE)
MADE = re.search(r"^ *(\"cluster_id\": .*,)$", PAGE, re.MULTILINE)
READS = r", reads=[^)]*\)"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, as in a checkout, whose tables may be changed."""
    (tmp_path / "pyproject.toml").touch()
    there = tmp_path / "kdissect"
    there.mkdir()
    for one in PACKAGE.iterdir():
        if one.name != "tables":
            (there / one.name).symlink_to(one)
    shutil.copytree(PACKAGE / "tables", there / "tables", ignore=shutil.ignore_patterns("__pycache__"))
    return there


def put(file: Path, line: str) -> None:
    """A line in front of the column `request_session_id`."""
    text = file.read_text()
    found = re.search(r"^ +(Column\()?\"request_session_id\"", text, re.MULTILINE)
    assert found is not None
    file.write_text(f"{text[: found.start()]}{line}\n{text[found.start() :]}")


@pytest.mark.jit  # the changed package is not the one that kernels were compiled for
@pytest.mark.parametrize(
    ("declared", "made", "said"),
    [
        ("all", True, ""),
        ("all", False, "table 'fetches', column 'cluster_id': it is declared"),
        ("nothing", True, "table 'fetches', column 'cluster_id': the 'block maker' of 'fetches' fills it"),
        (
            "no reads",
            True,
            "table 'fetches', column 'cluster_id': its maker reads 'cluster_id' of the request",
        ),
    ],
)
def test_each_line_is_missed(package: Path, declared: str, made: bool, said: str) -> None:
    assert DECLARED is not None
    assert MADE is not None
    if declared != "nothing":
        line = DECLARED[1] if declared == "all" else re.sub(READS, "", DECLARED[1])
        put(package / "tables" / "declaration" / "fetching.py", line)
    if made:
        put(package / "tables" / "fetches.py", MADE[1])
    done = subprocess.run(
        [sys.executable, "-c", "import kdissect.tables.registered"],
        cwd=package.parent, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert bool(done.returncode) == bool(said), done.stderr
    assert said in done.stderr
