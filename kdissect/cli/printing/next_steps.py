"""Commands that the first screen proposes: made of this capture's own ids, the worst finding first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kdissect.summary import Summary

PIPE = "-"
TEE = "standard input cannot be read again: keep it with  ... | tee capture.pcap | kdissect -"


def next_steps(summary: Summary, target: Sequence[str]) -> list[str]:
    """Commands that can be pasted, most telling first. `target`: how the captures are named, quoted for a shell."""
    if PIPE in target:
        return [TEE]
    named = " ".join(target)
    if summary.findings_of is None:
        steps = [f"kdissect why {named}{' 1' if summary.findings else ''}"]
    else:  # others may have these numbers
        steps = [f"kdissect timeline {named}"]
    if any(line.slowest_ms is not None for line in summary.latencies):
        steps.append(f"kdissect slowest {named}")
    if summary.statuses.get("error"):
        steps.append(f"kdissect errors {named}")
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
