"""Messages encoded by kafka-python 3: every request and response it has, at every version, every field set.

Values are drawn with a fixed seed from the JSON definitions that kafka-python has. Two kinds: `full` (arrays of two,
all tags, nothing null) and `bare` (empty arrays, nulls where allowed, no tags).
"""

from __future__ import annotations

import base64
import importlib
import pkgutil
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.oracle.request_log import normal, snake

NEVER = 32767
RENAMED = {True: "cluster_authorized_operations", False: "topic_authorized_operations"}
"""What kafka-python calls `authorized_operations`: at the top of a message, and in its topics."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A body without its header, and what is in it, in the form of `request_log.normal`."""

    key: int
    name: str
    version: int
    side: str
    kind: str
    body: bytes
    says: dict[str, Any]


def classes() -> list[Any]:
    """Every message class of kafka-python."""
    import kafka.protocol

    found = {}
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" in module.name or module.name.endswith("generate_stubs"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            data = getattr(value, "_json", None)
            if isinstance(data, dict) and data.get("apiKey") is not None and isinstance(value, type):
                found[data["name"]] = value
    return [found[name] for name in sorted(found)]


def samples() -> Iterator[Sample]:
    """Two samples of each message and version, from version 0 on where its definition still tells."""
    for message in classes():
        data = message._json
        side = data["type"]
        name = data["name"].removesuffix(side.capitalize())
        low, high = _range(data["validVersions"])
        for version in range(low, high + 1):
            for kind in ("full", "bare"):
                maker = _Maker(data, version, kind)
                says, value = maker.struct(data["fields"], message, top=True)
                says = normal(says, data["apiKey"], side)  # the newest names
                yield Sample(data["apiKey"], name, version, side, kind, value.encode(version=version), says)


class _Maker:
    def __init__(self, data: dict[str, Any], version: int, kind: str) -> None:
        self.version, self.full = version, kind == "full"
        self.common = {s["name"]: s["fields"] for s in data.get("commonStructs", [])}
        self.random = random.Random(f"{data['name']} {version} {kind}")

    def struct(self, fields: list[dict[str, Any]], cls: Any, *, top: bool = False) -> tuple[dict[str, Any], Any]:
        """What it says, and the object."""
        says: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for field in fields:
            low, high = _range(field["versions"] if "versions" in field else field["taggedVersions"])
            if not low <= self.version <= high:
                continue
            tagged = "tag" in field and _has(field.get("taggedVersions"), self.version)
            if tagged and not self.full:
                continue
            said, value = self.value(field, field["type"], cls)
            name = RENAMED[top] if field["name"] == "authorized_operations" else snake(field["name"])
            if field["type"] == "records":
                says[f"{name}_bytes"] = None if value is None else len(value)
            else:
                says[name] = said
            values[_attribute(cls, field["name"])] = value
        return says, cls(version=self.version, **values) if top else cls(**values)

    def value(self, field: dict[str, Any], kind: str, cls: Any) -> tuple[Any, Any]:
        if not self.full and _has(field.get("nullableVersions"), self.version):
            return None, None
        if kind.startswith("[]"):
            made = [self.value(field | {"nullableVersions": None}, kind[2:], cls) for _ in range(2 if self.full else 0)]
            return [said for said, _ in made], [value for _, value in made]
        if kind[0].isupper():
            return self.struct(field.get("fields") or self.common[kind], getattr(cls, kind))
        return self.scalar(kind)

    def scalar(self, kind: str) -> tuple[Any, Any]:
        draw = self.random
        if kind == "string":
            text = "".join(draw.choices("abcdefghijklmnopqrstuvwxyzäß日本", k=draw.choice((3, 9, 130))))
            return text, text
        if kind in ("bytes", "records"):
            raw = draw.randbytes(draw.choice((1, 20, 300)))
            return base64.b64encode(raw).decode(), raw
        if kind == "uuid":
            value = uuid.UUID(bytes=draw.randbytes(16))
            return base64.urlsafe_b64encode(value.bytes).decode().rstrip("="), value
        if kind == "bool":
            return True, True
        if kind == "float64":
            number = draw.uniform(-1e9, 1e9)
            return number, number
        if kind == "bitfield":  # authorized operations, which it shows as a set of bits
            return 0b10110, {1, 2, 4}
        bits = int(kind.lstrip("uint"))
        low, high = (0, 2**bits - 1) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        integer = draw.choice((low, high, draw.randint(low, high)))
        return integer, integer


def _attribute(cls: Any, name: str) -> str:
    """kafka-python's name of a field: it follows its own rule, so look it up."""
    return next(str(f.name) for f in cls._struct.fields.values() if f._name == name)


def _range(text: str) -> tuple[int, int]:
    if text in ("none", None):
        return NEVER, -1
    low, plus, _ = text.partition("+")
    if plus:
        return int(low), NEVER
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _has(text: str | None, version: int) -> bool:
    low, high = _range(text or "none")
    return low <= version <= high
