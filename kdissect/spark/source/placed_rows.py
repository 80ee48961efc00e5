"""Rows of a stream as they are written: with the columns of `kdissect.spark.placing` behind their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kdissect.arrays.dictionaries import unified
from kdissect.engine.resumption import Continued
from kdissect.engine.settings import Settings
from kdissect.engine.sights.range_collector import RangeCollector
from kdissect.kafka.streams.dissector import Harvest
from kdissect.spark.placing import Places, first_connections
from kdissect.spark.source.late_names import LATE_NAMES, Unnamed
from kdissect.spark.stages.owners import owned
from kdissect.tables.declaration.model import EXCHANGE_KEYS
from kdissect.tables.order import order

RANGES_CELL, SESSIONS_CELL, OPEN_CELL, NOTES_CELL = (
    "correlation ranges", "connections of sessions", "open connections", "notes on files",
)  # fmt: skip
"""How cells name what tells of rows which of them other sets have, too, and of files that were not read."""
SESSIONS = pa.schema(
    [pa.field("capture", pa.string()), pa.field("session_key", pa.string()), pa.field("connection", pa.int64())]
)
"""A connection of each session."""
OPEN = pa.schema([pa.field("capture", pa.string()), pa.field("connection", pa.int64())])
"""Connections that more may come of; one row without a connection for each capture."""
NOTES = pa.schema([pa.field("capture", pa.string()), pa.field("file", pa.string()), pa.field("why", pa.string())])
"""What is said of files besides their rows: that one was not read to its end, say."""


class PlacedRows(Continued):
    """Rows of tables with the columns that written tables have behind their own."""

    def __init__(
        self, capture: str, tables: Mapping[str, Sequence[str]], settings: Settings, state: bytes | None = None
    ) -> None:
        super().__init__(capture, tables, settings, state)
        self._ranges = RangeCollector()
        self._sessions: dict[str, int | None] = {}
        """A connection of each session that there were rows about."""
        self._unnamed = Unnamed.of(capture, self.carried_beside)

    def apart(self) -> PlacedRows:
        """See Continued. Names that its rows lack may come with later files of this one."""
        other = super().apart()
        assert isinstance(other, PlacedRows)
        other._unnamed = self._unnamed
        return other

    def watch(self, harvests: Iterator[Harvest]) -> Iterator[Harvest]:
        """See Continued."""
        for harvest in harvests:
            self._ranges.note(harvest, self.books.ledger.base)
            yield harvest

    def told_beside(self) -> Iterator[tuple[str, pa.Table]]:
        """Ranges of correlation ids of the exchanges that were finished, SESSIONS, OPEN, NOTES and late names."""
        names = self._unnamed.take_names(self.books.builder)
        if names.num_rows:
            yield LATE_NAMES, names
        self.carried_beside |= self._unnamed.carried()
        yield RANGES_CELL, self._ranges.table(self._capture, self.books.builder)
        yield SESSIONS_CELL, self._table(SESSIONS, list(self._sessions), list(self._sessions.values()))
        yield OPEN_CELL, self._table(OPEN, [None, *self.awaited_connections().tolist()])
        if self.notes:
            yield NOTES_CELL, self._table(NOTES, *map(list, zip(*self.notes, strict=True)))

    def _table(self, schema: pa.Schema, *columns: list[Any]) -> pa.Table:
        """These columns behind the capture."""
        return pa.table([[self._capture] * len(columns[0]), *columns], schema=schema)

    def place_rows(self, name: str, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Rows as they are written, brokers by the names that are known now."""
        builder = self.books.builder
        if name == "fetch_sessions":
            self._sessions |= zip(rows["session_key"].to_pylist(), first_connections(rows), strict=True)
        if name == "session_partitions":
            known = rows.select(["session_key", EXCHANGE_KEYS[0]]).group_by(["session_key", EXCHANGE_KEYS[0]])
            self._sessions |= zip(*(column.to_pylist() for column in known.aggregate([]).columns), strict=True)
        places = Places.of([owned(builder.directory, settled=False)], builder.brokers, [self._capture], {})
        placed = places.placed(name, order(name, unified(rows)), self.tables[name], coded=True)
        self._unnamed.note(placed, builder.brokers)
        yield from placed.to_batches()
