"""What was said of each recording of the laboratory, kept beside `laboratory.toml`, and the counts of each finding.

`python -m tests.laboratory FOLDER... --counts` writes the file. It has a line a recording, under the folder's name and
the recording's: its cause, its half, its verdict, and kinds of findings by what they are there (`ROLES`).
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("laboratory_counts.toml")
ROLES = ("names", "beside", "apart", "wrong", "loud", "info")
"""Values of `tests.laboratory.roles_of`."""
ABOVE_INFO = ROLES[:-1]
QUIET = ("silent", "loud")
"""Verdicts of recordings where nothing is wrong."""
HEAD = "# What was said of each recording, by `python -m tests.laboratory FOLDER... --counts`. Not edited by hand.\n"
Said = Mapping[str, Any]
"""A recording's line of the file."""


def load() -> dict[str, Said]:
    """The file: recordings by name."""
    return tomllib.loads(FILE.read_text()) if FILE.exists() else {}


def said_of(cause: str, half: str, verdict: str, findings: Iterable[tuple[str, str]]) -> Said:
    """A line of the file. `findings`: the kind and the role of each."""
    kinds: dict[str, set[str]] = {role: set() for role in ROLES}
    for kind, role in findings:
        kinds[role].add(kind)
    return {
        "cause": cause,
        "half": half,
        "verdict": verdict,
        **{role: sorted(some) for role, some in kinds.items() if some},
    }


def store(new: Mapping[str, Said]) -> None:
    """Write these recordings in place of what the file has of their folders."""
    folders = {name.partition("/")[0] for name in new}
    kept = {name: line for name, line in load().items() if name.partition("/")[0] not in folders}
    lines = [f'"{name}" = {{ {_inline(line)} }}\n' for name, line in sorted({**kept, **new}.items())]
    FILE.write_text(HEAD + "".join(lines))


def _inline(line: Said) -> str:
    def value(one: Any) -> str:
        return f'"{one}"' if isinstance(one, str) else "[" + ", ".join(map(value, one)) + "]"

    return ", ".join(f"{key} = {value(one)}" for key, one in line.items())


def counts(kind: str, lines: Iterable[Said]) -> str | None:
    """A kind's counts in sentences; None if no recording shows it."""
    lines = list(lines)
    ill = [one for one in lines if one["verdict"] not in QUIET]
    well = [one for one in lines if one["verdict"] in QUIET]
    if not any(kind in one.get(role, ()) for one in lines for role in ABOVE_INFO):
        shown = sum(kind in one.get("info", ()) for one in lines)
        return f"It stands at info in {shown} of {len(lines)} recordings, never above it." if shown else None
    parts = []
    causes = Counter(one["cause"] for one in ill if kind in one.get("names", ()))
    if causes:
        of = Counter(one["cause"] for one in ill)
        each = [
            f"`{cause}` in {causes[cause]} of {of[cause]}"
            for cause in sorted(causes, key=lambda one: (-causes[one], one))
        ]
        parts.append(f"It names {', '.join(each)} ({' and '.join(_half(kind, ill, causes, half) for half in 'AB')})")
    beside = [one for one in ill if kind in one.get("beside", ()) and kind not in one.get("names", ())]
    if beside:
        parts.append(f"It adds to a right cause in {len(beside)}{' more' if causes else ''}")
    for role, what in (("apart", "It has another cause at low"), ("wrong", "It has a wrong cause above low")):
        some = sum(kind in one.get(role, ()) for one in ill)
        parts += [f"{what} in {some} of {len(ill)}"] if some else []
    allowed = Counter(one["cause"] for one in well if kind in one.get("beside", ()))
    parts += [f"It stands at low in {count} of `{cause}`, where it is true" for cause, count in allowed.items()]
    loud = sum(kind in one.get("loud", ()) for one in well)
    parts.append(f"It stands above info in {loud} of {len(well)} where nothing is wrong")
    return ". ".join(parts) + "."


def _half(kind: str, ill: list[Said], causes: Iterable[str], half: str) -> str:
    mine = [one for one in ill if one["half"] == half and one["cause"] in set(causes)]
    return f"{sum(kind in one.get('names', ()) for one in mine)} of {len(mine)} in half {half}"
