"""Kafka's layouts as facts (facts.txt, made from Kafka's own definitions), and our schema in the same form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kdissect.schema.index import Index, header_version
from kdissect.schema.model import NEVER, REQUEST, RESPONSE, Field, Message

FILE = Path(__file__).with_name("facts.txt")
_COPY = re.compile(r"(\d+)-(\d+)\Z")
SIDES = {"request": REQUEST, "response": RESPONSE}


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout of one message at one version."""

    flexible: bool
    header: int | None
    fields: tuple[str, ...]


Id = tuple[str, str, int, str]
"""API key or message name, direction, version, release ("" for the main layout)."""


@cache
def facts() -> dict[Id, Layout]:
    out: dict[Id, Layout] = {}
    last: list[str] = []
    for line in FILE.read_text().splitlines():
        if line.startswith("#"):
            continue
        which, direction, version, *words = line.split(" ")
        header, flexible, release = None, False, ""
        if words and re.fullmatch(r"h\d", words[0]):
            header = int(words.pop(0)[1:])
        if words and words[0] == "~":
            flexible = bool(words.pop(0))
        if words and words[0][0] == "(":
            release = words.pop(0)[1:-1]
        fields: list[str] = []
        for word in words:
            copy = _COPY.match(word)
            fields += last[int(copy[1]) : int(copy[2]) + 1] if copy else [word]
        last = fields
        out[which, direction, int(version), release] = Layout(flexible, header, tuple(fields))
    return out


def ours(index: Index) -> dict[Id, Layout]:
    """Every layout of an index."""
    out: dict[Id, Layout] = {}
    for api in index.apis.values():
        for direction, side in SIDES.items():
            out |= of(api.message(side), str(api.key), direction)
    for message in index.payloads.values():
        out |= of(message, message.name, "message")
    return out


def of(message: Message, which: str, direction: str) -> dict[Id, Layout]:
    """Every layout of one message."""
    out: dict[Id, Layout] = {}
    for version in range(message.versions.first, message.versions.last + 1):
        header = header_version(message, SIDES[direction], version) if direction in SIDES else None
        flexible = version in message.flexible
        out[which, direction, version, ""] = Layout(flexible, header, tuple(_fields(message.fields, version)))
        for variant in message.variants:
            if version in variant.versions:
                fields = tuple(_fields(variant.fields, version))
                out[which, direction, version, variant.release] = Layout(flexible, header, fields)
    return out


def _fields(fields: tuple[Field, ...], version: int, above: str = "", inside: bool = False) -> Iterator[str]:
    here = [item for item in fields if version in item.versions]
    tagged = sorted((item for item in here if item.tag is not None), key=lambda item: item.tag or 0)
    for item in [item for item in here if item.tag is None] + tagged:
        kind = "[]" if item.kind == "array" else ""
        kind += "{}" if item.fields else item.element or item.kind
        text = f"{above}{item.name}:{kind}"
        if version in item.nullable:
            text += "?"
        if item.tag is not None:
            assert version in item.tagged
            text += f"@{item.tag}"
        within = inside or item.tag is not None
        if within and item.has_default and item.default not in (0, "", False):
            text += f"={'null' if item.default is None else item.default}"
        assert item.flexible is None or item.flexible.first == NEVER
        yield text
        yield from _fields(item.fields, version, f"{above}{item.name}.", within and item.kind != "array")
