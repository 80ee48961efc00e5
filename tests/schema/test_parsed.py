"""What a package brings of the messages is what their files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kdissect.schema import index, parsed, parsed_file


def test_what_is_brought_is_what_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = index.read()
    path = tmp_path / "messages.bin"
    path.write_bytes(parsed_file.pack_schemas(read.apis, read.payloads, read.names))
    monkeypatch.setattr(parsed, "BROUGHT", path)
    found = parsed.brought()
    assert found is not None
    apis, payloads, names = found
    assert list(apis) == list(read.apis)
    assert (len(apis), len(payloads)) == (len(read.apis), len(read.payloads))
    assert (list(payloads), names) == (list(read.payloads), read.names)
    assert (1 in apis, 9999 in apis) == (True, False)
    for key, api in read.apis.items():
        assert apis.name(key) == api.name
        assert repr(apis[key]) == repr(api)
        assert apis[key] == api
    for name, message in read.payloads.items():
        assert repr(payloads[name]) == repr(message)


def test_a_checkout_reads_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsed, "BROUGHT", tmp_path / "none")
    assert parsed.brought() is None
    assert isinstance(index.load.__wrapped__().apis, index.Apis)


def test_texts_that_are_brought_are_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "texts.bin"
    subprocess.run([sys.executable, "-m", "kdissect.schema.index", str(path)], check=True, timeout=60)
    found = index.texts()
    monkeypatch.setattr(index, "_TEXTS", path)
    assert index.texts.__wrapped__() == found
    assert "001_fetch.kmsg" in found
