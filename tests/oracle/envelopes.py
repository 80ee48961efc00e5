"""What is inside Envelope requests (KIP-590): the request that a broker forwards for a client, headers and all."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import kdissect
from tests.oracle.material import Material


@dataclass(frozen=True, slots=True)
class Inner:
    """A forwarded request with its answer, decoded."""

    client: tuple[str, int]
    key: int
    version: int
    correlation_id: int
    client_id: str
    request: dict[str, Any]
    response: dict[str, Any] | None
    error: int | None
    """The Envelope's own: where it has one, there is nothing inside."""


def inner(it: Material, names: dict[int, str]) -> Iterator[Inner]:
    """Every request inside an Envelope of the capture. `names`: API key -> name."""
    rows = {r["exchange_id"]: r for r in it.exchanges if r["api"] == "Envelope"}
    if not rows:
        return
    asked, answered = it.messages("Envelope", "request"), it.messages("Envelope", "response")
    for exchange, row in rows.items():
        data = asked[exchange]["request_data"]
        key, version, correlation, length = struct.unpack_from(">hhih", data)
        at = 10 + max(length, 0)
        client_id = data[10:at].decode()
        answer = answered.get(exchange, {})
        reply = answer.get("response_data")
        yield Inner(
            (row["client_ip"], row["client_port"]), key, version, correlation, client_id,
            body(data[at:], names[key], version, "request"),
            None if reply is None else body(reply[4:], names[key], version, "response"),
            answer.get("error_code"),
        )  # fmt: skip


def body(data: bytes, api: str, version: int, direction: str) -> dict[str, Any]:
    """Decoded from behind its header, with or without the header's (empty) tags: only one of them fits exactly."""
    last: Exception | None = None
    for start in (0, 1):
        if start == 1 and data[:1] != b"\0":
            break
        try:
            return dict(kdissect.decode(data[start:], api=api, version=version, direction=direction))
        except ValueError as error:  # not with this header
            last = error
    raise ValueError(f"{api} v{version} {direction} does not fit") from last
