"""The output of `why` without a number: the findings; without an incident, what rules look for and unusual times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kdissect.cli.printing import words
from kdissect.cli.printing.accounts import headline_lines
from kdissect.cli.printing.next_steps import PIPE
from kdissect.escaping import visible
from kdissect.summary.account import Handle

if TYPE_CHECKING:
    import pyarrow as pa

    from kdissect.analysis.questions.topic_gap import TopicGap

LOOKED_FOR = (
    "Looked for: brokers that stand still, refuse or close connections, and slow requests by whose time it was. "
    "Clients that pause, give up, poll in vain or are throttled. Errors of every API, logins and permissions. Groups "
    "that rebalance, transactions that hold readers back, leaders that move. Lost segments, long round trips, and "
    "fetch sessions that are lost or refused. The page docs/findings.md has every rule and its limits."
)
UNUSUAL = 5
"""Silences that are listed."""


def list_findings(handles: Sequence[Handle], target: Sequence[str], width: int, *, local: bool) -> list[Text]:
    """All findings, a numbered line each, and how to ask for one."""
    lines = [line for one in handles for line in headline_lines(one, width, local=local)]
    command = (
        [] if PIPE in target else words.command_lines(f"kdissect why {' '.join(target)} {handles[0].number}", width)
    )
    return [*lines, *([Text(), *(Text(line, "dim") for line in command)] if command else [])]


def nothing_found(
    silences: pa.Table | None, gap: TopicGap | None, target: Sequence[str], width: int, *, local: bool,
    quiet: bool = False,
) -> list[Text]:  # fmt: skip
    """That no rule reported an incident, what rules look for, and the most unusual times: the longest silences and the
    widest gap between two topics. `silences`: None where there are no exchanges, at which most rules look.
    `quiet`: there are findings, and none is an incident."""
    if silences is None and not quiet:
        return [Text("No rule found anything: there is no Kafka exchange in what was read.", "bold")]
    lines = [Text(f"No rule found {'an incident' if quiet else 'anything'} in what could be read.", "bold")]
    lines += [Text(line) for line in words.wrapped(LOOKED_FOR, width)]
    if gap is not None:
        lines += [Text(), Text("The widest gap between two topics", "bold")]
        lines += [Text(part) for part in words.wrapped(gap_sentence(gap), width)]
    rows = silences.slice(0, UNUSUAL).to_pylist() if silences is not None else []
    if rows:
        lines += [Text(), Text("The longest silences", "bold")]
        lines += [Text(part) for row in rows for part in words.wrapped(silence_sentence(row, local), width)]
        named = " ".join(target)
        commands = [] if PIPE in target else words.command_lines(f"kdissect gaps {named}", width)
        lines += [Text(), *(Text(line, "dim") for line in commands)] if commands else []
    return lines


def gap_sentence(gap: TopicGap) -> str:
    """How long writing to two topics takes, in words."""
    topics = (gap.slow, gap.slow_ms, gap.slow_requests), (gap.fast, gap.fast_ms, gap.fast_requests)
    slow, fast = (
        f"{words.milliseconds(ms)} to {visible(topic)} (median of {words.number_of(count, 'request')})"
        for topic, ms, count in topics
    )
    return f"Produce takes {slow}, {fast}."


def silence_sentence(row: dict[str, Any], local: bool) -> str:
    """A silence in words: who, from when, for how long, and whether something was due."""
    due = f"{words.number_of(row['waiting'], 'request')} waited meanwhile" if row["waiting"] else "nothing was due"
    if row["by"] == "partition":
        due = "no records of it"
    at = words.time_of_day(row["begin_at"], local=local)
    return f"{at} {row['by']} {visible(row['subject'])}: {words.milliseconds(row['silent_ms'])}, {due}."
