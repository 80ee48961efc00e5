"""A budget of memory: what is left out is told, what is answered is right, and every command keeps to it."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.engine import capture_tables
from kdissect.engine.bounds import room
from kdissect.problems import UsageError
from tests.bench.measure import run
from tests.conftest import CAPTURES, ROOT
from tests.fuzz.metamorphic import small_blocks
from tests.report.test_charts_library import INSTALLED

BASE = CAPTURES / "base.pcap"
BUDGET = 512 * 10**6
"""What the command line allows unless told otherwise."""
ADDRESSES = 2 * 10**9
"""What a small machine may give a process (RLIMIT_AS)."""
COMMANDS = (
    [], ["sessions"], ["latency"], ["latency", "--by", "client,topic"], ["timeline"], ["budget"], ["traffic"],
    ["--html", "@OUT"], ["--table", "findings"], ["--table", "exchanges", "--sort", "-latency_ms", "--limit", "5"],
    ["sql", "select api, count(*) from exchanges group by api"], ["diff"], ["top", "--once"], ["-o", "@OUT/"],
)  # fmt: skip
"""A command's words; its capture comes behind the first one, if that is a command's name."""


def words(command: list[str], path: Path, out: Path) -> list[str]:
    """The command line."""
    given = [word.replace("@OUT", str(out)) for word in command]
    named = 1 if given and not given[0].startswith("-") else 0
    captures = [str(path)] * (2 if given[:1] == ["diff"] else 1)
    return [sys.executable, "-m", "kdissect", *given[:named], *captures, *given[named:]]


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> int:
    """A budget that leaves room for some thousand rows."""
    monkeypatch.setattr(room, "READING", 255_000_000)
    return 257_000_000


def test_what_does_not_fit_is_told(little: int) -> None:
    path = CAPTURES / "k4_session_eviction.pcap"
    whole = kdissect.open(path, jobs=1).table("exchanges")
    capture = kdissect.open(path, jobs=1, memory=little)
    with small_blocks():
        made = capture.tables(["exchanges", "problems"])
    rows = made["exchanges"].to_pylist()
    assert 0 < len(rows) < whole.num_rows
    of = {row["exchange_id"]: row for row in whole.to_pylist()}
    assert all(of[row["exchange_id"]] == {**row, "hold": of[row["exchange_id"]]["hold"]} for row in rows)
    (told,) = [row["detail"] for row in made["problems"].to_pylist() if row["kind"] == "buffer_limit"]
    assert told == f"rows of the first {len(rows):,} exchanges fit in 257 MB of memory; " \
                   f"{whole.num_rows - len(rows):,} more are left out"  # fmt: skip
    assert told in capture.left_out


def test_all_of_it_where_it_fits() -> None:
    capture = kdissect.open(BASE, memory=BUDGET)
    assert capture.tables(["exchanges", "problems", "connections"]) == kdissect.open(BASE).tables(
        ["exchanges", "problems", "connections"]
    )
    assert capture.left_out == []


@pytest.mark.parametrize("name", ["exchanges", "fetches", "fetch_partitions"])
def test_rows_in_order_that_do_not_fit(name: str, little: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CAPTURES / "k4_session_eviction.pcap"
    want = kdissect.open(path, jobs=1).table(name)
    monkeypatch.setattr(capture_tables, "SMALL", 0)
    capture = kdissect.open(path, jobs=1, memory=little)
    with small_blocks():
        assert capture.table(name).num_rows < want.num_rows
        assert pa.Table.from_batches(capture.ordered(name), want.schema).equals(want)


@pytest.mark.parametrize(("by", "every"), [(("api",), None), (("client", "broker"), None), (("version", "api"), 1.0),
                                           ((), None)])  # fmt: skip
def test_latencies_in_flat_memory(by: tuple[str, ...], every: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    want = kdissect.open(BASE).analysis.latency(by, every, "error_code = 0")
    monkeypatch.setattr(capture_tables, "SMALL", 0)
    got = kdissect.open(BASE, memory=BUDGET).analysis.latency(by, every, "error_code = 0")
    assert got.schema == want.schema
    for row, right in zip(got.to_pylist(), want.to_pylist(), strict=True):
        assert {k: v if not isinstance(v, float) else pytest.approx(v, rel=0.006) for k, v in row.items()} == right


def test_findings_in_flat_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    want = kdissect.open(BASE).table("findings", ["id", "text"], "severity = 'info'")
    monkeypatch.setattr(capture_tables, "SMALL", 0)
    assert kdissect.open(BASE, memory=BUDGET).table("findings", ["id", "text"], "severity = 'info'") == want


def test_sessions_in_flat_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit, with most fetches let go on the way: the same figures."""
    path = BASE.with_name("k4_session_eviction.pcap")
    want = kdissect.open(path).analysis.sessions()
    monkeypatch.setattr(capture_tables, "SMALL", 0)
    monkeypatch.setattr("kdissect.engine.extracts.overview.HELD_BACK", 0)
    monkeypatch.setattr("kdissect.engine.analysed_run.ROWS_A_TIME", 200)
    monkeypatch.setattr("kdissect.report.session_rows.ENOUGH", 100)
    capture = kdissect.open(path, memory=BUDGET)
    got = capture.analysis.sessions()
    assert want.keys() == got.keys()
    assert min(want[name].num_rows for name in ("brokers", "creators", "evictors", "demand", "shards")) > 0
    for name, table in want.items():
        assert got[name].to_pylist() == table.to_pylist(), name
    assert capture.left_out == []
    monkeypatch.setattr("kdissect.report.session_rows.MOST_SESSIONS", 5)
    monkeypatch.setattr("kdissect.engine.flowing_answers.MOST_SESSIONS", 5)
    small = kdissect.open(path, memory=BUDGET)
    assert small.analysis.sessions()["creators"].num_rows > 0
    assert small.left_out == ["of 30 fetch sessions the first 5 were looked at"]


def test_bad_budgets() -> None:
    with pytest.raises(UsageError, match="at least 256 MB"):
        kdissect.open(BASE, memory=1_000_000)
    for text in ("1MB", "5 apples", "-1"):
        done = subprocess.run(
            [sys.executable, "-m", "kdissect", str(BASE), "--max-memory", text], capture_output=True, check=False
        )
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", [[], ["sessions"], ["latency", "--by", "client,topic"]])
def test_little_address_space(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        words(command, BASE, tmp_path / "out"), capture_output=True, check=False, cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A capture of 1 GB of small frames: 2.7 million exchanges."""
    path = tmp_path_factory.mktemp("large") / "chatter.pcap"
    made = [sys.executable, "-m", "tests.bench", "--generate", "chatter", "--size", "1GB", "-o", str(path)]
    subprocess.run(made, check=True, cwd=ROOT, capture_output=True)
    yield path
    path.unlink()


@pytest.mark.bench
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_keeps_to_its_budget(command: list[str], large: Path, tmp_path: Path) -> None:
    """Peak resident memory, and the same within 2 GB of addresses."""
    line = words(command, large, tmp_path / "out")
    cost = run(line)
    print(f"{' '.join(command) or 'first screen'}: {cost.peak / 1e6:.0f} MB, {cost.cpu:.0f} s of CPU")
    assert cost.code == 0
    assert cost.peak <= BUDGET
    if "--html" in command:  # as an installed one does it: `tests/report/test_charts_library.py`
        made = str(tmp_path / "charts.js.z")
        subprocess.run([sys.executable, "-m", "kdissect.report.charts_library", made], check=True, cwd=ROOT)
        line = [sys.executable, "-c", INSTALLED, made, *line[3:]]
    assert run(["prlimit", f"--as={ADDRESSES}", *line]).code == 0
