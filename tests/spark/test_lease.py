"""One writer of a folder at a time."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kdissect.output import OutputError
from kdissect.problems import UsageError
from kdissect.spark.writing.lease import LEASES, STALE, Folder, HadoopFolder, Lease, LocalFolder, Writer, leased

ELSEWHERE = Writer("another-host", 4711, "another boot", "1")
HOLD_AND_DIE = """
import os, sys
from pathlib import Path
from kdissect.spark.writing.lease import LocalFolder, Lease
Lease(LocalFolder(Path(sys.argv[1])), "out")
os._exit(1)
"""


def put(folder: Path, writer: Writer, silent: float = 0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{writer.process}.json"
    path.write_text(json.dumps(asdict(writer)))
    changed = path.stat().st_mtime - silent
    os.utime(path, (changed, changed))
    return path


def test_a_second_run_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with leased(None, str(tmp_path)) as first:
        with pytest.raises(UsageError, match=rf"^another run writes to .*: process {os.getpid()} on .*, last heard of"):
            leased(None, str(tmp_path)).__enter__()
        first.check()
    with leased(None, str(tmp_path)):
        pass
    assert not list(tmp_path.iterdir())


def test_a_process_of_this_machine_that_is_gone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLD_AND_DIE, str(tmp_path / LEASES)], check=False)
    assert len(list((tmp_path / LEASES).iterdir())) == 1
    if not Writer.this().machine:
        pytest.skip("this system does not say which processes it has")
    with leased(None, str(tmp_path)) as mine:
        mine.check()
        assert len(list((tmp_path / LEASES).iterdir())) == 1


@pytest.mark.parametrize(
    ("silent", "refused"), [(STALE - 30, True), (STALE + 30, False), (30 - STALE, True), (-STALE - 30, False)]
)
def test_a_process_of_another_machine(tmp_path: Path, silent: float, refused: bool) -> None:
    other = put(tmp_path, ELSEWHERE, silent)
    if refused:
        with pytest.raises(UsageError, match="process 4711 on another-host"):
            Lease(LocalFolder(tmp_path), "out")
        assert list(tmp_path.iterdir()) == [other]
    else:
        Lease(LocalFolder(tmp_path), "out").check()
        assert not other.exists()


def test_a_lease_that_is_just_being_written(tmp_path: Path) -> None:
    (tmp_path / "new.json").touch()
    with pytest.raises(UsageError, match="another run writes to out, last heard"):
        Lease(LocalFolder(tmp_path), "out")


def test_a_full_disk_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without its bytes would be the lease of a run that is just beginning."""

    def fill(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", fill)
        with pytest.raises(OutputError, match=r"^cannot write out: No space left on device$"):
            Lease(LocalFolder(tmp_path / LEASES), "out")
    Lease(LocalFolder(tmp_path / LEASES), "out").check()


def test_a_run_that_was_taken_for_dead_commits_nothing(tmp_path: Path) -> None:
    first = Lease(LocalFolder(tmp_path), "out")
    (file,) = tmp_path.iterdir()
    os.utime(file, (0, 0))
    second = Lease(LocalFolder(tmp_path), "out")
    first.beat()
    with pytest.raises(OutputError, match="cannot write out: another run took this one for dead"):
        first.check()
    second.check()


def heartbeat(folder: Folder, path: Path) -> None:
    first = Lease(folder, "out")
    (file,) = path.glob("*.json")
    os.utime(file, (0, 0))
    first.beat()
    assert file.stat().st_mtime > 0
    with pytest.raises(UsageError, match="another run writes to out"):
        Lease(folder, "out")
    first.give_up()
    first.beat()
    assert not list(path.glob("*.json"))


def test_a_heartbeat_keeps_others_out(tmp_path: Path) -> None:
    heartbeat(LocalFolder(tmp_path), tmp_path)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_on_file_systems_of_hadoop(
    spark: Any, captures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kdissect.cli.main import main
    from kdissect.spark.file_system import HadoopFiles
    from kdissect.spark.job import prepare
    from kdissect.spark.writing.saving import write

    heartbeat(HadoopFolder(HadoopFiles(spark), f"file:{tmp_path}"), tmp_path)
    put(tmp_path / LEASES, ELSEWHERE)
    job = prepare(captures / "base_tiny.pcap", ["groups"]).on(spark, 2)
    with pytest.raises(UsageError, match="process 4711 on another-host"):
        write(job, str(tmp_path))
    assert main(["spark", str(captures / "base_tiny.pcap"), "-o", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("kdissect: another run writes to ")
    assert said.count("\n") == 1
    os.utime(next((tmp_path / LEASES).iterdir()), (0, 0))
    assert write(job, str(tmp_path))["groups"] >= 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_snapshots", "groups"]
