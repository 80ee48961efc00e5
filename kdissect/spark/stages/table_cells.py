"""Pieces of tables between stages: Arrow IPC streams in binary cells, cut by broker where a later stage goes by it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.dictionaries import unified
from kdissect.spark.stages.plan import STAGED

Words = npt.NDArray[np.int64]

PIECE_BYTES = 8 << 20
"""A table's rows are passed on when there are so many bytes of them: a cell must fit many times into a worker."""
OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def cell(table: pa.Table) -> bytes:
    """A table as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=OPTIONS) as writer:
        writer.write_table(unified(table))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def opened(data: bytes) -> pa.Table:
    """A table out of a cell."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def rows(listed: Sequence[tuple[str, str, bytes]]) -> pa.RecordBatch:
    """Staged rows: (table, broker, data)."""
    columns = zip(*listed, strict=True) if listed else [[], [], []]
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, STAGED, strict=True)], schema=STAGED
    )


def note(name: str, value: Any) -> tuple[str, str, bytes]:
    """A staged row for the driver."""
    return f"_{name}", "", pickle.dumps(value)


class Stash:
    """Rows of tables until there are enough of them. `split` gives a table's rows by broker, None: not split."""

    def __init__(self, split: Callable[[str, pa.Table], Iterator[tuple[str, pa.Table]]]) -> None:
        self._split = split
        self._kept: dict[str, list[pa.RecordBatch]] = {}
        self._size: dict[str, int] = {}

    def put(self, name: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows; staged rows when there are enough."""
        if not batch.num_rows:
            return
        kept = self._kept.setdefault(name, [])
        if kept and kept[0].schema != batch.schema:
            yield from self._out(name)
            kept = self._kept.setdefault(name, [])
        kept.append(batch)
        self._size[name] = self._size.get(name, 0) + batch.nbytes
        if self._size[name] >= PIECE_BYTES:
            yield from self._out(name)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What is left."""
        for name in list(self._kept):
            yield from self._out(name)

    def _out(self, name: str) -> Iterator[pa.RecordBatch]:
        batches = self._kept.pop(name, [])
        self._size.pop(name, None)
        if batches:
            whole = unified(pa.Table.from_batches(batches))
            yield rows([(name, broker, cell(part)) for broker, part in self._split(name, whole)])


def cuts(table: pa.Table, codes: Words, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """A table cut by the codes of its rows, which point into `names`; rows keep their order."""
    if len(codes) and (codes == codes[0]).all():
        yield names[int(codes[0])], table
        return
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        yield names[int(codes[order[begin]])], table.take(pa.array(order[begin:end]))
