"""Whatever surrounds the program: no home, a home that cannot be written, a C locale, a foreign umask, a full disk, a
capture that is cut while it is read, two first runs at once, streams that are closed, too little memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kdissect
from kdissect.cli.main import main
from tests.conftest import CAPTURES, ROOT

TINY = str(CAPTURES / "base_tiny.pcap")


def run(arguments: list[str], **environment: str | None) -> subprocess.CompletedProcess[bytes]:
    given = {name: value for name, value in (os.environ | environment).items() if value is not None}
    return subprocess.run(
        [sys.executable, "-m", "kdissect", *arguments], capture_output=True, env=given, cwd=ROOT, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_home_that_is_none_and_a_plain_locale(tmp_path: Path) -> None:
    """Neither is needed; what is said in the C locale is ASCII."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    file = tmp_path / "é.pcap"
    file.write_bytes(Path(TINY).read_bytes())
    for environment in (
        {"HOME": None, "XDG_CACHE_HOME": None},
        {"HOME": str(locked), "XDG_CACHE_HOME": "/dev/null/none", "LC_ALL": "C", "PYTHONUTF8": "0",
         "PYTHONCOERCECLOCALE": "0"},
    ):  # fmt: skip
        done = run([str(file)], **environment)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr
        assert b"exchanges" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    "arguments", [["--table", "exchanges", "--format", "csv"], ["--messages", "Fetch.response"], []]
)
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kdissect", TINY, *arguments], stdout=full, stderr=subprocess.PIPE, cwd=ROOT,
            check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1].startswith("kdissect: cannot write: No space left")
    assert b"Traceback" not in done.stderr


def test_a_capture_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    whole = (CAPTURES / "base.pcap").read_bytes()
    path.write_bytes(whole)
    batches = kdissect.open(path).batches("exchanges")
    next(batches)
    os.truncate(path, 1000)
    rows = sum(batch.num_rows for batch in batches)
    assert rows >= 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_main_thread_is_busy(sent: signal.Signals, tmp_path: Path) -> None:
    """In a call that never comes back, and holds no lock of Python's, as a kernel is."""
    code = (
        "import hashlib, sys\nfrom kdissect.cli import main\nfrom kdissect.output import whole_file\n"
        "def busy(given, confined):\n"
        "    with whole_file(sys.argv[1]) as out:\n"
        "        print('ready', flush=True)\n"
        "        hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)\n"
        "main._run = busy\n"
        "sys.exit(main.main([]))\n"
    )
    inherited = signal.signal(sent, signal.SIG_DFL)
    try:
        running = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    finally:
        signal.signal(sent, inherited)
    with running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        time.sleep(1)  # it is in the call by then
        began = time.monotonic()
        running.send_signal(sent)
        assert running.wait(60) == 128 + sent
        assert time.monotonic() - began < 30, "a busy machine aside: within a second"
    assert list(tmp_path.iterdir()) == []


def test_a_capture_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    """What was opened is read on, or what lies there now: an answer, or one line."""
    from kdissect.problems import KdissectError

    path, other = tmp_path / "a.pcap", tmp_path / "b.pcap"
    path.write_bytes((CAPTURES / "base.pcap").read_bytes())
    for content in ((CAPTURES / "not_kafka.pcap").read_bytes(), b"no capture", b""):
        capture = kdissect.open(path)
        other.write_bytes(content)
        os.replace(other, path)
        with contextlib.suppress(KdissectError):
            assert capture.table("exchanges", ["status"]).num_rows >= 0
        path.write_bytes((CAPTURES / "base.pcap").read_bytes())


def test_two_that_start_at_once(tmp_path: Path) -> None:
    """With no cache of either: both answer, and the same."""
    given = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-m", "kdissect", TINY], stdout=subprocess.PIPE, env=given, cwd=ROOT)
        for _ in range(2)
    ]
    said = [one.communicate(timeout=240)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert said[0] == said[1] != b""


def test_output_under_a_foreign_umask(tmp_path: Path) -> None:
    """A new file has what the umask leaves, and a file that is there keeps its mode."""
    fresh, known = tmp_path / "fresh.csv", tmp_path / "known.csv"
    known.write_text("")
    known.chmod(0o600)
    for file in (fresh, known):
        done = subprocess.run(
            [sys.executable, "-m", "kdissect", TINY, "--table", "exchanges", "--format", "csv", "-o", str(file)],
            cwd=ROOT, check=False, capture_output=True, preexec_fn=lambda: os.umask(0o077) and None,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "closed", "code", "said"),
    [
        ([TINY], ">&-", 2, "kdissect: cannot write: Bad file descriptor\n"),
        ([TINY, "--table", "exchanges"], ">&-", 2, "kdissect: cannot write: Bad file descriptor\n"),
        ([TINY, "-o", "tables/"], "<&- >&-", 0, "written to tables/\n"),
        (["-"], "<&-", 1, "kdissect: <stdin>: cannot be read ([Errno 9] Bad file descriptor).\n"),
        ([TINY], "2>&-", 0, ""),
        (["none.pcap"], "2>&-", 1, ""),
    ],
)
def test_streams_that_are_closed(arguments: list[str], closed: str, code: int, said: str, tmp_path: Path) -> None:
    """No file that is opened takes their place."""
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m kdissect "$@" {closed}', sys.executable, *arguments], capture_output=True, check=False,
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr.decode().endswith(said)
    assert done.stderr.count(b"\n") == bool(said)


@pytest.mark.parametrize(
    ("error", "said"),
    [(MemoryError("malloc of\nsize 9 failed"), "malloc of size 9 failed"), (MemoryError(), "no more")],
)
def test_too_little_memory_is_one_line(
    error: MemoryError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(*_: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(kdissect, "open", opened)
    assert main([TINY]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kdissect: not enough memory: ")
    assert line.endswith(said)
