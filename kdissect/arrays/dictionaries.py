"""Dictionary-encoded Arrow columns that can be put together safely.

Arrow translates the codes of every row when it makes one dictionary of several, also those under nulls and also into an
empty dictionary: what lies there is read as a place in memory. So a null's code must be 0, and parts without a
dictionary must not take part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def coded(codes: npt.NDArray[Any], texts: pa.Array, missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """A dictionary column of `texts` by their codes, null where `missing` (by default: where the code is negative)."""
    if missing is None:
        missing = codes < 0
    if missing.any():
        places = np.where(missing, np.zeros(1, codes.dtype), codes)
        return pa.DictionaryArray.from_arrays(pa.array(places, mask=missing), texts)
    return pa.DictionaryArray.from_arrays(pa.array(codes), texts)


def unified(table: pa.Table) -> pa.Table:
    """The table, each dictionary column with one dictionary for all its chunks."""
    for at, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type) and column.num_chunks > 1:
            table = table.set_column(at, table.schema.field(at), unified_column(column))
    return table


def unified_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with one dictionary for all its chunks."""
    known = next((chunk.dictionary for chunk in column.chunks if len(chunk.dictionary)), None)
    if known is None:
        return column
    return pa.chunked_array([_with(chunk, known) for chunk in column.chunks], column.type).unify_dictionaries()


def _with(chunk: pa.DictionaryArray, known: pa.Array) -> pa.DictionaryArray:
    """The chunk; one that is all null because its dictionary is empty, with a dictionary that is known."""
    if len(chunk.dictionary):
        return chunk
    return pa.DictionaryArray.from_arrays(pa.nulls(len(chunk), chunk.type.index_type), known)
