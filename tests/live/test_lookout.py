"""Findings of one incident: which of them stands for the others."""

from __future__ import annotations

from typing import Any

from kdissect.live.lookout import explain


def row(id: str, severity: str, at: str | None, incident: int | None, cause: str = "broker") -> dict[str, Any]:
    return {"id": id, "severity": severity, "first_at": at, "incident": incident, "cause": cause}


def test_the_worst_of_an_incident_explains_the_others() -> None:
    rows = [
        row("retried", "info", "2026-11-22T01:00:01Z", 1),
        row("stood_still", "high", "2026-11-22T01:00:03Z", 1),
        row("slow", "high", "2026-11-22T01:00:02Z", 1),
        row("elsewhere", "low", None, 2),
        row("lasting", "medium", None, None),
        row("cut", "high", "2026-11-22T01:00:00Z", 1, cause="capture"),
    ]
    explain(rows)
    assert {one["id"]: one["explained_by"] for one in rows} == {
        "retried": "slow", "stood_still": "slow", "slow": None, "elsewhere": None, "lasting": None, "cut": None,
    }  # fmt: skip
