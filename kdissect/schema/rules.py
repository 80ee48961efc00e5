"""Kafka's rules of encoding for one version of one message: what is there, how lengths are written, how small it can
be.

Since KIP-482 a message's flexible versions write lengths and counts as unsigned varints of n + 1, and end every struct
with a buffer of tagged fields. Nullable structs begin with a marker byte (KIP-893).
"""

from __future__ import annotations

from kdissect.schema import opcodes as k
from kdissect.schema.model import RESPONSE, SCALARS, Field, Message


class Rules:
    """The rules for `version` of `message`; `side` is REQUEST or RESPONSE."""

    def __init__(self, message: Message, side: int, version: int) -> None:
        self.message = message
        self.side = side
        self.version = version
        self.flexible = version in message.flexible

    def split(self, fields: tuple[Field, ...]) -> tuple[list[Field], list[Field]]:
        """(plain, tagged) fields of this version, in wire order."""
        here = [item for item in fields if self.version in item.versions]
        tagged = [item for item in here if item.tag is not None and self.version in item.tagged]
        if len(tagged) > k.MAX_KNOWN_TAGS:
            raise ValueError(f"{self.message.name}: more than {k.MAX_KNOWN_TAGS} tags in one struct")
        plain = [item for item in here if item not in tagged] if tagged else here
        return plain, tagged if self.flexible else []

    def compact(self, item: Field) -> bool:
        """Whether lengths of this field are varints."""
        return self.version in item.flexible if item.flexible is not None else self.flexible

    def form(self, item: Field, kind: str) -> int:
        """How the length of a string, bytes, records or array is written."""
        return k.COMPACT if self.compact(item) else k.SHORT_FORM if kind == "string" else k.LONG_FORM

    def nullable(self, item: Field) -> bool:
        """Whether the field may be null."""
        return self.version in item.nullable

    def is_error(self, item: Field) -> bool:
        """Whether it is one of the error codes that a response is judged by."""
        return self.side == RESPONSE and item.kind == "int16" and item.name.endswith("ErrorCode")

    def least(self, item: Field) -> int:
        """The fewest bytes that a field takes."""
        if item.kind in SCALARS:
            return SCALARS[item.kind]
        if item.kind == "struct":
            return 1 if self.nullable(item) else self.least_struct(item.fields)
        return self.form(item, item.kind)

    def least_struct(self, fields: tuple[Field, ...]) -> int:
        """The fewest bytes that a struct takes."""
        return sum(self.least(item) for item in self.split(fields)[0]) + self.flexible

    def exact(self, fields: tuple[Field, ...]) -> int | None:
        """Bytes of a struct of fixed size without error codes, else None."""
        if self.flexible:
            return None
        size = 0
        for item in self.split(fields)[0]:
            if item.kind in SCALARS and not self.is_error(item):
                size += SCALARS[item.kind]
            elif item.kind == "struct" and not self.nullable(item) and (inner := self.exact(item.fields)) is not None:
                size += inner
            else:
                return None
        return size

    def element(self, item: Field) -> tuple[int, int | None]:
        """(least, exact or None) bytes of an array's element."""
        if item.element == "struct":
            return self.least_struct(item.fields), self.exact(item.fields)
        if item.element in SCALARS:
            return SCALARS[item.element], SCALARS[item.element]
        return self.form(item, item.element or ""), None
