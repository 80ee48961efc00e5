"""Where the time went of the client that most is wrong with, for the first screen: a row of `time_budget`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from kdissect.analysis.exchange_keys import key_names
from kdissect.analysis.findings.evidence import SEVERITIES
from kdissect.arrays.dictionaries import join_tables
from kdissect.summary.model import Summary
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import BUDGET

MOST = 60_000
"""Exchanges, and connections, that are kept until it is known whether somebody is in trouble: some 10 MB."""


class Spending:
    """Keeps what budgets of clients are made of, where a capture has at most `most` exchanges and as many connections;
    else nothing."""

    def __init__(self, most: int = MOST) -> None:
        self._room = {"exchanges": most, "connections": most}
        self._parts: dict[str, list[pa.Table]] = {name: [] for name in BUDGET.tables}

    @property
    def full(self) -> bool:
        """There was more than is kept, and nothing is any more."""
        return min(self._room.values()) < 0

    def add_rows(self, part: Mapping[str, pa.Table]) -> None:
        """Keep rows of tables that budgets read, other tables aside."""
        for name in self._room.keys() & part.keys():
            self._room[name] -= part[name].num_rows
        for name, columns in BUDGET.tables.items():
            if self.full:
                self._parts[name].clear()
            elif name in part and part[name].num_rows:
                keys = key_names(part[name]) if name != "connections" else []
                wanted = [one for one in part[name].schema.names if one in columns or one in keys]
                self._parts[name].append(part[name].select(wanted))

    def of(self, summary: Summary) -> dict[str, Any] | None:
        """The row of `time_budget` of the first of the summary's clients (those in trouble come first) that a finding
        of severity medium or high names; None where there is none, or more exchanges than were kept."""
        named = {row["client_id"] for row in summary.findings if row["severity"] in SEVERITIES[:2]} - {None}
        client = next((c.client_id for c in summary.clients if c.client_id in named and not c.broker_itself), None)
        if client is None or not self._parts["exchanges"]:
            return None
        from kdissect.analysis.budget import time_budget

        tables = {name: join_tables(parts or [SCHEMAS[name].empty_table()]) for name, parts in self._parts.items()}
        return next(iter(time_budget(tables, only=[client]).to_pylist()), None)
