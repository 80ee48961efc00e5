"""docs/findings.md as the catalogue of findings has it. Its head, up to the table of all findings, is handwritten."""

from __future__ import annotations

import re
import textwrap

from kdissect.analysis.findings.catalogue import KINDS, Kind
from kdissect.analysis.findings.catalogue.kind import Texts
from tests import laboratory_counts
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "findings.md"
TABLE = "| finding | headline | cause |\n"
WIDTH = 120
RECORDED = laboratory_counts.load()
FIELD = re.compile(r"\{(\w+)(?::([^}]*))?\}")


def make_page() -> str:
    """The page: its head as it stands, a table of all findings, a section for each."""
    head = PAGE.read_text().partition(TABLE)[0]
    rows = [
        f"| [`{name}`](#{name}) | {'<br>'.join(patterns(kind.headline))} | {_causes(kind)} |\n"
        for name, kind in sorted(KINDS.items())
    ]
    return head + TABLE + "| --- | --- | --- |\n" + "".join(rows) + "".join(map(_section, sorted(KINDS)))


def patterns(texts: Texts) -> list[str]:
    """Templates as people read them: names of values in braces, what may be left out in brackets."""
    every = [texts] if isinstance(texts, str) else list(dict.fromkeys(texts.values()))
    return [_pattern(one) for one in every]


def _pattern(template: str) -> str:
    shown = FIELD.sub(_field, re.sub(r"\[\?\w+:", "[", template))
    return re.sub(r"\[([^]|]*)\|([^]]*)\]", r"[\1 / \2]", shown)


def _field(match: re.Match[str]) -> str:
    name, form = match[1], match[2] or ""
    if form.startswith("?"):
        return form[1:].replace("|", "/")
    if form.startswith("#"):
        one, _, more = form[1:].partition("|")
        return f"{{n}} {more or one + 's'}"
    if form in ("who", "Who"):
        return f"client {{{name}}}"
    return f"{{{name}}}"


def _causes(kind: Kind) -> str:
    return ", ".join([kind.cause, *kind.other_causes])


def _section(name: str) -> str:
    kind = KINDS[name]
    quoted = [*patterns(kind.sentence)]
    text = f"\n## {name}\n\n{_wrapped(kind.rule)}\n\n"
    text += "\n>\n".join(_wrapped(one, "> ") for one in quoted) + "\n\n"
    points = [f"Cause: {kind.cause}."]
    if kind.other_causes:
        points[0] = f"Cause: {kind.cause}, or {' or '.join(kind.other_causes)} where the capture shows that."
    taken = ["findings that it explains are grouped under it"] if kind.starts else []
    taken += [f"`{name}` of that time is grouped under it" for name in kind.heads]
    if taken:
        points.append(f"It starts incidents: {'; '.join(taken)}.")
    for advice in [] if kind.advice is None else patterns(kind.advice):
        points.append(f"Next step: {advice}")
    points.append(f"Its numbers come from {kind.needs}.")
    if kind.cannot_tell:
        points.append(f"Limits: {kind.cannot_tell}")
    points.append(f"Example: `captures/{kind.example}`.")
    told = laboratory_counts.counts(name, RECORDED.values())
    points.append(f"Counts: {told or 'no recording of the laboratory shows it, only the example.'}")
    return text + "\n".join(_wrapped(point, "- ", "  ") for point in points) + "\n"


def _wrapped(text: str, first: str = "", other: str | None = None) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=first if other is None else other,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
