"""Bad input as a user meets it: one clear line, the right exit code, never a traceback, and all that could be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kdissect.cli.main import main
from tests.conftest import ROOT


def kdissect(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "kdissect", *arguments],
        capture_output=True,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )


def refused(done: subprocess.CompletedProcess[bytes], code: int, said: str) -> None:
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b""), message
    assert message.startswith("kdissect: ")
    assert message.count("\n") == 1
    assert said in message


def exchanges(capture: Path) -> list[dict[str, object]]:
    done = kdissect(str(capture), "--table", "exchanges", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_missing_file(tmp_path: Path) -> None:
    refused(kdissect(str(tmp_path / "none.pcap")), 1, "none.pcap")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("shema", "the command 'schema'"),
        ("slowst", "the command 'slowest'"),
        ("tpo", "the command 'top'"),
        ("exchnges", "--table exchanges"),
    ],
)
def test_a_command_misspelt(typed: str, meant: str) -> None:
    refused(kdissect(typed, str(ROOT / "captures" / "base_tiny.pcap")), 1, f"(did you mean {meant}?)")


def test_a_directory_without_captures(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    refused(kdissect(str(tmp_path)), 1, str(tmp_path))


@pytest.mark.parametrize("name", ["field_empty.pcap", "field_half_header.pcap", "field_wrong_magic.pcap"])
def test_not_a_capture(captures: Path, name: str) -> None:
    refused(kdissect(str(captures / name)), 1, name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "a.pcap").touch(mode=0)
    refused(kdissect(str(tmp_path / "a.pcap")), 1, "ermission")


def test_a_header_only_is_read(captures: Path) -> None:
    done = kdissect(str(captures / "field_header_only.pcap"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"No Kafka exchange" in done.stdout


@pytest.mark.parametrize("filter", [("--from", "2030-01-01"), ("--to", "2001-01-01"), ("--client", "nobody")])
def test_a_filter_that_leaves_nothing(captures: Path, filter: tuple[str, str]) -> None:
    done = kdissect(str(captures / "base_tiny.pcap"), *filter)
    assert done.returncode == 0
    assert done.stdout.count(b"No Kafka exchange in what was asked for.") == 1
    assert b"167 packets (57.2 kB) in all; asked for: " in done.stdout


QUESTIONS = (
    ["why"], ["latency"], ["sessions"], ["timeline"], ["budget"], ["traffic"], ["gaps"], ["--table", "exchanges"],
    ["--table", "connections"], ["--table", "findings"],
)  # fmt: skip


@pytest.mark.parametrize("asked", QUESTIONS, ids=" ".join)
def test_every_answer_says_where_nothing_is_of_what_was_asked_for(
    captures: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing found among nothing would be read as a good sign."""
    capture = str(captures / "base_tiny.pcap")
    question = [*asked, capture] if len(asked) == 1 else [capture, *asked]
    for chosen, of in (
        (["--client", "nobody", "--client", "none"], "client nobody or none"),
        (["--topic", "nothing"], "topic nothing"),
        (["--broker", "10.9.8.7", "--topic", "base-live"], "broker 10.9.8.7 and topic base-live"),
    ):
        assert main([*question, *chosen]) == 0
        said = capsys.readouterr()
        if of != "topic nothing" or asked != ["traffic"]:  # whose rows have topics, and are read whoever they are of
            assert said.err == f"no exchange of this capture is of {of}\n"
        assert "this capture" not in said.out
    for chosen in (["--client", "base-reader"], ["--topic", "base-live"], ["--broker", "1", "--jobs", "2"]):
        assert main([*question, *chosen]) == 0
        assert "no exchange" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["field_truncated.pcap", "field_absurd_length.pcap", "field_cut.pcapng", "field_gz_cut.pcap.gz"]
)
def test_a_cut_file_gives_all_that_came_before(captures: Path, name: str) -> None:
    seen = exchanges(captures / name)
    assert len(seen) > 10
    done = kdissect(str(captures / name), "--table", "problems", "--format", "jsonl")
    problems = [json.loads(line) for line in done.stdout.splitlines()]
    assert any(problem["kind"] == "capture" for problem in problems)


def test_unknown_things(captures: Path) -> None:
    capture = str(captures / "base_tiny.pcap")
    refused(kdissect(capture, "--tabel", "exchanges"), 2, "--table")
    refused(kdissect(capture, "--table", "exchange"), 2, "did you mean 'exchanges'?")
    refused(kdissect(capture, "--table", "exchanges", "--where", "latancy_ms > 1"), 2, "did you mean 'latency_ms'?")
    refused(kdissect(capture, "--table", "exchanges", "--where", "latency_ms >"), 2, "latency_ms")
    refused(kdissect(capture, "--messages", "Fetsh.request"), 2, "did you mean Fetch?")
    refused(kdissect("show", capture, "0:999999"), 2, "0:999999")
    refused(kdissect("show", capture, "--frame", "999999"), 2, "999999")
    refused(kdissect("stream", capture, "--client", "nobody"), 2, "client 'nobody' has no exchange")


def test_head_ends_quietly(captures: Path) -> None:
    capture = captures / "base.pcap"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m kdissect {capture} --table exchanges | head -n 2"],
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(captures: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kdissect", str(captures / "base.pcap"), "--table", "exchanges"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    assert done.returncode == 2
    assert done.stderr.startswith(b"kdissect: cannot write")
    assert done.stderr.count(b"\n") == 1


def test_the_same_from_a_pipe(captures: Path) -> None:
    capture = captures / "base_tiny.pcap"
    done = subprocess.run(
        ["bash", "-c", f"cat {capture} | {sys.executable} -m kdissect - --table exchanges --format jsonl"],
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    piped = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["capture"] for row in piped} == {"-"}
    told = ("connection_id", "exchange_id", "capture", "request_file", "response_file")

    def essence(rows: list[dict[str, object]]) -> list[str]:
        """Rows without what names the capture, in an order that does not depend on it."""
        return sorted(json.dumps({k: v for k, v in row.items() if k not in told}, sort_keys=True) for row in rows)

    assert essence(piped) == essence(exchanges(capture))
