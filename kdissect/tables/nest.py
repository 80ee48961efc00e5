"""Nested message columns as flat arrays.

A decoded message type is a record batch with lists of structs inside lists of structs. A `Level` is one list depth
of it: all elements of all bodies one after the other, and for each the body that it belongs to. Levels and columns
that a projection left out, or that no version in the block has, are empty and null, so that readers need not care.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array

Int64s = npt.NDArray[np.int64]

LONGEST = 1000
"""Bytes of a text that are repeated for what is below it, four times what Kafka allows a topic's name: a message of
some MB may have one of 32 KB over 100,000 partitions, and stand for GBs."""
KEPT = 60
"""Characters that stay of a longer one."""
NONE: Int64s = np.zeros(0, np.int64)


class Level:
    """Elements of one list depth: `body[i]` is the row of the message of element i, `parent[i]` the element above."""

    __slots__ = ("_children", "_data", "body", "parent")

    def __init__(self, data: Any, body: Int64s, parent: Int64s) -> None:
        self._data = data
        self.body = body
        self.parent = parent
        self._children: dict[str, Level] = {}

    @classmethod
    def root(cls, batch: pa.RecordBatch) -> Level:
        """The bodies themselves: one element each."""
        rows = np.arange(batch.num_rows, dtype=np.int64)
        return cls(batch, rows, rows)

    @classmethod
    def bare(cls, array: pa.Array | None) -> Level:
        """Elements of which nobody asks what they belong to; None: there are none."""
        rows = np.arange(0 if array is None else len(array), dtype=np.int64)
        return cls(array, rows, rows)

    def __len__(self) -> int:
        return len(self.body)

    def get(self, path: str) -> pa.Array | None:
        """The column at a dotted path of structs below this level, None when there is none. Null structs give nulls."""
        data = self._data
        for name in path.split("."):
            if data is None:
                return None
            if isinstance(data, pa.RecordBatch):
                at = data.schema.get_field_index(name)
                data = data.column(at) if at >= 0 else None
            else:
                at = data.type.get_field_index(name) if pa.types.is_struct(data.type) else -1
                whole = at >= 0 and not data.null_count
                data = data.field(at) if whole else pc.struct_field(data, at) if at >= 0 else None
        return None if data is None or pa.types.is_null(data.type) else data

    def may_have_values(self, *paths: str) -> bool:
        """Whether anything may stand in the column at the last of these paths, below the lists at the others: not where
        it is missing, or null throughout."""
        data = self._data
        for depth, path in enumerate(paths):
            if depth:
                data = data.values
            for name in path.split("."):
                kind = data.schema if isinstance(data, pa.RecordBatch) else data.type
                at = kind.get_field_index(name) if isinstance(kind, pa.Schema) or pa.types.is_struct(kind) else -1
                data = None if at < 0 else data.column(at) if isinstance(kind, pa.Schema) else data.field(at)
                if data is None or pa.types.is_null(data.type) or data.null_count == len(data):
                    return False
        return True

    def column(self, path: str, kind: pa.DataType) -> pa.Array:
        """The column at a dotted path, cast to `kind`; all null when there is none."""
        found = self.get(path)
        if found is None:
            return pa.nulls(len(self), kind)
        return found if found.type == kind else found.cast(kind)

    def ints(self, path: str, null: int = -1) -> Int64s:
        """The column at a dotted path as int64, with `null` where it is null."""
        found = self.get(path)
        if found is None:
            return np.full(len(self), null, np.int64)
        return numbers(found, null)

    def each(self, path: str) -> Level:
        """The elements of the list at a dotted path (null lists have none). Lists of scalars: read with `values`."""
        if path not in self._children:
            found = self.get(path)
            if found is None:
                self._children[path] = Level(None, NONE, NONE)
            elif found.null_count == len(found):
                self._children[path] = Level(found.flatten(), NONE, NONE)
            else:
                parent = np.repeat(np.arange(len(self), dtype=np.int64), lengths(found))
                self._children[path] = Level(found.flatten(), self.body[parent], parent)
        return self._children[path]

    @property
    def values(self) -> pa.Array | None:
        """The elements themselves, of a list of scalars; None when the list is absent."""
        return self._data

    def up(self, array: pa.Array) -> pa.Array:
        """A column of the level above, repeated for each element here."""
        return pick(array, self.parent)


def lengths(array: pa.Array) -> Int64s:
    """Number of elements of each list, 0 for a null one."""
    return numbers(pc.list_value_length(array), 0)


def numbers(array: pa.Array, null: int = -1) -> Int64s:
    """An integer or boolean column as int64, with `null` where it is null."""
    if array.null_count:
        array = array.cast(pa.int64()).fill_null(null)
    return np.asarray(array.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)


def pick(array: pa.Array, index: Int64s) -> pa.Array:
    """`array[index]`, null where the index is negative; the array itself where that is all of it in its order. Texts
    above LONGEST that are repeated are cut, and say so."""
    n = len(array)
    if pa.types.is_string(array.type) and len(index) > 2 * n:
        array = shortened(array)
    if n and len(index) == n and index[0] == 0 and index[-1] == n - 1 and (index[1:] - index[:-1] == 1).all():
        return array
    missing = index < 0
    if not missing.any():
        return array.take(arrow_array(index))
    if not n:
        return pa.nulls(len(index), array.type)
    return array.take(arrow_array(index, mask=missing))


def shortened(array: pa.Array) -> pa.Array:
    """The texts; of those above LONGEST bytes the first KEPT characters, and how long they are."""
    size = pc.binary_length(array)
    most = pc.max(size).as_py()
    if most is None or most <= LONGEST:
        return array
    told = pc.binary_join_element_wise("… (", size.cast(pa.string()), " bytes)", "")
    cut = pc.binary_join_element_wise(pc.utf8_slice_codeunits(array, 0, KEPT), told, "")
    return pc.if_else(pc.greater(size, LONGEST), cut, array)


def optional(values: npt.NDArray[Any], present: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """A numpy array as a column, null where not `present`."""
    made = arrow_array(values) if present.all() else arrow_array(values, mask=~present)
    return made if made.type == kind else made.cast(kind, safe=False)
