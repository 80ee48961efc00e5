"""The schema as Lua tables: what the walker in `lua/` reads. One ProtoField for each path of each API.

Request and response share a field where both have its path; where their types cannot be one, the request's is called
`kdissect.<api>.request.<path>`. Integers of several widths become the widest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kdissect.schema import configurations, index
from kdissect.schema.masking import has_secrets
from kdissect.schema.model import FORWARDED, NEVER, REQUEST, RESPONSE, Api, Field, Message
from kdissect.schema.names import snake_case

PREFIX = "kdissect"
_WIDTHS = ("int8", "int16", "int32", "int64")
_SIGNED = {"uint16": "int32", "uint32": "int64"}
LARGEST_NUMBER = 1 << 53
"""Lua 5.2 has doubles only."""


@dataclass(slots=True)
class _Shown:
    """A ProtoField: what it is called, its type, what its special values mean."""

    display: str
    kind: str
    doc: str
    meanings: dict[int, str] = field(default_factory=dict)


def quoted(text: str) -> str:
    """A text as a Lua string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def field_type(item: Field) -> tuple[str, str]:
    """A field's type in Wireshark ("count" of an array, "group" of a struct) and what its name ends with: credentials
    and records are shown as their sizes."""
    kind = (item.element if item.kind == "array" else item.kind) or ""
    if item.secret or kind == "records":
        return "uint32", "_bytes"
    if kind == "struct":
        return ("count" if item.kind == "array" else "group"), ""
    return kind, ""


def _common(first: str, second: str) -> str | None:
    if first == second:
        return first
    first, second = _SIGNED.get(first, first), _SIGNED.get(second, second)
    if first in _WIDTHS and second in _WIDTHS:
        return max(first, second, key=_WIDTHS.index)
    return None


def _prefix(name: str) -> str:
    return f"{PREFIX}.{snake_case(name)}"


class FieldNames:
    """Every ProtoField by its name, and which one a field of the schema is shown as."""

    def __init__(self, schema: index.Index) -> None:
        self.shown: dict[str, _Shown] = {}
        self._apart: set[str] = set()
        for api in schema.apis.values():
            for side in (RESPONSE, REQUEST):
                for fields in _layouts(api.message(side)):
                    self._collect(_prefix(api.name), fields, side)
        for name in held_messages(schema):
            self._collect(_prefix(name), schema.payloads[name].fields, RESPONSE)
        self.number = {name: i + 1 for i, name in enumerate(self.shown)}

    def name(self, path: str, item: Field, side: int) -> str:
        """The display filter name of a field whose dotted path, `kdissect.<api>` in front, is `path`."""
        name = path + field_type(item)[1]
        if side == REQUEST and name in self._apart:
            root, api, rest = name.split(".", 2)
            return f"{root}.{api}.request.{rest}"
        return name

    def _collect(self, above: str, fields: Iterable[Field], side: int) -> None:
        for item in fields:
            path = f"{above}.{item.snake}"
            kind, _ = field_type(item)
            name = self.name(path, item, side)
            known = self.shown.get(name)
            if known is not None:
                both = _common(known.kind, kind)
                if both is None:
                    self._apart.add(name)
                    name = self.name(path, item, side)
                    known = self.shown.get(name)
                else:
                    known.kind = both
            if known is None:
                known = self.shown[name] = _Shown(item.name, kind, item.doc)
            known.meanings.update({k: v for k, v in item.values if isinstance(k, int) and abs(k) < LARGEST_NUMBER})
            self._collect(path, item.fields, side)


def held_messages(schema: index.Index) -> list[str]:
    """Names of the messages that bytes of other messages hold, whole requests and responses apart."""
    found: dict[str, None] = {}

    def look(fields: Iterable[Field]) -> None:
        for item in fields:
            if item.holds in schema.payloads:
                found[str(item.holds)] = None
            look(item.fields)

    for api in schema.apis.values():
        look(api.request.fields)
        look(api.response.fields)
    return list(found)


def _layouts(message: Message) -> list[tuple[Field, ...]]:
    return [message.fields, *(variant.fields for variant in message.variants)]


def _meaning(field: _Shown, name: str) -> str:
    if field.display == "ErrorCode" or name.endswith("error_code"):
        return "ERRORS"
    if not field.meanings or field.kind not in _WIDTHS:
        return "nil"
    return "{" + ",".join(f"[{k}]={quoted(v)}" for k, v in sorted(field.meanings.items())) + "}"


def _fields(names: FieldNames, above: str, fields: Iterable[Field], side: int) -> str:
    return "{" + ",".join("{" + ",".join(_parts(names, above, item, side)) + "}" for item in fields) + "}"


def _parts(names: FieldNames, above: str, item: Field, side: int) -> Iterator[str]:
    """The parts of one field's table; what they mean stands in `lua/compiler.lua`."""
    path = f"{above}.{item.snake}"
    yield f"n={quoted(item.snake)},d={quoted(item.name)},i={names.number[names.name(path, item, side)]}"
    yield f"t={quoted(item.kind)}"
    if item.element:
        yield f"e={quoted(item.element)}"
    if item.versions.first:
        yield f"a={item.versions.first}"
    if item.versions.last != NEVER:
        yield f"b={item.versions.last}"
    if item.nullable.first != NEVER:
        yield f"na={item.nullable.first},nb={item.nullable.last}"
    if item.tag is not None:
        yield f"g={item.tag}"
    if item.flexible is not None:
        yield "x=1"
    if item.secret:
        yield "s=1"
    if item.secret_by:
        yield f"by={quoted(snake_case(item.secret_by))}"
    if item.holds:
        yield f"h={quoted(item.holds)}"
    null = dict(item.values).get("null")
    if null:
        yield f"nul={quoted(f' ({null})')}"
    if item.fields:
        yield f"f={_fields(names, path, item.fields, side)}"


def _flexible(message: Message) -> int:
    return message.flexible.first if message.flexible.first <= message.flexible.last else NEVER


def _side(names: FieldNames, api: Api, side: int) -> str:
    message = api.message(side)
    above = _prefix(api.name)
    variants = ",".join(
        f"{{a={one.versions.first},b={one.versions.last},f={_fields(names, above, one.fields, side)}}}"
        for one in message.variants
    )
    header = "".join(f",h={{a={of.first},b={of.last},v={version}}}" for of, version in message.headers)
    secrets = ",z=1" if has_secrets(message.fields) else ""
    secrets += ",e=1" if any(item.holds in FORWARDED for item in message.fields) else ""
    fields = _fields(names, above, message.fields, side)
    return f"{{x={_flexible(message)}{secrets}{header},va={{{variants}}},f={fields}}}"


def tables(schema: index.Index) -> tuple[str, FieldNames]:
    """Lua source that defines ERRORS, OPEN, FIELDS, APIS and PAYLOADS, and the names of its fields. OPEN: names of the
    configurations whose values are shown."""
    names = FieldNames(schema)
    errors = ",".join(f"[{code}]={quoted(name)}" for code, name in index.error_names().items())
    fields = ",\n".join(
        f"{{{quoted(name)},{quoted(shown.display)},{quoted(shown.kind)},{_meaning(shown, name)},{quoted(shown.doc)}}}"
        for name, shown in names.shown.items()
    )
    apis = ",\n".join(
        f"[{key}]={{n={quoted(api.name)},a={api.request.versions.first},b={api.request.versions.last},"
        f"q={_side(names, api, REQUEST)},r={_side(names, api, RESPONSE)}}}"
        for key, api in schema.apis.items()
    )
    payloads = ",\n".join(
        f"{name}={{a={message.versions.first},b={min(message.versions.last, NEVER)},x={_flexible(message)},"
        f"f={_fields(names, _prefix(name), message.fields, RESPONSE)}}}"
        for name in held_messages(schema)
        for message in (schema.payloads[name],)
    )
    known = ",".join(
        f"[{quoted(name)}]=1" for name in configurations.load_configurations() if configurations.is_open_config(name)
    )
    lua = f"local ERRORS={{{errors}}}\nlocal OPEN={{{known}}}\nlocal FIELDS={{\n{fields}}}\nlocal APIS={{\n{apis}}}\n"
    return f"{lua}local PAYLOADS={{\n{payloads}}}\n", names
