"""Messages encoded by aiokafka's hand-written structures: another pair of eyes on the old versions.

A structure lists its fields in wire order with the library's own names, so only the values in order are compared.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

WRONG = {
    (2, 4, "request"): "CurrentLeaderEpoch is an int64 there",
    (2, 5, "request"): "CurrentLeaderEpoch is an int64 there",
    (29, 2, "request"): "a layout that is not flexible",
    (29, 2, "response"): "a layout that is not flexible",
}
"""(API key, version, side) -> what aiokafka 0.14 gets wrong."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A body without its header, and its values in wire order."""

    key: int
    version: int
    side: str
    body: bytes
    values: list[Any]


def samples() -> Iterator[Sample]:
    """One sample of each structure, every field set."""
    import aiokafka.protocol
    from aiokafka.protocol.struct import Struct

    seen = set()
    for module in pkgutil.iter_modules(aiokafka.protocol.__path__, "aiokafka.protocol."):
        for cls in vars(importlib.import_module(module.name)).values():
            if not (isinstance(cls, type) and issubclass(cls, Struct) and hasattr(cls, "API_KEY")):
                continue
            side = "request" if "Request" in cls.__name__ else "response"
            identity = getattr(cls, "API_KEY", None), getattr(cls, "API_VERSION", None), side
            if None in identity or identity in seen or identity in WRONG or not cls.SCHEMA.names:
                continue
            seen.add(identity)
            draw = random.Random(str(identity))
            values = [_value(field, draw) for field in cls.SCHEMA.fields]
            yield Sample(*identity, cls(*values).encode(), list(flat(values)))  # type: ignore[arg-type]


def _value(field: Any, draw: random.Random) -> Any:
    from aiokafka.protocol import types

    if isinstance(field, types.Schema):
        return tuple(_value(f, draw) for f in field.fields)
    if isinstance(field, (types.Array, getattr(types, "CompactArray", types.Array))):
        return [_value(field.array_of, draw) for _ in range(2)]
    name = field.__name__ if isinstance(field, type) else type(field).__name__
    if "TaggedFields" in name:
        return {}
    if "String" in name:
        return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=12))
    if "Bytes" in name:
        return draw.randbytes(25)
    if name == "Boolean":
        return True
    if name == "Float64":
        return draw.uniform(-1e6, 1e6)
    bits = int("".join(c for c in name if c.isdigit()))
    return draw.randint(1, 2 ** (bits - 1) - 1)


def flat(value: Any) -> Iterator[Any]:
    """Scalars in order; tag buffers (dictionaries here) hold none."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    elif not isinstance(value, dict):
        yield value
