"""`--follow` on a pipe and on a file that grows: screens meanwhile, rows as they come, an end without a fuss."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kdissect
from kdissect.problems import UsageError
from kdissect.tables.declaration import declared
from tests.conftest import ROOT

CAPTURE = (ROOT / "captures" / "k4_java_classic.pcap").read_bytes()
PIECE = 61_000
"""Five of them; the ends of pieces cut records."""
WAIT = 60.0


def start(*arguments: str, **streams: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kdissect", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, **streams)  # type: ignore[call-overload,no-any-return]


def pieces() -> Iterator[bytes]:
    for at in range(0, len(CAPTURE), PIECE):
        yield CAPTURE[at : at + PIECE]


def screens(text: bytes) -> list[str]:
    """The line that counts packets of each screen."""
    return [line for line in text.decode().splitlines() if " packets (" in line]


ENDS = re.compile(rb"(-o tables/|kdissect -)\n")
"""The last line of a screen: of a file, of a pipe."""


def until(condition: object) -> None:
    """Wait for something; it is a hang that fails."""
    deadline = time.monotonic() + WAIT
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read(running: subprocess.Popen[bytes], screens_wanted: int) -> bytes:
    """What it printed until that many screens have begun and the last one has ended."""
    assert running.stdout is not None
    out = b""
    while len(screens(out)) < screens_wanted or not ENDS.search(out[out.rindex(b" packets (") :]):
        piece = os.read(running.stdout.fileno(), 1 << 16)
        assert piece
        out += piece
    return out


def test_a_file_that_has_not_begun(tmp_path: Path) -> None:
    """As tcpdump leaves it until its first buffer is full."""
    path = tmp_path / "new.pcap"
    path.touch()
    with start(str(path), "--follow", "--table", "exchanges", "--format", "csv", "--columns", "api") as running:
        time.sleep(1.0)
        assert running.poll() is None
        for piece in (CAPTURE[:10], CAPTURE[10:]):
            with path.open("ab") as file:
                file.write(piece)
            time.sleep(0.3)
        assert running.stdout is not None
        assert running.stdout.readline() == b'"api"\n'
        assert running.stdout.readline()
        time.sleep(1.0)  # it has read what there is, and waits
        running.send_signal(signal.SIGINT)
        out, said = running.communicate(timeout=WAIT)
    assert (running.returncode, said) == (0, b"")
    assert len(out.splitlines()) > 100


def test_ctrl_c_before_anything_began(tmp_path: Path) -> None:
    path = tmp_path / "new.pcap"
    path.touch()
    with start(str(path), "--follow") as running:
        time.sleep(1.5)
        running.send_signal(signal.SIGINT)
        out, said = running.communicate(timeout=WAIT)
    assert (running.returncode, out) == (1, b"")
    assert said == f"kdissect: {path}: the file is empty, not a capture. Check the recording.\n".encode()


def test_screens_of_a_pipe() -> None:
    whole = subprocess.run(
        [sys.executable, "-m", "kdissect", "-"], input=CAPTURE, capture_output=True, cwd=ROOT, check=True
    ).stdout
    with start("-", "--follow", stdin=subprocess.PIPE) as running:
        assert running.stdin is not None
        out = b""
        for piece in list(pieces())[:2]:
            running.stdin.write(piece)
            running.stdin.flush()
            out += read(running, 1)
        for piece in list(pieces())[2:]:
            running.stdin.write(piece)
        last, said = running.communicate(timeout=WAIT)
    assert running.returncode == 0
    assert said == b""
    counts = [int(line.split()[0].replace(",", "")) for line in screens(out + last)]
    assert len(counts) >= 3
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[1] < counts[-1] == 2298
    assert (out + last).endswith(b"\n\n" + whole)


@pytest.mark.parametrize(
    "form", ["jsonl", *(pytest.param(form, marks=pytest.mark.whole) for form in ("csv", "table", "arrow"))]
)
def test_rows_of_a_growing_file(form: str, tmp_path: Path) -> None:
    grown, out, whole = tmp_path / "grown.pcap", tmp_path / "rows", tmp_path / "whole"
    columns = ("--table", "exchanges", "--columns", "exchange_id,api,status,latency_ms", "--format", form)
    grown.write_bytes(next(pieces()))
    with start(str(grown), "--follow", *columns, "-o", str(out)) as running:
        sizes = [0]
        for piece in list(pieces())[1:]:
            until(lambda: out.exists() and out.stat().st_size > sizes[-1])
            sizes.append(out.stat().st_size)
            with grown.open("ab") as file:
                file.write(piece)
        until(lambda: out.stat().st_size > sizes[-1])
        running.send_signal(signal.SIGINT)
        printed, said = running.communicate(timeout=WAIT)
    assert (running.returncode, printed, said) == (0, b"", b"")
    assert len(sizes) >= 5
    whole_command = [sys.executable, "-m", "kdissect", str(grown), *columns, "-o", str(whole)]
    subprocess.run(whole_command, cwd=ROOT, check=True, capture_output=True)
    if form == "arrow":
        import pyarrow as pa

        tables = [pa.ipc.open_stream(path).read_all().sort_by("exchange_id") for path in (out, whole)]
        assert tables[0].equals(tables[1])
    else:
        assert sorted(out.read_text().split()) == sorted(whole.read_text().split())


def test_the_tutorial_names_the_columns_that_come_at_the_end() -> None:
    (told,) = re.findall(r"exchanges with ([^.]*)\.", (ROOT / "docs" / "index.md").read_text())
    assert set(re.findall("`(.*?)`", told)) == declared("exchanges").analysed


def test_a_named_pipe(tmp_path: Path) -> None:
    pipe, out = tmp_path / "pipe", tmp_path / "messages.jsonl"
    os.mkfifo(pipe)
    with start(str(pipe), "--follow", "--messages", "Fetch.request", "-o", str(out)) as running:
        pipe.write_bytes(CAPTURE)
        printed, said = running.communicate(timeout=WAIT)
    assert (running.returncode, printed, said) == (0, b"", b"")
    whole = kdissect.open(ROOT / "captures" / "k4_java_classic.pcap").messages("Fetch", "request")
    assert len(out.read_text().splitlines()) == whole.num_rows


def test_interrupted_twice_or_too_early(tmp_path: Path) -> None:
    """Before anything was read Ctrl-C is what it always is."""
    with start("-", "--follow", stdin=subprocess.PIPE) as running:
        time.sleep(2)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=WAIT)
    assert running.returncode == 130
    assert said.startswith(b"kdissect: interrupted")


def test_python(tmp_path: Path) -> None:
    """In Python a function says when to stop."""
    grown = tmp_path / "grown.pcap"
    grown.write_bytes(CAPTURE[:PIECE])
    calls = []

    def stop() -> bool:
        calls.append(len(calls))
        if len(calls) == 2:
            with grown.open("ab") as file:
                file.write(CAPTURE[PIECE:])
        return len(calls) > 6

    table = kdissect.open(grown, follow=stop).table("exchanges", ["api", "status"])
    assert table.equals(kdissect.open(grown).table("exchanges", ["api", "status"]))


def test_bad_arguments(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kdissect", "--demo", "--follow", "-o", str(tmp_path)], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 2
    assert b"--follow appends to one table" in done.stderr
    with pytest.raises(UsageError, match="only one capture"):
        kdissect.open([ROOT / "captures" / "base.pcap", ROOT / "captures" / "raw_ids.pcap"], follow=lambda: True)


def test_a_file_that_another_capture_is_written_over(tmp_path: Path) -> None:
    """As a second tcpdump with the same -w does."""
    path, out = tmp_path / "a.pcap", tmp_path / "rows"
    path.write_bytes(CAPTURE)
    rows = ("--table", "exchanges", "--columns", "exchange_id,api", "--format", "jsonl")
    with start(str(path), "--follow", *rows, "-o", str(out)) as running:
        until(lambda: out.exists() and out.stat().st_size)
        time.sleep(0.5)
        path.write_bytes((ROOT / "captures" / "raw_ids.pcap").read_bytes())
        printed, said = running.communicate(timeout=WAIT)
    assert (running.returncode, printed) == (0, b"")
    assert said == b"a.pcap: another capture was written over it, which is not read; reading ended there\n"
    first = kdissect.open(ROOT / "captures" / "k4_java_classic.pcap").table("exchanges", ["api"])
    assert out.read_bytes().count(b"\n") == first.num_rows


def test_a_directory_of_a_rotated_set(tmp_path: Path) -> None:
    """It is empty at first; files come while it is followed."""
    files = sorted((ROOT / "captures" / "field_rotated_G").iterdir())
    rows = ("--table", "exchanges", "--columns", "exchange_id,api,request_file", "--format", "csv")
    out = tmp_path / "rows"
    folder = tmp_path / "ring"
    folder.mkdir()
    with start(str(folder), "--follow", *rows, "-o", str(out)) as running:
        sizes = [0]
        for path in files:
            (folder / path.name).write_bytes(path.read_bytes())
            until(lambda: out.exists() and out.stat().st_size > sizes[-1])
            sizes.append(out.stat().st_size)
        time.sleep(1.0)
        (folder / files[-1].name).write_bytes(files[0].read_bytes())
        assert running.stderr is not None
        assert running.stderr.readline().decode() == (
            f"{files[-1].name}: another capture was written over it, which is not read; "
            "reading goes on with the next file that comes\n"
        )
        running.send_signal(signal.SIGINT)
        printed, said = running.communicate(timeout=WAIT)
    assert (running.returncode, printed, said) == (0, b"", b"")
    whole = subprocess.run(
        [sys.executable, "-m", "kdissect", str(files[0].parent), *rows], cwd=ROOT, check=True, capture_output=True
    ).stdout.decode()
    assert sorted(out.read_text().split()) == sorted(whole.split())
