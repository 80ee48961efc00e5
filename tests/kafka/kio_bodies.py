"""Bodies that kio encodes, for every API and version it has, with what they should decode to.

kio generates its classes from Kafka's own message definitions; its fields stand in the order of those, so that they
pair with ours by position (tagged ones by tag). Values are random, by a seed: extremes, empty and longer arrays, nulls,
tags there and not.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import functools
import importlib
import io
import pkgutil
import random
import sys
import types
import typing
import uuid
from typing import Any

import kio.schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from kdissect.schema import index
from kdissect.schema.model import REQUEST, RESPONSE, Field
from kdissect.schema.names import snake_case

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
ZERO_UUID = "A" * 22
SIDES = {"request": REQUEST, "response": RESPONSE}
TEXTS = ("", "a", "orders", "é€", "x" * 200, "ssl.key.password", "cleanup.policy")
OPEN_NAMES = ("cleanup.policy",)
"""Of TEXTS those that are configurations whose values may be shown."""
BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}

Kind = tuple[int, int, int]
"""(API key, version, side)."""


@functools.cache
def classes() -> dict[Kind, Any]:
    """kio's classes by what they encode."""
    found = {}
    for module in pkgutil.walk_packages(kio.schema.__path__, "kio.schema."):
        parts = module.name.split(".")
        if len(parts) == 5 and parts[4] in SIDES:
            loaded = importlib.import_module(module.name)
            for item in vars(loaded).values():
                kind = getattr(item, "__type__", None) if dataclasses.is_dataclass(item) else None
                if kind is not None and kind.name == parts[4] and item.__module__ == module.name:
                    found[int(item.__api_key__), int(item.__version__), SIDES[parts[4]]] = item
    return dict(sorted(found.items()))


def generate(kind: Kind, seed: int) -> tuple[bytes, dict[str, Any]]:
    """(body, what it decodes to: the fields of its version only)."""
    key, version, side = kind
    message = _Maker(random.Random(f"{kind} {seed}")).entity(classes()[kind])
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue(), _expected(message, index.load().apis[key].message(side).fields, version)


@functools.cache
def _types(entity: Any) -> dict[str, Any]:
    return typing.get_type_hints(entity, vars(sys.modules[entity.__module__]))


class _Maker:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def entity(self, of: Any) -> Any:
        values = {}
        for item in dataclasses.fields(of):
            default = item.default is not dataclasses.MISSING
            if not ("tag" in item.metadata and default and self.chance.random() < 0.4):
                values[item.name] = self.value(item, _types(of)[item.name])
        return of(**values)

    def value(self, item: Any, kind: Any) -> Any:
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
            options = [option for option in typing.get_args(kind) if option is not type(None)]
            if len(options) < len(typing.get_args(kind)) and self.chance.random() < 0.3:
                return None
            kind = options[0]
        scalar = item.metadata.get("kafka_type")
        if typing.get_origin(kind) is tuple:
            of = typing.get_args(kind)[0]
            return tuple(
                self.scalar(scalar) if scalar else self.entity(of) for _ in range(self.chance.choice((0, 1, 2, 5)))
            )
        return self.scalar(scalar) if scalar else self.entity(kind)

    def scalar(self, kind: str) -> Any:
        chance = self.chance
        if kind in BITS:
            top = 2 ** BITS[kind]
            return chance.choice((chance.randrange(-top, top), chance.randrange(-2, 3), -top, top - 1))
        if kind.startswith("uint"):
            return chance.randrange(2 ** int(kind[4:]))
        if kind.startswith("timedelta"):
            return chance.randrange(-(2**31), 2**31) * MILLISECOND
        made: dict[str, Any] = {
            "float64": lambda: chance.choice((1.5, -2.25e300, 0.1)),
            "bool": lambda: chance.random() < 0.5,
            "string": lambda: chance.choice(TEXTS),
            "uuid": lambda: uuid.UUID(int=chance.randrange(1, 2**128)),
            "bytes": lambda: chance.randbytes(chance.choice((0, 3, 200))),
            "records": lambda: chance.randbytes(chance.choice((0, 3, 200))),
            "error_code": lambda: chance.choice(list(ErrorCode)),
            "datetime_i64": lambda: EPOCH + chance.randrange(2**31) * datetime.timedelta(seconds=1),
        }
        return made[kind]()


def _expected(message: Any, fields: tuple[Field, ...], version: int) -> dict[str, Any]:
    theirs = list(dataclasses.fields(message))
    ours = [item for item in fields if version in item.versions]
    pairs = [
        *zip([i for i in theirs if "tag" not in i.metadata], [i for i in ours if version not in i.tagged], strict=True),
        *zip(
            sorted((i for i in theirs if "tag" in i.metadata), key=lambda i: i.metadata["tag"]),
            sorted((i for i in ours if version in i.tagged), key=lambda i: i.tag or 0),
            strict=True,
        ),
    ]  # fmt: skip
    out: dict[str, Any] = {}
    for their, our in pairs:
        name = snake_case(our.name)
        value = getattr(message, their.name)
        if our.kind == "array":
            out[name] = None if value is None else [_one(item, our, our.element, version) for item in value]
        elif our.kind == "records":
            out[name + "_bytes"] = None if value is None else len(value)
        else:
            out[name] = _one(value, our, our.kind, version)
            if our.secret or our.secret_by:
                raw = value.encode() if isinstance(value, str) else value
                out[name + "_bytes"] = None if raw is None else len(raw)
                if our.secret or out[snake_case(our.secret_by or "")] not in OPEN_NAMES:
                    out[name] = None
    return out


def _one(value: Any, item: Field, kind: str | None, version: int) -> Any:
    """kio's value as ours: it has None for the null UUID and for times of -1."""
    if kind == "struct":
        return None if value is None else _expected(value, item.fields, version)
    if kind == "uuid":
        return ZERO_UUID if value is None else base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
    if value is None and kind in ("int32", "int64"):
        return -1
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    return value.value if isinstance(value, ErrorCode) else value
