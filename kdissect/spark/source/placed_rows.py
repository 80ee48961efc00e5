"""Rows of a stream as they are written: with the columns of `kdissect.spark.placing` behind their own."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from kdissect.arrays.dictionaries import unified
from kdissect.engine.resumption import Continued
from kdissect.spark.placing import Places
from kdissect.spark.stages.owners import owned
from kdissect.tables.order import order


class PlacedRows(Continued):
    """Rows of tables with the columns that written tables have behind their own."""

    def place_rows(self, name: str, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Rows as they are written, brokers by the names that are known now."""
        builder = self.books.builder
        (capture,) = self.books.captures
        places = Places.of([owned(builder.directory, settled=False)], builder.brokers, [capture.name], {})
        yield from places.placed(name, order(name, unified(rows)), self.tables[name], coded=True).to_batches()
