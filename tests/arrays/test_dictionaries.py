"""Dictionary columns of parts become one: what lies under nulls is never read as a code."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kdissect.arrays.dictionaries import SHARED, coded, no_values, unified
from kdissect.tables.apinames import error_column
from kdissect.tables.identity import dictionary


def raw(column: pa.ChunkedArray) -> np.ndarray:
    """The codes in memory, also those under nulls."""
    chunks = [np.frombuffer(c.indices.buffers()[1], c.indices.type.to_pandas_dtype()) for c in column.chunks]
    return np.concatenate(chunks)


@pytest.mark.parametrize(
    "column",
    [
        coded(np.array([-1, 1, -1, 0], np.int32), pa.array(["a", "b"])),
        coded(np.array([9, 1], np.int8), pa.array(["a", "b"]), np.array([True, False])),
        dictionary(np.array([-1, 2, -1]), ["a", "b", "c"]),
        error_column(np.array([0, 3, 0]), np.array([True, True, False])),
    ],
)
def test_the_code_under_a_null_is_a_place_in_the_dictionary(column: pa.Array) -> None:
    codes = raw(pa.chunked_array([column]))
    assert codes.min() >= 0
    assert codes.max() < len(column.dictionary)


def test_parts_without_a_dictionary_take_no_part() -> None:
    """One after the other, as blocks come: every step starts from what the step before left behind."""
    none = coded(np.full(1000, -1, np.int32), pa.array([], pa.string()))
    parts = [none, coded(np.array([-1, 1, 0], np.int32), pa.array(["a", "b"])), none]
    parts.append(coded(np.array([0, -1], np.int32), pa.array(["c"])))
    made = pa.table({"x": parts[0]})
    for part in parts[1:]:
        made = unified(pa.concat_tables([made, pa.table({"x": part})]))
    column = made["x"]
    assert [text for text in column.to_pylist() if text] == ["b", "a", "c"]
    assert column.null_count == 2002
    codes = raw(column)
    assert 0 <= codes.min() <= codes.max() <= 2
    assert column.num_chunks == 1
    assert column.chunk(0).dictionary.to_pylist() == ["a", "b", "c"]
    assert unified(pa.table({"x": pa.chunked_array([none, none])}))["x"].null_count == 2000


def test_parts_that_share_a_dictionary_are_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a long table have its dictionary each: their sum is quadratic in the pieces."""
    whole = coded(np.arange(1000, dtype=np.int32), pa.array([str(n) for n in range(1000)]))
    column = pa.chunked_array([whole.slice(begin, 10) for begin in range(0, 1000, 10)])
    made = unified(pa.table({"x": column}))["x"]
    assert made.equals(pa.chunked_array([whole]))
    there, here = (one.dictionary.buffers()[2].address for one in (whole, made.chunk(0)))
    assert here == there


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 64, 1000])
def test_codes_are_null_where_they_are_missing(rows: int) -> None:
    """For any number of rows, whatever is left of the last byte of flags."""
    codes = (np.arange(rows, dtype=np.int32) * 7 % 5) - 2
    made = coded(codes, pa.array(["a", "b", "c"]))
    made.validate(full=True)
    assert made.to_pylist() == [None if code < 0 else "abc"[code] for code in codes.tolist()]
    assert made.null_count == int((codes < 0).sum())


def test_nulls_are_made_once_for_few_rows_and_anew_for_many() -> None:
    first, more, fewer = (no_values(rows, pa.int16()) for rows in (3, 5, 4))
    assert [len(one) for one in (first, more, fewer)] == [3, 5, 4]
    assert first.null_count == 3
    assert more.buffers()[1].address == fewer.buffers()[1].address
    many = no_values(SHARED + 1, pa.int16())
    assert len(many) == many.null_count == SHARED + 1
    assert len(no_values(SHARED, pa.int16())) == SHARED
    assert no_values(4, pa.float64()).equals(pa.nulls(4, pa.float64()))
