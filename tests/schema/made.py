"""Small schemas and bodies made by hand, for rules that no real message shows alone."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from kdissect.kafka.exchanges.messages import Decoded, Decoder
from kdissect.schema.model import NEVER, NONE, SCALARS, VARIABLE, Api, Field, Message, Variant, Versions

KEY = 7


def versions(text: str | None) -> Versions:
    """`2+`, `1-3`, `4` or nothing."""
    if not text:
        return NONE
    if text.endswith("+"):
        return Versions(int(text[:-1]), NEVER)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


def field(name: str, kind: str, here: str = "0+", *fields: Field, **more: Any) -> Field:
    """A field; `kind` may be "[]int32" or "[]struct"; `null` and `tagged` are version texts."""
    array = kind.startswith("[]")
    base = kind.removeprefix("[]")
    assert base in SCALARS or base in VARIABLE or base == "struct"
    return Field(
        name,
        "array" if array else base,
        versions(here),
        versions(more.get("null")),
        more.get("tag"),
        versions(more.get("tagged", here)) if "tag" in more else NONE,
        more.get("default"),
        "default" in more,
        base if array else None,
        fields=fields,
        secret=more.get("secret", False),
        secret_by=more.get("secret_by"),
    )


def message(
    *fields: Field, last: int = 0, flexible: str | None = None, older: tuple[Field, ...] | None = None
) -> Message:
    """A message with versions 0 to `last`; `older` is another layout of version 0."""
    variants = (Variant(Versions(0, 0), "older", older),) if older else ()
    return Message("Made", Versions(0, last), versions(flexible), fields, variants)


def api(request: Message, response: Message | None = None) -> dict[int, Api]:
    return {KEY: Api(KEY, "Made", request, response or message())}


def decode(
    layout: Message, *bodies: bytes, version: int | list[int] = 0, wanted: Any = None, side: int = 0
) -> tuple[Decoded, list[dict[str, Any]]]:
    """(what was decoded, the rows as dicts) of bodies of one message, through the whole decoder."""
    apis = api(message(), layout) if side else api(layout)
    decoder = Decoder({(KEY, side): wanted}, apis)
    numbers = [version] * len(bodies) if isinstance(version, int) else version
    found = decoder.decode(*laid(bodies), np.array([decoder.table[KEY, v, side] for v in numbers], np.int32))
    made = found.messages.get((KEY, side))
    if made is None:
        return found, []
    made.batch.validate(full=True)
    return found, made.batch.to_pylist()


def laid(bodies: tuple[bytes, ...] | list[bytes]) -> tuple[Any, Any, Any]:
    """(bytes, begin, end) of bodies one after another, as a decoder takes them."""
    ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
    data = np.frombuffer(b"".join(bodies) or b"\0", np.uint8)
    return data, ends - np.array([len(body) for body in bodies], np.int64), ends


def pack(form: str, *values: Any) -> bytes:
    """Big-endian, as everything is on the wire."""
    return struct.pack(">" + form, *values)
