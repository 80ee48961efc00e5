"""Rows of a stream as they are written: with the columns of `kdissect.spark.placing` behind their own."""

from __future__ import annotations

import pyarrow as pa

from kdissect.engine.resumption import Continued
from kdissect.spark.placing import Places
from kdissect.spark.stages.owners import owned


class PlacedRows(Continued):
    """Rows of tables with the columns that written tables have behind their own."""

    def resolve_rows(self, name: str, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        """Unresolved rows as they are written, brokers by the names that are known now."""
        builder = self.books.builder
        table = builder.resolve(name, rows)
        (capture,) = self.books.captures
        places = Places.of([owned(builder.directory, settled=False)], builder.brokers, [capture.name], {})
        (made,) = places.placed(name, table, self.tables[name]).combine_chunks().to_batches()
        return made
