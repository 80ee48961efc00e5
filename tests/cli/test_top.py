"""`kdissect top` as lines for scripts, and its arguments."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import ROOT

EVICTION = ROOT / "captures" / "k4_session_eviction.pcap"


def top(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kdissect", "top", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


def test_once() -> None:
    done = top(str(EVICTION), "--once", "--format", "jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = map(json.loads, done.stdout.splitlines())
    assert (line["exchanges"], line["errors"], line["connections"], line["ended"]) == (2110, 19, 29, True)
    assert {one["name"] for one in line["brokers"]} == {"1", "2", "3"}
    assert "session_evictor" in {one["id"] for one in line["findings"]}
    (topic,) = (one for one in line["topics"] if one["name"] == "ev-t")
    assert topic["lag"] == 16


def test_a_screen_in_eighty_columns() -> None:
    done = top(str(EVICTION), "--once", "--no-findings", env={**os.environ, "COLUMNS": "80"})
    assert done.returncode == 0
    tables = done.stdout.splitlines()[3:]
    assert all(len(line) <= 80 for line in tables)
    assert "Client" in done.stdout
    assert "broker p99" in done.stdout


def test_lines_of_a_directory_that_gets_files(tmp_path: Path) -> None:
    files = sorted((ROOT / "captures" / "field_rotated_G").iterdir())
    command = [
        sys.executable,
        "-m",
        "kdissect",
        "top",
        str(tmp_path),
        "--every",
        "0.3s",
        "--format",
        "jsonl",
        "--no-findings",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout is not None
        counts = [0]
        for path in files:
            shutil.copy(path, tmp_path)
            before = counts[-1]
            while counts[-1] == before:
                counts.append(json.loads(running.stdout.readline())["packets"])
        time.sleep(0.5)
        shutil.copy(files[0], tmp_path / files[-1].name)
        assert running.stderr is not None
        assert running.stderr.readline() == (
            f"{files[-1].name}: another capture was written over it, which is not read; "
            "reading goes on with the next file that comes\n"
        )
        running.send_signal(signal.SIGINT)
        out, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (0, "")
    assert counts == sorted(counts)
    whole = top(str(files[0].parent), "--once", "--format", "jsonl", "--no-findings")
    assert json.loads(out.splitlines()[-1])["exchanges"] <= json.loads(whole.stdout)["exchanges"]
    assert json.loads(out.splitlines()[-1])["packets"] == json.loads(whole.stdout)["packets"]


def test_metrics_of_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kdissect", "top", "-", "--metrics", "127.0.0.1:0", "--no-findings"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as running:
        assert running.stdin is not None
        assert running.stderr is not None
        url = running.stderr.readline().decode().removeprefix("metrics at ").strip()
        running.stdin.write(EVICTION.read_bytes())
        running.stdin.flush()
        deadline = time.monotonic() + 60
        wanted = ("kdissect_packets_total 6685", 'kdissect_exchanges_total{api="Fetch",status="ok"}')
        while not all(one in urllib.request.urlopen(url).read().decode() for one in wanted):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        running.stdin.close()
        running.stdin = None
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (0, b"")


def test_once_of_a_pipe_that_stays_open() -> None:
    """It ends after one window."""
    command = [sys.executable, "-m", "kdissect", "top", "-", "--once", "--window", "1s", "--no-findings"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as running:
        assert running.stdin is not None
        running.stdin.write(EVICTION.read_bytes())
        running.stdin.flush()
        try:
            code = running.wait(60)
        finally:
            running.kill()
        assert running.stdout is not None
        assert (code, b" exchanges  " in running.stdout.read()) == (0, True)


def test_once_of_a_file_as_standard_input() -> None:
    with EVICTION.open("rb") as file:
        done = top("-", "--once", "--window", "0.01s", "--no-findings", stdin=file)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2,110 exchanges" in done.stdout


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_packets_do_not_stay_behind(sent: signal.Signals, tmp_path: Path) -> None:
    """Also where the reading thread waits for a pipe; what a kill leaves goes at the next start."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "kdissect", "top", "-", "--every", "0.2s", "--no-findings", "--format", "jsonl"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(EVICTION.read_bytes())
        running.stdin.flush()
        while json.loads(running.stdout.readline())["packets"] == 0:
            pass
        assert list(tmp_path.glob("kdissect-locked-ring-*/live.pcap*"))
        running.send_signal(sent)
        running.wait(60)
        running.stdin.close()
        running.stdin = None
        running.communicate()
    if sent == signal.SIGKILL:
        assert list(tmp_path.iterdir())
        assert top(str(EVICTION), "--once", "--no-findings", env=environment).returncode == 0
    assert not list(tmp_path.iterdir())


def test_an_unexpected_end_of_watching(tmp_path: Path) -> None:
    """Files may not grow: the ring cannot be written."""
    command = f"ulimit -f 8; {sys.executable} -m kdissect top {EVICTION} --once --no-findings"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kdissect: watching ended unexpectedly: OSError: ")
    assert "File too large" in line


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--once", "--every", "1s", str(EVICTION)], 2, "--once and --every exclude each other"),
        ([str(EVICTION)], 2, "the screen needs a terminal"),
        (["--once"], 2, "say what to watch"),
        (["--once", "--metrics", "nowhere", str(EVICTION)], 2, "no place to serve metrics"),
        (["--once", "--metrics", "192.0.2.1:9", str(EVICTION)], 2, "metrics cannot be served"),
        (["--once", "--speed", "nan", str(EVICTION)], 2, "--speed takes a number"),
        (["--once", "--speed", "inf", str(EVICTION)], 2, "--speed takes a number"),
        (["--once", "README.md"], 1, "not a capture"),
        (["--once", "none.pcap"], 1, "none.pcap"),
        (["--format", "jsonl", str(EVICTION)], 2, "--format needs"),
        (["--once", "--metrics-host", "a.example", str(EVICTION)], 2, "--metrics-host goes with --metrics"),
    ],
)
def test_bad_arguments(arguments: list[str], code: int, message: str) -> None:
    done = top(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout
