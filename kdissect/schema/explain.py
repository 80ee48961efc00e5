"""One message for people: its values as a dict, or every byte of it explained.

Where a version number once had two layouts, the one that fits exactly wins, the newest release's first. A version newer
than any that we know is tried in the newest known layout. A broker that does not know a client's version of ApiVersions
answers in version 0 (KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from kdissect.problems import UsageError
from kdissect.schema import index
from kdissect.schema.meanings import meaning
from kdissect.schema.model import REQUEST, RESPONSE, Api, Field, Message
from kdissect.schema.shape import Shape, shape_of
from kdissect.schema.walker import Piece, Walked, WalkError, walk

if TYPE_CHECKING:
    import pyarrow as pa

_API_VERSIONS = 18
_ENVELOPE = 58
_UNSUPPORTED_VERSION = b"\x00\x23"
"""Error 35, where an ApiVersions response of version 0 begins."""
_VERSION_BYTES = 2
_PREFIX_BYTES = 4
_SHOWN_BYTES = 256
"""Bytes of a value in hexadecimal; more help nobody, and the piece says where the others are."""

Row = dict[str, Any]


def decode(body: bytes, api: str | int, version: int, direction: str) -> Row:
    """The values of one body (without its header) under Kafka's names in snake_case, as in `Capture.messages`.

    `api` is a name or key, `direction` "request" or "response". Fields that the version does not have are None, absent
    tagged fields have their defaults, credentials are None with their length beside them, UUIDs are 22 characters of
    base64url, bytes are bytes. Raises UsageError for an unknown API, version or direction, WalkError (both are
    KdissectError) for a body that does not fit: with path, byte, line of the schema, and `values` read before.
    """
    known, side = index.load().find(api), index.side_of(direction)
    values = _fit(known, side, version, bytes(body), pieces=False).values
    if (known.key, side) == (_ENVELOPE, REQUEST):
        values["request_data"] = masked_request(values["request_data"])
    return values


def explain(body: bytes, api: str | int, version: int, direction: str) -> pa.Table:
    """Every byte of one body (without its header), one row for each run of bytes, in order.

    Columns: offset and length (bytes from the body's start), path (`topics[0].name`), type, value (text, null for what
    has none), meaning, schema (file:line), hidden (its bytes are a credential). Where a body does not fit, the last row
    has no type, covers the rest and says what was needed. Raises UsageError for an unknown API, version or direction.
    """
    known, side = index.load().find(api), index.side_of(direction)
    return table(explain_body(known, side, version, bytes(body)))


def explain_body(api: Api, side: int, version: int, body: bytes, offset: int = 0) -> list[Row]:
    """As `explain`, as dicts; offsets begin at `offset`."""
    try:
        pieces = _fit(api, side, version, body, pieces=True).pieces
    except WalkError as error:
        message = api.message(side)
        rows = [*_rows(_nested(error.pieces, body)), _complaint(error, body, _has_secrets(message.fields))]
    else:
        rows = list(_rows(_nested(pieces, body)))
    return _moved(rows, offset)


def explain_frame(frame: bytes, side: int, key: int | None = None, version: int | None = None) -> list[Row]:
    """Every byte of a whole frame: length prefix, header, body. Offsets count from the prefix.

    A response names neither its API nor its version, so these are given; a request's own are used. A frame that is cut
    short, or whose API or version is unknown, is explained as far as it goes. Paths of the header begin with `header.`.
    """
    if len(frame) < _PREFIX_BYTES:
        return [_rest(0, frame, "size", "the length prefix is cut short")]
    size = struct.unpack_from(">i", frame)[0]
    rows = [_row(0, _PREFIX_BYTES, "size", "int32", str(size), "bytes that follow")]
    rest = frame[_PREFIX_BYTES:]
    if side == REQUEST and len(rest) >= 2 * _VERSION_BYTES:
        key, version = struct.unpack_from(">hh", rest)
    if key is None or version is None:
        return [*rows, _rest(_PREFIX_BYTES, rest, "body", "whose API is unknown")] if rest else rows
    if side == REQUEST:
        header, form = index.load().payloads["RequestHeader"], index.request_header_version(key, version)
    else:
        header, form = index.load().payloads["ResponseHeader"], index.response_header_version(key, version)
    try:
        walked = walk(header, _shape(header), form, rest, pieces=True, exact=False)
    except WalkError as error:
        found = [*_rows(error.pieces), _complaint(error, rest, False)]
        return rows + [row | {"path": f"header.{row['path']}"} for row in _moved(found, _PREFIX_BYTES)]
    for row in _moved(list(_rows(walked.pieces)), _PREFIX_BYTES):
        if row["path"] == "request_api_key":
            row["meaning"] = index.api_name(key)
        rows.append(row | {"path": f"header.{row['path']}"})
    start = _PREFIX_BYTES + walked.end
    body = frame[start:]
    try:
        return rows + explain_body(index.load().find(key), side, version, body, start)
    except UsageError as error:
        return [*rows, _rest(start, body, "body", str(error))]


def table(rows: list[Row]) -> pa.Table:
    """Rows of `explain_body` or `explain_frame` as an Arrow table."""
    import pyarrow as pa

    text = pa.string()
    schema = pa.schema(
        [
            ("offset", pa.int64()), ("length", pa.int64()), ("path", text), ("type", text), ("value", text),
            ("meaning", text), ("schema", text), ("hidden", pa.bool_()),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema)


# what a broker forwards -----------------------------------------------------------------------------------------------


def masked_request(request: bytes) -> bytes:
    """A request as it stands in an Envelope (header and body, KIP-590) with zeros for its credentials.

    Where its body does not fit, and could hold a credential, all of the body is zeros.
    """
    header = index.load().payloads["RequestHeader"]
    try:
        key, version = struct.unpack_from(">hh", request)
        form = index.request_header_version(key, version)
        start = walk(header, _shape(header), form, request, exact=False).end
    except (WalkError, struct.error):
        return request
    return request[:start] + _masked(request[start:], REQUEST, key, version)


def masked_response(response: bytes, request: bytes) -> bytes:
    """The response in an Envelope, likewise; `request` is the one that it answers, whose header names the API."""
    header = index.load().payloads["ResponseHeader"]
    try:
        key, version = struct.unpack_from(">hh", request)
        form = index.response_header_version(key, version)
        start = walk(header, _shape(header), form, response, exact=False).end
    except (WalkError, struct.error):
        return response
    return response[:start] + _masked(response[start:], RESPONSE, key, version)


def _masked(body: bytes, side: int, key: int, version: int) -> bytes:
    api = index.load().apis.get(key)
    if api is None or not _has_secrets(api.message(side).fields):
        return body
    try:
        pieces = _fit(api, side, version, body, pieces=True).pieces
    except (WalkError, UsageError):
        return bytes(len(body))
    out = bytearray(body)
    for piece in pieces:
        if piece.note == "hidden":
            end = piece.offset + piece.length
            out[end - piece.size : end] = bytes(piece.size)
    return bytes(out)


# which layout ---------------------------------------------------------------------------------------------------------


@cache
def _shapes() -> dict[str, Shape]:
    return {}


def _shape(message: Message) -> Shape:
    known = _shapes()
    if message.name not in known:
        known[message.name] = shape_of(message)
    return known[message.name]


def _candidates(api: Api, side: int, version: int, body: bytes) -> Iterator[tuple[int, tuple[Field, ...]]]:
    """Layouts to try, best first, each with the version that it belongs to."""
    message = api.message(side)
    newest = message.versions.last
    if version < message.versions.first:
        raise UsageError(f"{api.name} has versions {message.versions.first} to {newest}, not {version}")
    if api.key == _API_VERSIONS and side == RESPONSE and version > 0 and body[:2] == _UNSUPPORTED_VERSION:
        yield 0, message.fields
    for fields in index.layouts(message, min(version, newest)):
        yield min(version, newest), fields


def _fit(api: Api, side: int, version: int, body: bytes, *, pieces: bool) -> Walked:
    """The first layout that fits exactly. Raises the WalkError of the layout that went furthest."""
    message = api.message(side)
    failed: WalkError | None = None
    for number, fields in _candidates(api, side, version, body):
        try:
            return walk(message, _shape(message), number, body, fields=fields, pieces=pieces)
        except WalkError as error:
            if failed is None or error.at > failed.at:
                failed = error
    if version > message.versions.last:
        newest = message.versions.last
        raise UsageError(f"{api.name} is known up to version {newest}; version {version} does not fit it") from failed
    assert failed is not None
    raise failed


# pieces as rows -------------------------------------------------------------------------------------------------------


def _nested(pieces: list[Piece], body: bytes) -> Iterator[Piece]:
    """The pieces, with those that hold another message taken apart where it fits exactly."""
    for piece in pieces:
        holds = piece.item.holds if piece.item is not None else None
        inner = _inner(holds, piece.value) if holds and piece.value else None
        if inner is None:
            yield piece
            continue
        start = piece.offset + piece.length - piece.size
        yield replace(piece, length=start - piece.offset, value=piece.size, kind="size")
        for each in inner:
            yield replace(each, offset=each.offset + start, path=f"{piece.path}.{each.path}")


def _inner(holds: str, data: bytes) -> list[Piece] | None:
    """The message inside some bytes, taken apart; None where they hold something else."""
    try:
        if holds == "request":
            return _inner_request(data)
        message = index.load().payloads[holds]
        number = struct.unpack_from(">h", data)[0]
        form = min(number, message.versions.last)
        walked = walk(message, _shape(message), form, data, offset=_VERSION_BYTES, pieces=True)
    except (WalkError, UsageError, struct.error):
        return None
    head = Piece(0, _VERSION_BYTES, "version", "int16", number, message.file, None, f"of {message.name}")
    return [head, *walked.pieces] if number >= 0 else None


def _inner_request(data: bytes) -> list[Piece]:
    """A request inside an Envelope (KIP-590): header and body, no length prefix."""
    header = index.load().payloads["RequestHeader"]
    key, version = struct.unpack_from(">hh", data)
    form = index.request_header_version(key, version)
    head = walk(header, _shape(header), form, data, pieces=True, exact=False)
    body = _fit(index.load().find(key), REQUEST, version, data[head.end :], pieces=True)
    return [
        *(replace(piece, path=f"header.{piece.path}") for piece in head.pieces),
        *(replace(piece, offset=piece.offset + head.end) for piece in body.pieces),
    ]


def _rows(pieces: list[Piece] | Iterator[Piece]) -> Iterator[Row]:
    for piece in pieces:
        row = _row(piece.offset, piece.length, piece.path, piece.kind, _text(piece), meaning(piece))
        yield row | {"schema": piece.source, "hidden": piece.note == "hidden"}


def _text(piece: Piece) -> str | None:
    value = piece.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        if piece.kind == "records":
            return f"{len(value)} bytes"
        more = f"… ({len(value)} bytes)" if len(value) > _SHOWN_BYTES else ""
        return value[:_SHOWN_BYTES].hex() + more
    return None if value is None else str(value)


def _row(offset: int, length: int, path: str, kind: str | None, value: str | None, text: str) -> Row:
    return {
        "offset": offset, "length": length, "path": path, "type": kind, "value": value, "meaning": text, "schema": "",
        "hidden": False,
    }  # fmt: skip


def _rest(offset: int, data: bytes, path: str, text: str) -> Row:
    return _row(offset, len(data), path, None, None, text)


def _complaint(error: WalkError, body: bytes, secret: bool) -> Row:
    """The rest of a body that does not fit. It may hold a credential that was not reached."""
    read = error.pieces[-1].offset + error.pieces[-1].length if error.pieces else 0
    text = error.text if error.at == read else f"{error.text} (at byte {error.at})"
    row = _row(read, len(body) - read, error.path, None, None, text)
    return row | {"schema": error.source, "hidden": secret}


def _has_secrets(fields: tuple[Field, ...]) -> bool:
    return any(item.secret or item.secret_by or _has_secrets(item.fields) for item in fields)


def _moved(rows: list[Row], offset: int) -> list[Row]:
    return [row | {"offset": row["offset"] + offset} for row in rows] if offset else rows
