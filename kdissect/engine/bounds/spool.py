"""Tables set aside on disk while a capture is read.

The file has no name: it is gone when it is closed, and when the process ends, however it does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa

from kdissect.arrays.dictionaries import unified
from kdissect.arrays.ipc_streams import pack_stream

FORMAT = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""A third of the size, written at a gigabyte a second: less than the disk would cost."""


class Place(NamedTuple):
    """Where a table lies in the file."""

    offset: int
    size: int


class Spool:
    """A temporary file of tables in `folder`. To be used in a `with`. Raises OSError where the disk is full."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is closed with the spool
        self._end = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def put(self, table: pa.Table) -> Place:
        """Set a table aside."""
        data = pack_stream(table, FORMAT)
        place = Place(self._end, data.size)
        self._file.write(data)
        self._end += data.size
        return place

    def get(self, place: Place) -> pa.Table:
        """The table again."""
        self._file.flush()
        data = os.pread(self._file.fileno(), place.size, place.offset)
        return pa.ipc.open_stream(data).read_all()


def together(pieces: Iterable[pa.RecordBatch | pa.Table]) -> pa.Table | None:
    """The pieces as one table whose dictionary columns have one dictionary each; None for no rows."""
    tables = [pa.Table.from_batches([piece]) if isinstance(piece, pa.RecordBatch) else piece for piece in pieces]
    tables = [table for table in tables if table.num_rows]
    if not tables:
        return None
    return unified(pa.concat_tables(tables, promote_options="none")).combine_chunks()
