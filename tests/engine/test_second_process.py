"""Parquet written by a second process: the same files, and nothing left behind however one of the two ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import kdissect
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.cli.main import main
from kdissect.engine import analysed_run
from kdissect.engine.analysed_run import AnalysedRun, Lot
from kdissect.engine.saving import parquet, second_process
from kdissect.engine.saving.folder import Folder
from kdissect.problems import KdissectError
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"
BASE = CAPTURES / "base.pcap"
ALWAYS = """
import sys
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import analysed_run
from kdissect.engine.saving import parquet
parquet.LARGE = 0
analysed_run.LOT = 50
CaptureSet.window = lambda self: Window(1 << 17, 4)
"""
"""Begins a program that writes small captures by two processes, in many lots."""


@pytest.fixture(autouse=True)
def small_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small captures are worth a second process, and have some dozen lots."""
    monkeypatch.setattr(parquet, "LARGE", 0)
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17, 4))
    monkeypatch.setattr(analysed_run, "LOT", 50)


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By whom each lot was taken."""
    taken: list[str] = []
    for kind in (Folder, second_process.FolderApart):
        feed = kind.feed

        def noted(self: Any, lot: Lot, kind: type = kind, feed: Any = feed) -> None:
            taken.append(kind.__name__)
            feed(self, lot)

        monkeypatch.setattr(kind, "feed", noted)
    return taken


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("k4_share_group.pcap", {}),  # messages go along
        ("k4_java_classic.pcap", {}),  # names are told when rows were written already
        ("field_gz.pcap.gz", {}),
        ("k4_slow_and_throttled.pcap", {"topic": "slow"}),
        pytest.param("k4_session_eviction.pcap", {"jobs": 3}, marks=pytest.mark.whole),
        pytest.param("k4_transactions.pcap", {"jobs": 4}, marks=pytest.mark.whole),
    ],
)
def test_the_same_files(name: str, settings: dict[str, Any], tmp_path: Path, fed: list[str]) -> None:
    wanted = kdissect.open(CAPTURES / name, **{**settings, "jobs": 1}).tables()
    rows = kdissect.open(CAPTURES / name, **{"jobs": 2, **settings}).save(tmp_path)
    assert set(fed) == {"FolderApart"}
    assert rows == {table: found.num_rows for table, found in wanted.items()}
    assert sorted(os.listdir(tmp_path)) == sorted(f"{table}.parquet" for table in wanted)
    for table, found in wanted.items():
        assert pq.read_table(tmp_path / f"{table}.parquet").equals(found), table


@pytest.mark.parametrize(("large", "most"), [(1 << 30, second_process.BOXES), (0, None)])
def test_memory_for_rows_is_used_again_unless_much_was_needed(
    large: int, most: int | None, tmp_path: Path, fed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def noted(name: str, flags: int = os.MFD_CLOEXEC, create: Any = os.memfd_create) -> int:
        file: int = create(name, flags)
        made.append(name)
        return file

    wanted = kdissect.open(BASE, jobs=1).tables()
    monkeypatch.setattr(os, "memfd_create", noted)
    monkeypatch.setattr(second_process, "LARGE", large)
    kdissect.open(BASE, jobs=2).save(tmp_path)
    lots = len(fed)
    assert lots > 4
    assert len(made) == 1 + most if most else len(made) > lots  # the first one: whether there is such memory at all
    assert not [file for file in Path("/proc/self/fd").iterdir() if "memfd:" in os.path.realpath(file)]
    for table, found in wanted.items():
        assert pq.read_table(tmp_path / f"{table}.parquet").equals(found), table


def test_one_thread_has_no_second_process(tmp_path: Path, fed: list[str]) -> None:
    kdissect.open(BASE, jobs=1).save(tmp_path)
    assert set(fed) == {"Folder"}


def test_small_captures_are_not_worth_one(tmp_path: Path, fed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LARGE", BASE.stat().st_size + 1)
    kdissect.open(BASE, jobs=2).save(tmp_path)
    assert set(fed) == {"Folder"}


@pytest.mark.parametrize("missing", ["os.memfd_create", "socket.socketpair", "subprocess.Popen"])
def test_where_no_process_may_be_begun_there_is_none(
    missing: str, tmp_path: Path, fed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **named: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(missing, refused)
    rows = kdissect.open(BASE, jobs=2).save(tmp_path)
    assert set(fed) == {"Folder"}
    assert len(os.listdir(tmp_path)) == len(rows)


@pytest.mark.parametrize("program", ["/usr/bin/uwsgi", "/bin/true", "", None])
def test_a_program_that_python_runs_within_is_not_begun(
    program: str | None, tmp_path: Path, fed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    kdissect.open(BASE, jobs=2).save(tmp_path)
    assert set(fed) == {"Folder"}


@pytest.mark.parametrize("place", ["..", ""])
def test_modules_are_found_after_another_folder_became_the_current_one(place: str, tmp_path: Path) -> None:
    """They were found in a folder that was named from the one that was current by then."""
    begun = ROOT / "docs" if place else ROOT
    program = f"""
import os, sys
installed = [place for place in sys.path if os.path.isdir(place + "/numpy") or not os.path.isdir(place + "/kdissect")]
sys.path[:] = [{place!r}, *installed]
{ALWAYS}
import kdissect
os.chdir(sys.argv[2])
kdissect.open(sys.argv[1], jobs=2).save(".")
"""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program, str(BASE), str(tmp_path)],
        cwd=begun, env=variables, check=False, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(os.listdir(tmp_path)) >= 20


def test_no_module_of_the_current_folder_is_taken(
    tmp_path: Path, fed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(77)")
    monkeypatch.chdir(tmp_path)
    kdissect.open(BASE, jobs=2).save(tmp_path / "tables")
    assert set(fed) == {"FolderApart"}


def test_its_time_counts(tmp_path: Path) -> None:
    capture = kdissect.open(BASE, jobs=2)
    capture.save(tmp_path)
    spent = dict(zip(*capture.timings.table().select(["layer", "cpu_seconds"]).to_pydict().values(), strict=True))
    alone = kdissect.open(BASE, jobs=1)
    alone.save(tmp_path)
    there = dict(zip(*alone.timings.table().select(["layer", "cpu_seconds"]).to_pydict().values(), strict=True))
    assert spent["analysis"] > 0.2 * there["analysis"] > 0  # only the second process analyses


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_the_first_one_fails(error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lots = AnalysedRun.lots_as_read

    def broken(self: AnalysedRun) -> Iterator[Lot]:
        yield next(iter(lots(self)))
        raise error

    monkeypatch.setattr(AnalysedRun, "lots_as_read", broken)
    with pytest.raises(error):
        kdissect.open(BASE, jobs=2).save(tmp_path)
    assert not os.listdir(tmp_path)


def test_the_second_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    killed = f"""
import os
from kdissect.engine.analysed_run import Working
def feed(self, lot):
    assert os.listdir({str(tmp_path)!r})
    os.kill(os.getpid(), 9)
Working.feed = feed
serve("""
    monkeypatch.setattr(second_process, "PROGRAM", second_process.PROGRAM.replace("serve(", killed))
    with pytest.raises(KdissectError, match="ended by itself: signal 9"):
        kdissect.open(BASE, jobs=2).save(tmp_path)
    assert not os.listdir(tmp_path)  # its files are taken away by the first one
    assert main([str(BASE), "-o", f"{tmp_path}/", "--jobs", "2"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_the_first_one_is_killed(tmp_path: Path) -> None:
    """The second one takes its files away."""
    program = f"""{ALWAYS}
import kdissect, os
from kdissect.engine.analysed_run import AnalysedRun
lots = AnalysedRun.lots_as_read
def broken(self):
    for number, lot in enumerate(lots(self)):
        if number == 3:
            while len(os.listdir(sys.argv[2])) < 20:
                pass
            os.kill(os.getpid(), 9)
        yield lot
AnalysedRun.lots_as_read = broken
kdissect.open(sys.argv[1], jobs=2).save(sys.argv[2])
"""
    ended = subprocess.run([sys.executable, "-c", program, str(BASE), str(tmp_path)], check=False, timeout=60)
    assert ended.returncode == -9
    until = time.monotonic() + 60
    while os.listdir(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("jobs", ["2", "3"])
def test_a_disk_that_fills_up(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second process may write so much, and the first one says what the system told it. With three threads the
    second process has one for files alone."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\nserve("
    monkeypatch.setattr(second_process, "PROGRAM", second_process.PROGRAM.replace("serve(", limited))
    assert main([str(BASE), "-o", f"{tmp_path}/", "--jobs", jobs]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "File too large" in line
    assert not os.listdir(tmp_path)


def test_what_ends_is_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process stops the second one when that has told of an error, and so is at its end already."""
    ended = tmp_path / "ended"
    program = f"{second_process.PROGRAM}\nimport os\nos.kill(os.getpid(), 15)\nopen({str(ended)!r}, 'w')"
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\nserve("
    monkeypatch.setattr(second_process, "PROGRAM", program.replace("serve(", limited))
    assert main([str(BASE), "-o", f"{tmp_path / 'tables'}/", "--jobs", "2"]) == 2
    assert ended.exists()


def test_late_names_of_the_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it finds that rows came too late for what was written, the run begins anew with temporary files."""
    once = tmp_path / "once"
    late = f"""
from pathlib import Path
from kdissect.engine.analysed_run import LateNames, Working
feed, once = Working.feed, Path({str(once)!r})
def late(self, lot):
    if not once.exists():
        once.touch()
        raise LateNames
    return feed(self, lot)
Working.feed = late
serve("""
    monkeypatch.setattr(second_process, "PROGRAM", second_process.PROGRAM.replace("serve(", late))
    rows = kdissect.open(BASE, jobs=2).save(tmp_path / "tables")
    assert once.exists()
    wanted = kdissect.open(BASE).tables()
    assert rows == {table: found.num_rows for table, found in wanted.items()}
    for table, found in wanted.items():
        assert pq.read_table(tmp_path / "tables" / f"{table}.parquet").equals(found), table
