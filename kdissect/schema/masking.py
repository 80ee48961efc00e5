"""Zeros for the credentials in what a broker forwards: whole requests and responses inside an Envelope (KIP-590)."""

from __future__ import annotations

import struct

from kdissect.problems import UsageError
from kdissect.schema import index
from kdissect.schema.fitting import fit, shape
from kdissect.schema.model import FORWARDED, REQUEST, RESPONSE, Field
from kdissect.schema.walker import Piece, WalkError, walk

_CORRELATION_BYTES = 4
"""A response's header; a byte for its (empty) tags follows where the header has version 1."""


def has_secrets(fields: tuple[Field, ...]) -> bool:
    """Whether a message of these fields can hold a credential."""
    return any(item.secret or item.secret_by or item.holds in FORWARDED or has_secrets(item.fields) for item in fields)


def masked_request(request: bytes) -> bytes:
    """A request as it stands in an Envelope (header and body, KIP-590) with zeros for its credentials.

    Where its body does not fit, and could hold a credential, all of the body is zeros.
    """
    header = index.load().payloads["RequestHeader"]
    try:
        key, version = struct.unpack_from(">hh", request)
        form = index.request_header_version(key, version)
        start = walk(header, shape(header), form, request, exact=False).end
    except (WalkError, struct.error):
        return request
    return request[:start] + _masked(request[start:], REQUEST, key, version)


def masked_response(response: bytes, request: bytes | None = None) -> bytes:
    """The response in an Envelope, likewise; `request` is the one that it answers, whose header names the API.

    Without it, every field that would be a credential in any response that fits is zeros.
    """
    header = index.load().payloads["ResponseHeader"]
    if request is None:
        return _masked_by_trial(response)
    try:
        key, version = struct.unpack_from(">hh", request)
        form = index.response_header_version(key, version)
        start = walk(header, shape(header), form, response, exact=False).end
    except (WalkError, struct.error):
        return response
    return response[:start] + _masked(response[start:], RESPONSE, key, version)


def _masked(body: bytes, side: int, key: int, version: int) -> bytes:
    api = index.load().apis.get(key)
    if api is None or not has_secrets(api.message(side).fields):
        return body
    if any(item.holds in FORWARDED for item in api.message(side).fields):
        return bytes(len(body))  # an Envelope in an Envelope: Kafka never does that
    try:
        pieces = fit(api, side, version, body, pieces=True).pieces
    except (WalkError, UsageError):
        return bytes(len(body))
    out = bytearray(body)
    _blank(out, pieces, 0)
    return bytes(out)


def _masked_by_trial(response: bytes) -> bytes:
    out = bytearray(response)
    for api in index.load().apis.values():
        message = api.response
        if not has_secrets(message.fields):
            continue
        for version in range(message.versions.first, message.versions.last + 1):
            start = _CORRELATION_BYTES + index.response_header_version(api.key, version)
            try:
                pieces = fit(api, RESPONSE, version, response[start:], pieces=True).pieces
            except (WalkError, UsageError):
                continue
            _blank(out, pieces, start)
    return bytes(out)


def _blank(out: bytearray, pieces: list[Piece], start: int) -> None:
    for piece in pieces:
        if piece.note == "hidden":
            end = start + piece.offset + piece.length
            out[end - piece.size : end] = bytes(piece.size)
