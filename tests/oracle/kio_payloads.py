"""Consumer protocol and principal payloads by kio: what the bytes inside of messages hold, read by somebody else."""

from __future__ import annotations

import dataclasses
import importlib
import io
import struct
from collections.abc import Iterator
from typing import Any

PAYLOADS = {
    "ConsumerProtocolSubscription": range(4),
    "ConsumerProtocolAssignment": range(4),
    "DefaultPrincipalData": range(1),
}


def class_of(name: str, version: int) -> Any:
    folder = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
    return getattr(importlib.import_module(f"kio.schema.{folder}.v{version}.data"), name)


def read(name: str, data: bytes) -> Any | None:
    """kio's entity, None where the bytes are something else (or of a version that it does not know)."""
    from kio.serial import entity_reader

    try:
        version = struct.unpack_from(">h", data)[0]
        if version not in PAYLOADS[name]:
            return None
        entity, size = entity_reader(class_of(name, version))(data, 2)
    except Exception:  # kio fails in its own ways
        return None
    return entity if size == len(data) - 2 else None


def write(entity: Any) -> bytes:
    """A payload behind its version."""
    from kio.serial import entity_writer

    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return struct.pack(">h", entity.__version__) + out.getvalue()


def differences(entity: Any, ours: Any, path: str) -> Iterator[str]:
    """Every place where a decoded payload is not what kio read; fields of newer versions are null."""
    if entity is None or ours is None:
        if (entity is None) != (ours is None):
            yield f"{path}: kio {entity!r}, ours {ours!r}"
    elif dataclasses.is_dataclass(entity):
        names = {field.name.rstrip("_") for field in dataclasses.fields(entity)}
        for field in dataclasses.fields(entity):
            name = field.name.rstrip("_")
            yield from differences(getattr(entity, field.name), ours[name], f"{path}.{name}")
        for name, value in ours.items():
            if name not in names and name != "version" and value is not None:
                yield f"{path}.{name}: {value!r}, which is not in this version"
    elif isinstance(entity, tuple):
        if not isinstance(ours, list) or len(ours) != len(entity):
            yield f"{path}: kio {len(entity)} elements, ours {ours!r}"
            return
        for at, (one, other) in enumerate(zip(entity, ours, strict=True)):
            yield from differences(one, other, f"{path}[{at}]")
    elif entity != ours:
        yield f"{path}: kio {entity!r}, ours {ours!r}"
