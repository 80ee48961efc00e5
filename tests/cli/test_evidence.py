"""`why`, `slowest`, `errors`, `gaps`: what they print, and what they say of bad arguments."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.cli.subcommands.evidence import why_screen
from kdissect.cli.subcommands.evidence.stretch_drawing import draw_stretch
from kdissect.summary.account import Handle
from tests.conftest import ROOT

STORY = ROOT / "captures" / "stories" / "slow_broker.pcap.zst"
TINY = ROOT / "captures" / "base_tiny.pcap"
ERRORS = ROOT / "captures" / "raw_errors.pcap"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_why_has_sentence_drawing_proof_and_what_was_ruled_out(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "why", str(STORY), "1")
    assert text.startswith("  1 high   01:02:51 broker 3 answered nothing for 3.0 s\nBroker 3 answered nothing")
    for lane in ("client ", "broker ", "finding "):
        assert f"\n{lane}" in text
    assert "rows of exchanges" in text
    assert "Ruled out: " in text
    command = " ".join(text.splitlines()[-3:]).replace("\\ ", "").split("kdissect ", 1)[1]
    assert shlex.split(command) == ["why", str(STORY), "1", "--rows"]


RULES = tomllib.loads((ROOT / "tests" / "analysis" / "rules.toml").read_text())
RECORDINGS = sorted({one["fires"]["in"] for one in RULES.values()})
"""A recording for each finding there is; most have several findings."""
MADE_BY_OPTIONS = {name for name, one in RULES.items() if {"slow", "until"} & one["fires"].keys()}
"""Findings that need an option."""


@pytest.mark.whole
def test_why_of_every_finding_fits_a_small_terminal_and_ends_with_its_command() -> None:
    """Of each kind of finding the first one that is met. Recordings of kinds that were met in others are left out."""
    seen: set[str] = set()
    for name in RECORDINGS:
        if seen.issuperset({kind for kind, one in RULES.items() if one["fires"]["in"] == name} - MADE_BY_OPTIONS):
            continue
        capture = kdissect.open(find_recording(name))
        for handle in capture.analysis.numbered_findings():
            if handle.row["id"] not in seen:
                seen.add(handle.row["id"])
                assert explain_on_small_terminal(capture, handle, name) == "", (name, handle.row["id"])
    assert seen >= RULES.keys() - MADE_BY_OPTIONS


def explain_on_small_terminal(capture: kdissect.Capture, handle: Handle, name: str) -> str:
    """What is wrong with what `why` shows of a finding on 80 columns and 24 lines."""
    command = why_screen.rows_command([name], handle.number)
    shown = why_screen.render(capture.analysis.explain(handle.row), handle, command, 80)
    lines = [line.plain for line in shown]
    if len(lines) > 23 or max(map(len, lines)) > 80:
        return f"{len(lines)} lines of {max(map(len, lines))} columns"
    last = " ".join(line.rstrip("\\").strip() for line in lines)
    return "" if last.endswith(command) else lines[-1]


def find_recording(name: str) -> Path:
    (found,) = (path for path in (ROOT / "captures").glob(f"{name}.*") if ".pcap" in path.name)
    return found


@pytest.mark.parametrize("width", [40, 69, 70, 200])
def test_the_drawing_fits_any_width(width: int) -> None:
    capture = kdissect.open(STORY)
    explained = capture.analysis.explain(capture.analysis.numbered_findings()[0].row)
    lines = [line.plain for line in draw_stretch(explained, width)]
    assert 6 <= len(lines) <= 8
    assert max(map(len, lines)) <= width
    broker = next(line for line in lines if line.startswith("broker"))
    assert "\u2588" * (width // 10) in broker, "the broker had all of this time"
    assert ("4.00 s" in broker) == (width >= 70)


def test_rows_of_a_finding_are_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    (finding, *_) = kdissect.open(STORY).analysis.numbered_findings()
    rows = answer(capsys, "why", str(STORY), "1", "--rows", "--format", "jsonl").splitlines()
    assert len(rows) == finding.row["count"]
    command = shlex.split(answer(capsys, "why", str(STORY), "1", "--command"))
    assert rows == answer(capsys, *command[1:], "--format", "jsonl").splitlines()


def test_why_without_a_number_lists_findings(capsys: pytest.CaptureFixture[str]) -> None:
    lines = answer(capsys, "why", str(STORY)).splitlines()
    numbers = [int(line[:3]) for line in lines if line[:3].strip().isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_where_nothing_was_found_it_says_what_was_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "why", str(ROOT / "captures" / "base_tiny.pcap"), "--client", "base-producer")
    assert text.startswith("No rule found anything in what could be read.\nLooked for: brokers that stand still")
    text = answer(capsys, "why", str(ROOT / "captures" / "not_kafka.pcap"))
    assert text == "No rule found anything: there is no Kafka exchange in what was read.\n"


@pytest.mark.parametrize("command", ["timeline", "errors", "slowest", "show"])
def test_nothing_is_said_of_what_could_not_be_read(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, command, str(ROOT / "captures" / "tls12.pcap"))
    assert " that could be read " in text or " in what could be read." in text


def test_without_an_incident_it_says_what_was_looked_for_and_what_is_unusual(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = answer(capsys, "why", "--demo")
    assert text.startswith("  1 info ")
    assert "\nNo rule found an incident in what could be read.\nLooked for: " in text
    assert "\nThe longest silences\n" in text
    story = answer(capsys, "why", str(STORY))
    assert "Looked for" not in story


def test_the_widest_gap_between_two_topics(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "why", str(ROOT / "captures" / "stories" / "healthy.pcap.zst"))
    gap = kdissect.open(ROOT / "captures" / "stories" / "healthy.pcap.zst").analysis.topic_gap()
    assert ("widest gap between two topics" in text) == (gap is not None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["why", str(STORY), "99"], "this capture has findings 1 to "),
        (["why", str(STORY), "--rows"], "say which finding"),
        (["why", str(STORY), "--finding", "nope"], "--finding takes a row of findings as JSON"),
        (["slowest", str(STORY), "--sort", "latencyms"], "latency_ms"),
        (["gaps"], "no capture given"),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_slowest_leaves_agreed_waits_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in answer(capsys, "slowest", str(STORY), "--format", "jsonl").splitlines()]
    assert rows == sorted(rows, key=lambda row: -row["beyond_ms"])
    exchanges = kdissect.open(STORY).pandas("exchanges").set_index("exchange_id")
    fetches = kdissect.open(STORY).pandas("fetches").set_index("exchange_id")
    for row in rows[:20]:
        excess = fetches["excess_ms"].get(row["exchange_id"])
        expected = exchanges["latency_ms"][row["exchange_id"]] if excess is None else excess
        assert row["beyond_ms"] == pytest.approx(expected)
        assert row["hold"] != "rebalance"


def test_errors_count_every_failed_exchange(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in answer(capsys, "errors", str(ERRORS), "--format", "jsonl").splitlines()]
    exchanges = kdissect.open(ERRORS).pandas("exchanges")
    failed = exchanges[exchanges["error_code"].fillna(0) != 0]
    assert {row["error"] for row in rows} == set(failed["error"])
    for row in (row for row in rows if row["topic"] is None):
        mine = failed[(failed["error"] == row["error"]) & (failed["api"] == row["api"])]
        assert row["count"] <= len(mine)
        assert row["first_at"] <= row["last_at"]
    assert {row["api"] for row in rows if row["topic"] is not None} == {"Fetch", "Produce", "ListOffsets"}


@pytest.mark.parametrize("command", ["errors", "slowest", "gaps"])
def test_a_limit_of_no_rows_says_how_many_there_are(capsys: pytest.CaptureFixture[str], command: str) -> None:
    rows = answer(capsys, command, str(ERRORS), "--format", "jsonl").splitlines()
    assert answer(capsys, command, str(ERRORS), "--limit", "0") == f"  {len(rows)} more rows: --limit N\n"


def test_gaps_hold_no_message_of_their_subject(capsys: pytest.CaptureFixture[str]) -> None:
    rows = kdissect.open(STORY).analysis.silences().to_pylist()
    exchanges = kdissect.open(STORY).table("exchanges").to_pylist()
    client = next(row for row in rows if row["by"] == "client")
    mine = [row for row in exchanges if row["client_id"] == client["subject"]]
    instants = [row[name] for row in mine for name in ("request_first_at", "response_last_at") if row[name] is not None]
    assert not [at for at in instants if client["begin_at"] < at < client["end_at"]]
    assert client["begin_at"] in instants
    assert client["end_at"] in instants
    open_requests = [
        row for row in mine if row["request_first_at"] is not None and row["request_first_at"] <= client["begin_at"]
        and (row["response_last_at"] is None or row["response_last_at"] >= client["end_at"])
    ]  # fmt: skip
    assert client["waiting"] == len(open_requests)


def test_gaps_keep_topics_without_a_name_apart() -> None:
    """No message of this span tells the names of two topics."""
    path = ROOT / "captures" / "k4_transactions.pcap"
    rows = kdissect.open(path, start="2026-11-21T02:28:26").analysis.silences().to_pylist()
    subjects = {row["subject"] for row in rows if row["by"] == "partition"}
    assert {"L6-abiXZR4-nxNyTFbPpIw-2", "dXqtbQkaQ2-ur1pVr3XKgQ-2"} < subjects
    assert not any("unknown" in one for one in subjects)


def test_show_without_an_id_lists_the_slowest(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "show", str(TINY))
    command = text.splitlines()[-1].strip()
    assert "kdissect show" in text
    assert main(shlex.split(command)[1:] if command.startswith("kdissect") else ["show", str(TINY)]) == 0


def test_show_takes_the_id_of_a_response_without_its_request(capsys: pytest.CaptureFixture[str]) -> None:
    capture = ROOT / "captures" / "field_to_client.pcap"
    orphan = kdissect.open(capture).table("exchanges", ["exchange_id"])["exchange_id"][0].as_py()
    assert ":r" in orphan
    assert answer(capsys, "show", str(capture), orphan).startswith(f"{orphan}  ApiVersions  orphan\n")


def test_nothing_is_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    ids = set(kdissect.open(TINY).pandas("exchanges")["exchange_id"])
    shown = answer(capsys, "slowest", str(TINY)).split()
    assert [word for word in shown if word in ids]


def test_a_selection_applies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["errors", str(ERRORS), "--client", "nobody"]) == 0
    assert capsys.readouterr().out == "No answer that could be read has an error.\n"
