"""Commands against a stand-in capture: what goes where, and what each mistake says."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.cli.opening import SMALL, small
from kdissect.problems import CaptureNotFound, NotACapture
from kdissect.schema import index
from kdissect.tables.declaration import TABLES
from tests.cli.standin import StandIn


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every capture opens as the stand-in; what was asked for is listed."""
    asked: list[Any] = []

    def open_(source: Any, **settings: Any) -> StandIn:
        asked.append((source, settings))
        return StandIn()

    monkeypatch.setattr(kdissect, "open", open_, raising=False)
    return asked


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_the_first_screen_is_plain_in_a_pipe(opened: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "a.pcap")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "Fetch" in out
    assert "kdissect why a.pcap 1" in out
    assert [source for source, _ in opened] == [["a.pcap"]]


def test_demo_and_by_and_top(opened: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--demo", "--by", "client", "--top", "1")
    assert code == 0
    assert "kdissect why --demo" in out
    assert opened[0][0].endswith("demo.pcap")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no capture given"),
        (("a.pcap", "--tabel", "x"), "--table"),
        (("a.pcap", "--table", "exchange"), "did you mean 'exchanges'"),
        (("a.pcap", "--table", "exchanges", "--columns", "apy"), "did you mean 'api'"),
        (("a.pcap", "--table", "exchanges", "--columns", "nope"), "and others: kdissect tables exchanges"),
        (("a.pcap", "--where", "x"), "--columns and --where need --table"),
        (("a.pcap", "--format", "csv"), "--format needs"),
        (("a.pcap", "--table", "exchanges", "--format", "cvs"), "csv"),
        (("a.pcap", "--table", "x", "--messages", "y"), "exclude"),
        (("a.pcap", "--messages", "Fetch"), "API.request or API.response"),
        (("a.pcap", "-o", "out.csv"), "out.csv/"),
        (("--demo", "a.pcap"), "leave out the others"),
        (("-", "a.pcap"), "standard input"),
        (("show", "3f2b"), "neither a file nor an exchange id"),
        (("show",), "no capture given"),
        (("show", "--demo", "ffff:9"), "no exchange"),
        (("tables", "fetchs"), "did you mean 'fetches'"),
        (("completion", "csh"), "bash"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(
    opened: list[Any], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("kdissect: ")
    assert said in err


@pytest.mark.parametrize(
    ("error", "given", "said"),
    [
        (CaptureNotFound("no such capture: shwo"), "shwo", "did you mean the command 'show'?"),
        (NotACapture("x.txt is not a capture"), "x.txt", "not a capture"),
    ],
)
def test_unreadable_captures_are_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, given: str, said: str
) -> None:
    def open_(source: Any, **settings: Any) -> None:
        raise error

    monkeypatch.setattr(kdissect, "open", open_, raising=False)
    code, out, err = run(capsys, given)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert said in err


def test_tables_made_only_when_asked_for_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    """In the list and in the option's help: a directory gets all others."""
    lines = run(capsys, "tables")[1].splitlines()
    marked = {line.split()[0] for line in lines if line.endswith("only when asked for")}
    assert marked == {name for name, table in TABLES.items() if table.on_request}
    assert len(lines) == len(TABLES)
    assert run(capsys, "tables", "records")[1].startswith("records: one row per record; only when asked for\n")
    told = " ".join(run(capsys, "--help")[1].split())
    assert "except those made only when asked for (kdissect tables)" in told


def test_a_table_as_text(opened: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "a.pcap", "--table", "exchanges", "--columns", "exchange_id,api,latency_ms,request_first_at"
    )
    assert code == 0
    assert [line.split() for line in out.splitlines()[:2]] == [
        ["exchange_id", "api", "latency_ms", "request_first_at"],
        ["3f2a0123456789ab:0", "ApiVersions", "0.400", "2026-11-21T04:20:01.250000Z"],
    ]
    assert out.splitlines()[-1].split() == ["3f2a0123456789ab:4", "Fetch", "-", "2026-11-21T04:20:01.254000Z"]


def test_an_empty_table_has_its_titles(opened: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "a.pcap", "--table", "topics", "--columns", "topic,topic_id")[1] == "topic  topic_id\n"


@pytest.mark.parametrize(
    ("name", "options", "begins"),
    [
        ("x.csv", [], b'"api"'),
        ("x.CSV", ["--csv-safe"], b'"api"'),
        ("x.jsonl", [], b'{"api"'),
        ("x.parquet", [], b"PAR1"),
        ("x.arrow", [], b"\xff\xff\xff\xff"),
        ("x.txt", [], b"api "),
        ("x.csv", ["--format", "jsonl"], b'{"api"'),
    ],
)
def test_a_file_is_written_as_its_name_tells(
    opened: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, options: list[str], begins: bytes
) -> None:
    path = tmp_path / name
    given = ["a.pcap", "--table", "exchanges", "--columns", "api,status", *options, "-o", str(path)]
    assert run(capsys, *given)[0] == 0
    assert path.read_bytes().startswith(begins)


def test_parquet_appears_whole(opened: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "a.pcap", "-o", f"{tmp_path}/tables/")
    assert (code, out) == (0, "")
    assert "written to" in err
    assert pq.read_table(tmp_path / "tables" / "exchanges.parquet").num_rows == 5
    assert not list((tmp_path / "tables").glob(".*"))


def test_a_failing_run_leaves_nothing_behind(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(self: StandIn, directory: Path) -> None:
        (directory / "exchanges.parquet").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(StandIn, "save", interrupted)
    code, _, err = run(capsys, "a.pcap", "-o", f"{tmp_path}/tables/")
    assert code == 130
    assert "interrupted" in err
    assert list((tmp_path / "tables").iterdir()) == []


def test_output_that_cannot_be_written(opened: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "a.pcap", "-o", f"{tmp_path}/file/")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = run(capsys, "a.pcap", "--table", "topics", "-o", f"{tmp_path}/none/x.txt")
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot write" in err


def test_show_is_a_tree(opened: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "a.pcap", "3f2a:1")
    assert code == 0
    assert "3f2a0123456789ab:1  Fetch v12  ok" in out
    assert "api_key" in out
    assert "Response: not captured" in out
    assert "3 bytes were cut off" in out
    assert "Implied by session 1/77/1: 3 partitions\n  t: 0-1, 7\n" in out
    assert "\x1b" not in out, "control characters from the wire are not obeyed"
    assert [source for source, _ in opened] == [["a.pcap"]]


def test_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ListOffsets" in run(capsys, "schema")[1]
    assert "Request (Version: 12)" in run(capsys, "schema", "Fetch", "12", "request")[1]
    newest = index.load().find_api("Fetch").response.versions.last
    assert f"Response (Version: {newest})" in run(capsys, "schema", "fetch")[1]
    assert "+" in run(capsys, "schema", "--diff", "Fetch", "11", "12")[1]
    for words in (["Fetsh"], ["Fetch", "x"], ["Fetch", "99"], ["Fetch", "1", "both"], ["--diff", "Fetch"]):
        code, out, err = run(capsys, "schema", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_version_says_what_it_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--version")[1]
    assert out.startswith(f"kdissect {kdissect.__version__}\nknows Kafka up to 4.")
    assert "numpy " in out


def test_tables_lists_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert "fetch_sessions" in run(capsys, "tables")[1]
    assert "latency_ms" in run(capsys, "tables", "exchanges")[1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert "_KDISSECT_COMPLETE" in run(capsys, "completion", shell)[1]


def test_completion_offers_commands_options_and_tables() -> None:
    def offered(words: str, at: int) -> str:
        environment = {**os.environ, "_KDISSECT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return subprocess.run(
            [sys.executable, "-m", "kdissect"], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert "show" in offered("kdissect sh", 1)
    assert "--table" in offered("kdissect a.pcap --ta", 2)
    assert "exchanges" in offered("kdissect a.pcap --table ex", 3)


def test_help_is_light() -> None:
    probe = (
        "import sys; from kdissect.cli.main import main; main(['--help']);"
        "heavy = {'numpy', 'numba', 'pandas', 'pyarrow', 'scapy', 'pyspark', 'pyshark'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "kdissect show broker.pcap --frame 42" in done.stdout


def test_a_closed_pipe_is_quiet(opened: list[Any]) -> None:
    program = (
        "import kdissect; from tests.cli.standin import StandIn;"
        "kdissect.open = lambda source, **settings: StandIn();"
        "from kdissect.cli.main import main; import sys; sys.exit(main(['a.pcap']))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run([sys.executable, "-c", program], stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("setting", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"NO_COLOR": "1"}, {"COLUMNS": "40"}])
def test_odd_terminals(setting: dict[str, str]) -> None:
    program = (
        "import kdissect; from tests.cli.standin import StandIn;"
        "kdissect.open = lambda source, **settings: StandIn();"
        "from kdissect.cli.main import main; import sys; sys.exit(main([sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "ä.pcap"], env={**os.environ, **setting}, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout


def test_json_lines(opened: list[Any], capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["a.pcap", "--table", "exchanges", "--format", "jsonl"]) == 0
    first = json.loads(io.BytesIO(capsysbinary.readouterr().out).readline())
    assert first["request_first_at"] == "2026-11-21T04:20:01.250000Z"
    assert first["error"] is None


def test_how_large_the_input_is(captures: Path, tmp_path: Path) -> None:
    """Rows are put in order where all files that a directory or a glob brings are small together."""
    data = (captures / "base_tiny.pcap").read_bytes()
    for name in ("a.pcap", "b.pcap"):
        (tmp_path / name).write_bytes(data)
    for source in (tmp_path, str(tmp_path / "*.pcap"), [tmp_path / "a.pcap", tmp_path / "b.pcap"]):
        assert kdissect.open(source).size == 2 * len(data)
    assert kdissect.open(io.BytesIO(data)).size is None
    assert small(kdissect.open(tmp_path))  # type: ignore[arg-type]
    with (tmp_path / "b.pcap").open("ab") as file:
        file.truncate(SMALL)
    assert not small(kdissect.open(tmp_path))  # type: ignore[arg-type]
