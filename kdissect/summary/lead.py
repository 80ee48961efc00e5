"""The first line of the first screen: when, who, what harm, whose cause; a sentence made of the findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kdissect.analysis.findings.evidence import SEVERITIES
from kdissect.analysis.findings.phrases import many
from kdissect.analysis.findings.row_filters import BROKERS
from kdissect.summary.account import Incident, worst_first
from kdissect.summary.model import Summary

BEFORE, AFTER = timedelta(seconds=1), timedelta(seconds=5)
"""What begins so long before a cause at most, or ends so long after it, may be its harm (as in `incidents.py`)."""
READ_SHARE = 0.5
"""Where fewer than this share of the exchanges could be judged, no errors means that errors are unknown."""
MOST_HARM = 2
"""Consequences that the sentence names."""
MOVED = "leader_moved"
"""The finding that says where the partitions of a broker went: how the harm ended."""
OWNERS = {
    "network": "the network", "security": "security (login or permissions)", "capture": "the capture",
    "settings": "settings", "follower": "a follower", "broker": "a broker", "client": "clients",
    "unknown": "not known",
}  # fmt: skip
"""How the sentence names a cause whose owner has no name."""


def lead_sentence(findings: Sequence[Mapping[str, Any]], most: int | None = None, *, local: bool = False) -> str | None:
    """The sentence about the worst incident: time of day, headline, harm, cause. None where no incident was found.

    `most`: characters that it may have; consequences are left out until it fits, the headline never.
    """
    incidents = worst_first(findings)
    if not incidents:
        return None
    worst = incidents[0]
    at = "" if worst.at is None else f"{worst.at.astimezone(None if local else UTC):%H:%M:%S} "
    harm = [str(row["headline"]) for row in _choose_harm(worst, incidents[1:])]
    while True:
        said = "; ".join([str(worst.headline["headline"]), *harm])
        text = f"{at}{said}. Cause: {_owner(worst.headline)}."
        if not harm or most is None or len(text) <= most:
            return text if at else text[:1].upper() + text[1:]
        harm.pop()


def unread_sentence(summary: Summary) -> str:
    """Why errors and findings are unknown, where most answers could not be read; else nothing."""
    sealed = summary.protocols.get("tls", 0)
    if not summary.exchanges:
        if not sealed:
            return ""
        return f"Nothing is known of what {many(sealed, 'connection')} carried: TLS, not decrypted."
    if summary.judged >= READ_SHARE * summary.exchanges:
        return ""
    causes = [
        f"{many(summary.statuses.get(status, 0), 'exchange')} {reason}"
        for status, reason in (
            ("partial", "with bytes missing" + (", cut by the snap length" if _snapped(summary) else "")),
            ("orphan", "without the request: that direction was not captured"),
            ("one_way", "without the answer: that direction was not captured"),
            ("undecodable", "that no known layout fits"),
            ("pending", "not answered when the capture ended"),
            ("unanswered", "that got no answer"),
        )
        if summary.statuses.get(status, 0) >= 0.1 * summary.exchanges
    ]
    return f"Errors and findings are unknown, not none: {'; '.join(causes)}."


def _snapped(summary: Summary) -> bool:
    return any(row["measure"] == "snapped_packets" and row["value"] for row in summary.quality)


def _choose_harm(worst: Incident, incidents: Sequence[Incident]) -> list[Mapping[str, Any]]:
    """The findings that the sentence names besides the worst: who lost most, then which leaders moved away."""
    harm = _harm(worst, incidents)
    moved = [row for row in harm if row["id"] == MOVED]
    lost = [row for row in harm if row["id"] != MOVED]
    return [*lost[:MOST_HARM], *moved[:1]]


def _harm(worst: Incident, incidents: Sequence[Incident]) -> list[Mapping[str, Any]]:
    """Findings about clients that the incident may have set off: its consequences, then incidents that overlap it in
    time and are above low, or as bad as it."""
    seen = [row for row in worst.consequences if not _by_brokers(row)]
    if worst.at is not None:
        end = worst.until or worst.at
        seen += [
            one.headline
            for one in incidents
            if (one.severity in SEVERITIES[:2] or one.severity == worst.severity)
            and one.headline["client_id"] is not None
            and not _by_brokers(one.headline) and _overlap(one, worst.at, end)
            and not _is_apart(worst.headline, one.headline)
        ]  # fmt: skip
    return sorted(seen, key=lambda row: (SEVERITIES.index(row["severity"]), row["client_id"] is None))


def _is_apart(cause: Mapping[str, Any], harm: Mapping[str, Any]) -> bool:
    """Whether a finding cannot have set off another one: they are of two clusters, or the first is a client's own doing
    and the second has another cause."""
    clusters = {row["cluster"] for row in (cause, harm)} - {None}
    has_own_cause = harm["cause"] != "unknown" and _owner(harm) != _owner(cause)
    return len(clusters) > 1 or (cause["cause"] == "client" and has_own_cause)


def _overlap(incident: Incident, begin: datetime, end: datetime) -> bool:
    return incident.at is not None and begin - BEFORE <= incident.at <= end + AFTER


def _by_brokers(row: Mapping[str, Any]) -> bool:
    """Whether a finding is about what brokers ask from each other."""
    return str(row["client_id"] or "").startswith(BROKERS) or any(
        f" of {name}" in str(row["headline"]) for name in BROKERS
    )


def _owner(row: Mapping[str, Any]) -> str:
    cause = str(row["cause"])
    name = row["broker"] if cause == "broker" else row["client_id"] if cause == "client" else None
    return f"{cause} {name}" if name is not None else OWNERS.get(cause, cause)
