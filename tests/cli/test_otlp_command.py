"""`otlp`: to a receiver, to a file, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kdissect.cli.main import main
from kdissect.installed_copy import install_command
from tests.conftest import CAPTURES
from tests.otlp.receiver import receiving

CAPTURE = str(CAPTURES / "base.pcap")
SPANS = "791 spans of 176 exchanges in 3 requests"


def test_to_a_receiver(capsys: pytest.CaptureFixture[str]) -> None:
    with receiving() as taken:
        assert main(["otlp", CAPTURE, "--to", taken.url]) == 0
    assert capsys.readouterr().err == f"sent {SPANS} to {taken.url}\n"
    assert len(taken.spans) == 791
    assert len(taken.metrics) == 1


def test_a_time_beside_the_receiver_leaves_out_what_came_after(capsys: pytest.CaptureFixture[str]) -> None:
    with receiving() as taken:
        assert main(["otlp", CAPTURE, "--to", "2020-01-01", "--to", taken.url]) == 0
    assert taken.spans == []
    assert capsys.readouterr().err.startswith("sent 0 spans of 0 exchanges")


@pytest.mark.parametrize("output", ["spans.jsonl", "-"])
def test_to_a_file(output: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    target = output if output == "-" else str(tmp_path / output)
    assert main(["otlp", CAPTURE, "-o", target, "--no-links"]) == 0
    shown = capfdbinary.readouterr()
    lines = shown.out.splitlines() if output == "-" else (tmp_path / output).read_bytes().splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["resourceSpans", "resourceSpans", "resourceMetrics"]
    assert shown.err.decode() == f"wrote {SPANS}" + ("\n" if output == "-" else f" to {target}\n")


@pytest.mark.parametrize(
    ("line", "says", "code"),
    [
        ([], "say where spans go, by one of --to http://localhost:4318 and -o FILE (- for standard output)", 2),
        (["--to", "http://a:1", "-o", "x"], "say where spans go, by one of", 2),
        (["--to", "http://a:1", "--to", "http://b:1"], "--to takes one receiver", 2),
        (["--to", "http://a:1", "--to", "10:00", "--to", "11:00"], "--to takes one time", 2),
        (["--to", "grpc://a:1"], "'grpc://a:1' is no OTLP receiver: say it like http://localhost:4318", 2),
        (["--to", "http://127.0.0.1:1"], "no OTLP receiver at http://127.0.0.1:1: Connection refused", 1),
        (["-o", "x", "--where", "nosuch > 1"], "nosuch", 2),
        (["-o", "/proc/none/x"], "cannot write /proc/none/x", 2),
    ],
)
def test_what_is_refused(line: list[str], says: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["otlp", CAPTURE, *line]) == code
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.startswith("kdissect: ")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("line", [["otlp", CAPTURE, "-o", "-"], ["top", CAPTURE, "--once", "--otlp", "http://a:1"]])
def test_without_the_extra(
    line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("opentelemetry.exporter.otlp.json.file", "opentelemetry.exporter.otlp.proto.http"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(line) == 2
    assert capsys.readouterr().err == f"kdissect: OTLP needs more packages: {install_command('otlp')}\n"


def test_top_sends_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with receiving() as taken:
        assert main(["top", CAPTURE, "--once", "--no-findings", "--otlp", taken.url]) == 0
    assert capsys.readouterr().err == f"sent 791 spans to {taken.url}\n"
    assert len(taken.spans) == 791


def test_top_refuses_what_is_no_receiver(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", CAPTURE, "--once", "--otlp", "localhost"]) == 2
    assert capsys.readouterr().err.startswith("kdissect: 'localhost' is no OTLP receiver")
