"""`sessions`, `latency` and `diff` as users run them, on recorded captures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kdissect
from kdissect.cli import analyses
from kdissect.cli.main import main
from kdissect.cli.printing.sparkline import sparkline
from tests.conftest import ROOT
from tests.other_cluster import write_other_cluster

EVICTION = str(ROOT / "captures" / "k4_session_eviction.pcap")
THROTTLED = str(ROOT / "captures" / "k4_slow_and_throttled.pcap")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    seen = capsys.readouterr()
    return seen.out


def test_rows_of_several_clusters_say_whose_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Broker 1, a topic or a group of two clusters are two; of one cluster nothing is said."""
    monkeypatch.setenv("COLUMNS", "200")
    one, other = str(ROOT / "captures" / "k4_python_kafka.pcap"), str(tmp_path / "other.pcap")
    write_other_cluster(Path(one), Path(other))
    clusters = ["k4RecorderClusterId00w", "k4RecorderClusterId00~"]
    for command, *options in (
        ("sessions",), ("sessions", "--slots", "0"), ("errors",), ("slowest",), ("gaps",), ("traffic",), ("hops",),
        ("hops", "py-kp:0@0"), ("budget", "--by", "broker"), ("whatif", "--max-wait", "1s", "--linger", "20ms"),
    ):  # fmt: skip
        assert "cluster" not in run(capsys, command, one, *options)
        both = run(capsys, command, one, other, *options)
        assert all(cluster in both for cluster in clusters), command
        assert "cluster" in both


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 4, 8], 60, plain=True) == " .:=%"
    assert sparkline([0, 9, 0, 0, 1, 0], 3, plain=True) == "% ."
    assert sparkline([0, 0], 60, plain=False) == "  "
    assert sparkline([], 60, plain=False) == ""
    assert len(sparkline(list(range(1000)), 60, plain=False)) == 60


def test_sessions(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = run(capsys, "sessions", EVICTION)
    first = out.partition("Broker 2")[0]
    assert "18 fetch sessions: 8 evicted, 10 open." in first
    assert "8 to 16" in first
    assert "Up to 16 were alive at once, as far as their clients knew." in first
    assert "as far as the capture shows." in out.partition("Broker 2")[2]
    row = next(line.split() for line in first.splitlines() if "raw-evict-more" in line)
    assert row[:6] == ["raw-evict-more", "8", "8", "6", "8", "87fc22b24c49b596:1"]
    assert first.splitlines()[-2].split() == ["raw-evict-more", "8", "8.0", "8"]
    assert "opened before the capture" in out
    assert "Up to 16 were alive at once" in first
    blind = run(capsys, "sessions", str(ROOT / "captures" / "field_to_broker.pcap"))
    assert "No fetch session seen: no answer that tells of one was captured." in blind
    shares = run(capsys, "sessions", str(ROOT / "captures" / "k4_share_group.pcap"))
    assert "sh-group on broker 1" in shares
    assert "No fetch with a session" in run(capsys, "sessions", str(ROOT / "captures" / "field_header_only.pcap"))


def test_one_of_a_kind_is_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "sessions", str(ROOT / "captures" / "raw_sessions.pcap"))
    assert "  2 answers that a session is not known; 1 wrong epoch.\n" in out


def test_latency(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = run(capsys, "latency", THROTTLED, "--by", "client,topic", "--where", "api = 'Fetch'", "--format", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    poll = next(row for row in rows if row["client_id"] == "sl-longpoll-500" and row["topic"] == "sl-t")
    assert poll["p50_ms"] > 500
    assert poll["excess_p50_ms"] < 50
    assert sum(row["exchanges"] for row in rows if row["topic"] is None) < 788
    text = run(capsys, "latency", THROTTLED, "--every", "10s")
    assert text.splitlines()[0].split()[:3] == ["api", "at", "count"]
    assert "2026-11-21 02:40:10.000 UTC" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["latency", THROTTLED, "--by", "colour"], "cannot group latencies by 'colour'"),
        (["latency", THROTTLED, "--every", "soon"], "'soon' is no length of time"),
        (["latency", THROTTLED, "--every", "0s"], "no length of time"),
        (["latency", THROTTLED, "--every", "300000h"], "'300000h' is no length of time"),
        (["latency", THROTTLED, "--limit", "1" * 20], "is not in the range 0<=x<=9223372036854775807"),
        (["hops", THROTTLED, "--limit", "1" * 20], "is not in the range 1<=x<=9223372036854775807"),
        (["whatif", THROTTLED, "--min-bytes", "1" * 20], "'11111111111111111111' is no size"),
        (["latency", THROTTLED, "--where", "nothing = 1"], "nothing"),
        (["diff", THROTTLED], "Missing argument"),
        (["diff", THROTTLED, EVICTION, "--by", "x"], "cannot group"),
        (["sessions"], "no capture given"),
    ],
)
def test_bad_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert said in seen.err
    assert seen.err.count("\n") == 1


def test_a_missing_capture_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "nosuch.pcap"]) == 1
    assert "did you mean" not in capsys.readouterr().err


def test_diff(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "diff", THROTTLED, THROTTLED)
    assert "The same traffic: 947 exchanges in both" in out
    assert "Clients use the same API versions in both" in out
    other = run(capsys, "diff", THROTTLED, EVICTION, "--top", "3")
    assert "API versions that differ" in other
    assert "more rows: --top N" in other


def test_budgets_are_whole_at_80_columns() -> None:
    """Whose time it was, whole names and titles: what holds least goes where there is no room."""
    table = kdissect.open(THROTTLED).analysis.budget()
    lines = [line.plain for line in analyses.budget(table, 80, several=False)]
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:2] == ["subject", "wall"]
    assert "agreed" in lines[0]
    assert not [line for line in lines if ".." in line]
    assert len(lines) == table.num_rows + 1
    both = kdissect.open(THROTTLED).analysis.budget(("client", "broker"))
    assert analyses.budget(both, 200, several=False)[0].plain.split()[0] == "by"
