"""Arrays of a row each, dealt out to the tasks of the next stage: NamedTuples and dataclasses of these, and nested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.growing import runs
from kdissect.arrays.typed_values import dumped, loaded
from kdissect.spark.stages.plan import INDEX

T = TypeVar("T")
Int64s = npt.NDArray[np.int64]
ROWS = 1 << 17
"""Rows of one cell, at most."""


def take_rows(value: T, rows: Any) -> T:
    """Some rows of all arrays."""
    if isinstance(value, np.ndarray):
        return cast(T, value[rows])
    return _rebuild(value, [take_rows(part, rows) for part in _arrays_of(value)])


def join_rows(values: Sequence[T]) -> T:
    """The rows of one value (at least) after the other."""
    if isinstance(values[0], np.ndarray):
        return cast(T, np.concatenate(cast(Any, values)))
    return _rebuild(values[0], [join_rows(parts) for parts in zip(*map(_arrays_of, values), strict=True)])


def _arrays_of(value: Any) -> Sequence[Any]:
    return [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else value


def _rebuild(like: T, parts: Sequence[Any]) -> T:
    return type(like)(*parts)


def targets_of(hashes: npt.NDArray[np.uint64], labels: Sequence[int] | Int64s) -> Int64s:
    """The label of the task that has each hash."""
    return np.array(labels, np.int64)[(hashes % np.uint64(len(labels))).astype(np.int64)]


def split_rows(value: T, targets: Int64s) -> dict[int, T]:
    """By target, the rows that are for it, in their order."""
    order = np.argsort(targets, kind="stable")
    return {int(targets[order[begin]]): take_rows(value, order[begin:end]) for begin, end in runs(targets[order])}


def deal_rows(kind: int, value: Any, targets: Int64s, capture: int = -1) -> Iterator[pa.RecordBatch]:
    """Rows of INDEX with a value's rows; `targets`: one of `Plan.labels` for each, whose task is to have it."""
    order = np.argsort(targets, kind="stable")
    for begin, end in runs(targets[order]):
        for first in range(begin, end, ROWS):
            rows = order[first : min(first + ROWS, end)]
            yield index_row(int(targets[rows[0]]), kind, dumped(take_rows(value, rows), type(value)), capture)


def index_row(bucket: int, kind: int, packed: bytes, capture: int = -1) -> pa.RecordBatch:
    """A row of INDEX that is no part of a file: it comes before those that are, in order of the kinds."""
    columns = zip((bucket, capture, -1, kind, kind, packed, None), INDEX, strict=True)
    return pa.RecordBatch.from_arrays([pa.array([value], field.type) for value, field in columns], schema=INDEX)


def packed_of(batches: Iterable[pa.RecordBatch], kind: int) -> Iterator[bytes]:
    """The packed bytes of rows of a kind."""
    for batch in batches:
        kinds = np.asarray(batch.column("kind"))
        yield from batch.column("packed").filter(pa.array(kinds == kind)).to_pylist()


def values_of(batches: Iterable[pa.RecordBatch], kind: int, of: type[T]) -> list[T]:
    """The values in rows of a kind."""
    return [loaded(packed, of) for packed in packed_of(batches, kind)]
