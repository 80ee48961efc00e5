"""What docs/findings.md says of each kind of finding, in parts."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "findings.md"


class Section(NamedTuple):
    """Of one kind; parts that it does not have are empty."""

    rule: str
    cause: str
    starts: bool
    advice: str
    reads: str
    cannot: str
    example: str


def sections() -> dict[str, Section]:
    """By the id of the kind, in the order of the page."""
    found = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        name, rule, points = part.split("\n\n", 2)
        lines = points.strip().replace("\n  ", " ").splitlines()

        def after(words: str, lines: list[str] = lines) -> str:
            """What stands behind these words, which begin a line."""
            return next((line.removeprefix(f"- {words}") for line in lines if line.startswith(f"- {words}")), "")

        example = re.search(r"`captures/(.*)`", after("Example: "))
        found[name] = Section(
            rule.replace("\n", " "), after("Cause: ").removesuffix("."), bool(after("It starts incidents")),
            after("Advice: "), after("Its numbers come from "), after("Limits: "),
            example[1] if example else "",
        )  # fmt: skip
    return found
