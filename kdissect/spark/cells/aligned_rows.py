"""Rows of several tables that stay together exchange by exchange, for tables made by partition or by producer.

A record batch's way leads over several brokers and connections. So rows are dealt out by the partition that they are
about (`topic_shares`), each with its exchange. The exchange has to be at hand then, and rows that tasks stage for other
purposes are cut table by table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from typing import TypeVar

import numpy as np
import pyarrow as pa

from kdissect.arrays.arrow import ints
from kdissect.schema.apikeys import ApiKey
from kdissect.spark.cells.table_cells import PIECE_BYTES, Cell, cell, rows
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import DELIVERIES, TOPIC_TRAFFIC, TRACED, TRANSACTIONS
from kdissect.tables.order import sort_columns

Data = TypeVar("Data", pa.Table, pa.RecordBatch)

ALIGNED = "aligned "
"""Before the name of a table: rows of it that were staged together with those of others. All rows of an exchange have
the same `origin` and `lot`."""
BY_TOPIC: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "deliveries": DELIVERIES.tables,
    "topic_traffic": TOPIC_TRAFFIC.tables,
    "traced": TRACED.tables,
}
"""Tables that are made by topic and partition, and what they read."""
FROM_ALIGNED: Mapping[str, Mapping[str, tuple[str, ...]]] = {**BY_TOPIC, "transactions": TRANSACTIONS.tables}
"""These, and those that are made by producer."""
CARRYING = np.array([ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH], np.int64)
"""API keys of exchanges that carry records."""


class AlignedRows:
    """Rows of the tables that those of `tables` which stand in FROM_ALIGNED read, until there are enough of them.
    `origin`: see STAGED."""

    def __init__(self, tables: Collection[str], origin: int = 0) -> None:
        self._read: dict[str, set[str]] = {}
        self._carrying = "transactions" not in tables
        for made in FROM_ALIGNED.keys() & set(tables):
            for name, columns in FROM_ALIGNED[made].items():
                if name != "connections":  # made at the end, and staged by themselves
                    self._read.setdefault(name, set()).update(columns, sort_columns(name))
        self._origin = origin
        self._kept: dict[str, list[pa.RecordBatch]] = {}
        self._size = self._lot = 0

    def take(self, tables: Mapping[str, pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take a part of a run: rows of exchanges, or what belongs to those of the part before. Staged rows when there
        are enough."""
        given = {
            name: narrow_rows(name, batch, self._read[name], self._carrying)
            for name, batch in tables.items()
            if name in self._read
        }
        given = {name: batch for name, batch in given.items() if batch.num_rows}
        if "exchanges" in given and self._size >= PIECE_BYTES:
            yield from self.rest()
        for name, batch in given.items():
            self._kept.setdefault(name, []).append(batch)
            self._size += batch.nbytes

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The staged rows of the parts that are still kept."""
        kept, self._kept, self._size = self._kept, {}, 0
        if kept:
            self._lot += 1
        for name, batches in kept.items():
            for _, alike in groupby(batches, lambda batch: batch.schema):
                data = cell(pa.Table.from_batches(alike))
                yield rows([Cell(ALIGNED + name, "", data, 0, self._lot, self._origin)])


def narrow_rows(name: str, rows: Data, columns: Collection[str], carrying: bool) -> Data:
    """The columns that are read of some rows of a table, with helper columns; of exchanges those in CARRYING alone
    where `carrying`."""
    names = rows.schema.names
    read = [one for one in names if one in columns or one not in SCHEMAS[name].names]
    part = rows if len(read) == len(names) else rows.select(read)
    if name != "exchanges" or not carrying:
        return part
    keys = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
    return part.filter(pa.array(np.isin(ints(keys, "api_key"), CARRYING)))
