"""Files with keys that others can read are named on standard error; the command goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kdissect.cli.main import main
from tests.conftest import CAPTURES

CAPTURE = str(CAPTURES / "tls13.pcap")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.log"
    shutil.copyfile(CAPTURES / "tls13.keys.log", path)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o622])
@pytest.mark.parametrize("command", ["read", "latency", "redact"])
def test_a_key_log_of_others(command: str, mode: int, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys.chmod(mode)
    words = {"read": [], "latency": ["latency"], "redact": ["redact", "-o", str(keys.with_name("safe.pcap"))]}[command]
    assert main([*words, CAPTURE, "--keylog", str(keys)]) == 0
    wanted = f"kdissect: {keys} holds keys, and other users can open it (mode {mode:04o}): chmod 600"
    assert capsys.readouterr().err.splitlines().count(wanted) == 1


def test_a_key_log_of_ours(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys.chmod(0o600)
    assert main([CAPTURE, "--keylog", str(keys)]) == 0
    assert "chmod" not in capsys.readouterr().err


def test_names_of_a_redacted_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = tmp_path / "names.json"
    line = ["redact", str(CAPTURES / "base_tiny.pcap"), "--names", str(names), "-o", str(tmp_path / "safe.pcap")]
    assert main(line) == 0
    assert "chmod" not in capsys.readouterr().err, "it was made for its owner"
    names.chmod(0o644)
    assert main(line) == 0
    assert f"{names} holds keys, and other users can open it (mode 0644)" in capsys.readouterr().err


def test_a_pipe_has_no_mode_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([CAPTURE, "--keylog", "/dev/null"]) == 2
    assert "chmod" not in capsys.readouterr().err
