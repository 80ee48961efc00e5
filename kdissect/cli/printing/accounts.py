"""The account as lines: incidents in order of time, each with its consequences, what to do and how to see it; and of a
first screen in as many lines as there are, worst first, the more room the more of each.

There every incident is told at one of four levels: whole (sentence, what to do, command, consequences as sentences),
short (sentence, command, consequences in a few words), brief (a line of a few words) or left out and counted. Where
there is no room, what is quiet gives way first, then the least severe incident; the worst keeps its sentence and its
command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

from rich.text import Text

from kdissect.analysis.findings.evidence import SEVERITIES
from kdissect.cli.printing import words
from kdissect.cli.printing.next_steps import evidence
from kdissect.escaping import visible
from kdissect.summary.account import NEVER, Incident, account, quiet

STYLES = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}
INDENT = 10
"""Columns before sentences: two blanks and the severity."""
MOST_CALM = 4
"""Sentences on what is quiet; the rest stands in a few words, where there is room."""


class Level(IntEnum):
    """How much is told of an incident."""

    OUT, BRIEF, SHORT, WHOLE = range(4)


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


def worst_first(findings: Sequence[Mapping[str, Any]]) -> list[Incident]:
    """Incidents, the worst first, of one severity in order of time."""
    return sorted(account(findings), key=lambda one: (SEVERITIES.index(one.severity), one.at or NEVER))


def headlines(
    findings: Sequence[Mapping[str, Any]], target: Sequence[str], width: int, room: int, *, local: bool
) -> tuple[list[Text], bool]:
    """Lines of the findings, at most `room` (of a terminal, which wraps commands) where the worst one leaves it, and
    whether all incidents are told by a sentence or, where none is serious, by a few words."""
    incidents = worst_first(findings)
    calm = [row for row in findings if quiet(row)]
    levels = [Level.WHOLE] * len(incidents) + [Level.SHORT] * min(len(calm), MOST_CALM)
    levels += [Level.BRIEF] * (len(calm) - MOST_CALM)
    first_calm = len(incidents)
    made = [_levels_of(one, target, width, local) for one in incidents] + [
        {
            Level.OUT: [], Level.BRIEF: brief(row, width, local),
            Level.SHORT: finding_lines(row, target, width, local=local),
        }
        for row in calm
    ]  # fmt: skip

    def taken() -> int:
        lines = [line for one, level in zip(made, levels, strict=True) for line in one[level]]
        return sum(max(1, -(-line.cell_len // width)) for line in lines) + (Level.OUT in levels)

    def lower(places: range, below: Level) -> None:
        for i in reversed(places):
            if taken() <= room:
                return
            if levels[i] > below:
                levels[i] = below

    quiet_ones, others = range(first_calm, len(levels)), range(1, first_calm)
    lower(quiet_ones, Level.BRIEF)
    lower(range(first_calm + 1, len(levels)), Level.OUT)
    lower(range(first_calm), Level.SHORT)
    lower(quiet_ones, Level.OUT)
    lower(others, Level.BRIEF)
    lower(others, Level.OUT)
    if levels.count(Level.OUT) == 1:  # what is left out takes no more room than the line that would say so
        levels[levels.index(Level.OUT)] = Level.BRIEF
    lines = [line for one, level in zip(made, levels, strict=True) for line in one[level]]
    hidden = sum(level == Level.OUT for level in levels)
    if hidden:
        lines.append(Text(f"  {words.count(hidden)} more: kdissect timeline", "dim"))
    serious = [levels[i] >= Level.SHORT for i, one in enumerate(incidents) if one.severity in SEVERITIES[:2]]
    return lines, all(serious) and all(level > Level.OUT for level in levels[:first_calm])


def _levels_of(one: Incident, target: Sequence[str], width: int, local: bool) -> dict[Level, list[Text]]:
    head = {**one.headline, "severity": one.severity, "advice": None}
    short = finding_lines(head, target, width, local=local)
    shown = [short.pop()] if one.headline["table"] else []
    marks = [Text(" " * INDENT + "- " + in_words(row)) for row in one.consequences]
    short += [*(mark for mark in marks if mark.cell_len <= width), *shown]
    return {
        Level.OUT: [],
        Level.BRIEF: brief({**one.headline, "severity": one.severity}, width, local),
        Level.SHORT: short,
        Level.WHOLE: incident_lines(one, target, width, local=local, whole=False),
    }


def brief(row: Mapping[str, Any], width: int, local: bool) -> list[Text]:
    """A finding in a line (more where the terminal is narrow): severity, time of day, the sentence where it fits, else
    a few words."""
    at = "" if row["first_at"] is None else words.time_of_day(row["first_at"], local=local) + " "
    candidates = (str(row["text"]), in_words(row), str(row["id"]).replace("_", " "))
    said = next((text for text in candidates if INDENT + len(at) + len(text) <= width), candidates[-1])
    severity = str(row["severity"])
    lines = [Text(" " * INDENT + line) for line in words.wrapped(at + said, width - INDENT)]
    return [Text.assemble("  ", (f"{severity:<7} ", STYLES.get(severity, "")), lines[0].plain[INDENT:]), *lines[1:]]


def in_words(row: Mapping[str, Any]) -> str:
    """What happened, to whom, how often: `session evictor: client raw-evict-more, broker 1`."""
    error, colon, _ = str(row["text"]).partition(":")
    what = error if colon and error.replace("_", "").isupper() else str(row["id"]).replace("_", " ")
    whom = [
        f"{noun} {row[column]}"
        for noun, column in (
            ("client", "client_id"), ("group", "group_id"), ("topic", "topic"), ("broker", "broker"),
        )
        if row.get(column) is not None
    ]  # fmt: skip
    often = [f"{words.count(row['count'])} times"] if what == error and (row["count"] or 0) > 1 else []
    about = ", ".join(often + whom)
    return visible(f"{what}: {about}" if about else what)
