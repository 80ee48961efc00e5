"""Dictionary-encoded Arrow columns that can be put together safely.

Arrow translates the codes of every row when it makes one dictionary of several, also those under nulls and also into an
empty dictionary. The code under a null is read as a place in memory. So a null's code must be 0, and parts without a
dictionary must not take part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array


def coded(codes: npt.NDArray[Any], texts: pa.Array, missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """A dictionary column of `texts` by their codes, null where `missing` (by default: where the code is negative)."""
    if missing is None:
        missing = codes < 0
    if count := int(np.count_nonzero(missing)):
        places, known = np.where(missing, np.zeros(1, codes.dtype), codes), ~missing
        bits = np.packbits(known, bitorder="little")
        kind, buffers = pa.from_numpy_dtype(codes.dtype), [pa.py_buffer(bits), pa.py_buffer(places)]
        return pa.DictionaryArray.from_arrays(pa.Array.from_buffers(kind, len(codes), buffers, count), texts)
    return pa.DictionaryArray.from_arrays(arrow_array(codes), texts)


LONG_DICTIONARY = 64
"""Values of a dictionary that cost nothing beside a table's other bytes."""
LONGEST = 64
"""Characters of a text that is kept written out."""
SHARED = 1 << 16
"""Rows up to which equal values are written once and for all: a block has fewer, and they are 4 MB of a long text."""
TEXTS = 8
"""Texts that are kept written out: names of captures and files."""
_shared: dict[str, pa.Array] = {"": arrow_array(np.zeros(0, np.int32))}
_repeated: dict[str, pa.Array] = {}
_none: dict[pa.DataType, pa.Array] = {}


def first_codes(rows: int) -> pa.Array:
    """So many zeros as int32: the codes of a dictionary column of one value."""
    if rows > SHARED:
        return arrow_array(np.zeros(rows, np.int32))
    zeros = _shared[""]
    if len(zeros) < rows:
        zeros = _shared[""] = arrow_array(np.zeros(min(2 * rows, SHARED), np.int32))
    return zeros.slice(0, rows)


def repeated(text: pa.StringScalar, rows: int) -> pa.Array:
    """So many equal texts as a plain column, which several columns may share."""
    value = text.as_py()
    if rows > SHARED or len(value) > LONGEST:
        return pa.repeat(text, rows)
    found = _repeated.get(value)
    if found is None or len(found) < rows:
        if found is None and len(_repeated) >= TEXTS:
            _repeated.clear()
        found = _repeated[value] = pa.repeat(text, rows)
    return found.slice(0, rows)


def no_values(rows: int, kind: pa.DataType) -> pa.Array:
    """So many nulls of a type, which several columns may share: memory for them is as expensive as for values."""
    if rows > SHARED:
        return pa.nulls(rows, kind)
    found = _none.get(kind)
    if found is None or len(found) < rows:
        found = _none[kind] = pa.nulls(min(2 * rows, SHARED), kind)
    return found.slice(0, rows)


def join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """The tables one behind the other, each dictionary column with one dictionary; a column that some lack is null
    there."""
    return unified(pa.concat_tables(tables, promote_options="permissive"))


def unified(table: pa.Table) -> pa.Table:
    """The table, each dictionary column with one dictionary for all its chunks."""
    for at, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type) and column.num_chunks > 1:
            table = table.set_column(at, table.schema.field(at), unified_column(column))
    return table


def unified_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with one dictionary, as one chunk: whoever puts it together with others goes through the dictionary of
    each chunk."""
    known = next((chunk.dictionary for chunk in column.chunks if len(chunk.dictionary)), None)
    if known is None:
        return column
    chunks = [_with(chunk, known) for chunk in column.chunks]
    if any(_memory(chunk.dictionary) != _memory(known) for chunk in chunks):
        chunks = pa.chunked_array(chunks, column.type).unify_dictionaries().chunks
    indices = pa.chunked_array([chunk.indices for chunk in chunks]).combine_chunks()
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, chunks[0].dictionary)], column.type)


def _memory(values: pa.Array) -> tuple[int, int, tuple[int | None, ...]]:
    """Where values are: they are the same where this is."""
    return len(values), values.offset, tuple(buffer and buffer.address for buffer in values.buffers())


def _with(chunk: pa.DictionaryArray, dictionary: pa.Array) -> pa.DictionaryArray:
    """The chunk; one that is all null because its dictionary is empty, with a dictionary that is known."""
    if len(chunk.dictionary):
        return chunk
    return pa.DictionaryArray.from_arrays(pa.nulls(len(chunk), chunk.type.index_type), dictionary)


def shrunk(table: pa.Table) -> pa.Table:
    """The table, dictionaries much longer than it with the values that it uses: parts of a table share long ones."""
    for at, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type) and column.num_chunks and table.num_rows:
            known = column.chunk(0).dictionary
            if len(known) > LONG_DICTIONARY and len(known) > table.num_rows // 4:
                table = table.set_column(at, table.schema.field(at), _shrunk(column, known))
    return table


def _shrunk(column: pa.ChunkedArray, values: pa.Array) -> pa.Array:
    codes = pa.chunked_array([chunk.indices for chunk in column.chunks]).combine_chunks()
    used = pc.unique(codes.drop_null())
    places = np.zeros(len(values), np.int64)
    places[used.to_numpy()] = np.arange(len(used))
    made = pa.array(places[codes.fill_null(0).to_numpy()], mask=np.asarray(codes.is_null()))
    return pa.DictionaryArray.from_arrays(made.cast(column.type.index_type), values.take(used))
