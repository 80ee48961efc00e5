"""Findings as lines, each under its number: a line or two on the first screen, sentences in the account.

The number is the handle of a finding: `kdissect why CAPTURE N` shows its evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from kdissect.analysis.findings.evidence import SEVERITIES
from kdissect.cli.printing import words
from kdissect.escaping import visible
from kdissect.summary.account import NEVER, Handle, number_findings, quiet, uneventful

STYLES = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}
NARROW = 44
"""Columns below which findings leave their time of day out."""
INDENT = 11
"""Columns before sentences: the number and the severity."""
CLOCK = 9
"""Columns of the time of day, with the blank behind it."""


def headline_lines(handle: Handle, width: int, *, local: bool = False, numbered: bool = True) -> list[Text]:
    """A finding on the first screen: number, severity, time of day, headline; consequences have a dash."""
    at: datetime | None = handle.row["first_at"]
    when = "" if at is None else f"{at.astimezone(None if local else UTC):%H:%M:%S}"
    dash = "- " if handle.follows else ""
    clock = CLOCK if width >= NARROW else 0
    said = words.wrapped(str(handle.row["headline"]), width - INDENT - clock - len(dash))
    lines = [Text.assemble(*_handle(handle, numbered), f"{when:<{clock}}{dash}" if clock else dash, said[0])]
    return lines + [Text(" " * (INDENT + clock + len(dash)) + line) for line in said[1:]]


def chosen_lines(
    findings: Sequence[Mapping[str, Any]], width: int, room: int | None, *, local: bool = False, numbered: bool = True
) -> tuple[list[Text], int]:
    """Lines of the findings, in order of their numbers, and how many findings are left out. They are not `numbered`
    where there may be more of them than these: then others have these numbers.

    Findings of high or medium severity are always there. The others take the rest of `room` lines (None: any number),
    low before info.
    """
    shown = [one for one in number_findings(findings) if not uneventful(one.row)]
    made = {one.number: headline_lines(one, width, local=local, numbered=numbered) for one in shown}
    kept: set[int] = set()
    used = 0
    for severities in (SEVERITIES[:2], SEVERITIES[2:3], SEVERITIES[3:]):
        for one in shown:
            if one.row["severity"] not in severities:
                continue
            lines = len(made[one.number])
            if room is not None and severities != SEVERITIES[:2] and used + lines > room:
                continue
            kept.add(one.number)
            used += lines
    return [line for one in shown if one.number in kept for line in made[one.number]], len(shown) - len(kept)


def timeline(
    findings: Sequence[Mapping[str, Any]], target: Sequence[str], width: int, local: bool = False
) -> list[Text]:
    """All of the account in order of time: sentences, what to do, and how to see the evidence."""
    handles = number_findings(findings)
    incidents: list[list[Handle]] = []
    for one in handles:
        if one.follows:
            incidents[-1].append(one)
        else:
            incidents.append([one])
    incidents.sort(key=lambda ours: ours[0].row["first_at"] or NEVER)
    lines: list[Text] = []
    for ours in incidents:
        if quiet(ours[0].row):
            continue
        lines += [*finding_lines(ours[0], width, local=local), *_consequences(ours[1:], width, local), Text()]
    if not lines:
        lines = [Text("  No rule found an incident in what could be read."), Text()]
    calm = [one for ours in incidents for one in ours if quiet(one.row)]
    if calm:
        lines.append(Text("Also seen", "bold"))
        for one in calm:
            lines += finding_lines(one, width, local=local)
        lines.append(Text())
    commands = words.command_lines(f"kdissect why {' '.join(target)} N", width, 2) if handles else []
    evidence = [Text("Evidence of finding N", "bold"), *map(Text, commands)] if commands else []
    return [Text("What happened", "bold"), *lines, *evidence]


def finding_lines(handle: Handle, width: int, *, local: bool = False) -> list[Text]:
    """A finding in the account: number, severity, when, the sentence, what to do."""
    said = _sentences(_dated_sentence(handle.row, local), width)
    lines = [Text.assemble(*_handle(handle), said[0]), *(Text(" " * INDENT) + line for line in said[1:])]
    if handle.row["severity"] != "info":
        lines += [Text(" " * INDENT) + line for line in _sentences(str(handle.row["advice"] or ""), width, "italic")]
    return lines


def _consequences(handles: Sequence[Handle], width: int, local: bool) -> list[Text]:
    lines = []
    for one in handles:
        said = _sentences("- " + _dated_sentence(one.row, local), width)
        lines.append(Text.assemble(*_handle(one), said[0]))
        lines += [Text(" " * (INDENT + 2)) + line for line in _sentences(" ".join(map(str, said[1:])), width - 2)]
    return lines


def _handle(handle: Handle, numbered: bool = True) -> list[Any]:
    severity = str(handle.row["severity"])
    return [(f"{handle.number if numbered else '':>3} ", "bold"), (f"{severity:<7}", STYLES.get(severity, ""))]


def _dated_sentence(finding: Mapping[str, Any], local: bool) -> str:
    """The sentence, behind the time of day when it began."""
    at: datetime | None = finding["first_at"]
    if at is None:
        return str(finding["text"])
    return f"{at.astimezone(None if local else UTC):%H:%M:%S}.{at.microsecond // 1000:03d} {finding['text']}"


def _sentences(text: str, width: int, style: str = "") -> list[Text]:
    return [Text(line, style) for line in words.wrapped(visible(text), width - INDENT)] if text else []
