"""Kafka's own message definitions as facts: what the drift test holds the schema against, what `facts.txt` is made of.

    python -m tests.schema.drift DEFINITIONS > facts.new

DEFINITIONS is the folder `clients/src/main/resources/common/message` of a checkout of Kafka, or a kafka-clients jar,
which carries the same files. What comes out is `facts.txt` with the layouts of these definitions put in: those that
the definitions do not have any more stay, for old brokers are still captured.

A definition is JSON with comments. Of a field it says name, type, versions, nullableVersions, taggedVersions with tag,
and default (Kafka's `generator` module; KIP-482).
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.schema.facts import FILE, Id, Layout, facts

INSIDE = "common/message/"
"""Where a jar has the definitions."""
_RANGE = re.compile(r"(\d+)(?:(\+)|-(\d+))?\Z")
_LAST = 2**15


@dataclass(frozen=True, slots=True)
class Span:
    """A range of versions, both ends included."""

    first: int = 0
    last: int = -1

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


def span(text: str | None) -> Span:
    """`none`, `3`, `0-3` or `4+`."""
    if text in (None, "none"):
        return Span()
    found = _RANGE.match(text or "")
    assert found is not None, text
    return Span(int(found[1]), _LAST if found[2] else int(found[3] or found[1]))


@dataclass(slots=True)
class Definitions:
    """What a release defines."""

    layouts: dict[Id, Layout] = field(default_factory=dict)
    unstable: set[str] = field(default_factory=set)
    """APIs whose newest version may still change."""


def read(path: Path) -> Definitions:
    """All definitions of a folder or a jar."""
    made = Definitions()
    for text in _texts(path):
        plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
        _message(json.loads(plain), made)
    return made


def _texts(path: Path) -> Iterator[str]:
    if path.is_dir():
        for file in sorted(path.glob("*.json")):
            yield file.read_text()
        return
    with zipfile.ZipFile(path) as jar:
        for name in sorted(jar.namelist()):
            if name.startswith(INSIDE) and name.endswith(".json"):
                yield jar.read(name).decode()


def _message(said: dict[str, Any], made: Definitions) -> None:
    versions, flexible = span(said["validVersions"]), span(said.get("flexibleVersions"))
    kind = said["type"]
    request = kind == "request"
    which = str(said["apiKey"]) if "apiKey" in said else said["name"]
    direction = kind if kind in ("request", "response") else "message"
    if said.get("latestVersionUnstable"):
        made.unstable.add(which)
    structs = {one["name"]: one["fields"] for one in said.get("commonStructs", ())}
    for version in range(versions.first, versions.last + 1):
        header = None
        if direction != "message":
            header = (version in flexible) + request
            if which == "18" and not request:
                header = 0  # KIP-511: read by clients that do not know what the broker speaks
            if which == "7" and request and version == 0:
                header = 0  # ControlledShutdown began without a client id
        fields = tuple(_fields(said["fields"], version, structs))
        made.layouts[which, direction, version, ""] = Layout(version in flexible, header, fields)


def _fields(
    said: Iterable[dict[str, Any]], version: int, structs: dict[str, Any], above: str = "", inside: bool = False
) -> Iterator[str]:
    """Fields in the order of the wire, a struct's tagged ones last; see `facts._fields`."""
    here = [one for one in said if version in span(one["versions"])]
    tagged = [one for one in here if version in span(one.get("taggedVersions"))]
    for one in [one for one in here if one not in tagged] + sorted(tagged, key=lambda one: one["tag"]):
        kind: str = one["type"]
        base = kind.removeprefix("[]")
        struct = base[0].isupper()
        text = f"{above}{one['name']}:{kind[: len(kind) - len(base)]}{'{}' if struct else base}"
        text += "?" * (version in span(one.get("nullableVersions")))
        if one in tagged:
            text += f"@{one['tag']}"
        within = inside or one in tagged
        default = _default(base if base == kind else "", one.get("default"))
        if within and default not in (0, "", False):
            text += f"={'null' if default is None else default}"
        yield text
        if struct:
            below = one.get("fields") or structs.get(base, ())
            yield from _fields(below, version, structs, f"{above}{one['name']}.", within and base == kind)


def _default(kind: str, text: Any) -> int | float | bool | str | None:
    """A default as Kafka writes it; of what is no number, text or flag only null counts."""
    if text is None:
        return 0
    if text == "null":
        return None
    if kind.startswith(("int", "uint")):
        return int(str(text), 0)
    if kind == "float64":
        return float(text)
    if kind == "bool":
        return str(text).lower() == "true"
    return str(text) if kind == "string" else 0


def differences(expected: dict[Id, Layout], found: dict[Id, Layout]) -> list[str]:
    """A line for each layout of Kafka that is missing or other here: where, and the first field that differs."""
    lines = []
    for which, layout in expected.items():
        place = f"{which[0]} {which[1]} v{which[2]}"
        ours = found.get(which)
        if ours is None:
            lines.append(f"{place}: is not in the schema")
        elif ours != layout:
            lines.append(f"{place}: {_difference(layout, ours)}")
    return lines


def _difference(layout: Layout, ours: Layout) -> str:
    for word, theirs, mine in (("flexible", layout.flexible, ours.flexible), ("header", layout.header, ours.header)):
        if theirs != mine:
            return f"{word} is {theirs} in Kafka, {mine} in the schema"
    for number in range(max(len(layout.fields), len(ours.fields))):
        theirs, mine = (list(one.fields[number : number + 1]) for one in (layout, ours))
        if theirs != mine:
            kafka, schema = (" ".join(words) or "missing" for words in (theirs, mine))
            return f"field {number} is {kafka} in Kafka, {schema} in the schema"
    return "equal"


def written(layouts: dict[Id, Layout]) -> Iterator[str]:
    """The lines of `facts.txt` for these layouts, by API, direction and version; what is no API last, as it comes."""
    names = list(dict.fromkeys(which for which, *_ in layouts if not which.isdigit()))

    def place(one: Id) -> tuple[int, bool, bool, int]:
        which, direction, version, release = one
        number = int(which) if which.isdigit() else _LAST + names.index(which)
        return number, direction == "response", bool(release), version

    last: tuple[str, ...] = ()
    for which in sorted(layouts, key=place):
        layout = layouts[which]
        words = [f"h{layout.header}"] * (layout.header is not None) + ["~"] * layout.flexible
        words += [f"({which[3]})"] * bool(which[3])
        yield " ".join([*map(str, which[:3]), *words, *_copied(layout.fields, last)])
        last = layout.fields


def _copied(fields: tuple[str, ...], last: tuple[str, ...]) -> Iterator[str]:
    """Fields, with `a-b` for runs of the line above."""
    at = 0
    while at < len(fields):
        if fields[at] not in last:
            yield fields[at]
            at += 1
            continue
        begin = last.index(fields[at])
        same = 1
        while fields[at : at + same + 1] == last[begin : begin + same + 1] and at + same < len(fields):
            same += 1
        yield f"{begin}-{begin + same - 1}"
        at += same


def main(path: Path) -> None:
    """Print `facts.txt` with these definitions put in."""
    known = dict(facts())
    for which, layout in read(path).layouts.items():
        if which[0].isdigit() or which in known or any(one[0] == which[0] for one in known):
            known[which] = layout
    for line in FILE.read_text().splitlines():
        if line.startswith("#"):
            print(line)
    for line in written(known):
        print(line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
