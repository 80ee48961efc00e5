"""Tables whose every text is markup, as if a capture had brought it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from kdissect.tables.declaration import SCHEMAS

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=2><!--\u2028{{7*7}}\"'&amp;"
SHOWN = HOSTILE.replace("\u2028", "\\u2028")
"""HOSTILE as a page shows it: what no eye could see is written out."""
START = datetime(2026, 11, 21, 4, 20, tzinfo=UTC)


def hostile_tables() -> dict[str, pa.Table]:
    """A few rows of each table that a report reads: HOSTILE in every text column that can hold any text."""
    free = {
        "exchanges": ("capture", "client_id", "broker", "request_file", "response_file", "error"),
        "fetches": ("client_id", "broker"),
        "fetch_sessions": ("broker",),
        "share_sessions": ("broker", "group_id", "member_id"),
        "connections": (
            "capture",
            "broker",
            "client_id",
            "client_software_name",
            "client_software_version",
            "group_id",
        ),
        "api_versions": ("broker",),
        "findings": ("text", "filter"),
        "capture_quality": ("capture", "file", "text"),
        "problems": ("detail", "file", "capture"),
        "produces": ("client_id",),
        "produce_partitions": ("topic",),
        "fetch_partitions": ("topic",),
        "clock_offsets": ("first", "second"),
    }
    given: dict[str, list[dict[str, Any]]] = {
        "exchanges": [_exchange(n, client_id="=1+2" if n == 3 else HOSTILE) for n in range(6)],
        "fetches": [
            {"exchange_id": f"3f2a0123456789ab:{n}", "requested_at": START + timedelta(seconds=n), "session_epoch": n,
             "session_key": HOSTILE, "request_kind": "incremental" if n else "create",
             "session_outcome": "continued" if n else "created", "excess_ms": 1.0}
            for n in range(6)
        ],
        "fetch_sessions": [
            {"session_key": HOSTILE, "client_ids": [HOSTILE], "opened_at": START, "first_epoch": 0, "last_epoch": 5,
             "requests": 6, "epoch_gaps": 0, "epoch_repeats": 0, "left_censored": False, "end_reason": "open"}
        ],
        "share_sessions": [{"session_key": HOSTILE, "end_reason": "open"}],
        "connections": [{"connection_id": "3f2a0123456789ab", "is_kafka": True, "started_at": START,
                         "ended_at": START + timedelta(seconds=6), "client_ip": "10.0.0.7", "broker_ip": "10.0.0.1"}],
        "api_versions": [{"api": "Fetch", "api_key": 1, "min_version": 0, "max_version": 12}],
        "findings": [{"id": "x", "severity": "high", "table": "fetches", "count": 1}],
        "capture_quality": [{"measure": "packets", "value": 42.0}],
        "problems": [{"kind": "gap", "bytes": 3}],
        "produces": [{"exchange_id": "3f2a0123456789ab:0", "requested_at": START}],
        "produce_partitions": [{"exchange_id": "3f2a0123456789ab:0", "record_bytes": 70, "partition": 0}],
        "fetch_partitions": [{"exchange_id": "3f2a0123456789ab:1", "record_bytes": 140, "partition": 0}],
        "clock_offsets": [{"connections": 1, "exchanges": 6, "offset_ms": 1.0, "up_ms": 0.5, "down_ms": 0.5}],
    }  # fmt: skip
    return {
        name: pa.Table.from_pylist(
            [{**dict.fromkeys(free[name], HOSTILE), **row} for row in rows], schema=SCHEMAS[name]
        )
        for name, rows in given.items()
    }


def _exchange(n: int, **more: Any) -> dict[str, Any]:
    at = START + timedelta(seconds=n)
    return {
        "exchange_id": f"3f2a0123456789ab:{n}", "connection_id": "3f2a0123456789ab", "client_ip": "10.0.0.7",
        "client_port": 50123, "broker_ip": "10.0.0.1", "broker_port": 9092, "api": "Fetch", "api_key": 1,
        "api_version": 12, "correlation_id": n, "status": "ok", "error_code": 0, "request_first_at": at,
        "response_first_at": at + timedelta(milliseconds=5), "latency_ms": 5.0 + n, "broker_ms": 4.0, "queued_ms": 0.0,
        "request_transfer_ms": 0.5, "response_transfer_ms": 0.5, "hold": "immediate", "request_bytes": 100,
        "response_bytes": 1000, "request_frame": 4 + n, "response_frame": 5 + n, "throttle_ms": 0.0, **more,
    }  # fmt: skip
