"""Completed exchanges made by hand, as the engine would hand them over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kdissect.kafka.completed import NO_CODE, NULL_TIME, STATUS, Completed, Connections, Status

S = 1_000_000_000
START = 1_700_000_000 * S

DEFAULTS: dict[str, tuple[Any, Any]] = {
    "conn": (np.int32, 0),
    "n": (np.int64, 0),
    "is_orphan": (np.bool_, False),
    "api_key": (np.int16, 1),
    "api_version": (np.int16, 12),
    "correlation_id": (np.int32, 0),
    "client": (np.int32, -1),
    "request_first": (np.int64, NULL_TIME),
    "request_last": (np.int64, NULL_TIME),
    "response_first": (np.int64, NULL_TIME),
    "response_last": (np.int64, NULL_TIME),
    "request_bytes": (np.int64, -1),
    "response_bytes": (np.int64, -1),
    "request_packet": (np.int64, -1),
    "response_packet": (np.int64, -1),
    "status": (np.int8, Status.OK),
    "queued_from": (np.int64, NULL_TIME),
    "network": (np.int64, -1),
    "network_kind": (np.int8, -1),
    "request_resent": (np.int64, -1),
    "response_resent": (np.int64, -1),
    "think": (np.int64, -1),
    "unseen_until": (np.int64, NULL_TIME),
    "abandoned": (np.int8, -1),
    "network_down": (np.int64, NULL_TIME),
    "in_flight": (np.int32, 1),
    "throttle_ms": (np.int32, -1),
    "error_code": (np.int32, NO_CODE),
    "error_first": (np.int32, 0),
    "error_count": (np.int32, 0),
    "decoded": (np.bool_, True),
    "api_inferred": (np.bool_, False),
    "missing_request": (np.int64, 0),
    "missing_response": (np.int64, 0),
}


@dataclass
class Bodies:
    rows: np.ndarray
    batch: pa.RecordBatch


def completed(
    *rows: dict[str, Any],
    client_ids: tuple[str, ...] = (),
    messages: dict[tuple[int, int], Any] | None = None,
    data: bytes = b"",
) -> Completed:
    """Exchanges with DEFAULTS but for the values named; `messages[key, side]` maps row -> body as a dict, whose
    positions (`records_at`) point into `data`."""
    arrays = {
        name: np.array([row.get(name, default) for row in rows], kind) for name, (kind, default) in DEFAULTS.items()
    }
    for row in rows:
        assert row.keys() <= DEFAULTS.keys()
    decoded = {
        where: Bodies(np.array(list(bodies), np.int64), pa.RecordBatch.from_pylist(list(bodies.values())))
        for where, bodies in (messages or {}).items()
    }
    return Completed(**arrays, client_ids=list(client_ids), messages=decoded, data=np.frombuffer(data, np.uint8))


def ipv4(text: str) -> int:
    a, b, c, d = (int(part) for part in text.split("."))
    return 0xFFFF << 32 | a << 24 | b << 16 | c << 8 | d


def connections(*rows: dict[str, Any], **more: Any) -> Connections:
    """Connections; `client` and `broker` are (ipv4, port)."""
    rows = rows or ({},)
    size = len(rows)

    def ints(name: str, default: Any, kind: Any = np.int64) -> np.ndarray:
        return np.array([row.get(name, default) for row in rows], kind)

    ends = {}
    for side, default in (("client", ("10.0.0.1", 50000)), ("broker", ("10.0.0.9", 9092))):
        found = [row.get(side, default) for row in rows]
        ends[f"{side}_hi"] = np.zeros(size, np.uint64)
        ends[f"{side}_lo"] = np.array([ipv4(ip) for ip, _ in found], np.uint64)
        ends[f"{side}_port"] = np.array([port for _, port in found], np.int32)
    counters = (
        "packets",
        "bytes",
        "retransmitted_bytes",
        "duplicated_packets",
        "out_of_order_packets",
        "missing_bytes",
    )
    fields: dict[str, Any] = {
        "captures": ["a.pcap"],
        "files": [["a.pcap"]],
        "protocols": ["Kafka", "TLS 1.3"],
        "id": np.array([row.get("id", 0xABC0 + i) for i, row in enumerate(rows)], np.uint64),
        "capture": ints("capture", 0, np.int32),
        **ends,
        "started": ints("started", START),
        "lasted": ints("lasted", S),
        "start_seen": ints("start_seen", True, np.bool_),
        "end_reason": ints("end_reason", 0, np.int8),
        "closed_by": ints("closed_by", 0, np.int8),
        "is_kafka": ints("is_kafka", True, np.bool_),
        "protocol": ints("protocol", 0, np.int32),
        "tls": ints("tls", -1, np.int32),
        **{name: ints(name, 0) for name in (*counters, "zero_window_ns", "exchanges", "problems")},
        **{name: ints(name, 0) for name in ("rtt_ns", "rtt_min_ns", "rtt_max_ns", "client_rtt_ns")},
        "rtt_kind": ints("rtt_kind", -1, np.int8),
        "lost_segments": ints("lost_segments", 0),
        "acks_removed": ints("acks_removed", False, np.bool_),
        "no_bare_acks": ints("no_bare_acks", False, np.bool_),
    }
    return Connections(**(fields | more))


def status(name: str) -> int:
    return STATUS.index(name)
