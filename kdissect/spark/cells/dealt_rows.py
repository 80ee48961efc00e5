"""Rows dealt out to the tasks of the next stage, by what they are about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import numpy as np
import pyarrow as pa

from kdissect.arrays.arrow import Coder, Int64s, ints
from kdissect.arrays.dictionaries import join_tables
from kdissect.arrays.growing import runs
from kdissect.spark.cells.table_cells import Cell, cell, rows

KEPT_ROWS = 1 << 19
"""Rows that wait to be passed on together, 30 to 60 MB."""


class Dealt:
    """Rows by the task that gets them, until there are enough of them. `labels`: see `Plan.labels`."""

    def __init__(self, labels: Sequence[int]) -> None:
        self._labels = labels
        self._kept: dict[tuple[int, str], list[pa.Table]] = {}
        self._rows = 0

    def add_rows(self, name: str, table: pa.Table, share: Int64s) -> Iterator[pa.RecordBatch]:
        """Add rows of a table, each for the task with the number in `share`; staged rows when there are enough."""
        for one, piece in split_by_share(table, np.arange(table.num_rows), share):
            self._kept.setdefault((one, name), []).append(piece)
        self._rows += table.num_rows
        if self._rows >= KEPT_ROWS:
            yield from self.drain()

    def drain(self) -> Iterator[pa.RecordBatch]:
        """The staged rows that still wait."""
        kept, self._kept, self._rows = self._kept, {}, 0
        for (share, name), tables in kept.items():
            yield rows([Cell(name, "", cell(join_tables(tables)), lot=self._labels[share])])

    def to_all(self, name: str, text: str) -> Iterator[pa.RecordBatch]:
        """Staged rows with a text, as `broker`, for every task."""
        yield rows([Cell(name, text, b"", lot=label) for label in self._labels])


def split_by_share(table: pa.Table, row: Int64s, share: Int64s) -> Iterator[tuple[int, pa.Table]]:
    """Those rows of a table, a piece for each task: `share` has the task of each."""
    sorting = np.argsort(share, kind="stable")
    table, share = table.take(pa.array(row[sorting])), share[sorting]
    for begin, end in runs(share):
        yield int(share[begin]), table.slice(begin, end - begin)


def share_of_partition(table: pa.Table, count: int) -> Int64s:
    """The number below `count` of the task that has each row's partition, by `topic` (its id if no message named it)
    and `partition`."""
    coder = Coder()
    topic, known = coder.column(table, "topic"), coder.column(table, "topic_id")
    mixed = _hashes(coder.texts)[np.where(topic >= 0, topic, known)] * np.uint64(31)
    return ((mixed + ints(table, "partition", 0).astype(np.uint64)) % np.uint64(count)).astype(np.int64)


def share_of_text(table: pa.Table, name: str, count: int) -> Int64s:
    """The number below `count` of the task that has what the text column names; nulls have one together."""
    coder = Coder()
    codes = coder.column(table, name)
    return (_hashes(coder.texts)[codes] % np.uint64(count)).astype(np.int64)


def _hashes(texts: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Hashes of texts that are the same in every process, and one of none behind them."""
    return np.array([*(crc32(text.encode()) for text in texts), 0], np.uint64)
