"""The wire format as data: what a parsed `.kmsg` file is made of.

A message (one direction of one API) is a tree of fields. Every field says in which versions it is on the wire, and in
which it may be null. A tagged one (KIP-482) also says from which version on and under which tag. Names are Kafka's own.
"""

from collections.abc import Iterator
from typing import NamedTuple

SCALARS: dict[str, int] = {
    "bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8, "uuid": 16,
}  # fmt: skip
"""Fixed-size types and their bytes on the wire (big endian)."""

VARIABLE = ("string", "bytes", "records")
"""Types with a length in front; compact (unsigned varint of length + 1) in flexible versions."""

PUBLIC, NAME, FREE = POLICIES = ("public", "name", "free")
"""What may be said of a field's text or bytes to others: see `grammar`."""

REQUEST, RESPONSE = 0, 1
FORWARDED = ("request", "response")
"""What `holds` says of the bytes in an Envelope (KIP-590), by side."""
PROTOCOL_TYPE, CONSUMER = "protocol_type", "consumer"
"""Where a struct says what its members speak, only the consumer protocol is read."""
DECODED = "_decoded"
"""Ends the name of what a field holds, decoded beside it."""
NEVER = 32767
"""Larger than any version: `first` of an empty range."""


class Versions(NamedTuple):
    """An inclusive range of versions; `last` is NEVER for an open end (`12+`), `first` is NEVER for none."""

    first: int = 0
    last: int = NEVER

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NONE = Versions(NEVER, -1)


class Field(NamedTuple):
    """One field of a struct, at every version.

    `kind` is a scalar, "string", "bytes", "records", "struct" or "array". An array's element is described by `element`
    (a scalar, string, bytes or "struct"); structs, and arrays of them, have `fields`. A tagged field has `tag` and is
    on the wire only in versions of `tagged` (all of `versions` in Kafka so far).
    """

    name: str
    kind: str
    versions: Versions = Versions()
    nullable: Versions = NONE
    tag: int | None = None
    tagged: Versions = NONE
    default: int | float | bool | str | None = None
    has_default: bool = False
    element: str | None = None
    type_name: str | None = None
    fields: tuple["Field", ...] = ()
    flexible: Versions | None = None
    secret: bool = False
    """A credential: its value is never shown, only its length."""
    secret_by: str | None = None
    """A credential unless the sibling field of this name holds that of a configuration which Kafka defines, and not as
    a password (`kdissect.schema.configurations`)."""
    policy: str = ""
    """One of POLICIES; "" for a credential, and for what nobody has judged, which is treated alike."""
    values: tuple[tuple[int | str, str], ...] = ()
    """What certain values mean: numbers, "null", "empty"."""
    holds: str | None = None
    """The message inside these bytes, behind an int16 with its version; "request" and "response" are whole ones."""
    former: tuple[str, ...] = ()
    """Names that older releases gave the same field."""
    doc: str = ""
    line: int = 0

    @property
    def snake(self) -> str:
        """The column name: Kafka's name in snake_case."""
        from kdissect.schema.names import snake_case

        return snake_case(self.name)


class Message(NamedTuple):
    """One direction of one API (or a header, or a payload such as ConsumerProtocolSubscription).

    `flexible` is the range in which strings and arrays are compact and structs end with tags. `variants` are other
    layouts that the same version number once had, to be tried when `fields` does not consume a body.
    """

    name: str
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]
    variants: tuple["Variant", ...] = ()
    file: str = ""
    headers: tuple[tuple[Versions, int], ...] = ()
    """Exceptions from Kafka's rule of header versions: (versions of the message, version of its header)."""

    def walk(self) -> Iterator[tuple[tuple[str, ...], Field]]:
        """Every field with its path of Kafka names, depth first."""
        yield from _walk((), self.fields)


class Variant(NamedTuple):
    """Another layout of the same version number, as some release had it."""

    versions: Versions
    release: str
    fields: tuple[Field, ...]


class Api(NamedTuple):
    """One API key: both directions, all versions that any release had."""

    key: int
    name: str
    request: Message
    response: Message
    listeners: tuple[str, ...] = ()
    former_names: tuple[str, ...] = ()
    removed: Versions = NONE
    """Versions that the newest release no longer accepts."""
    unstable: Versions = NONE
    doc: str = ""

    def message(self, side: int) -> Message:
        """The request or the response."""
        return self.response if side == RESPONSE else self.request


def _walk(path: tuple[str, ...], fields: tuple[Field, ...]) -> Iterator[tuple[tuple[str, ...], Field]]:
    for item in fields:
        here = (*path, item.name)
        yield here, item
        yield from _walk(here, item.fields)
