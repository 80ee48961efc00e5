"""The keys of a decoded message: those of every version and every layout, so that all versions look alike.

A struct's keys are its fields' names in snake_case, then `_tags` where some version of the message has tagged fields. A
records field is `<name>_bytes` (its size); a credential is null, with its length next to it as `<name>_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kdissect.schema.model import SCALARS, Field, Message
from kdissect.schema.names import snake_case

TAGS_KEY = "_tags"
ZERO_UUID = "A" * 22
"""Kafka's null UUID in its own form: 16 zero bytes in base64url."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The keys of one struct, in order, and the shapes of the structs below its fields (by snake_case name)."""

    keys: tuple[str, ...]
    below: dict[str, Shape]

    def absent(self) -> dict[str, Any]:
        """A struct without any values yet."""
        return dict.fromkeys(self.keys)


def shape_of(message: Message) -> Shape:
    """The shape of a message: the union of its versions and variants."""
    tags = message.flexible.first <= message.flexible.last
    return _shape([message.fields, *(variant.fields for variant in message.variants)], tags)


def _shape(layouts: list[tuple[Field, ...]], tags: bool) -> Shape:
    named: dict[str, list[Field]] = {}
    for fields in layouts:
        for item in fields:
            named.setdefault(snake_case(item.name), []).append(item)
    keys: list[str] = []
    below: dict[str, Shape] = {}
    for name, items in named.items():
        keys += keys_of(name, items[0])
        if items[0].fields:
            below[name] = _shape([item.fields for item in items], tags)
    if tags:
        keys.append(TAGS_KEY)
    return Shape(tuple(keys), below)


def keys_of(name: str, item: Field) -> tuple[str, ...]:
    """The keys that one field has; the last one is its size where it has one."""
    if item.kind == "records":
        return (f"{name}_bytes",)
    if item.secret or item.secret_by:
        return name, f"{name}_bytes"
    return (name,)


def default_of(item: Field, shape: Shape, version: int) -> Any:
    """The value of an absent tagged field (KIP-482): its default, by Kafka's rules zero or empty where the schema has
    none."""
    if item.has_default:
        return item.default
    if item.kind == "struct":
        inner = shape.below[snake_case(item.name)]
        out = inner.absent()
        for child in item.fields:
            if version in child.versions:
                out[snake_case(child.name)] = default_of(child, inner, version)
        return out
    if item.kind == "array":
        return []
    if item.kind == "uuid":
        return ZERO_UUID
    if item.kind in SCALARS:
        return False if item.kind == "bool" else 0.0 if item.kind == "float64" else 0
    return b"" if item.kind == "bytes" else ""
