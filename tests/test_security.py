"""Every promise of SECURITY.md has tests, and they exist."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

if not (ROOT / "SECURITY.md").exists():
    pytest.skip("the page is part of a checkout and of the source distribution", allow_module_level=True)
TEXT = (ROOT / "SECURITY.md").read_text()
PROMISES = TEXT.partition("## What kdissect promises")[2].partition("## What holds these promises")[0]
HELD = dict(re.findall(r"^\| (.+?) \| (`tests/.+) \|$", TEXT, re.MULTILINE))


def defines(path: str, name: str) -> bool:
    """Whether a file of tests has a test of that name."""
    return re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE) is not None


def test_every_promise_is_in_the_table() -> None:
    promises = [one.rstrip(".") for one in re.findall(r"^- \*\*(.+?)\*\*", PROMISES, re.MULTILINE | re.DOTALL)]
    assert len(promises) > 10
    assert [" ".join(one.split()) for one in promises] == list(HELD)


@pytest.mark.parametrize("promise", HELD)
def test_its_tests_exist(promise: str) -> None:
    tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", HELD[promise])
    assert len(tests) == HELD[promise].count("`") // 2
    assert [name for path, name in tests if not defines(path, name)] == []


def test_tests_of_redact_exist() -> None:
    """In the file that is named in a cell, else in that of the first one."""
    rows = [line for line in PROMISES.splitlines() if line.startswith("  | ") and "`test_" in line]
    assert len(rows) > 5
    for line in rows:
        cell = line.split(" | ")[-1]
        files = re.findall(r"`([\w/]*test_\w+\.py)`", cell)
        places = [*ROOT.glob(f"tests/**/{files[-1].removeprefix('tests/')}")] if files else []
        places.append(ROOT / "tests" / "rewriting" / "test_markers.py")
        for name in re.findall(r"`(test_\w+)`", cell):
            assert any(defines(str(place.relative_to(ROOT)), name) for place in places), name
