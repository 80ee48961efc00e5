"""Rows of a stream as they are written: with the columns of `kdissect.spark.placing` behind their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from kdissect.arrays.dictionaries import unified
from kdissect.engine.resumption import Continued
from kdissect.engine.settings import Settings
from kdissect.engine.sights.range_collector import RangeCollector
from kdissect.kafka.streams.dissector import Harvest
from kdissect.spark.placing import Places, first_connections
from kdissect.spark.stages.owners import owned
from kdissect.tables.declaration.model import EXCHANGE_KEYS
from kdissect.tables.order import order

SESSIONS = pa.schema(
    [pa.field("capture", pa.string()), pa.field("session_key", pa.string()), pa.field("connection", pa.int64())]
)
"""A connection of each session."""
OPEN = pa.schema([pa.field("capture", pa.string()), pa.field("connection", pa.int64())])
"""Connections that more may come of; one row without a connection for each capture."""


class PlacedRows(Continued):
    """Rows of tables with the columns that written tables have behind their own."""

    def __init__(
        self, capture: str, tables: Mapping[str, Sequence[str]], settings: Settings, state: bytes | None = None
    ) -> None:
        super().__init__(capture, tables, settings, state)
        self._ranges = RangeCollector()
        self._sessions: dict[str, int | None] = {}
        """A connection of each session that there were rows about."""

    def watch(self, harvests: Iterator[Harvest]) -> Iterator[Harvest]:
        """See Continued."""
        for harvest in harvests:
            self._ranges.note(harvest, self.books.ledger.base)
            yield harvest

    def ranges(self) -> pa.Table:
        """Ranges of correlation ids of the exchanges that were finished since the last call."""
        return self._ranges.table(self._capture, self.books.builder)

    def sessions(self) -> pa.Table:
        """SESSIONS of the rows that were made since the last call."""
        columns = [[self._capture] * len(self._sessions), list(self._sessions), list(self._sessions.values())]
        self._sessions = {}
        return pa.table(columns, schema=SESSIONS)

    def open_connections(self) -> pa.Table:
        """OPEN of what was read so far."""
        ids = self.awaited_connections().tolist()
        return pa.table([[self._capture] * (len(ids) + 1), [None, *ids]], schema=OPEN)

    def place_rows(self, name: str, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Rows as they are written, brokers by the names that are known now."""
        builder = self.books.builder
        if name == "fetch_sessions":
            self._sessions |= zip(rows["session_key"].to_pylist(), first_connections(rows), strict=True)
        if name == "session_partitions":
            known = rows.select(["session_key", EXCHANGE_KEYS[0]]).group_by(["session_key", EXCHANGE_KEYS[0]])
            self._sessions |= zip(*(column.to_pylist() for column in known.aggregate([]).columns), strict=True)
        places = Places.of([owned(builder.directory, settled=False)], builder.brokers, [self._capture], {})
        yield from places.placed(name, order(name, unified(rows)), self.tables[name], coded=True).to_batches()
