"""Fetch exchanges as rows of the contract's tables, made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa

from kdissect.tables.declaration import SCHEMAS

START = 1_790_000_000_000_000
"""Microseconds since the epoch at which made captures begin."""


@dataclass
class WireRows:
    """Rows of tables as dicts; missing columns are null."""

    fetches: list[dict[str, Any]] = field(default_factory=list)
    partitions: list[dict[str, Any]] = field(default_factory=list)

    def tables(self) -> tuple[pa.Table, pa.Table]:
        return made("fetches", self.fetches), made("fetch_partitions", self.partitions)

    def parts(self, cuts: list[int]) -> list[tuple[pa.Table, pa.Table]]:
        """Cut before these rows of fetches."""
        edges = [0, *sorted(cuts), len(self.fetches)]
        found = []
        for begin, end in pairwise(edges):
            rows = self.fetches[begin:end]
            names = {row["exchange_id"] for row in rows}
            kept = [row for row in self.partitions if row["exchange_id"] in names]
            found.append((made("fetches", rows), made("fetch_partitions", kept)))
        return found


TIMES = {"requested_at", "request_last_at", "response_first_at", "response_last_at"}


def made(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """A table of the contract from dicts."""
    schema = SCHEMAS[name]
    arrays = []
    for column in schema:
        values = [row.get(column.name) for row in rows]
        if pa.types.is_timestamp(column.type):
            arrays.append(pa.array(values, pa.int64()).cast(column.type))
        else:
            arrays.append(pa.array(values, column.type))
    return pa.Table.from_arrays(arrays, schema=schema)
