"""The tracker behind the engine against the literal model: generated work, encoded by kio, captured, read back."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kdissect
from tests.analysis.encoded import EncodedBroker
from tests.analysis.test_sessions import Clients, check, operation


class EncodedClients(Clients):
    """Versions below 12 cannot say a preferred replica (11) or a diverging epoch (12): such logs need newer ones."""

    def __init__(self, newest: bool) -> None:
        self.encoded = EncodedBroker()
        super().__init__(self.encoded)
        self.newest = newest

    def create(self, slot: int, chosen: set[tuple[int, int]], version: int, luck: int) -> None:
        super().create(slot, chosen, max(version, 12) if self.newest else version, luck)

    def log(self, topic: int, partition: int, what: int) -> None:
        super().log(topic, partition, what if self.newest or what < 5 else 3)


def read(broker: EncodedBroker) -> dict[str, pa.Table]:
    """The tables of its capture, with the model's names for connections."""
    data, ports = broker.capture()
    asked = ["connections", "fetches", "fetch_partitions", "fetch_sessions", "session_partitions"]
    tables = kdissect.open(io.BytesIO(data)).tables(asked)
    names = {
        connection: ports[port]
        for connection, port in zip(
            tables["connections"]["connection_id"].to_pylist(),
            tables["connections"]["client_port"].to_pylist(),
            strict=True,
        )
    }

    def renamed(table: pa.Table) -> pa.Table:
        ids = [row.partition(":") for row in table["exchange_id"].to_pylist()]
        column = pa.array([f"{names[connection]}:{n}" for connection, _, n in ids], pa.string())
        return table.set_column(table.schema.get_field_index("exchange_id"), "exchange_id", column)

    sessions = tables["fetch_sessions"]
    lists = [[names[one] for one in row] for row in sessions["connections"].to_pylist()]
    at = sessions.schema.get_field_index("connections")
    return {
        "fetches": renamed(tables["fetches"]),
        "partitions": renamed(tables["fetch_partitions"]),
        "sessions": sessions.set_column(at, "connections", pa.array(lists, sessions.schema.field(at).type)),
        "stays": tables["session_partitions"],
    }


@pytest.mark.whole
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operation, min_size=25, max_size=50), st.booleans())
def test_every_column_of_a_capture_is_the_models(steps: list[tuple[Any, ...]], newest: bool) -> None:
    clients = EncodedClients(newest)
    clients.run(steps)
    broker = clients.encoded
    if not broker.rows.fetches:
        return
    found = read(broker)
    sizes = {row["exchange_id"]: row["request_bytes"] for row in broker.rows.fetches}
    assert {row["exchange_id"]: row["request_bytes"] for row in found["fetches"].to_pylist()} == sizes
    check(broker, found)
