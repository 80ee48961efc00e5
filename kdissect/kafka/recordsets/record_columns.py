"""Rows of numbers from the record kernels as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.dictionaries import coded
from kdissect.kafka.recordsets import record_kernels as rk
from kdissect.kafka.recordsets.batch_layout import CONTROL_TYPES, NULL
from kdissect.kafka.recordsets.trace_context import trace_columns

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("owner", pa.int64()),
        ("batch", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key_bytes", pa.int64()),
        ("value_bytes", pa.int64()),
        ("headers", pa.list_(pa.field("item", HEADER))),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("control_type", pa.dictionary(pa.int8(), pa.string())),
        ("trace_id", pa.string()),
        ("span_id", pa.string()),
    ]
)
"""A chunk of records. `owner` is the record set, `batch` the row of `Batches`; the others as in the table `records`."""

LARGEST = 16 << 20
"""Bytes of keys, values and headers in one chunk; beyond, it is cut in two: as text they take more."""
_CONTROLS = pa.array(CONTROL_TYPES)


def chunk(
    s: Bytes, out: rk.RecordColumns, owner: Int64s, reveal: bool, traced: bool = False
) -> Iterator[pa.RecordBatch]:
    """Record batches of these columns; positions in them are positions in `s`. `traced`: trace contexts are looked
    for in headers."""
    count = len(out.batch)
    if (reveal or traced) and count > 1:
        held = np.where(out.value_at < 0, 0, np.maximum(out.key_bytes, 0) + np.maximum(out.value_bytes, 0))
        if int(held.sum()) + _header_span(out, s) > LARGEST:
            yield from chunk(s, rk.cut_columns(out, 0, count // 2), owner, reveal, traced)
            yield from chunk(s, rk.cut_columns(out, count // 2, count), owner, reveal, traced)
            return
    headers = _headers(s, out) if reveal or traced else None
    traces = trace_columns(headers) if traced and headers is not None else [pa.nulls(count, pa.string())] * 2
    columns = [
        pa.array(owner[out.batch]),
        pa.array(out.batch),
        pa.array(out.offset),
        _optional(out.time, NULL).cast(SCHEMA.field("timestamp").type),
        _optional(out.key_bytes, -1),
        _optional(out.value_bytes, -1),
        headers if reveal else pa.nulls(count, SCHEMA.field("headers").type),
        _binary(s, out.key_at, out.key_bytes) if reveal else pa.nulls(count, pa.binary()),
        _binary(s, out.value_at, out.value_bytes) if reveal else pa.nulls(count, pa.binary()),
        _controls(out.control),
        *traces,
    ]
    yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _header_span(out: rk.RecordColumns, s: Bytes) -> int:
    """A bound on the bytes of all headers: records do not overlap, so they cannot hold more than lies between."""
    return int(out.headers_at.max() - out.headers_at.min()) if (out.headers > 0).any() else 0


def _optional(values: Int64s, null: int) -> pa.Array:
    absent = values == null
    return pa.array(values, mask=absent) if absent.any() else pa.array(values)


def _controls(codes: Int64s) -> pa.Array:
    return coded(codes.astype(np.int8), _CONTROLS)


def _binary(s: Bytes, at: Int64s, size: Int64s) -> pa.Array:
    """The byte strings s[at : at + size], null where one of them is -1."""
    size = np.where(at < 0, -1, size)
    offsets = np.empty(len(at) + 1, np.int32)
    data = np.empty(int(np.maximum(size, 0).sum()), np.uint8)
    rk.gather(s, at, size, offsets, data)
    absent = size < 0
    mask = pa.array(~absent).buffers()[1] if absent.any() else None
    return pa.Array.from_buffers(pa.binary(), len(at), [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


def _text(array: pa.Array) -> pa.Array:
    """Byte strings as text; what is no UTF-8 gets replacement characters, as in Java."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in array.to_pylist()], pa.string())


def _headers(s: Bytes, out: rk.RecordColumns) -> pa.Array:
    """Headers of each record, null where the format has none (magic 0 and 1)."""
    count = np.maximum(out.headers, 0)
    total = int(count.sum())
    places = np.empty((4, total), np.int64)
    rk.header_places(s, out.headers_at, count, places)
    pairs = pa.StructArray.from_arrays(
        [_text(_binary(s, places[0], places[1])), _binary(s, places[2], places[3])], fields=list(HEADER)
    )
    offsets = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    absent = out.headers < 0
    return pa.ListArray.from_arrays(
        pa.array(offsets), pairs, type=SCHEMA.field("headers").type, mask=pa.array(absent) if absent.any() else None
    )
