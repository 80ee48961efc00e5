"""Columns of one value, taken out of tables and put back."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kdissect.arrays.dictionaries import unified
from kdissect.spark.cells.single_values import split_single_values, together

TEXTS = pa.dictionary(pa.int32(), pa.string())
FEW: dict[pa.DataType, list[Any]] = {
    TEXTS: ["a", "b", ""], pa.int32(): [0, 7], pa.int64(): [-1, 1 << 40], pa.bool_(): [False, True],
    pa.float64(): [0.0, -0.0, 1.5, math.inf, math.nan], pa.string(): ["a", "b"], pa.timestamp("us", "UTC"): [0, 1],
}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    chunks: dict[str, list[pa.Array]] = {}
    for number, kind in enumerate(draw(st.lists(st.sampled_from(list(FEW)), min_size=1, max_size=6))):
        some = st.sampled_from(draw(st.lists(st.sampled_from([*FEW[kind], None]), min_size=1, max_size=2)))
        drawn = [draw(st.lists(some, min_size=size, max_size=size)) for size in sizes]
        chunks[str(number)] = [pa.array(values, kind) for values in drawn]
    return unified(pa.table({name: pa.chunked_array(parts) for name, parts in chunks.items()}))


@given(tables())
def test_any_table_comes_back(table: pa.Table) -> None:
    rest, single = split_single_values(table)
    again = together(rest, single, table.schema)
    assert again.schema == table.schema
    assert repr(again.to_pylist()) == repr(table.to_pylist())  # zeros have signs
    assert again.num_rows == rest.num_rows


@given(tables())
def test_columns_of_one_value_are_found(table: pa.Table) -> None:
    rest, single = split_single_values(table)
    assert single.keys().isdisjoint(rest.column_names)
    for name, column in zip(table.column_names, table.columns, strict=True):
        told = {repr(value) for value in column.to_pylist()}
        looked_at = not (pa.types.is_string(column.type) or pa.types.is_timestamp(column.type))
        if told == {"None"} or (looked_at and len(told) == 1 and told.isdisjoint(["-0.0", "nan"])):
            assert {repr(single[name])} == told if name in single else rest.num_columns == 1
        else:
            assert name in rest.column_names


def test_columns_that_nobody_has_are_left_out() -> None:
    table = pa.table({"a": [1, 2], "b": [0.0, 0.0], "c": pa.array([None, None], pa.string())})
    rest, single = split_single_values(table)
    assert single == {"b": 0.0, "c": None}
    assert together(rest, {"c": None}, table.schema).equals(table.select(["a", "c"]))
