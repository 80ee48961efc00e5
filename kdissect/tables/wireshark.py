"""How Wireshark names what rows of `exchanges` stand for: display filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def exchange_filter(row: Mapping[str, Any]) -> str:
    """A display filter for an exchange's messages as Wireshark dissects them: connection and correlation id.

    `row`: client_ip, client_port, broker_ip, broker_port and correlation_id of its row of `exchanges`.
    """
    field = "ipv6.addr" if ":" in row["client_ip"] else "ip.addr"
    ends = [f"{field} == {row[f'{end}_ip']} && tcp.port == {row[f'{end}_port']}" for end in ("client", "broker")]
    return " && ".join([*ends, f"kafka.correlation_id == {row['correlation_id']}"])
