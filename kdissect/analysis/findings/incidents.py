"""Incidents: findings that are one story get one number.

A finding that says what set things off (`starts` in the catalogue) takes in the findings that begin while it lasts, or
shortly after, and speak of the same broker, client, group, partition or transactional id. Some kinds take in certain
kinds whatever they are about (`heads`). Every other finding above `info` is an incident of its own. Numbers go by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
    found = [replace(one, incident=number.get(head.get(i, i))) for i, one in enumerate(findings)]
    return [_as_unknown_as(one, findings[head[i]]) if i in head else one for i, one in enumerate(found)]


def _as_unknown_as(one: Finding, root: Finding) -> Finding:
    """The consequence with the cause `unknown`, if its own is only likely and the root has no known cause.

    A request waited in a silence: the capture cannot show of the request what it does not show of the silence."""
    kind = KINDS[one.id]
    likely = kind.settled_at is not None and one.certainty != "sure" and one.cause == kind.cause
    same = one.broker is not None and one.broker == root.broker
    if not (likely and same and root.cause == "unknown" and "unknown" in (kind.cause, *kind.other_causes)):
        return one
    if one.last_at is None or root.last_at is None or one.last_at > root.last_at + BEFORE_MS * 1000:
        return one
    return replace(one, cause="unknown")


def _starts(one: Finding) -> bool:
    """Whether it may have set other things off."""
    kind = KINDS[one.id]
    return bool(kind.starts or kind.heads) and one.first_at is not None and one.severity != INFO


def _begin(one: Finding) -> int:
    """When it began; what has no time comes last."""
    return one.first_at if one.first_at is not None else 2**62


def _belongs(one: Finding, root: Finding) -> bool:
    """Whether a finding is a consequence of another."""
    if one.first_at is None or root.first_at is None or one.cluster != root.cluster:
        return False
    end = root.last_at if root.last_at is not None else root.first_at
    if one.first_at < root.first_at - BEFORE_MS * 1000:
        return False
    kind = KINDS[root.id]
    if one.id in kind.heads and one.first_at <= end + AFTER_MS * 1000:
        return True
    if not kind.starts:
        return False
    if one.transactional_id is not None and one.transactional_id == root.transactional_id:
        return True  # a producer hears of it when it next writes, however late
    if one.first_at > end + AFTER_MS * 1000:
        return False
    if any(getattr(one, name) is not None and getattr(one, name) == getattr(root, name) for name in SUBJECTS):
        return True
    return one.topic is not None and (one.topic, one.partition) == (root.topic, root.partition)
