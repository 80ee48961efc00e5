"""Rows that only the analysis reads (`Rows` of integers, `NamedFetches`) as bytes, for the shuffle.

Columns are written one by one, each in the smallest integers that hold it; one that has the same value in all rows is
written as that value alone. Names are written as far as the rows use them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import Int64s
from kdissect.arrays.growing import runs
from kdissect.arrays.ipc_streams import pack_stream
from kdissect.arrays.rows import Column, Rows, Texts
from kdissect.spark.cells.segment_cells import TYPES, find_narrowest
from kdissect.spark.cells.table_cells import OPTIONS
from kdissect.tables.fetch_rows import (
    FETCH_WIDTH,
    OF_SESSIONS,
    PARTITION_WIDTH,
    FetchRows,
    NamedFetches,
    fetches_of,
    partitions_of,
)

CodedRows = TypeVar("CodedRows", Rows, NamedFetches)
Numbers = npt.NDArray[Any]
COUNTS = (b"rows", b"partitions")
"""What the schema says besides: how many rows there are of each."""
OF_PARTITIONS, NAMES = "partitions: ", "names: "
"""Before the name of a column: it is one of fetches' partitions, or has what the codes of a column stand for."""
KEPT_TEXTS = 64
"""Names that are written whether rows use them or not: fewer cost nothing."""


Columns = dict[str, Numbers]
Names = dict[str, Sequence[str | None]]


def pack_rows(rows: Rows) -> bytes:
    """Rows whose columns are integers, numbers and `Texts` as bytes for `unpack_rows`."""
    columns: Columns = {}
    names: Names = {}
    for name, column in rows.columns.items():
        if isinstance(column, Texts):
            columns[name], used = _used_texts(column.codes, len(column.values))
            names[name] = [column.values[code] for code in used]
        else:
            columns[name] = column
    return _packed(columns, {}, names)


def pack_fetches(rows: NamedFetches) -> bytes:
    """Fetches as bytes for `unpack_fetches`. Their row in their block is left out, and what the analysis fills in
    (OF_SESSIONS)."""
    fetches = _columns(fetches_of(rows.rows.fetches), {"exchange", *OF_SESSIONS[0]})
    partitions = _columns(partitions_of(rows.rows.partitions), OF_SESSIONS[1])
    fetches["broker"], brokers = _used_texts(fetches["broker"], len(rows.brokers))
    fetches["client"], clients = _used_texts(fetches["client"], len(rows.clients))
    partitions["topic"], topics = _used_texts(partitions["topic"], len(rows.topics))
    names: Names = {
        "broker": [rows.brokers[code] for code in brokers],
        "client": [rows.clients[code] for code in clients],
        "topic": [rows.topics[code][0] for code in topics],
        "topic_id": [rows.topics[code][1] for code in topics],
    }
    return _packed(fetches, partitions, names)


def _packed(columns: Columns, partitions: Columns, names: Names) -> bytes:
    made = {name: _as_one(pa.array(_narrowed(column))) for name, column in columns.items()}
    made |= {OF_PARTITIONS + name: _as_one(pa.array(_narrowed(column))) for name, column in partitions.items()}
    made |= {NAMES + name: _as_one(pa.array(texts, pa.string())) for name, texts in names.items()}
    counts = {COUNTS[0]: str(_count(columns)), COUNTS[1]: str(_count(partitions))}
    data: bytes = pack_stream(pa.table(made).replace_schema_metadata(counts), OPTIONS).to_pybytes()
    return data


def unpack_rows(data: bytes) -> Rows:
    """The rows in these bytes."""
    columns, _, names, (rows, _) = _unpacked(data)
    made: dict[str, Column] = {}
    for name, column in columns.items():
        wide: Any = np.empty(rows, np.float64 if column.dtype.kind == "f" else np.int64)
        wide[:] = column
        made[name] = Texts(wide, names[name]) if name in names else wide
    return Rows(made, rows)


def unpack_fetches(data: bytes, origin: int) -> NamedFetches:
    """The fetches in these bytes. `origin`: number of the task that decoded them, in place of a fetch's row in its
    block."""
    columns, partitions, names, (rows, inner) = _unpacked(data)
    found = FetchRows(np.empty((rows, FETCH_WIDTH), np.int64), np.empty((inner, PARTITION_WIDTH), np.int64))
    for records, given in ((fetches_of(found.fetches), columns), (partitions_of(found.partitions), partitions)):
        for name, column in given.items():
            records[name] = column
    fetches_of(found.fetches)["exchange"] = origin
    topics = list(zip(names["topic"], names["topic_id"], strict=True))
    return NamedFetches(found, names["broker"], [text or "" for text in names["client"]], topics)


def _unpacked(data: bytes) -> tuple[Columns, Columns, Names, tuple[int, int]]:
    """The columns and names that `_packed` was given, columns of equal values as one value, and the count of rows of
    each kind."""
    columns: Columns = {}
    partitions: Columns = {}
    names: Names = {}
    with pa.ipc.open_stream(data) as reader:
        batch = reader.read_next_batch()
    rows, inner = (int(batch.schema.metadata[name]) for name in COUNTS)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name.startswith(NAMES):
            names[name.removeprefix(NAMES)] = column.values.to_pylist()
        elif name.startswith(OF_PARTITIONS):
            partitions[name.removeprefix(OF_PARTITIONS)] = column.values.to_numpy()
        else:
            columns[name] = column.values.to_numpy()
    return columns, partitions, names, (rows, inner)


def split_rows(rows: CodedRows, lots: Int64s) -> list[tuple[int, CodedRows]]:
    """Rows cut by the lots that they are of, in whose order they come; those of a lot keep their order."""
    order = None if (lots[1:] >= lots[:-1]).all() else np.argsort(lots, kind="stable")
    if order is not None:
        rows, lots = rows.take(order), lots[order]
    ends = list(runs(lots))
    return [(int(lots[at]), part) for (at, _), part in zip(ends, rows.cut(ends), strict=True)]


def _columns(records: Any, without: Collection[str]) -> Columns:
    return {name: np.ascontiguousarray(records[name]) for name in records.dtype.names if name not in without}


def _as_one(column: pa.Array) -> pa.Array:
    """All values as the one value of a column of lists: columns of one batch may be of unlike length then."""
    return pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)


def _count(columns: Columns) -> int:
    return len(next(iter(columns.values()), ()))


def _narrowed(column: Numbers) -> Numbers:
    """A column in the smallest integers that hold it, numbers as they are; of equal values the first."""
    if not len(column):
        return column
    bits = column.view(np.int64)
    low, high = int(bits.min()), int(bits.max())
    if low == high:
        return column[:1]
    if column.dtype.kind == "f":
        return column
    return column.astype(TYPES[find_narrowest(low, high)])


def _used_texts(codes: Int64s, count: int) -> tuple[Int64s, Sequence[int]]:
    """Rows into the texts that are used, out of `count` ones, and which these are; below 0 is none."""
    if count <= KEPT_TEXTS:
        return codes, range(count)
    used = np.unique(codes[codes >= 0])
    return np.where(codes >= 0, np.searchsorted(used, codes), -1), used.tolist()
