"""Commands that the first screen proposes: made of this capture's own ids, the worst finding first."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kdissect.summary import Summary

PIPE = "-"
TEE = "standard input cannot be read again: keep it with  ... | tee capture.pcap | kdissect -"
NO_POLL = "hold not in ('timeout', 'data', 'rebalance', 'unknown')"
"""Fetches that waited for nothing but the broker's work, as far as that is known."""
NO_WAIT = "(hold is null or hold not in ('timeout', 'data', 'rebalance'))"
"""Other exchanges that waited for nothing else."""
FETCHING = ("Fetch", "ShareFetch")
MAY_WAIT = ("Produce", "JoinGroup", "SyncGroup")
"""Other APIs whose exchanges have a `hold`."""


def next_steps(summary: Summary, target: Sequence[str]) -> list[str]:
    """Commands that can be pasted, most telling first. `target`: how the captures are named, quoted for a shell."""
    if PIPE in target:
        return [TEE]
    named = " ".join(target)
    steps = []
    worst = next((one for one in summary.findings if one["severity"] != "info" and one["first_exchange_id"]), None)
    if worst is not None:
        steps.append(f"kdissect show {named} {summary.short_id(worst['first_exchange_id'])}")
    slowest = max(
        (line for line in summary.latencies if line.slowest_ms is not None),
        key=lambda line: line.slowest_ms or 0.0,
        default=None,
    )
    if slowest is not None and slowest.slowest is not None and slowest.slowest_ms is not None:
        if worst is None:
            steps.append(f"kdissect show {named} {summary.short_id(slowest.slowest)}")
        limit = f"latency_ms >= {_floor(slowest.slowest_ms / 2)} and {_among(summary.by, slowest.name)}"
        steps.append(f'kdissect {named} --table exchanges --where "{limit}"')
    if summary.statuses.get("error"):
        steps.append(f"kdissect {named} --table exchanges --where \"status = 'error'\"")
    if summary.problems:
        steps.append(f"kdissect {named} --table problems")
    steps.append(f"kdissect {named} -o tables/")
    return steps


def evidence(finding: Mapping[str, Any], target: Sequence[str]) -> str:
    """The command that prints what a finding speaks of; of a pipe, which cannot be read again, its options."""
    where = f" --where {quoted(finding['filter'])}" if finding["filter"] else ""
    options = f"--table {finding['table']}{where}"
    return options if PIPE in target else f"kdissect {' '.join(target)} {options}"


def quoted(text: str) -> str:
    """For a shell: in double quotes where nothing inside means anything to it, for filters hold single ones."""
    return shlex.quote(text) if any(c in '"$`\\!\n' for c in text) else f'"{text}"'


def _among(by: str, name: str) -> str:
    """What keeps long polls out of the rows: the slowest API, where lines are APIs."""
    api = name.partition(" v")[0]
    if by not in ("api", "version"):
        return f"({NO_POLL} or {NO_WAIT} and api not in ('Fetch', 'ShareFetch'))"
    return f"api = '{api}'" + (f" and {NO_POLL}" if api in FETCHING else f" and {NO_WAIT}" if api in MAY_WAIT else "")


def _floor(value: float) -> str:
    """A round number not above the value, with two significant digits."""
    digits = 1 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{math.floor(value * 10**digits) / 10**digits:g}"
