"""The slow, exact decoder: one body, every byte of it explained, from the same schema that the kernels run.

`walk` gives the values (`Shape` says under which keys) and, where asked, a `Piece` for every run of bytes. Together the
pieces cover the body from its first byte to the last that could be read, in order, each byte once. A struct in an array
has a piece without bytes, for its place in the tree.

A body that does not fit raises WalkError, which says where (path, byte, line of the schema), what was needed, and holds
everything read so far. Work is bounded by the body: a count is never larger than the bytes that are left, not even for
elements of no size. The first element that is not there ends it. Depth is bounded by the schema, which has no cycles.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

from kdissect.problems import KdissectError
from kdissect.schema.configurations import is_open_config
from kdissect.schema.model import SCALARS, Field, Message
from kdissect.schema.names import snake_case
from kdissect.schema.shape import TAGS_KEY, Shape, default_of, keys_of

_FORMATS = {
    "bool": "?", "int8": "b", "int16": ">h", "uint16": ">H", "int32": ">i", "uint32": ">I", "int64": ">q",
    "float64": ">d",
}  # fmt: skip
_UNPACK = {kind: struct.Struct(form).unpack_from for kind, form in _FORMATS.items()}
MOST_PIECES = 100_000
"""Pieces of a body that are explained: more than anybody reads, and they take some 2 kB each until they are printed."""
VARINT_BYTES = 5
"""An unsigned varint of 32 bits has five bytes at most (KIP-482)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a body. `offset` counts from the body's first byte."""

    offset: int
    length: int
    path: str
    """`topics[0].partitions[2].fetch_offset`"""
    kind: str
    value: Any
    """As decoded; of an array its count, of a credential None."""
    source: str
    """File and line of the schema."""
    item: Field | None = None
    """None for what is no field: a tag buffer and its tags."""
    note: str = ""
    size: int = 0
    """Of a text: bytes of its value, the last ones of the piece."""


class WalkError(KdissectError, ValueError):
    """A body does not fit its layout. `values` and `pieces` are what was read before `at`."""

    def __init__(self, text: str, path: str, at: int, source: str) -> None:
        super().__init__(f"{path or 'body'} ({source}) at byte {at}: {text}")
        self.text = text
        self.path = path
        self.at = at
        self.source = source
        self.values: dict[str, Any] = {}
        self.pieces: list[Piece] = []


class TooMany(WalkError):
    """A body of more than `MOST_PIECES` pieces that were to be explained; `pieces` are the first ones."""


@dataclass(slots=True)
class Walked:
    """The content of a body. `end` is the first byte behind its last field."""

    values: dict[str, Any]
    pieces: list[Piece]
    end: int


def walk(
    message: Message,
    shape: Shape,
    version: int,
    data: bytes,
    *,
    fields: tuple[Field, ...] | None = None,
    offset: int = 0,
    pieces: bool = False,
    exact: bool = True,
) -> Walked:
    """Decode data[offset:] as `version` of `message`, in its main layout or the one given as `fields`.

    With `exact` the body must end where the layout ends. Raises WalkError where it does not fit.
    """
    walker = _Walker(message, version, data, offset, pieces)
    values: dict[str, Any] = shape.absent()
    try:
        walker.struct(message.fields if fields is None else fields, shape, "", values)
        if exact and walker.at != len(data):
            raise walker.error(f"{_bytes(len(data) - walker.at)} left over behind the last field", "", 0)
    except WalkError as error:
        error.values = values
        error.pieces = walker.pieces
        raise
    return Walked(values, walker.pieces, walker.at)


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"


class _Walker:
    def __init__(self, message: Message, version: int, data: bytes, at: int, explain: bool) -> None:
        self.file = message.file
        self.version = version
        self.flexible = version in message.flexible
        self.data = data
        self.at = at
        self.limit = len(data)
        self.explain = explain
        self.pieces: list[Piece] = []

    def error(self, text: str, path: str, line: int) -> WalkError:
        return WalkError(text, path, self.at, f"{self.file}:{line}" if line else self.file)

    def piece(
        self, start: int, path: str, kind: str, value: Any, item: Field | None, line: int = 0, note: str = "",
        size: int = 0,
    ) -> None:  # fmt: skip
        """Explain the bytes from `start` to here; a tag buffer has no line of its own."""
        if self.explain:
            source = f"{self.file}:{line}" if line else self.file
            if len(self.pieces) >= MOST_PIECES:
                raise TooMany(f"behind the first {MOST_PIECES:,} fields nothing is listed", path, start, source)
            self.pieces.append(Piece(start, self.at - start, path, kind, value, source, item, note, size))

    # what is there ----------------------------------------------------------------------------------------------------

    def split(self, fields: tuple[Field, ...]) -> tuple[list[Field], dict[int, Field]]:
        """This version's plain fields in wire order, and its tagged ones by tag."""
        plain, tagged = [], {}
        for item in fields:
            if self.version in item.versions:
                if item.tag is not None and self.version in item.tagged:
                    tagged[item.tag] = item
                else:
                    plain.append(item)
        return plain, tagged

    def compact(self, item: Field) -> bool:
        return self.flexible if item.flexible is None else self.version in item.flexible

    # reading ----------------------------------------------------------------------------------------------------------

    def advance(self, count: int, path: str, line: int, label: str) -> int:
        """Move over `count` bytes; returns where they start."""
        start = self.at
        if count > self.limit - start:
            left = self.limit - start
            raise self.error(f"{label} needs {_bytes(count)}, {left or 'none'} left", path, line)
        self.at += count
        return start

    def varint(self, path: str, line: int, label: str) -> int:
        start, value = self.at, 0
        for index in range(VARINT_BYTES):
            byte = self.data[self.advance(1, path, line, label)]
            value |= (byte & 127) << 7 * index
            if byte < 128:
                return value
        self.at = start
        raise self.error(f"{label} is a variable-length integer of more than {VARINT_BYTES} bytes", path, line)

    def length(self, item: Field, kind: str, path: str, label: str, nullable: bool) -> int:
        """A length or count, -1 for null."""
        start = self.at
        if self.compact(item):
            size = self.varint(path, item.line, label) - 1
        else:
            form = "int16" if kind == "string" else "int32"
            size = _UNPACK[form](self.data, self.advance(SCALARS[form], path, item.line, label))[0]
        if size < 0 and not (size == -1 and nullable):
            self.at = start
            raise self.error("null, which may not be" if size == -1 else f"{label} is {size}", path, item.line)
        return size

    # values -----------------------------------------------------------------------------------------------------------

    def struct(self, fields: tuple[Field, ...], shape: Shape, path: str, into: dict[str, Any]) -> None:
        plain, tagged = self.split(fields)
        for item in plain:
            self.field(item, shape, path, into)
        if self.flexible:
            self.tags(tagged, shape, path, into)

    def field(self, item: Field, shape: Shape, above: str, into: dict[str, Any]) -> None:
        name = snake_case(item.name)
        path = f"{above}.{name}" if above else name
        nullable = self.version in item.nullable
        if item.kind == "struct":
            into[name] = None
            if nullable and not self.present(item, path):
                return
            into[name] = inner = shape.below[name].absent()
            self.struct(item.fields, shape.below[name], path, inner)
        elif item.kind == "array":
            self.array(item, shape, name, path, nullable, into)
        elif item.kind in SCALARS:
            into[name] = self.scalar(item, item.kind, path)
        else:
            self.text(item, path, nullable, into)

    def present(self, item: Field, path: str) -> bool:
        """The byte before a nullable struct: 1, or -1 for null (KIP-893)."""
        start = self.advance(1, path, item.line, "the mark of a nullable struct")
        mark = self.data[start]
        if mark not in (1, 255):
            self.at = start
            raise self.error(f"the mark of a nullable struct is {mark}, neither 1 nor 255", path, item.line)
        self.piece(start, path, item.type_name or "struct", None, item, item.line, "null" if mark == 255 else "present")
        return mark == 1

    def array(self, item: Field, shape: Shape, name: str, path: str, nullable: bool, into: dict[str, Any]) -> None:
        start = self.at
        element = item.element or ""
        count = self.length(item, "array", path, "the count", nullable)
        kind = f"[]{item.type_name or element}"
        if count < 0:
            into[name] = None
            self.piece(start, path, kind, None, item, item.line, "null")
            return
        room = self.limit - self.at
        if count > room:
            self.at = start
            raise self.error(f"a count of {count}, which {_bytes(room)} cannot hold", path, item.line)
        self.piece(start, path, kind, count, item, item.line)
        out: list[Any] = []
        into[name] = out
        below = shape.below.get(name)
        for index in range(count):
            here = f"{path}[{index}]"
            if below is not None:
                self.piece(self.at, here, item.type_name or "struct", None, None, item.line)
                inner = below.absent()
                out.append(inner)
                self.struct(item.fields, below, here, inner)
            elif element in SCALARS:
                out.append(self.scalar(item, element, here))
            else:
                out.append(self.one_text(item, element, here, False)[0])

    def scalar(self, item: Field, kind: str, path: str) -> Any:
        start = self.advance(SCALARS[kind], path, item.line, kind)
        value: Any
        if kind == "uuid":
            import base64

            value = base64.urlsafe_b64encode(self.data[start : self.at]).rstrip(b"=").decode()
        else:
            value = _UNPACK[kind](self.data, start)[0]
        self.piece(start, path, kind, value, item, item.line)
        return value

    def one_text(self, item: Field, kind: str, path: str, nullable: bool) -> tuple[Any, int | None]:
        """A string, bytes or records with its length; text that is no UTF-8 shows U+FFFD."""
        start = self.at
        size = self.length(item, kind, path, "the length", nullable)
        if size < 0:
            self.piece(start, path, kind, None, item, item.line, "null")
            return None, None
        begin = self.advance(size, path, item.line, kind)
        raw = bytes(self.data[begin : self.at])
        value = raw.decode("utf-8", "replace") if kind == "string" else raw
        shown, note = (None, "hidden") if item.secret else (value, "")
        self.piece(start, path, kind, shown, item, item.line, note, size)
        return value, size

    def text(self, item: Field, path: str, nullable: bool, into: dict[str, Any]) -> None:
        keys = keys_of(snake_case(item.name), item)
        value, size = self.one_text(item, item.kind, path, nullable)
        if len(keys) == 2:
            beside = into.get(snake_case(item.secret_by)) if item.secret_by else None
            if item.secret or (item.secret_by and not is_open_config(beside or "")):
                value = None
                if self.explain and size is not None:
                    self.pieces[-1] = replace(self.pieces[-1], value=None, note="hidden")
            into[keys[0]] = value
        into[keys[-1]] = value if keys[-1] == keys[0] and item.kind != "records" else size

    def tags(self, tagged: dict[int, Field], shape: Shape, above: str, into: dict[str, Any]) -> None:
        """The buffer of tagged fields at the end of a flexible struct (KIP-482)."""
        path = f"{above}.{TAGS_KEY}" if above else TAGS_KEY
        start = self.at
        count = self.varint(path, 0, "the count of tagged fields")
        if count * 2 > self.limit - self.at:  # a tag and a size take two bytes at least
            room = self.limit - self.at
            self.at = start
            raise self.error(f"{count} tagged fields, which {_bytes(room)} cannot hold", path, 0)
        self.piece(start, path, "tags", count, None)
        for item in tagged.values():
            into[snake_case(item.name)] = default_of(item, shape, self.version)
        seen: set[int] = set()
        for index in range(count):
            here = f"{path}[{index}]"
            start = self.at
            tag = self.varint(here, 0, "a tag")
            size = self.varint(here, 0, "the size of a tagged field")
            if size > self.limit - self.at:
                left = self.limit - self.at
                raise self.error(f"tag {tag} needs {_bytes(size)}, {left or 'none'} left", here, 0)
            found = tagged.get(tag)
            if found is None:
                self.piece(start, here, "tag", tag, None, note=f"unknown, {_bytes(size)}")
                start = self.advance(size, here, 0, "a tagged field")
                raw = bytes(self.data[start : self.at])
                self.piece(start, f"{here}.bytes", "bytes", raw, None)
                if into.get(TAGS_KEY) is None:
                    into[TAGS_KEY] = []
                into[TAGS_KEY].append({"tag": tag, "bytes": raw})
                continue
            if tag in seen:
                self.at = start
                raise self.error(f"tag {tag} comes twice", here, found.line)
            seen.add(tag)
            self.piece(start, here, "tag", tag, None, found.line, f"{snake_case(found.name)}, {_bytes(size)}")
            outer, self.limit = self.limit, self.at + size
            self.field(found, shape, above, into)
            if self.at != self.limit:
                left = self.limit - self.at
                raise self.error(f"tag {tag} is {_bytes(left)} longer than its value", here, found.line)
            self.limit = outer
