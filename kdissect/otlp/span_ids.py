"""Ids of spans and traces that follow from the exchange: a capture that is sent twice gives the same spans."""

from __future__ import annotations

from hashlib import blake2b

TRACE_BYTES, SPAN_BYTES = 16, 8


def trace_id(exchange_id: str) -> int:
    """Trace id of an exchange that is in no application's trace; 128 bits, not 0."""
    return _number(exchange_id, TRACE_BYTES)


def span_id(exchange_id: str, part: str = "") -> int:
    """Span id of an exchange, or of one of its parts; 64 bits, not 0."""
    return _number(f"{exchange_id} {part}", SPAN_BYTES)


def _number(text: str, size: int) -> int:
    """A digest as a number; OpenTelemetry forbids 0."""
    return int.from_bytes(blake2b(text.encode(), digest_size=size, person=b"kdissect").digest()) or 1
