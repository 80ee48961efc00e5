"""Every layout that Kafka ever had is in the schema, exactly, and the other layouts of some versions."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator

import pytest

from kdissect.schema import index
from kdissect.schema.grammar import GrammarError
from kdissect.schema.model import REQUEST, RESPONSE
from tests.schema import facts, meanings

FILES = {name: text.decode() for name, text in index.texts().items()}
RELEASES = {"3.5-3.6": "3.6.0", "3.7": "3.7.0", "2.7": "2.7.0", "4.0": "4.0.2"}
"""The releases of other layouts, as the files say them and as the facts do."""


def renamed(found: dict[facts.Id, facts.Layout]) -> dict[facts.Id, facts.Layout]:
    return {(*which[:3], RELEASES.get(which[3], which[3])): layout for which, layout in found.items()}


def test_all_combinations_are_there() -> None:
    found = {
        (key, side, version)
        for key, api in index.load().apis.items()
        for side in (REQUEST, RESPONSE)
        for version in range(api.message(side).versions.first, api.message(side).versions.last + 1)
        if index.layouts(api.message(side), version)
    }
    keys = range(len({key for key, _, _ in found}))
    assert all((key, side, 0) in found for key in keys for side in (REQUEST, RESPONSE)), "none left out, from version 0"
    known = {(int(w), facts.SIDES[d], v) for w, d, v, _ in facts.facts() if d in facts.SIDES}
    assert found == known


def test_every_layout_equals_the_facts() -> None:
    expected, found = facts.facts(), renamed(facts.ours(index.load()))
    assert found.keys() == expected.keys()
    wrong = [which for which, layout in expected.items() if found[which] != layout]
    assert not wrong
    assert {which for which in found if which[3]} == {which for which in expected if which[3]}


def test_other_layouts_are_tried_after_the_main_one() -> None:
    described = index.load().apis[69].response
    assert [len(index.layouts(described, version)) for version in (0, 1, 2)] == [2, 1, 0]
    assert index.layouts(described, 0)[0] is described.fields


def mutations(line: str) -> Iterator[str | None]:
    """A line with one thing changed; None for the line taken out."""
    if line[0] != " " or line.strip()[0] == "{":
        yield None
        yield line[:-1]
        yield re.sub(r"\d", lambda found: str((int(found[0]) + 1) % 10), line) if re.search(r"\d", line) else line + "x"
        return
    body, _, _ = line.partition("#")
    body = re.sub(r"\{[^}]*\}", "", body).rstrip()
    words = body.split()
    indent = body[: len(body) - len(body.lstrip())]
    yield None
    kind = words[1]
    other = {"int32": "int64", "string": "bytes", "int8": "int16", "[]int32": "[]int64", "[]string": "[]bytes"}
    if kind.removeprefix("[]")[0].islower():
        yield indent + " ".join([words[0], other.get(kind, "int32"), *words[2:]])
    elif kind.startswith("[]"):
        yield indent + " ".join([words[0], kind[2:], *words[2:]])
    else:
        yield indent + " ".join([words[0], f"[]{kind}", *words[2:]])
    yield indent + " ".join([words[0] + "X", *words[1:]])
    if "nullable" in words:
        at = words.index("nullable")
        gone = 2 if at + 1 < len(words) and words[at + 1][0].isdigit() else 1
        rest = [word for word in words[at + gone :] if True]
        without = words[:at] + rest
        if without[-2:] == ["=", "null"]:
            without = without[:-2]
        yield indent + " ".join(without)
    elif "=" not in words:
        yield indent + " ".join(
            [*words[:3], "nullable", *words[3:]] if _versioned(words) else [*words[:2], "nullable", *words[2:]]
        )
    if _versioned(words):
        number = re.sub(r"\d+", lambda found: str(int(found[0]) + 1), words[2], count=1)
        yield indent + " ".join([*words[:2], number, *words[3:]])
    if "tag" in words:
        at = words.index("tag")
        yield indent + " ".join([*words[: at + 1], str(int(words[at + 1]) + 1), *words[at + 2 :]])
        yield indent + " ".join([*words[:at], *words[at + 2 :]])
        if "=" in words and words[-1] != "null":
            yield indent + " ".join([*words[:-1], "7"])


def _versioned(words: list[str]) -> bool:
    return len(words) > 2 and words[2][0].isdigit()


def field_lines() -> list[tuple[str, int]]:
    """(file, line from 0) of every field."""
    return [
        (name, number)
        for name, text in sorted(FILES.items())
        for number, line in enumerate(text.split("\n"))
        if line.startswith("  ") and line.strip()[0] not in "{#"
    ]


def other_lines() -> list[tuple[str, int]]:
    """(file, line from 0) of every line that is no field: heads, listeners, structs, constants, what the API is for."""
    fields = set(field_lines())
    return [
        (name, number)
        for name, text in sorted(FILES.items())
        for number, line in enumerate(text.split("\n"))
        if line and (name, number) not in fields and not (line[0] == "#" and not name[0].isdigit())
    ]


def noticed(name: str, text: str) -> bool:
    """Whether the facts, the meanings or the grammar notice that this file is not as it was."""
    try:
        changed = index.build({name: text})
        found = renamed(facts.ours(changed))
        said = meanings.said(changed)
    except GrammarError:
        return True
    which = {known[0] for known in found} | ({str(int(name[:3]))} if name[0].isdigit() else set(said_by(name)))
    expected = {known: layout for known, layout in facts.facts().items() if known[0] in which}
    return found != expected or not set(said) <= MEANT or len(said) != SAID[name]


def said_by(name: str) -> Iterable[str]:
    return index.build({name: FILES[name]}).payloads


MEANT = set(meanings.FILE.read_text().splitlines())
SAID = {name: len(meanings.said(index.build({name: text}))) for name, text in FILES.items()}


def check(places: list[tuple[str, int]]) -> int:
    missed, count = [], 0
    for name, number in places:
        lines = FILES[name].split("\n")
        for line in mutations(lines[number]):
            changed = [*lines[:number], *([] if line is None else [line]), *lines[number + 1 :]]
            count += 1
            if not noticed(name, "\n".join(changed)):
                missed.append(f"{name}:{number + 1}: {lines[number].strip()} -> {line}")
    assert not missed, f"{len(missed)} of {count} changes were not noticed:\n" + "\n".join(missed[:20])
    return count


def test_unchanged_files_are_not_noticed() -> None:
    assert not [name for name, text in FILES.items() if noticed(name, text)]


def test_a_changed_line_is_noticed() -> None:
    check(random.Random(1).sample(field_lines(), 100))
    check(random.Random(2).sample(other_lines(), 50))


@pytest.mark.whole
def test_any_changed_line_is_noticed() -> None:
    assert check(field_lines()) > 6000
    assert check(other_lines()) > 1800
