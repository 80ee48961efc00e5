"""A capture made of rows, for what the command line does with one: the engine's tables without the engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kdissect.problems import UsageError
from kdissect.summary import Summary, summarize
from kdissect.tables.declaration import SCHEMAS

START = datetime(2026, 11, 21, 4, 20, 1, 250_000, tzinfo=UTC)
CONNECTION = "3f2a0123456789ab"
OTHER = "3f2b0123456789ab"


def rows(table: str, values: list[dict[str, Any]]) -> pa.Table:
    """Rows of a table by its declared schema, null where a column is not given."""
    schema = SCHEMAS[table]
    for row in values:
        assert set(row) <= set(schema.names), set(row) - set(schema.names)
    return pa.Table.from_pylist(values, schema=schema)


def exchange(n: int, api: str = "Fetch", latency: float | None = 1.5, **more: Any) -> dict[str, Any]:
    return {
        "exchange_id": f"{CONNECTION}:{n}",
        "connection_id": CONNECTION,
        "capture": "stand.pcap",
        "client_ip": "10.0.0.7",
        "client_port": 50123,
        "broker_ip": "10.0.0.1",
        "broker_port": 9092,
        "broker": "1",
        "api": api,
        "api_key": 1,
        "api_version": 12,
        "correlation_id": n,
        "client_id": "shop",
        "status": "ok",
        "error_code": 0,
        "request_first_at": START + timedelta(milliseconds=n),
        "latency_ms": latency,
        "request_frame": 4 + n,
        "request_file": "stand.pcap",
        **more,
    }


def connection(connection_id: str = CONNECTION, **more: Any) -> dict[str, Any]:
    return {
        "connection_id": connection_id,
        "capture": "stand.pcap",
        "client_ip": "10.0.0.7",
        "client_port": 50123,
        "broker_ip": "10.0.0.1",
        "broker_port": 9092,
        "broker": "1",
        "started_at": START,
        "ended_at": START + timedelta(seconds=5),
        "is_kafka": True,
        "protocol": "Kafka",
        "client_id": "shop",
        "client_software_name": "apache-kafka-java",
        "client_software_version": "4.3.1",
        "exchanges": 4,
        **more,
    }


def small() -> dict[str, pa.Table]:
    """A capture with a bit of everything."""
    return {
        "exchanges": rows(
            "exchanges",
            [
                exchange(0, "ApiVersions", 0.4),
                exchange(1, latency=500.0, hold="timeout"),
                exchange(2, latency=20.0, hold="immediate"),
                exchange(
                    3, "Produce", 7.0, status="error", error="NOT_LEADER_OR_FOLLOWER", error_code=6, api_version=9
                ),
                exchange(4, "Fetch", None, status="pending", error_code=None),
            ],
        ),
        "connections": rows(
            "connections", [connection(), connection(OTHER, is_kafka=False, protocol="TLS", client_id=None)]
        ),
        "problems": rows(
            "problems",
            [{"capture": "stand.pcap", "kind": "missing_bytes", "bytes": 1448, "detail": "1448 bytes", "frame": 7}],
        ),
        "capture_quality": rows(
            "capture_quality", [{"capture": "stand.pcap", "file": "stand.pcap", "measure": "packets", "value": 42.0}]
        ),
        "findings": rows(
            "findings",
            [
                {
                    "id": "x",
                    "severity": "low",
                    "text": "Something small.",
                    "headline": "something small",
                    "cause": "unknown",
                    "count": 1,
                },
                {
                    "id": "y",
                    "severity": "high",
                    "text": "Client shop never reuses a fetch session.",
                    "headline": "client shop never reuses a fetch session",
                    "cause": "client",
                    "count": 2,
                },
            ],
        ),
        "fetch_sessions": rows(
            "fetch_sessions",
            [
                {
                    "session_key": "1/77/0",
                    "broker": "1",
                    "opened_at": START,
                    "first_epoch": 0,
                    "requests": 3,
                    "end_reason": "open",
                }
            ],
        ),
    }


class StandIn:
    """Answers as an open capture does."""

    size = 1
    left_out: tuple[str, ...] = ()

    def __init__(self, tables: dict[str, pa.Table] | None = None) -> None:
        self.made = {name: schema.empty_table() for name, schema in SCHEMAS.items()} | (tables or small())

    def ordered(self, name: str, columns: Any = None, where: str | None = None, *more: Any, **options: Any) -> Any:
        return self.batches(name, columns, where)

    def not_input(self, target: object) -> None:
        """Nothing was read from a file."""

    def summary(self, by: str = "api") -> Summary:
        return summarize(self.made, by)

    def table(self, name: str, columns: Any = None, where: str | None = None, reveal: bool = False) -> pa.Table:
        return self.made[name].select(columns or self.made[name].column_names)

    def batches(self, name: str, columns: Any = None, where: str | None = None, reveal: bool = False) -> Any:
        table = self.made[name]
        yield from (table.select(columns) if columns else table).to_batches() or [
            pa.RecordBatch.from_pylist([], schema=table.select(columns or table.column_names).schema)
        ]

    def message_batches(self, api: str, direction: str) -> Any:
        yield pa.RecordBatch.from_pylist([{"exchange_id": f"{CONNECTION}:1", "topics": [{"topic": "a"}]}])

    def save(self, directory: Any) -> dict[str, int]:
        for name, table in self.made.items():
            pq.write_table(table, directory / f"{name}.parquet")
        return {name: table.num_rows for name, table in self.made.items()}

    def show(self, exchange_id: str | None = None, frame: int | None = None, reveal: bool = False) -> Any:
        if exchange_id not in ("3f2a:1", None):
            raise UsageError(f"no exchange {exchange_id}")
        request = pa.Table.from_pylist(
            [
                {"offset": 0, "length": 4, "path": "size", "type": "int32", "value": "12", "meaning": None},
                {"offset": 4, "length": 2, "path": "api_key", "type": "int16", "value": "1", "meaning": "Fetch"},
                {
                    "offset": None,
                    "length": None,
                    "path": "topics",
                    "type": "array",
                    "value": "1 element",
                    "meaning": None,
                },
                {
                    "offset": 6,
                    "length": 2,
                    "path": "topics[0].topic",
                    "type": "string",
                    "value": "a\x1b[31m",
                    "meaning": None,
                },
            ]
        )
        yield SimpleNamespace(
            exchange=self.made["exchanges"].slice(1, 1).to_pylist()[0],
            request=request,
            response=None,
            request_data=bytes(16),
            response_data=b"",
            owners={},
            notes=("3 bytes were cut off",),
            session={"session_key": "1/77/1", "session_epoch": 4, "implied_partitions": 3},
            implied=rows(
                "session_partitions",
                [{"session_key": "1/77/1", "topic": "t", "partition": n, "from_epoch": 0} for n in (0, 1, 7)],
            ),
        )
