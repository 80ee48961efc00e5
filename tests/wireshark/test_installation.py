"""`kdissect wireshark install` and `uninstall`: what they write, take away, refuse and say."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import kdissect
from kdissect.problems import UsageError
from kdissect.wireshark import installation
from kdissect.wireshark.plugin import FILE_NAME, plugin
from tests.conftest import CAPTURES, ROOT
from tests.oracle.dissector import tshark
from tests.wireshark.plugged import messages


def program(folder: Path, name: str, text: str) -> None:
    """A stand-in that prints `text`."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but a folder for stand-ins, and `cat`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "cat").symlink_to(str(shutil.which("cat")))
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_the_folder_is_what_tshark_names(path: Path) -> None:
    program(path, "tshark", "TShark (Wireshark) 4.4.18.\nPersonal Lua Plugins:\t/home/me/.local/lib/wireshark/plugins")
    there = installation.find_wireshark()
    assert there == installation.Wireshark((4, 4), Path("/home/me/.local/lib/wireshark/plugins"))


def test_no_tshark_and_no_lua_are_said(path: Path) -> None:
    with pytest.raises(UsageError, match="there is no tshark"):
        installation.find_wireshark()
    program(path, "tshark", "Personal Plugins:\t/home/me/plugins")
    with pytest.raises(UsageError, match="names no folder for Lua"):
        installation.find_wireshark()


def test_written_again_and_taken_away(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "plugins"
    assert installation.uninstall(folder) is None
    written = installation.install(folder)
    assert written.read_text() == plugin()
    assert [one.name for one in folder.iterdir()] == [FILE_NAME]
    assert installation.install(folder) == written
    assert installation.uninstall(folder) == written
    assert not written.exists()


def test_a_strangers_file_stays(tmp_path: Path) -> None:
    mine = tmp_path / FILE_NAME
    mine.write_text("-- my own")
    for change in (installation.install, installation.uninstall):
        with pytest.raises(UsageError, match="is not kdissect's"):
            change(tmp_path)
    assert mine.read_text() == "-- my own"


def run(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kdissect", "wireshark", *words], capture_output=True, text=True, env=_environment(home)
    )


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}


@pytest.mark.oracle
def test_the_real_tshark_finds_it_there(tmp_path: Path) -> None:
    """Installed without saying where, tshark knows the protocol; uninstalled, it does not."""
    done = run("install", home=tmp_path)
    assert done.returncode == 0, done.stderr
    place = done.stdout.strip()
    assert Path(place).is_file()
    assert place.startswith(str(tmp_path))
    assert "no user's scripts as root" in done.stderr or not installation.runs_as_root()
    protocols = [tshark(), "-G", "protocols"]
    known = subprocess.run(protocols, capture_output=True, text=True, env=_environment(tmp_path), check=True).stdout
    assert "Kafka (kdissect)" in known or installation.runs_as_root()
    done = run("uninstall", home=tmp_path)
    assert done.stderr == f"removed {place}\n"
    gone = subprocess.run(protocols, capture_output=True, text=True, env=_environment(tmp_path), check=True).stdout
    assert "Kafka (kdissect)" not in gone


@pytest.mark.oracle
@pytest.mark.skipif(not (ROOT / ".ci" / "downloads").exists(), reason="only a checkout makes downloads")
def test_tshark_loads_the_download_alone(tmp_path: Path) -> None:
    """The one file that a release offers, in a folder by itself, shows every request of a capture."""
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [ROOT / ".ci" / "downloads", tmp_path], env=environment, capture_output=True, check=True, timeout=120
    )
    with tempfile.TemporaryDirectory(prefix="kdissect-download-") as folder:
        Path(folder).chmod(0o755)
        lua = Path(shutil.copy(tmp_path / FILE_NAME, folder))
        found = messages(lua, CAPTURES / "base_tiny.pcap")
    exchanges = kdissect.open(CAPTURES / "base_tiny.pcap").table("exchanges", ["correlation_id"])
    requests = [one.number("correlation_id") for one in found if not one.response]
    assert sorted(map(str, requests)) == sorted(map(str, exchanges["correlation_id"].to_pylist()))


def test_without_a_verb(tmp_path: Path) -> None:
    done = run(home=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "kdissect: say: kdissect wireshark install, or kdissect wireshark uninstall\n"
