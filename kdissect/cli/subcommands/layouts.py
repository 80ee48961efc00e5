"""`schema`: the layout of messages as text, and what changed between two versions."""

from __future__ import annotations

from collections.abc import Sequence

from kdissect.problems import UsageError

HOW = "say: kdissect schema [API [VERSION [request|response]]]"
HOW_DIFF = "say: kdissect schema --diff API OLD NEW"


def layout(words: Sequence[str]) -> list[str]:
    """Lines for `[API [VERSION [DIRECTION]]]`: all APIs; the newest version; both directions unless one is named."""
    from kdissect.schema import bnf, index

    if not words:
        return bnf.apis().split("\n")
    if len(words) > 3:
        raise UsageError(HOW)
    version = _version(words[1]) if len(words) > 1 else index.load().find_api(words[0]).request.versions.last
    directions = [words[2]] if len(words) > 2 else ["request", "response"]
    return "\n\n".join(bnf.layout(words[0], version, direction) for direction in directions).split("\n")


def difference(words: Sequence[str]) -> list[str]:
    """Lines for `API OLD NEW`."""
    from kdissect.schema import bnf

    if len(words) != 3:
        raise UsageError(HOW_DIFF)
    return bnf.diff(words[0], _version(words[1]), _version(words[2])).split("\n")


def _version(text: str) -> int:
    number = text.removeprefix("v")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"{text!r} is not a version number; {HOW}")
    return int(number)
