"""Rows of a stream as they are written: with the columns of `kdissect.spark.placing` behind their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from kdissect.arrays.dictionaries import unified
from kdissect.engine.resumption import Continued
from kdissect.engine.settings import Settings
from kdissect.engine.sights.range_collector import RangeCollector
from kdissect.kafka.streams.dissector import Harvest
from kdissect.spark.placing import Places
from kdissect.spark.stages.owners import owned
from kdissect.tables.order import order


class PlacedRows(Continued):
    """Rows of tables with the columns that written tables have behind their own."""

    def __init__(
        self, capture: str, tables: Mapping[str, Sequence[str]], settings: Settings, state: bytes | None = None
    ) -> None:
        super().__init__(capture, tables, settings, state)
        self._ranges = RangeCollector()

    def watch(self, harvests: Iterator[Harvest]) -> Iterator[Harvest]:
        """See Continued."""
        for harvest in harvests:
            self._ranges.note(harvest, self.books.ledger.base)
            yield harvest

    def ranges(self) -> pa.Table:
        """Ranges of correlation ids of the exchanges that were finished since the last call."""
        (capture,) = self.books.captures
        return self._ranges.table(capture.name, self.books.builder)

    def place_rows(self, name: str, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Rows as they are written, brokers by the names that are known now."""
        builder = self.books.builder
        (capture,) = self.books.captures
        places = Places.of([owned(builder.directory, settled=False)], builder.brokers, [capture.name], {})
        yield from places.placed(name, order(name, unified(rows)), self.tables[name], coded=True).to_batches()
