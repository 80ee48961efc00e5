"""Where the columns of a batch stand in one buffer, and Arrow arrays as slices of it, without a copy.

`place` lays out one buffer for given counts (64-byte aligned: validity bitmaps, values, offsets, text); the fill
kernel writes it; `record_batch` wraps it. Columns that no version in the batch has take no memory: they are null
arrays over one shared block of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.schema.layout import TAGS_NAME, WIDTHS, Column, Layout, outputs

Ints = npt.NDArray[Any]

_BIT, _UUID, _OFFSETS, _TEXT, _VALIDITY = 4, 5, 6, 7, 8
_CODES = {
    **WIDTHS, "bool": _BIT, "uuid": _UUID, "list": _OFFSETS, "string": _TEXT, "bytes": _TEXT, "struct": _VALIDITY,
}  # fmt: skip
_TYPES = {
    "bool": pa.bool_(), "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "float64": pa.float64(), "uuid": pa.string(), "string": pa.string(), "bytes": pa.binary(),
}  # fmt: skip
_UUID_CHARS = 22


class Shape:
    """A layout's columns as arrays, for arithmetic on all of them at once. Row i is column `first_column` + i."""

    def __init__(self, layout: Layout) -> None:
        columns = layout.columns
        self.first = layout.first_column
        self.end = layout.end_column
        self.code = np.array([_CODES[column.kind] for column in columns], np.int64)
        self.level = np.array([column.level for column in columns], np.int64)
        self.sub = np.array([column.sub for column in columns], np.int64)
        self.tags = np.array([column.name == TAGS_NAME for column in columns], bool)
        self.shift = np.where(self.code <= 3, self.code, np.where((self.code == _OFFSETS) | (self.code == _TEXT), 2, 0))

    def mask(self, columns: set[int]) -> npt.NDArray[np.bool_]:
        """Flags of the layout's columns: True for those in the set."""
        out = np.zeros(self.end - self.first, bool)
        if columns:
            out[np.fromiter(columns, np.int64, len(columns)) - self.first] = True
        return out


class Used:
    """One layout in a batch: which of its columns can hold a value, which can be null."""

    def __init__(self, layout: Layout, shape: Shape, has: npt.NDArray[np.bool_], null: npt.NDArray[np.bool_]) -> None:
        self.layout = layout
        self.shape = shape
        self.has = has
        self.null = null


def place(used: list[Used], counts: Ints, columns: int) -> tuple[Ints, int]:
    """(int64 [columns, 3] for `vm.fill`, bytes of the buffer) for `counts` int64 per counter."""
    out = np.full((columns, 3), -1, np.int64)
    at = 0
    for item in used:
        shape = item.shape
        n = counts[shape.level]
        sub = counts[shape.sub]
        bits = (n + 7) >> 3
        sizes = np.zeros((n.size, 3), np.int64)  # values, validity, text
        code = shape.code
        sizes[:, 0] = np.where(code <= 3, n << np.minimum(code, 3), 0)
        sizes[:, 0] += np.where(code == _BIT, bits, 0) + np.where(code == _UUID, n * _UUID_CHARS, 0)
        sizes[:, 0] += np.where((code == _OFFSETS) | (code == _TEXT), (n + 1) * 4, 0)
        sizes[:, 1] = np.where(item.null, bits, 0)
        sizes[:, 2] = np.where(code == _TEXT, sub, 0)
        has = item.has & ~(shape.tags & (sub == 0))
        sizes[~has] = 0
        padded = (sizes + 63) & ~63
        starts = np.zeros(padded.size + 1, np.int64)
        np.cumsum(padded.ravel(), out=starts[1:])
        place_of = starts[:-1].reshape(-1, 3) + at
        block = out[shape.first : shape.end]
        block[:, 0] = np.where(has, place_of[:, 0] >> shape.shift, -1)
        block[:, 1] = np.where(has & item.null, place_of[:, 1], -1)
        block[:, 2] = place_of[:, 2]
        at += int(starts[-1])
    return out, at


def record_batch(
    layout: Layout, buffer: Any, counts: Sequence[int], columns: Sequence[Sequence[int]], high: Ints
) -> pa.RecordBatch:
    """The layout's columns, which lie where `place` said, over `buffer` (a `pyarrow.Buffer`). `high` marks text that
    needs a UTF-8 check: what is no UTF-8 shows U+FFFD in the place of its bad bytes."""
    named = _Maker(buffer, counts, columns, high).fields(layout.root)
    return pa.RecordBatch.from_arrays([array for _, array in named], [name for name, _ in named])


def schema_of(layout: Layout) -> pa.Schema:
    """The schema that every batch of this layout has."""
    return pa.schema([pair for column in layout.root.children.values() for pair in _typed(column)])


def _typed(column: Column) -> list[tuple[str, pa.DataType]]:
    return [
        (name, type_of(shown) if shown is not None else _TYPES.get(column.text, pa.binary()))
        for name, shown in outputs(column)
    ]


def type_of(column: Column) -> pa.DataType:
    """A column's Arrow type."""
    if column.kind == "list":
        return pa.list_(type_of(column.element))
    if column.kind == "struct":
        return pa.struct([pair for child in column.children.values() for pair in _typed(child)])
    return _TYPES[column.kind]


class _Maker:
    def __init__(self, buffer: Any, counts: Sequence[int], columns: Sequence[Sequence[int]], high: Ints) -> None:
        self.buffer = buffer
        self.counts = counts
        self.columns = columns
        self.high = high

    def fields(self, struct: Column) -> list[tuple[str, pa.Array]]:
        """A struct's fields by name, in order."""
        return [pair for child in struct.children.values() for pair in self.named_arrays(child, struct)]

    def named_arrays(self, column: Column, struct: Column) -> list[tuple[str, pa.Array]]:
        """(name, array) of all that a field shows as."""
        if column.by:
            values = self.array(column)
            shown = _without_secrets(values, self.array(struct.children[column.by]))
            lengths = pc.binary_length(self.array(replace(column, kind="bytes")))  # on the wire, UTF-8 or not
            return [(column.name, shown), (column.name + "_bytes", lengths)]
        out = []
        for name, shown in outputs(column):
            if shown is None:
                out.append((name, nulls(_TYPES.get(column.text, pa.binary()), self.counts[column.level])))
            elif shown.index == column.at:
                valid = self.columns[column.index][1]  # positions are null where sizes are
                out.append((name, self.array(shown, valid)))
            else:
                out.append((name, self.array(shown)))
        return out

    def array(self, column: Column, valid: int | None = None) -> pa.Array:
        n = self.counts[column.level]
        base = 0
        if column.index >= 0:
            base, own, _ = self.columns[column.index]
            if base < 0:
                return nulls(type_of(column), n)
            valid = own if valid is None else valid
        bitmap = self.buffer.slice(valid, (n + 7) >> 3) if valid is not None and valid >= 0 else None
        known = -1 if bitmap is not None else 0
        kind = column.kind
        make = pa.Array.from_buffers
        if kind == "struct":
            named = self.fields(column)
            struct = pa.struct([(name, array.type) for name, array in named])
            return make(struct, n, [bitmap], known, children=[array for _, array in named])
        if kind == "list":
            child = self.array(column.element)
            offsets = self.buffer.slice(base << 2, (n + 1) << 2)
            return make(pa.list_(child.type), n, [bitmap, offsets], known, children=[child])
        if kind in ("string", "bytes"):
            offsets = self.buffer.slice(base << 2, (n + 1) << 2)
            text = self.buffer.slice(self.columns[column.index][2], self.counts[column.sub])
            array = make(_TYPES[kind], n, [bitmap, offsets, text], known)
            return _utf8(array) if kind == "string" and self.high[column.sub] else array
        if kind == "uuid":
            return make(pa.string(), n, [bitmap, _uuid_offsets(n), self.buffer.slice(base, n * _UUID_CHARS)], known)
        if kind == "bool":
            return make(pa.bool_(), n, [bitmap, self.buffer.slice(base, (n + 7) >> 3)], known)
        width = WIDTHS[kind]
        return make(_TYPES[kind], n, [bitmap, self.buffer.slice(base << width, n << width)], known)


def _without_secrets(values: pa.Array, names: pa.Array) -> pa.Array:
    """The values, null where the name next to them is not that of a configuration whose value may be shown."""
    if not len(names):
        return values
    from kdissect.schema.configurations import is_open_config  # few messages have names here

    coded = names.dictionary_encode()
    secret = pa.array([not is_open_config(name) for name in coded.dictionary.to_pylist()], pa.bool_())
    if not names.null_count and not pc.any(secret).as_py():
        return values
    return pc.if_else(secret.take(coded.indices).fill_null(True), pa.scalar(None, values.type), values)


def _utf8(array: pa.Array) -> pa.Array:
    """The array, or where it is not UTF-8 a copy with U+FFFD for the bad bytes."""
    try:
        array.validate(full=True)
        return array
    except pa.ArrowInvalid:
        raw = pa.Array.from_buffers(pa.binary(), len(array), array.buffers(), array.null_count)
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in raw.to_pylist()], pa.string())


_shared: dict[str, pa.Buffer] = {"zeros": pa.py_buffer(bytes(64)), "uuids": pa.py_buffer(bytes(4))}


def _zeros(size: int) -> pa.Buffer:
    if _shared["zeros"].size < size:
        _shared["zeros"] = pa.py_buffer(np.zeros(2 * size, np.uint8))
    return _shared["zeros"]


def _uuid_offsets(n: int) -> pa.Buffer:
    if _shared["uuids"].size < 4 * (n + 1):
        _shared["uuids"] = pa.py_buffer(np.arange(2 * (n + 1), dtype=np.int32) * np.int32(_UUID_CHARS))
    return _shared["uuids"].slice(0, 4 * (n + 1))


def nulls(kind: pa.DataType, n: int) -> pa.Array:
    """n nulls of any type that a column can have, over shared zeros."""
    zeros = _zeros(8 * (n + 1))
    make = pa.Array.from_buffers
    if pa.types.is_struct(kind):
        return make(kind, n, [zeros], n, children=[nulls(kind.field(i).type, n) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return make(kind, n, [zeros, zeros], n, children=[nulls(kind.value_type, 0)])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return make(kind, n, [zeros, zeros, zeros.slice(0, 0)], n)
    return make(kind, n, [zeros, zeros], n)
