"""The account: what happened, in order of time. Findings that are one incident are one line, with its consequences.

A pure function over rows of `findings`, wherever these come from.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kdissect.analysis.findings.catalogue import KINDS
from kdissect.analysis.findings.evidence import INFO, SEVERITIES

NEVER = datetime.max.replace(tzinfo=UTC)
"""Behind every instant: where what has no time stands."""


UNEVENTFUL = ("session_savings", "capture_began_late")
"""Kinds of findings that are no events: what sessions saved, and that the capture started mid-connection."""


class Incident(NamedTuple):
    """One thing that happened. Times are aware datetimes in UTC, None where unknown."""

    number: int | None
    at: datetime | None
    until: datetime | None
    severity: str
    """The worst of its findings."""
    cause: str
    headline: dict[str, Any]
    """The finding that set it off, else its worst; a row of `findings`."""
    consequences: list[dict[str, Any]]
    """Its other findings in order of time."""


class Handle(NamedTuple):
    """A finding with the number by which people ask for it."""

    number: int
    """From 1 on, the worst incident first, each followed by its consequences; then findings that are in none."""
    row: dict[str, Any]
    """A row of `findings`."""
    follows: bool
    """Whether it is a consequence of the finding before it."""


def account(findings: Iterable[Mapping[str, Any]]) -> list[Incident]:
    """The incidents of rows of `findings`, in order of time; quiet findings are in none."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for n, row in enumerate(findings):
        if quiet(row):
            continue
        rows.setdefault(-1 - n if row["incident"] is None else row["incident"], []).append(dict(row))
    found = []
    for number, ours in rows.items():
        head = min(ours, key=_heads)
        others = sorted((row for row in ours if row is not head), key=lambda row: row["first_at"] or NEVER)
        starts = [row["first_at"] for row in ours if row["first_at"] is not None]
        ends = [row["last_at"] for row in ours if row["last_at"] is not None]
        worst = min((row["severity"] for row in ours), key=SEVERITIES.index)
        at = head["first_at"] or min(starts, default=None)
        found.append(
            Incident(number if number > 0 else None, at, max(ends, default=None), worst, head["cause"], head, others)
        )
    return sorted(found, key=lambda one: (one.at or NEVER, SEVERITIES.index(one.severity)))


def worst_first(findings: Iterable[Mapping[str, Any]]) -> list[Incident]:
    """Incidents, the worst first, of one severity in order of time."""
    return sorted(account(findings), key=lambda one: (SEVERITIES.index(one.severity), one.at or NEVER))


def number_findings(findings: Sequence[Mapping[str, Any]]) -> list[Handle]:
    """All findings with their numbers. The same rows have the same numbers on every surface."""
    rows: list[tuple[dict[str, Any], bool]] = []
    for one in worst_first(findings):
        rows += [(one.headline, False), *((row, True) for row in one.consequences)]
    calm = sorted(
        (dict(row) for row in findings if quiet(row)), key=lambda row: (uneventful(row), row["first_at"] or NEVER)
    )
    rows += [(row, False) for row in calm]
    return [Handle(n, row, follows) for n, (row, follows) in enumerate(rows, start=1)]


def quiet(row: Mapping[str, Any]) -> bool:
    """Whether nothing happened that a finding speaks of."""
    return row["incident"] is None and row["severity"] == INFO


def uneventful(row: Mapping[str, Any]) -> bool:
    """Whether a finding is no event: the first screen does not show it."""
    return quiet(row) and row["id"] in UNEVENTFUL


def _heads(row: Mapping[str, Any]) -> tuple[int, datetime, int]:
    """The sort key: triggers first, then findings that head certain kinds, then consequences; then the first, then the
    worst."""
    kind = KINDS.get(row["id"]) if row["severity"] != INFO else None
    rank = 2 if kind is None else 0 if kind.starts else 1 if kind.heads else 2
    return rank, row["first_at"] or NEVER, SEVERITIES.index(row["severity"])
