"""The account: findings as incidents, in order of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import kdissect
from kdissect.cli.main import main
from kdissect.summary.account import account
from tests.conftest import ROOT

START = datetime(2026, 11, 22, 1, 2, 50, tzinfo=UTC)
STORY = ROOT / "captures" / "stories" / "slow_broker.pcap.zst"


def row(kind: str, severity: str, seconds: float | None, incident: int | None) -> dict[str, Any]:
    at = None if seconds is None else START + timedelta(seconds=seconds)
    return {"id": kind, "severity": severity, "first_at": at, "last_at": at, "incident": incident, "cause": "client",
            "text": kind, "advice": None, "table": "", "filter": ""}  # fmt: skip


def test_what_sets_off_heads_its_consequences() -> None:
    found = account(
        [
            row("slow_requests", "high", 0.0, 1),
            row("broker_stalled", "medium", 1.0, 1),
            row("throttled_client", "low", 0.5, 2),
            row("session_savings", "info", 0.0, None),
            row("x", "low", None, None),
        ]
    )
    assert [(one.headline["id"], one.severity, one.number) for one in found] == [
        ("throttled_client", "low", 2), ("broker_stalled", "high", 1), ("x", "low", None),
    ]  # fmt: skip
    assert [row["id"] for row in found[1].consequences] == ["slow_requests"]
    assert found[1].at == START + timedelta(seconds=1)


def test_a_broker_that_stood_still_is_one_story() -> None:
    (incident,) = account(kdissect.open(STORY).table("findings").to_pylist())
    assert incident.headline["id"] == "broker_stalled"
    assert {row["id"] for row in incident.consequences} == {
        "slow_requests", "slow_fetches", "requests_given_up", "batches_written_twice",
    }  # fmt: skip
    assert incident.until is not None
    assert incident.at is not None
    assert 2.9 < (incident.until - incident.at).total_seconds() < 3.3


def test_batches_that_a_reset_had_in_flight_belong_to_it() -> None:
    lab = ROOT / "captures" / "lab" / "reset_all_every_client.pcap.zst"
    found = account(kdissect.open(lab).table("findings").to_pylist())
    last = [one for one in found if one.headline["id"] == "connections_reset"][-1]
    assert [row["id"] for row in last.consequences if row["severity"] != "info"] == ["batches_sent_again"]


def test_the_timeline_prints_it_with_commands(capsys: Any) -> None:
    assert main(["timeline", str(STORY)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("What happened\n  1 high   01:02:51.698 Broker 3 answered nothing")
    assert text.index("- 01:02:51.690 6 Produce requests") < text.index("Also seen")
    assert text.rstrip().endswith(" N"), "the last command shows the evidence of a finding"
    assert "--where" not in text


def test_what_is_slow_can_be_said() -> None:
    healthy = ROOT / "captures" / "stories" / "healthy.pcap.zst"
    counts = [
        kdissect.open(healthy, slow=slow).table("findings", where="id = 'slow_fetches'").num_rows
        for slow in (None, 0.4, 0.3)
    ]
    assert counts == [0, 2, 3]
