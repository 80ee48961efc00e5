"""One message for people: its values as a dict, or every byte of it explained.

Where a version number once had two layouts, the one that fits exactly wins, the newest release's first. A version newer
than any that we know is tried in the newest known layout. A broker that does not know a client's version of ApiVersions
answers in version 0 (KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kdissect.problems import UsageError
from kdissect.schema import index
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.fitting import fit, shape
from kdissect.schema.masking import has_secrets, masked_request, masked_response
from kdissect.schema.meanings import meaning
from kdissect.schema.model import CONSUMER, DECODED, FORWARDED, PROTOCOL_TYPE, REQUEST, RESPONSE, Api, Field
from kdissect.schema.walker import Piece, TooMany, Walked, WalkError, walk

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION_BYTES = 2
_PREFIX_BYTES = 4
_API_KEY = "request_api_key"
_SHOWN_BYTES = 256
"""Bytes of a value in hexadecimal; more help nobody, and the piece says where the others are."""

Row = dict[str, Any]


def decode(body: bytes, api: str | int, version: int, direction: str) -> Row:
    """The values of one body (without its header) under Kafka's names in snake_case, as in `Capture.messages`.

    `api` is a name or key, `direction` "request" or "response". Fields that the version does not have are None, absent
    tagged fields have their defaults, and credentials are None with their length next to them. UUIDs are 22 characters
    of base64url, bytes are bytes. Next to bytes that hold another message stands `<name>_decoded`, None where they hold
    something else. Raises UsageError for an unknown API, version or direction. Raises WalkError for a body that does
    not fit: with path, byte, line of the schema, and `values` read before. (Both are KdissectError.)
    """
    known, side = index.load().find_api(api), index.side_of(direction)
    fields = known.message(side).fields
    try:
        values = fit(known, side, version, bytes(body), pieces=False).values
    except WalkError as error:
        error.values = _unfolded(error.values, fields)
        raise
    return _unfolded(values, fields)


def _unfolded(values: Row, fields: tuple[Field, ...], allowed: bool = True) -> Row:
    """The values with those inside of them, credentials masked. Not `allowed`: another protocol's bytes."""
    allowed = allowed and values.get(PROTOCOL_TYPE) in (None, CONSUMER)
    by_name = {field.snake: field for field in fields}
    out: Row = {}
    for name, value in values.items():
        field = by_name.get(name)
        out[name] = value
        if field is None:
            continue
        if field.holds in FORWARDED:
            mask = masked_request if field.holds == FORWARDED[REQUEST] else masked_response
            out[name] = None if value is None else mask(value)
        elif field.holds is not None:
            out[name + DECODED] = _payload(field.holds, value) if value and allowed else None
        elif field.kind == "array" and field.fields and isinstance(value, list):
            out[name] = [_unfolded(item, field.fields, allowed) for item in value]
    return out


def _payload(name: str, data: bytes) -> Row | None:
    """The values of a message behind its version, None where the bytes are something else."""
    message = index.load().payloads[name]
    try:
        number = struct.unpack_from(">h", data)[0]
        form = min(number, message.versions.last)
        walked = walk(message, shape(message), form, data, offset=_VERSION_BYTES)
    except (WalkError, struct.error):
        return None
    return {"version": number, **walked.values} if number >= 0 else None


def explain(body: bytes, api: str | int, version: int, direction: str) -> pa.Table:
    """Every byte of one body (without its header), one row for each run of bytes, in order.

    Columns: offset and length (bytes from the body's start), path (`topics[0].name`), type, value (text, null for what
    has none), meaning, schema (file:line), hidden (its bytes are a credential). Where a body does not fit, or has more
    than 100,000 such runs, the last row has no type, covers the rest and says why. Raises UsageError for an unknown
    API, version or direction.
    """
    known, side = index.load().find_api(api), index.side_of(direction)
    return table(explain_body(known, side, version, bytes(body)))


def explain_body(
    api: Api, side: int, version: int, body: bytes, offset: int = 0, forwarded: bytes | None = None
) -> list[Row]:
    """As `explain`, as dicts; offsets begin at `offset`.

    `forwarded` is the request in the Envelope that this response answers: with it, the response inside is taken apart.
    """
    try:
        pieces = fit(api, side, version, body, pieces=True).pieces
    except WalkError as error:
        message = api.message(side)
        secret = has_secrets(message.fields) or isinstance(error, TooMany)  # which may be before records
        rows = [*_rows(_nested(error.pieces, forwarded)), _complaint(error, body, secret)]
    else:
        rows = list(_rows(_nested(pieces, forwarded)))
    return _moved(rows, offset)


def explain_frame(
    frame: bytes, side: int, key: int | None = None, version: int | None = None, request: bytes | None = None
) -> list[Row]:
    """Every byte of a whole frame: length prefix, header, body. Offsets count from the prefix.

    A response names neither its API nor its version, so these are given; a request's own are used. `request` is the
    frame that a response answers, which tells what is inside the answer to an Envelope. A frame that is cut short, or
    whose API or version is unknown, is explained as far as it goes. Paths of the header begin with `header.`.
    """
    if len(frame) < _PREFIX_BYTES:
        return [_rest_row(0, frame, "size", "the length prefix is cut short")]
    size = struct.unpack_from(">i", frame)[0]
    rows = [_row(0, _PREFIX_BYTES, "size", "int32", str(size), "bytes that follow")]
    rest = frame[_PREFIX_BYTES:]
    if side == REQUEST and len(rest) >= 2 * _VERSION_BYTES:
        key, version = struct.unpack_from(">hh", rest)
    if key is None or version is None:
        return [*rows, _rest_row(_PREFIX_BYTES, rest, "body", "whose API is unknown")] if rest else rows
    if side == REQUEST:
        header, form = index.load().payloads["RequestHeader"], index.request_header_version(key, version)
    else:
        header, form = index.load().payloads["ResponseHeader"], index.response_header_version(key, version)
    try:
        walked = walk(header, shape(header), form, rest, pieces=True, exact=False)
    except WalkError as error:
        found = [*_rows(error.pieces), _complaint(error, rest, False)]
        return rows + [row | {"path": f"header.{row['path']}"} for row in _moved(found, _PREFIX_BYTES)]
    rows += [row | {"path": f"header.{row['path']}"} for row in _moved(list(_rows(walked.pieces)), _PREFIX_BYTES)]
    start = _PREFIX_BYTES + walked.end
    body = frame[start:]
    forwarded = _forwarded(request) if key == ApiKey.ENVELOPE and request is not None else None
    try:
        return rows + explain_body(index.load().find_api(key), side, version, body, start, forwarded)
    except UsageError as error:
        api = index.load().apis.get(key)
        hidden = api is not None and has_secrets(api.message(side).fields)
        return [*rows, _rest_row(start, body, "body", str(error)) | {"hidden": hidden}]


def _forwarded(frame: bytes) -> bytes | None:
    """The request inside an Envelope, given with its length prefix; None where it cannot be read."""
    header = index.load().payloads["RequestHeader"]
    try:
        key, version = struct.unpack_from(">hh", frame, _PREFIX_BYTES)
        form = index.request_header_version(key, version)
        start = walk(header, shape(header), form, frame[_PREFIX_BYTES:], exact=False).end + _PREFIX_BYTES
        data = fit(index.load().find_api(key), REQUEST, version, frame[start:], pieces=False).values.get("request_data")
    except (WalkError, UsageError, struct.error):
        return None
    return data if isinstance(data, bytes) else None


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


# pieces as rows -------------------------------------------------------------------------------------------------------


def _nested(pieces: list[Piece], forwarded: bytes | None = None) -> Iterator[Piece]:
    """The pieces, with those that hold another message taken apart where it fits exactly."""
    for piece in pieces:
        holds = piece.item.holds if piece.item is not None else None
        inner = _inner(holds, piece.value, forwarded) if holds and piece.value else None
        if inner is None:
            hidden = holds in FORWARDED and piece.value and _is_masked(holds, piece.value, forwarded)
            yield replace(piece, note="hidden", value=None) if hidden else piece
            continue
        start = piece.offset + piece.length - piece.size
        yield replace(piece, length=start - piece.offset, value=piece.size, kind="size")
        for each in inner:
            yield replace(each, offset=each.offset + start, path=f"{piece.path}.{each.path}")


def _is_masked(holds: str | None, data: bytes, forwarded: bytes | None) -> bool:
    masked = masked_request(data) if holds == FORWARDED[REQUEST] else masked_response(data, forwarded)
    return masked != data


def _inner(holds: str, data: bytes, forwarded: bytes | None) -> list[Piece] | None:
    """The message inside some bytes, taken apart; None where they hold something else."""
    try:
        if holds == FORWARDED[REQUEST]:
            return _inner_request(data)
        if holds == FORWARDED[RESPONSE]:
            return None if forwarded is None else _inner_response(data, forwarded)
        message = index.load().payloads[holds]
        number = struct.unpack_from(">h", data)[0]
        form = min(number, message.versions.last)
        walked = walk(message, shape(message), form, data, offset=_VERSION_BYTES, pieces=True)
    except (WalkError, UsageError, struct.error):
        return None
    head = Piece(0, _VERSION_BYTES, "version", "int16", number, message.file, None, f"of {message.name}")
    return [head, *walked.pieces] if number >= 0 else None


def _inner_request(data: bytes) -> list[Piece]:
    """A request inside an Envelope (KIP-590): header and body, no length prefix."""
    header = index.load().payloads["RequestHeader"]
    key, version = struct.unpack_from(">hh", data)
    form = index.request_header_version(key, version)
    head = walk(header, shape(header), form, data, pieces=True, exact=False)
    return _framed(head, fit(index.load().find_api(key), REQUEST, version, data[head.end :], pieces=True))


def _inner_response(data: bytes, request: bytes) -> list[Piece]:
    """The response inside the answer to an Envelope; the request inside the Envelope names its API and version."""
    header = index.load().payloads["ResponseHeader"]
    key, version = struct.unpack_from(">hh", request)
    form = index.response_header_version(key, version)
    head = walk(header, shape(header), form, data, pieces=True, exact=False)
    return _framed(head, fit(index.load().find_api(key), RESPONSE, version, data[head.end :], pieces=True))


def _framed(head: Walked, body: Walked) -> list[Piece]:
    return [
        *(replace(piece, path=f"header.{piece.path}") for piece in head.pieces),
        *(replace(piece, offset=piece.offset + head.end) for piece in body.pieces),
    ]


def _rows(pieces: list[Piece] | Iterator[Piece]) -> Iterator[Row]:
    for piece in pieces:
        said = index.api_name(piece.value) if piece.path.endswith(_API_KEY) else meaning(piece)
        row = _row(piece.offset, piece.length, piece.path, piece.kind, _text(piece), said)
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


def _rest_row(offset: int, data: bytes, path: str, text: str) -> Row:
    return _row(offset, len(data), path, None, None, text)


def _complaint(error: WalkError, body: bytes, secret: bool) -> Row:
    """The rest of a body that does not fit. It may hold a credential that was not reached."""
    read = error.pieces[-1].offset + error.pieces[-1].length if error.pieces else 0
    text = error.text if error.at == read else f"{error.text} (at byte {error.at})"
    row = _row(read, len(body) - read, error.path, None, None, text)
    return row | {"schema": error.source, "hidden": secret}


def _moved(rows: list[Row], offset: int) -> list[Row]:
    return [row | {"offset": row["offset"] + offset} for row in rows] if offset else rows
