"""Output files: never an input, with the mode and the links that they had, and nothing left beside them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.output import FULL, OutputError, ScratchFull, distinct, scratch, whole_directory, whole_file
from kdissect.problems import UsageError
from tests.conftest import CAPTURES

TINY = CAPTURES / "base_tiny.pcap"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "a.pcap"
    shutil.copy(TINY, path)
    (tmp_path / "link.pcap").symlink_to(path)
    os.link(path, tmp_path / "second-name.pcap")
    return path


@pytest.mark.parametrize("name", ["a.pcap", "link.pcap", "second-name.pcap", "../{}/a.pcap"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["{in}", "--table", "exchanges", "-o", "{out}"], ["{in}", "--messages", "Fetch.request", "-o", "{out}"],
        ["latency", "{in}", "--format", "csv", "-o", "{out}"], ["{in}", "--html", "{out}"],
        ["cut", "{in}", "--frame", "4", "-o", "{out}"], ["redact", "{in}", "-o", "{out}"],
    ],
)  # fmt: skip
def test_an_input_is_no_output(name: str, arguments: list[str], capture: Path, tmp_path: Path) -> None:
    out = str(tmp_path / name.format(tmp_path.name))
    given = [word.replace("{in}", str(capture)).replace("{out}", out) for word in arguments]
    assert main(given) == 2
    assert capture.read_bytes() == TINY.read_bytes()


def test_members_of_a_set_open_files_and_keys_are_inputs(tmp_path: Path) -> None:
    for name in ("r.pcap", "r.pcap1"):
        shutil.copy(TINY, tmp_path / name)
    with pytest.raises(UsageError, match="is read by this command"):
        kdissect.open(tmp_path / "r.pcap*").cut(tmp_path / "r.pcap1", start="2000-01-01")
    with (tmp_path / "r.pcap").open("rb") as file, pytest.raises(UsageError, match="is read by"):
        kdissect.open(file).cut(tmp_path / "r.pcap", start="2000-01-01")
    keys = tmp_path / "keys.log"
    shutil.copy(CAPTURES / "tls13.keys.log", keys)
    with pytest.raises(UsageError, match="is read by"):
        kdissect.open(CAPTURES / "tls13.pcap", keylog=keys).redact(keys)
    distinct(tmp_path / "new", [keys])
    distinct(os.devnull, [os.devnull])


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_mode_and_links_stay(mode: int, tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(mode)
    link.symlink_to("out")
    if not os.access(path, os.W_OK):
        with pytest.raises(OutputError, match="Permission"), whole_file(str(link)) as stream:
            stream.write(b"new")
        return
    with whole_file(str(link)) as stream:
        (aside,) = tmp_path.glob(".*.part")
        assert stat.S_IMODE(aside.stat().st_mode) & ~mode == 0, "nobody reads more of it before it is whole"
        stream.write(b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "out"]


def test_a_link_to_what_is_not_there_yet_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with whole_file(str(tmp_path / "link")) as stream:
        stream.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").read_bytes() == b"x"


def test_the_umask_is_heeded_and_never_changed(tmp_path: Path) -> None:
    code = (
        "import os, sys\nos.umask(0o027)\nos.umask = None\nfrom kdissect.output import whole_file\n"
        "with whole_file(sys.argv[1]) as stream: stream.write(b'x')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=True)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640


def test_files_of_a_directory_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o600)
    with whole_directory(str(tmp_path)) as aside:
        (aside / "a").write_bytes(b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


@pytest.mark.parametrize("number", FULL)
def test_full_temporary_space_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ScratchFull, match=str(tmp_path)), scratch():
        raise OSError(number, os.strerror(number))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), scratch():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
