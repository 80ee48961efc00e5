"""Record batches byte by byte, for `show`: every run of bytes with path, type, value and meaning.

Rows are as those of `kdissect.schema.explain`: dicts of offset, length, path, type, value, meaning, schema, hidden.
Bytes that a codec wrote have no place in the frame: their offset is None. Keys, values and headers show as their size
unless revealed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from crc32c import crc32c

from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kafka.recordsets.codecs import CodecError, reader

Row = dict[str, Any]
Meaning = Callable[[int], str]

EXPLAINED_RECORDS = 1000
"""Records of one batch taken apart; more than anybody reads, and each costs some ten rows."""
EXPLAINED_BYTES = 16 << 20
"""Decompressed bytes of one batch that are looked at."""
SHOWN_BYTES = 256
"""Bytes of a revealed value that are shown."""
MAX_VARINT = 10

_FORMATS = {"int8": ">b", "int16": ">h", "int32": ">i", "uint32": ">I", "int64": ">q"}


class _Short(Exception):
    """The bytes end inside a field, or it has no end. Never leaves this module."""


class _Cursor:
    """Reads fields one behind the other and notes each as a row."""

    def __init__(self, data: bytes, start: int | None, reveal: bool, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.start = start
        """Offset in the frame of data[0]; None where the data came out of a codec."""
        self.reveal = reveal
        self.at = at
        self.end = len(data) if end is None else end
        self.rows: list[Row] = []

    def note(self, length: int, path: str, kind: str | None, value: str | None, meaning: str = "") -> None:
        """A row of the next `length` bytes."""
        offset = None if self.start is None else self.start + self.at
        self.rows.append(
            {
                "offset": offset, "length": length, "path": path, "type": kind, "value": value, "meaning": meaning,
                "schema": "", "hidden": kind in ("bytes", "string", "compressed") and not self.reveal,
            }
        )  # fmt: skip
        self.at += length

    def heading(self, path: str, kind: str) -> None:
        """A row without bytes, above the fields of what begins here."""
        self.note(0, path, kind, None)

    def fixed(self, path: str, kind: str, meaning: Meaning | None = None) -> int:
        """A big-endian number."""
        layout = struct.Struct(_FORMATS[kind])
        if layout.size > self.end - self.at:
            raise _Short(f"{path} needs {layout.size} bytes")
        (value,) = layout.unpack_from(self.data, self.at)
        self.note(layout.size, path, kind, str(value), meaning(value) if meaning else "")
        return int(value)

    def varint(self, path: str, meaning: Meaning | None = None) -> int:
        """A zigzag varint."""
        value = 0
        for size in range(MAX_VARINT):
            if self.at + size >= self.end:
                raise _Short(f"{path} has no end")
            byte = self.data[self.at + size]
            value |= (byte & 0x7F) << (7 * size)
            if byte < 0x80:
                value = (value >> 1) ^ -(value & 1)
                self.note(size + 1, path, "varint", str(value), meaning(value) if meaning else "")
                return value
        raise _Short(f"{path} is longer than {MAX_VARINT} bytes")

    def blob(self, path: str, size: int, kind: str = "bytes", meaning: str = "") -> bytes:
        """`size` bytes that belong to somebody: shown only when revealed. Nothing for a null (-1)."""
        if size > self.end - self.at:
            raise _Short(f"{path} needs {size} bytes")
        if size <= 0:
            return b""
        value = self.data[self.at : self.at + size]
        self.note(size, path, kind, _printable(value) if self.reveal else f"[{size} bytes]", meaning)
        return value

    def note_rest(self, path: str, meaning: str) -> None:
        """All that is left."""
        if self.at < self.end:
            self.note(self.end - self.at, path, None, None, meaning)


def _printable(value: bytes) -> str:
    more = f"… ({len(value)} bytes)" if len(value) > SHOWN_BYTES else ""
    try:
        return value[:SHOWN_BYTES].decode() + more if value.isascii() or not more else value[:SHOWN_BYTES].hex() + more
    except UnicodeDecodeError:
        return value[:SHOWN_BYTES].hex() + more


def _time(ms: int) -> str:
    if ms == -1:
        return "none"
    if not bl.FIRST_MS <= ms <= bl.LAST_MS:
        return "outside years 1-9999"
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms % 1000:03}Z"


def _attributes(magic: int) -> Meaning:
    def meaning(bits: int) -> str:
        codec = bits & bl.CODEC_MASK
        words = [bl.CODECS[codec] if codec < len(bl.CODECS) else f"unknown codec {codec}"]
        if magic:
            words.append("log append time" if bits & bl.LOG_APPEND_BIT else "create time")
        if magic == 2:
            named = (
                (bl.TRANSACTIONAL_BIT, "transactional"),
                (bl.CONTROL_BIT, "control"),
                (bl.DELETE_HORIZON_BIT, "horizon"),
            )
            words += [word for bit, word in named if bits & bit]
        return ", ".join(words)

    return meaning


def explain(data: bytes, path: str = "records", offset: int = 0, *, reveal: bool = False) -> list[Row]:
    """Every byte of a record set, in order; `offset` is where it begins in its frame. Nothing raises.

    Of a compressed batch the compressed bytes are one row, followed by what is inside, without offsets.
    """
    return list(_set(_Cursor(data, offset, reveal), path))


def expand(rows: list[Row], frame: bytes, *, reveal: bool = False) -> list[Row]:
    """The rows of an explained frame with every `records` field taken apart."""
    found: list[Row] = []
    for row in rows:
        if row["type"] != "records" or not row["value"] or row["value"] == "0 bytes":
            found.append(row)
            continue
        size = int(row["value"].split()[0])
        length = row["length"] - size
        start = row["offset"] + length
        found.append({**row, "length": length, "type": "size", "hidden": False})
        found += explain(frame[start : start + size], row["path"], start, reveal=reveal)
    return found


def _set(cursor: _Cursor, path: str) -> Iterator[Row]:
    """The batches and messages from the cursor on."""
    number = 0
    while cursor.at < cursor.end:
        here = f"{path}.batches[{number}]"
        left = cursor.end - cursor.at
        stated = struct.unpack_from(">qi", cursor.data, cursor.at) if left >= bl.PREFIX else (0, 0)
        magic = cursor.data[cursor.at + bl.MAGIC_AT] if left > bl.MAGIC_AT else -1
        if stated[0] == -1 and bl.PREFIX + stated[1] > left and magic == 0:
            cursor.note_rest(here, "padding of a down-converted response")
        elif left <= bl.MAGIC_AT:
            cursor.note_rest(here, "a batch cut short")
        elif stated[1] < bl.LEAST_LENGTH or magic > 2:
            cursor.note_rest(here, f"no batch: length {stated[1]}, magic {magic}")
        else:
            end = cursor.at + min(left, bl.PREFIX + stated[1])
            inner = _Cursor(cursor.data, cursor.start, cursor.reveal, cursor.at, end)
            inner.heading(here, "batch" if magic == 2 else "message")
            try:
                (_batch if magic == 2 else _message)(inner, here)
            except _Short as short:
                inner.end = end  # a record may have narrowed it
                inner.note_rest(here, f"cut short: {short}" if end - cursor.at < bl.PREFIX + stated[1] else str(short))
            cursor.at = end
            yield from inner.rows
        yield from cursor.rows
        cursor.rows = []
        number += 1


def _checksum(cursor: _Cursor, start: int, begin: int, checksum: Callable[[bytes], int]) -> Meaning:
    """The verdict on a checksum over the bytes from `start` + `begin` to the end of the batch."""
    length = struct.unpack_from(">i", cursor.data, start + 8)[0]

    def meaning(value: int) -> str:
        if start + bl.PREFIX + length > cursor.end:
            return "not checked: the batch is cut short"
        computed = checksum(cursor.data[start + begin : cursor.end])
        return "right" if computed == value else f"wrong: the bytes have {computed}"

    return meaning


def _batch(cursor: _Cursor, path: str) -> None:
    """A magic-2 batch (KIP-98)."""
    start = cursor.at
    base = cursor.fixed(f"{path}.base_offset", "int64")
    cursor.fixed(f"{path}.batch_length", "int32", lambda n: f"{bl.PREFIX + n} bytes in all")
    cursor.fixed(f"{path}.partition_leader_epoch", "int32")
    cursor.fixed(f"{path}.magic", "int8")
    cursor.fixed(f"{path}.crc", "uint32", _checksum(cursor, start, bl.CRC_FROM_V2, crc32c))
    attributes = cursor.fixed(f"{path}.attributes", "int16", _attributes(2))
    cursor.fixed(f"{path}.last_offset_delta", "int32", lambda delta: f"offset {base + delta}")
    first = cursor.fixed(f"{path}.base_timestamp", "int64", _time)
    largest = cursor.fixed(f"{path}.max_timestamp", "int64", _time)
    for name, kind in (("producer_id", "int64"), ("producer_epoch", "int16"), ("base_sequence", "int32")):
        cursor.fixed(f"{path}.{name}", kind, lambda value: "none" if value == -1 else "")
    count = cursor.fixed(f"{path}.records", "int32", lambda n: _number(n, "record"))
    appended = largest if attributes & bl.LOG_APPEND_BIT else None

    def records(inside: _Cursor) -> None:
        for i in range(count):
            if inside.at >= inside.end:
                break
            if i == EXPLAINED_RECORDS:
                inside.note_rest(f"{path}.records", f"{count - i} further records")
                break
            _record(inside, f"{path}.records[{i}]", base, first, appended, bool(attributes & bl.CONTROL_BIT))
        inside.note_rest(f"{path}.records", "bytes behind the last record")

    codec = attributes & bl.CODEC_MASK
    if codec == bl.NONE:
        records(cursor)
    else:
        _unpacked(cursor, f"{path}.records", codec, cursor.end - cursor.at, 2, records)


def _unpacked(
    cursor: _Cursor, path: str, codec: int, size: int, magic: int, explain_inside: Callable[[_Cursor], None]
) -> None:
    """Compressed bytes as one row, then what is in them."""
    packed = cursor.data[cursor.at : cursor.at + size]
    out, complaint = bytearray(), ""
    try:
        source, piece = reader(codec, memoryview(packed), magic), bytearray(1 << 16)
        while len(out) < EXPLAINED_BYTES and (done := source.readinto(memoryview(piece))):
            out += piece[:done]
    except CodecError as error:
        complaint = str(error)
    name = bl.CODECS[codec] if codec < len(bl.CODECS) else f"codec {codec}"
    more = "more than " if len(out) >= EXPLAINED_BYTES else ""
    cursor.note(size, path, "compressed", f"[{size} bytes]", complaint or f"{name} of {more}{len(out)} bytes")
    inside = _Cursor(bytes(out), None, cursor.reveal)
    try:
        explain_inside(inside)
    except _Short as short:
        inside.end = len(out)
        inside.note_rest(path, str(short))
    cursor.rows += inside.rows


def _sized(size: int) -> str:
    return "null" if size == -1 else _number(size, "byte")


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _record(cursor: _Cursor, path: str, base: int, first: int, appended: int | None, control: bool) -> None:
    """A magic-2 record."""
    cursor.heading(path, "record")
    length = cursor.varint(f"{path}.length", _sized)
    if not 0 <= length <= cursor.end - cursor.at:
        raise _Short(f"{path} needs {length} bytes")
    end = cursor.end
    cursor.end = cursor.at + length
    cursor.fixed(f"{path}.attributes", "int8")
    cursor.varint(f"{path}.timestamp_delta", lambda delta: _time(first + delta if appended is None else appended))
    cursor.varint(f"{path}.offset_delta", lambda delta: f"offset {base + delta}")
    size = cursor.varint(f"{path}.key_length", _sized)
    marker = control and size >= 4 and _control_key(cursor, f"{path}.key", size)
    if not marker:
        cursor.blob(f"{path}.key", size)
    size = cursor.varint(f"{path}.value_length", _sized)
    if marker and size >= 6:
        cursor.fixed(f"{path}.value.version", "int16")
        cursor.fixed(f"{path}.value.coordinator_epoch", "int32")
        size -= 6
    cursor.blob(f"{path}.value", size)
    for i in range(cursor.varint(f"{path}.headers", lambda n: _number(n, "header"))):
        cursor.heading(f"{path}.headers[{i}]", "header")
        cursor.blob(f"{path}.headers[{i}].key", cursor.varint(f"{path}.headers[{i}].key_length", _sized), "string")
        cursor.blob(f"{path}.headers[{i}].value", cursor.varint(f"{path}.headers[{i}].value_length", _sized))
    cursor.note_rest(path, "bytes behind the record's fields")
    cursor.end = end


def _control_key(cursor: _Cursor, path: str, size: int) -> bool:
    """The key of a control record (KIP-98): version and type. Whether it marks the end of a transaction, so that its
    value is an EndTransactionMarker."""
    if size > cursor.end - cursor.at:
        raise _Short(f"{path} needs {size} bytes")
    cursor.fixed(f"{path}.version", "int16")
    kind = cursor.fixed(
        f"{path}.type", "int16", lambda n: bl.CONTROL_TYPES[n] if 0 <= n < len(bl.CONTROL_TYPES) else "unknown type"
    )
    cursor.blob(path, size - 4)
    return kind in (bl.CONTROL_TYPES.index("abort"), bl.CONTROL_TYPES.index("commit"))


def _message(cursor: _Cursor, path: str, inside_of: int = bl.NONE) -> None:
    """A message of magic 0 or 1 (KIP-31, KIP-32), and what it wraps."""
    start = cursor.at
    cursor.fixed(f"{path}.offset", "int64")
    cursor.fixed(f"{path}.message_size", "int32", lambda n: f"{bl.PREFIX + n} bytes in all")
    cursor.fixed(f"{path}.crc", "uint32", _checksum(cursor, start, bl.CRC_FROM_V1, zlib.crc32))
    magic = cursor.fixed(f"{path}.magic", "int8")
    attributes = cursor.fixed(f"{path}.attributes", "int8", _attributes(magic))
    if magic == 1:
        cursor.fixed(f"{path}.timestamp", "int64", _time)
    cursor.blob(f"{path}.key", cursor.fixed(f"{path}.key_length", "int32", _sized))
    size = cursor.fixed(f"{path}.value_length", "int32", _sized)
    codec = attributes & bl.CODEC_MASK
    if codec == bl.NONE or inside_of != bl.NONE or not 0 < size <= cursor.end - cursor.at:
        cursor.blob(f"{path}.value", size)
    else:
        _unpacked(cursor, f"{path}.value", codec, size, magic, lambda inside: _messages(inside, path, codec))
    cursor.note_rest(path, "bytes behind the message's fields")


def _messages(cursor: _Cursor, path: str, codec: int) -> None:
    """The messages inside a wrapper."""
    number = 0
    end = cursor.end
    while cursor.at < end:
        if number == EXPLAINED_RECORDS:
            cursor.note_rest(path, "further messages")
            return
        size = struct.unpack_from(">i", cursor.data, cursor.at + 8)[0] if end - cursor.at >= bl.PREFIX else -1
        if not bl.LEAST_LENGTH <= size <= end - cursor.at - bl.PREFIX:
            raise _Short(f"{path}.messages[{number}] does not fit")
        cursor.end = cursor.at + bl.PREFIX + size
        cursor.heading(f"{path}.messages[{number}]", "message")
        _message(cursor, f"{path}.messages[{number}]", codec)
        cursor.end = end
        number += 1
