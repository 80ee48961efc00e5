"""What kdissect's `messages` say, in the shape in which the plugin shows it: values by display filter name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kdissect.schema import index
from kdissect.schema.model import Api, Field
from kdissect.schema.names import snake_case
from kdissect.schema.shape import default_of, shape_of
from kdissect.wireshark.lua_tables import PREFIX, FieldNames

Values = dict[str, list[Any]]


@cache
def names() -> FieldNames:
    """The plugin's field names."""
    return FieldNames(index.load())


def values(api: Api, side: int, version: int, row: Mapping[str, Any]) -> Values:
    """The values of one message, as rows of `messages` have them, by name, in wire order of each name."""
    out: defaultdict[str, list[Any]] = defaultdict(list)
    message = api.message(side)
    _collect(f"{PREFIX}.{snake_case(api.name)}", message.fields, row, version, side, out, shape_of(message))
    return dict(out)


def _collect(
    above: str, fields: Iterable[Field], row: Mapping[str, Any], version: int, side: int, out: Any, shape: Any
) -> None:
    for item in fields:
        if version not in item.versions:
            continue
        path = f"{above}.{item.snake}"
        name = names().name(path, item, side)
        kind = item.element if item.kind == "array" else item.kind
        if item.secret or kind == "records":
            size = row.get(f"{item.snake}_bytes")
            if size is not None:
                out[name].append(size)
            continue
        value = row.get(item.snake)
        if item.tag is not None and version in item.tagged and value == default_of(item, shape, version):
            continue  # an absent tagged field has its default in the table, and no bytes in the packet
        if value is None:
            continue
        if item.kind == "struct":
            _collect(path, item.fields, value, version, side, out, shape.below[item.snake])
        elif item.kind == "array" and kind == "struct":
            out[name].append(len(value))
            for one in value:
                _collect(path, item.fields, one, version, side, out, shape.below[item.snake])
        elif item.kind == "array":
            out[name] += value
        else:
            out[name].append(value)


def shown(kind: str, value: Any) -> str:
    """A value as tshark's PDML shows it."""
    if kind == "bool":
        return "1" if value else "0"
    if kind == "float64":
        return repr(float(value))
    if isinstance(value, bytes):
        return value.hex()
    if kind == "string":  # Wireshark ends a text at a NUL; reading XML makes spaces of line ends and tabs
        return str(value).partition("\0")[0].replace("\n", " ").replace("\t", " ")
    return str(value)


def as_shown(kind: str, text: str) -> str:
    """A value of PDML, likewise."""
    if kind == "bool":
        return {"True": "1", "False": "0"}.get(text, text)
    if kind == "float64":
        return repr(float(text))
    return text.replace(":", "") if kind == "bytes" else text
