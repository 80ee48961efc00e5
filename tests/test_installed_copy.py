"""Messages name an extra as this copy was installed."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from kdissect import installed_copy
from kdissect.installed_copy import install_command
from tests.conftest import ROOT

NEEDS = [
    "click>=8", "duckdb>=1.2; extra == 'sql'", 'pytz ; extra == "sql"', "textual>=3; extra == 'top'",
    "kdissect[sql,top]; extra == 'dev'", "ruff>=0.9; extra == 'dev'",
]  # fmt: skip


class Copy:
    """An installed distribution, by the texts of its files."""

    version = "0.2.0"
    requires = NEEDS

    def __init__(self, **texts: Any) -> None:
        self.texts = texts

    def read_text(self, name: str) -> str | None:
        found = self.texts.get(name.partition(".")[0].lower())
        return found if found is None or isinstance(found, str) else json.dumps(found)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment that is activated: its pip is the one that a shell finds."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "pip").touch(mode=0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    monkeypatch.delenv(installed_copy.IMAGE_EXTRAS, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("texts", "command"),
    [
        ({}, "pip install 'duckdb>=1.2' pytz"),
        ({"installer": "uv\n"}, "uv pip install 'duckdb>=1.2' pytz"),
        ({"direct_url": {"url": "file:///nowhere/kd", "dir_info": {}}}, "pip install 'duckdb>=1.2' pytz"),
        (
            {"direct_url": {"url": "https://example.org/k.whl", "archive_info": {}}},
            "pip install 'kdissect[sql] @ https://example.org/k.whl'",
        ),
    ],
)
def test_an_installed_copy(
    texts: dict[str, Any], command: str, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Distribution, "from_name", lambda name: Copy(**texts))
    assert install_command("sql") == command


@pytest.mark.parametrize(
    ("information", "option"),
    [({"dir_info": {"editable": True}}, " -e"), ({"dir_info": {}}, ""), ({"archive_info": {}}, "")],
)
def test_a_copy_that_came_from_a_place(
    information: dict[str, Any], option: str, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = environment / "a b"
    place.mkdir()
    direct = {"url": place.as_uri(), **information}
    monkeypatch.setattr(Distribution, "from_name", lambda name: Copy(direct_url=direct))
    assert install_command("sql") == f"pip install{option} '{place}[sql]'"


def test_an_extra_of_extras(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "from_name", lambda name: Copy())
    assert install_command("dev") == "pip install 'duckdb>=1.2' pytz 'textual>=3' 'ruff>=0.9'"


def test_an_environment_that_is_not_activated(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pip and uv that a shell finds would install into another one."""
    (environment / "bin" / "pip").unlink()
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setattr(Distribution, "from_name", lambda name: Copy())
    assert install_command("sql") == f"{environment}/bin/python3 -m pip install 'duckdb>=1.2' pytz"
    monkeypatch.setattr(Distribution, "from_name", lambda name: Copy(installer="uv"))
    assert install_command("sql") == f"uv pip install --python {environment} 'duckdb>=1.2' pytz"


def test_a_checkout_that_is_not_installed(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(Distribution, "from_name", none)
    assert install_command("sql") == f"pip install -e '{Path(installed_copy.__file__).parents[1]}[sql]'"


def test_an_image_is_built_with_one_extra_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(installed_copy.IMAGE_EXTRAS, "report,sql")
    monkeypatch.setenv(installed_copy.IMAGE_PACKAGES, "")
    assert install_command("top") == "docker build --build-arg EXTRAS=report,sql,top -t kdissect ."
    assert install_command("sql") == "docker build --build-arg EXTRAS=report,sql -t kdissect ."
    spark = "docker build --build-arg EXTRAS=report,sql,spark --build-arg PACKAGES=default-jre-headless -t kdissect ."
    assert install_command("spark") == spark
    monkeypatch.setenv(installed_copy.IMAGE_PACKAGES, "tcpdump tshark")
    assert "--build-arg PACKAGES='tcpdump tshark' -t" in install_command("top")
    assert "--build-arg PACKAGES='tcpdump tshark' -t" in install_command("crosscheck")


@pytest.mark.skipif(not (ROOT / "Dockerfile").exists(), reason="only a checkout builds images")
def test_an_image_names_what_it_was_built_with() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert f"{installed_copy.IMAGE_EXTRAS}=${{EXTRAS}}" in text
    assert f'{installed_copy.IMAGE_PACKAGES}="${{PACKAGES}}"' in text


def test_no_page_sends_a_reader_to_an_index() -> None:
    """No index has the package, and anyone may take its name there: pages install from a checkout or a file."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    pages += installed_copy.PACKAGE.rglob("*.py")
    assert len(pages) > 100
    for page in pages:
        assert not re.findall(r"pip install (?:-\S+ )*'?kdissect\b", page.read_text()), page
