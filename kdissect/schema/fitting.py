"""Finds the layout of a body: the first that fits exactly.

Where a version number once had two layouts, the newest release's is tried first. A version newer than any that we know
is tried in the newest known layout. A broker that does not know a client's version of ApiVersions answers in version 0
(KIP-511).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from kdissect.problems import UsageError
from kdissect.schema import index
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.model import RESPONSE, Api, Field, Message
from kdissect.schema.shape import Shape, shape_of
from kdissect.schema.walker import Walked, WalkError, walk

_UNSUPPORTED_VERSION = b"\x00\x23"
"""Error 35, where an ApiVersions response of version 0 begins."""


@cache
def _shapes() -> dict[str, Shape]:
    return {}


def shape(message: Message) -> Shape:
    """The walker's table of a message, made once."""
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
    if api.key == ApiKey.API_VERSIONS and side == RESPONSE and version > 0 and body[:2] == _UNSUPPORTED_VERSION:
        yield 0, message.fields
    for fields in index.layouts(message, min(version, newest)):
        yield min(version, newest), fields


def fit(api: Api, side: int, version: int, body: bytes, *, pieces: bool) -> Walked:
    """The first layout that fits exactly. Raises the WalkError of the layout that went furthest."""
    message = api.message(side)
    failed: WalkError | None = None
    try:
        for number, fields in _candidates(api, side, version, body):
            try:
                return walk(message, shape(message), number, body, fields=fields, pieces=pieces)
            except WalkError as error:
                if failed is None or error.at > failed.at:
                    failed = error
        newest = message.versions.last
        if version > newest:
            raise UsageError(
                f"{api.name} is known up to version {newest}; version {version} does not fit it"
            ) from failed
        assert failed is not None
        raise failed
    finally:
        del failed  # it holds this frame, which would hold it, and with it the files of all callers
