"""The account as lines: incidents in order of time, each with its consequences, what to do and how to see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from kdissect.cli.printing import words
from kdissect.cli.printing.next_steps import evidence
from kdissect.summary.account import Incident, account, quiet

STYLES = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}
INDENT = 10
"""Columns before sentences: two blanks and the severity."""


def finding_lines(
    finding: Mapping[str, Any], target: Sequence[str], width: int, *, local: bool = False, shown: bool = True
) -> list[Text]:
    """A finding: when, what, what to do and, if `shown`, the command that shows its evidence."""
    severity = str(finding["severity"])
    text = _sentences(_told(finding, local), width)
    lines = [Text.assemble("  ", (f"{severity:<7} ", STYLES.get(severity, "")), text[0])]
    lines += [Text(" " * INDENT) + line for line in text[1:]]
    if severity != "info":
        lines += [Text(" " * INDENT) + line for line in _sentences(str(finding["advice"] or ""), width, "italic")]
        if finding["table"] and shown:
            lines.append(Text(" " * INDENT + evidence(finding, target), "dim"))
    return lines


def incident_lines(incident: Incident, target: Sequence[str], width: int, *, local: bool, whole: bool) -> list[Text]:
    """An incident: the finding that set it off, then its consequences; `whole`: with their own commands."""
    lines = finding_lines({**incident.headline, "severity": incident.severity}, target, width, local=local)
    for row in incident.consequences:
        for n, line in enumerate(_sentences(_told(row, local), width - 2)):
            lines.append(Text(" " * INDENT + ("  " if n else "- ")) + line)
        if whole and row["table"]:
            lines.append(Text(" " * (INDENT + 2) + evidence(row, target), "dim"))
    return lines


def timeline(
    findings: Sequence[Mapping[str, Any]], target: Sequence[str], width: int, local: bool = False
) -> list[Text]:
    """All of the account, and below it what was found that is nothing to worry about."""
    lines: list[Text] = []
    for incident in account(findings):
        lines += [*incident_lines(incident, target, width, local=local, whole=True), Text()]
    if not lines:
        lines = [Text("  Nothing stands out."), Text()]
    calm = [row for row in findings if quiet(row)]
    if calm:
        lines.append(Text("Nothing to worry about", "bold"))
        for row in sorted(calm, key=lambda row: (row["first_at"] is None, row["first_at"])):
            lines += finding_lines(row, target, width, local=local)
    return [Text("Account", "bold"), *lines]


def _told(finding: Mapping[str, Any], local: bool) -> str:
    """The sentence, behind the time of day when it began."""
    at: datetime | None = finding["first_at"]
    if at is None:
        return str(finding["text"])
    return f"{at.astimezone(None if local else UTC):%H:%M:%S}.{at.microsecond // 1000:03d} {finding['text']}"


def _sentences(text: str, width: int, style: str = "") -> list[Text]:
    return [Text(line, style) for line in words.wrapped(text, width - INDENT)] if text else []
