"""Compares what a request log says with what kdissect read: matching of requests, and values field by field."""

from __future__ import annotations

import base64
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.oracle import kio_payloads
from tests.oracle.request_log import Entry
from tests.oracle.silence import DEFAULTS, HIDDEN, SECRETS

Row = dict[str, Any]
DECODED = "_decoded"
PAYLOADS = {
    (11, "request", "metadata"): "ConsumerProtocolSubscription",
    (11, "response", "metadata"): "ConsumerProtocolSubscription",
    (15, "response", "member_metadata"): "ConsumerProtocolSubscription",
    (15, "response", "member_assignment"): "ConsumerProtocolAssignment",
    (14, "request", "assignment"): "ConsumerProtocolAssignment",
    (14, "response", "assignment"): "ConsumerProtocolAssignment",
}


@dataclass(slots=True)
class Matched:
    """Logged requests with their exchanges, and those of either side that have no partner."""

    pairs: list[tuple[Entry, Row]]
    logged_only: list[Entry]
    wire_only: list[Row]


def match(entries: Iterable[Entry], rows: Iterable[Row]) -> Matched:
    """By client's end, broker's end, API, version and correlation id; where these repeat, in order of time.

    A forwarded request has no partner: the connection that its line names is that of the Envelope around it, where
    another request of the broker may well have the same correlation id.
    """
    waiting: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        waiting[_key(row)].append(row)
    pairs, logged_only = [], []
    for entry in entries:
        queue = [] if entry.forwarded else waiting[entry.client, entry.key, entry.version, entry.correlation_id]
        ends = [r for r in queue if entry.broker is None or (r["broker_ip"], r["broker_port"]) == entry.broker]
        if ends:
            queue.remove(ends[0])
            pairs.append((entry, ends[0]))
        else:
            logged_only.append(entry)
    return Matched(pairs, logged_only, [row for queue in waiting.values() for row in queue])


def _key(row: Row) -> tuple[Any, ...]:
    return (row["client_ip"], row["client_port"]), row["api_key"], row["api_version"], row["correlation_id"]


def differences(logged: Any, ours: Any, key: int, side: str, path: str = "") -> Iterator[str]:
    """Every place where `ours` (a row of `Capture.messages`) is not what was logged, as text."""
    if isinstance(logged, dict):
        if not isinstance(ours, dict):
            yield f"{path}: logged {logged!r}, ours {ours!r}"
            return
        yield from _struct(logged, ours, key, side, path)
    elif isinstance(logged, list):
        if not isinstance(ours, list) or len(ours) != len(logged):
            yield f"{path}: logged {len(logged)} elements, ours {ours!r}"
            return
        for one, other in zip(logged, ours, strict=True):
            yield from differences(one, other, key, side, path)
    elif not _same(logged, ours):
        yield f"{path}: logged {logged!r}, ours {ours!r}"


def _struct(logged: Row, ours: Row, key: int, side: str, path: str) -> Iterator[str]:
    secrets = SECRETS.get((key, side), frozenset())
    defaults = DEFAULTS.get((key, side), {})
    explained: set[str] = set()
    for name, value in logged.items():
        here = f"{path}.{name}" if path else name
        explained.add(name)
        if here in secrets:
            explained.add(f"{name}_bytes")
            if value == HIDDEN or value is None:
                continue
            if ours.get(name) is None:
                if ours.get(f"{name}_bytes") != _length(value, here):
                    yield f"{here}: a secret of {_length(value, here)} bytes, ours {ours.get(f'{name}_bytes')!r}"
                continue
        if name not in ours:
            if name == "records" and value in (None, "") and "records_bytes" in ours:
                explained.add("records_bytes")
                if value is None and ours["records_bytes"] is not None:
                    yield f"{here}: logged null, ours {ours['records_bytes']} bytes"
                continue
            yield f"{here}: no such column"
            continue
        yield from differences(value, ours[name], key, side, here)
    for name, value in ours.items():
        here = f"{path}.{name}" if path else name
        if name in explained or (value is None and not name.endswith(DECODED)):
            continue
        if name.endswith(DECODED):
            yield from _payload(ours, name, value, key, side, path)
            continue
        if any(_default(value, default) for default in defaults.get(here, ())):
            continue
        yield f"{here}: not logged, ours {value!r}"


def _payload(ours: Row, name: str, value: Any, key: int, side: str, path: str) -> Iterator[str]:
    """Bytes that hold another message, against kio's reading of the same bytes."""
    field = name.removesuffix(DECODED)
    data = ours[field]
    entity = kio_payloads.read(PAYLOADS[key, side, field], data) if data else None
    if entity is None or value is not None:  # null is right beside another protocol type too
        yield from kio_payloads.differences(entity, value, f"{path}.{name}")


def _default(ours: Any, default: Any) -> bool:
    if isinstance(default, dict):
        return isinstance(ours, dict) and {k: v for k, v in ours.items() if v is not None} == default
    return bool(ours == default)


def _length(value: str, path: str) -> int:
    return len(value.encode()) if path.endswith("value") else len(base64.b64decode(value))


def _same(logged: Any, ours: Any) -> bool:
    if isinstance(ours, bytes):
        return isinstance(logged, str) and base64.b64decode(logged) == ours
    if isinstance(ours, bool) or isinstance(logged, bool):
        return logged is ours
    if isinstance(ours, float) and isinstance(logged, (int, float)):
        return math.isclose(logged, ours, rel_tol=1e-12)
    return bool(logged == ours)
