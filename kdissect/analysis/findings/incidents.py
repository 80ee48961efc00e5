"""Incidents: findings that are one story get one number.

A finding that says what set things off (`starts` in the catalogue) takes in the findings that begin while it lasts, or
shortly after, and speak of the same broker, client, group, partition or transactional id. Some kinds take in certain
kinds whatever they are about (`heads`). Every other finding above `info` is an incident of its own. Numbers go by time.
"""

from __future__ import annotations

from collections.abc import Sequence

from kdissect.analysis.findings.catalogue import KINDS
from kdissect.analysis.findings.evidence import INFO, Finding

BEFORE_MS = 1000
"""A consequence seems to begin this much before its cause at most: requests under way when it struck had been sent."""
AFTER_MS = 5000
"""And after its end at most: clients wait, time out and try again for some seconds (request.timeout.ms of impatient
ones, retry.backoff.max.ms)."""
SUBJECTS = ("broker", "client_id", "group_id", "transactional_id")


def numbered(findings: Sequence[Finding]) -> list[Finding]:
    """The findings in their order, each with the number of its incident, None for what is no incident."""
    by_time = sorted(range(len(findings)), key=lambda i: (_begin(findings[i]), i))
    roots = [i for i in by_time if _starts(findings[i])]
    head: dict[int, int] = {}
    for i in by_time:
        one = findings[i]
        if one.first_at is None:
            continue
        for root in roots:
            if root == i:
                break  # later ones did not set it off
            if _belongs(one, findings[root]):
                head[i] = head.get(root, root)
                break
    number: dict[int, int] = {}
    for i in by_time:
        top = head.get(i, i)
        if top in number or (top == i and findings[i].severity == INFO and i not in head.values()):
            continue
        number[top] = len(number) + 1
    found = [one._replace(incident=number.get(head.get(i, i))) for i, one in enumerate(findings)]
    return [_as_unknown_as(one, findings[head[i]]) if i in head else one for i, one in enumerate(found)]


def _as_unknown_as(finding: Finding, root: Finding) -> Finding:
    """The consequence with the cause `unknown`, if its own is only likely and the root has no known cause.

    A request waited in a silence: the capture cannot show of the request what it does not show of the silence."""
    kind = KINDS[finding.id]
    likely = kind.settled_at is not None and finding.certainty != "sure" and finding.cause == kind.cause
    same = finding.broker is not None and finding.broker == root.broker
    if not (likely and same and root.cause == "unknown" and "unknown" in (kind.cause, *kind.other_causes)):
        return finding
    if finding.last_at is None or root.last_at is None or finding.last_at > root.last_at + BEFORE_MS * 1000:
        return finding
    return finding._replace(cause="unknown")


def _starts(finding: Finding) -> bool:
    """Whether it may have set other things off."""
    kind = KINDS[finding.id]
    return bool(kind.starts or kind.heads) and finding.first_at is not None and finding.severity != INFO


def _begin(finding: Finding) -> int:
    """When it began; what has no time comes last."""
    return finding.first_at if finding.first_at is not None else 2**62


def _belongs(finding: Finding, root: Finding) -> bool:
    """Whether a finding is a consequence of another."""
    if finding.first_at is None or root.first_at is None or finding.cluster != root.cluster:
        return False
    end = root.last_at if root.last_at is not None else root.first_at
    if finding.first_at < root.first_at - BEFORE_MS * 1000:
        return False
    kind = KINDS[root.id]
    if finding.id in kind.heads and finding.first_at <= end + AFTER_MS * 1000:
        return True
    if not kind.starts:
        return False
    if finding.transactional_id is not None and finding.transactional_id == root.transactional_id:
        return True  # a producer hears of it when it next writes, however late
    if finding.first_at > end + AFTER_MS * 1000:
        return False
    if any(getattr(finding, name) is not None and getattr(finding, name) == getattr(root, name) for name in SUBJECTS):
        return True
    return finding.topic is not None and (finding.topic, finding.partition) == (root.topic, root.partition)
