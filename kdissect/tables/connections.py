"""The `connections` table, made at the end of a run."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.kafka.completed import END_REASONS
from kdissect.tables.block import code, count, flag, instant
from kdissect.tables.clients import Clients
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import MS, TEXT
from kdissect.tables.identity import Directory, connection_ids, dictionary
from kdissect.tables.nest import optional


def connections(directory: Directory, clients: Clients) -> pa.Table:
    """All connections of a run, in order of (started_at, connection_id). `broker` is not resolved yet."""
    table = directory.connections
    size = len(table)
    rows = np.arange(size)
    client_ids = clients.client_id.column(size)
    addresses = directory.client_codes(rows).tolist()
    groups = [
        clients.group(row, capture, address, client_id)
        for row, (capture, address, client_id) in enumerate(
            zip(table.capture[:size].tolist(), addresses, client_ids, strict=True)
        )
    ]
    rtt = np.asarray(table.rtt_ns)[:size]
    columns = {
        "connection_id": connection_ids(table.id[:size]),
        "capture": directory.capture(rows),
        "client_ip": directory.client_ip(rows),
        "client_port": code(table.client_port[:size]),
        "broker_ip": directory.broker_ip(rows),
        "broker_port": code(table.broker_port[:size]),
        "broker": directory.broker(rows),
        "started_at": instant(table.started[:size]),
        "ended_at": instant(table.ended[:size]),
        "start_seen": flag(table.start_seen[:size]),
        "end_reason": dictionary(table.end_reason[:size], END_REASONS),
        "is_kafka": flag(table.is_kafka[:size]),
        "protocol": dictionary(table.protocol[:size], table.protocols),
        "client_id": pa.array(client_ids, TEXT),
        "client_software_name": pa.array(clients.software.column(size), TEXT),
        "client_software_version": pa.array(clients.version.column(size), TEXT),
        "group_id": pa.array(groups, TEXT),
        "sasl_mechanism": pa.array(clients.mechanism.column(size, table.sasl_mechanism), TEXT),
        "principal": pa.array([table.principal.get(row) for row in range(size)], TEXT),
        "tls": dictionary(table.tls[:size], table.protocols),
        "sni": pa.array([table.sni.get(row) for row in range(size)], TEXT),
        "packets": count(table.packets[:size]),
        "bytes": count(table.bytes[:size]),
        "retransmitted_bytes": count(table.retransmitted_bytes[:size]),
        "duplicated_packets": count(table.duplicated_packets[:size]),
        "out_of_order_packets": count(table.out_of_order_packets[:size]),
        "missing_bytes": count(table.missing_bytes[:size]),
        "zero_window_ms": optional(table.zero_window_ns[:size] / 1e6, np.ones(size, np.bool_), MS),
        "rtt_ms": optional(rtt / 1e6, rtt >= 0, MS),
        "exchanges": count(table.exchanges[:size]),
        "problems": count(table.problems[:size]),
    }
    made = pa.table({name: columns[name] for name in SCHEMAS["connections"].names})
    return made.sort_by([("started_at", "ascending"), ("connection_id", "ascending")])
