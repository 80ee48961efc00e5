"""The meaning of a value, in words for people: constants from the schema, error names, times, sets of operations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from kdissect.schema.index import error_name
from kdissect.schema.model import Field
from kdissect.schema.shape import ZERO_UUID
from kdissect.schema.walker import Piece

HIDDEN = "a credential, not shown"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253402300799999
"""The end of year 9999, as far as calendars go."""
_OPERATIONS = {
    3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe", 9: "cluster action",
    10: "describe configs", 11: "alter configs", 12: "idempotent write", 13: "create tokens", 14: "describe tokens",
    15: "two-phase commit",
}  # fmt: skip
"""Bits of a set of authorized operations: Kafka's AclOperation codes."""
_EMPTY: dict[bool, tuple[Any, ...]] = {True: (0,), False: ("", b"")}
_NOT_ASKED = -(2**31)


def meaning(piece: Piece) -> str:
    """The meaning of a piece's value, else the purpose of its field; empty where the names say it all."""
    if piece.note == "hidden":
        return HIDDEN
    item = piece.item
    if item is None:
        return piece.note
    constant = _constant(item, piece.value, piece.note, piece.kind.startswith("[]"))
    return constant or (piece.note if piece.note == "null" else "") or item.doc


def _constant(item: Field, value: Any, note: str, as_array: bool) -> str:
    """The meaning of this very value; of an array as a whole only null and empty have one."""
    for known, text in item.values:
        if known == note == "null" or (known == "empty" and value in _EMPTY[as_array]):
            return text
        if value == known and not as_array:
            return text
    if as_array:
        return ""
    if item.kind == "int16" and item.name.endswith("ErrorCode"):
        return error_name(value) if value else ""
    if value == ZERO_UUID:
        return "none"
    if item.kind == "int64" and item.name.endswith(("Timestamp", "TimestampMs")):
        return instant(value) or ("none" if value == -1 else "")
    if item.kind == "int32" and item.name.endswith("AuthorizedOperations"):
        return operations(value)
    return ""


def instant(milliseconds: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC; empty for what is no time in years 1970-9999."""
    if not 0 <= milliseconds <= _LAST_MS:
        return ""
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def operations(bits: int) -> str:
    """A set of authorized operations in words (KIP-430)."""
    if bits == _NOT_ASKED:
        return "not asked for"
    names = [_OPERATIONS.get(bit, f"operation {bit}") for bit in range(32) if bits >> bit & 1]
    return ", ".join(names) or "none"
