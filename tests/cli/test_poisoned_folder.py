"""No command runs code that lies in the current folder: a folder full of modules is somebody else's, as /tmp may be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kdissect.cli.commands import main as commands
from tests.conftest import CAPTURES

PROGRAM = Path(sysconfig.get_path("scripts"), "kdissect")
CAPTURE = str(CAPTURES / "base_tiny.pcap")
PACKAGES = (
    "kdissect", "click", "numpy", "pyarrow", "duckdb", "pandas", "rich", "scapy", "jinja2", "textual", "numba",
    "llvmlite", "prometheus_client", "pyspark", "py4j", "pyshark", "lz4", "zstandard", "cramjam", "crc32c", "yaml",
    "cryptography", "dateutil", "vl_convert", "sitecustomize", "usercustomize", "lxml", "markupsafe", "pytz",
    "opentelemetry", "google", "requests", "urllib3",
)  # fmt: skip
POISON = """
import posix
file = posix.open({marker!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND)
posix.write(file, (__name__ + "\\n").encode())
posix.close(file)
"""
LINES = {
    "why": [CAPTURE, "1"],
    "slowest": [CAPTURE],
    "errors": [CAPTURE],
    "gaps": [CAPTURE],
    "hops": [CAPTURE],
    "show": [CAPTURE, "--frame", "20"],
    "sessions": [CAPTURE],
    "timeline": [CAPTURE],
    "latency": [CAPTURE],
    "budget": [CAPTURE],
    "diff": [CAPTURE, CAPTURE],
    "schema": ["Fetch", "12", "request"],
    "tables": [],
    "stream": [CAPTURE, "--client", "base-reader"],
    "sql": [CAPTURE, "select api, count(*) from exchanges group by api"],
    "traffic": [CAPTURE],
    "otlp": [CAPTURE, "-o", "spans.jsonl"],
    "whatif": [CAPTURE, "--linger", "5ms"],
    "cut": [CAPTURE, "--frame", "20", "-o", "cut.pcap"],
    "redact": [CAPTURE, "-o", "redacted.pcap"],
    "crosscheck": [CAPTURE],
    "spark": [CAPTURE, "-o", "spark/", "--tables", "exchanges"],
    "top": [CAPTURE, "--once"],
    "annotate": [CAPTURE, "-o", "annotated.pcapng"],
    "wireshark": ["install", "--folder", "plugins"],
    "man": [],
    "completion": ["bash"],
}
IN_TURN = """
import json, sys
from kdissect.cli.main import main
for line in json.loads(sys.argv[1]):
    print("kdissect", *line, file=sys.stderr, flush=True)
    assert main(line) == 0
"""
"""Lines in one process, whose path begins with another folder than the current one, as that of the console script does:
what a line loads is looked for where each of them would look for it in a process of its own."""
READING = [
    [CAPTURE],
    [CAPTURE, "--table", "exchanges", "--format", "csv"],
    [CAPTURE, "--html", "report.html"],
    [CAPTURE, "-o", "rows.parquet", "--table", "exchanges"],
    ["--version"],
]
"""Lines without a command."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a module of every name that kdissect, or what it rests on, imports."""
    if not PROGRAM.exists():
        pytest.skip("kdissect is not installed here: there is no console script")
    place = tmp_path / "poisoned"
    place.mkdir()
    text = POISON.format(marker=str(tmp_path / "marker"))
    for name in {*PACKAGES, *sys.stdlib_module_names} - {"sys", "posix"}:
        (place / f"{name}.py").write_text(text)
    return place


def run(folder: Path, line: list[str], *program: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Runs the console script, or the program, there; asserts that no module of the folder ran and that the line
    succeeded."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*(program or [PROGRAM]), *line], cwd=folder, capture_output=True, check=False, stdin=subprocess.DEVNULL,
        timeout=280, env=variables,
    )  # fmt: skip
    marker = folder.parent / "marker"
    said = f"these modules of the current folder ran: {marker.read_text().split()}" if marker.exists() else ""
    assert not said, f"{said}\n{done.stderr.decode()}"
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    return done


def test_every_command_has_a_line() -> None:
    assert {"CAPTURE...", *LINES} == set(commands.commands)


@pytest.mark.parametrize("line", READING)
def test_no_module_of_the_current_folder_runs(line: list[str], folder: Path) -> None:
    run(folder, line)


def test_no_module_of_the_current_folder_runs_by_a_command(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "in_turn.py"
    program.write_text(IN_TURN)
    lines = [[name, *words] for name, words in LINES.items() if name != "spark"]
    run(folder, [json.dumps(lines)], sys.executable, program)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.spark if name == "spark" else ()) for name in LINES]
)
def test_no_module_of_the_current_folder_runs_by_the_command_alone(name: str, folder: Path) -> None:
    run(folder, [name, *LINES[name]])


def test_tables_of_a_large_capture(folder: Path, tmp_path: Path) -> None:
    """Large enough for a second process."""
    base = (CAPTURES / "base.pcap").read_bytes()
    path = tmp_path / "large.pcap"
    path.write_bytes(base + base[24:] * ((33 << 20) // len(base)))
    run(folder, [str(path), "-o", "tables/", "--jobs", "2"])
    assert (folder / "tables" / "exchanges.parquet").exists()


def test_top_looks_for_findings(folder: Path) -> None:
    """The process that looks for findings starts, and what it finds is shown."""
    done = run(folder, ["top", str(CAPTURES / "k4_session_eviction.pcap"), "--once", "--format", "jsonl"])
    (shown,) = map(json.loads, done.stdout.splitlines())
    assert shown["findings"]


def test_python_itself_is_poisoned_by_such_a_folder(folder: Path) -> None:
    """Or else the tests above would hold whatever the commands do."""
    subprocess.run(
        [sys.executable, "-m", "kdissect", "--version"], cwd=folder, capture_output=True, check=False, timeout=60
    )
    assert (folder.parent / "marker").exists()
