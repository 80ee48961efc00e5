"""The pictures of README and docs: the script makes them, and the committed first screen is the present one."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.report import browser

IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    script = [sys.executable, str(ROOT / "docs" / "screenshots.py"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    return folder


def words(picture: Path) -> list[str]:
    return [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())]


@pytest.mark.whole
def test_the_first_screen_is_the_present_one(made: Path) -> None:
    """Its text; after a wanted change run `python docs/screenshots.py`."""
    assert words(made / "first_screen.svg") == words(IMAGES / "first_screen.svg")
    assert "url(" not in (IMAGES / "first_screen.svg").read_text().replace("url(#", "")


@pytest.mark.whole
@browser.needed
def test_the_report_is_pictured(made: Path) -> None:
    names = {path.name for path in IMAGES.glob("*.png")}
    assert names == {path.name for path in made.glob("*.png")} != set()
    for name in names:
        assert (made / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert 20_000 < (made / name).stat().st_size < 400_000


def test_every_picture_is_shown_somewhere() -> None:
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert {path.name for path in IMAGES.iterdir()} == set(re.findall(r"!\[[^]]*\]\((?:docs/)?images/([^)]+)\)", pages))
