"""Messages name an extra as this copy was installed."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from kdissect import installed_copy
from kdissect.installed_copy import install_command


class Copy:
    """An installed distribution, by the texts of its files."""

    version = "0.2.0"

    def __init__(self, **texts: Any) -> None:
        self.texts = texts

    def read_text(self, name: str) -> str | None:
        found = self.texts.get(name.partition(".")[0].lower())
        return found if found is None or isinstance(found, str) else json.dumps(found)


@pytest.mark.parametrize(
    ("texts", "command"),
    [
        ({}, "pip install 'kdissect[sql]==0.2.0'"),
        ({"installer": "uv\n"}, "uv pip install 'kdissect[sql]==0.2.0'"),
        ({"direct_url": {"url": "file:///src/kd", "dir_info": {"editable": True}}}, "pip install -e '/src/kd[sql]'"),
        ({"direct_url": {"url": "file:///a%20b", "dir_info": {}}}, "pip install '/a b[sql]'"),
        (
            {"direct_url": {"url": "file:///w/kdissect-0.2.0-py3-none-any.whl", "archive_info": {}}},
            "pip install '/w/kdissect-0.2.0-py3-none-any.whl[sql]'",
        ),
        (
            {"direct_url": {"url": "https://example.org/k.whl", "archive_info": {}}},
            "pip install 'kdissect[sql] @ https://example.org/k.whl'",
        ),
    ],
)
def test_an_installed_copy(texts: dict[str, Any], command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "from_name", lambda name: Copy(**texts))
    monkeypatch.delenv(installed_copy.IMAGE_EXTRAS, raising=False)
    assert install_command("sql") == command


def test_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(Distribution, "from_name", none)
    monkeypatch.delenv(installed_copy.IMAGE_EXTRAS, raising=False)
    assert install_command("sql") == f"pip install -e '{Path(installed_copy.__file__).parents[1]}[sql]'"


def test_an_image_is_built_with_one_extra_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(installed_copy.IMAGE_EXTRAS, "report,sql")
    assert install_command("top") == "docker build --build-arg EXTRAS=report,sql,top -t kdissect ."
    assert install_command("sql") == "docker build --build-arg EXTRAS=report,sql -t kdissect ."
