"""Arrow arrays of numpy's: the same as `pa.array` makes of them, over their memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kdissect.arrays.arrow import distinct
from kdissect.arrays.from_numpy import arrow_array

CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
def test_numbers_and_flags_with_and_without_nulls(code: str, size: int) -> None:
    random = np.random.default_rng(size)
    values = random.integers(0, 2 if code == "b1" else 100, size).astype(code)
    mask = random.integers(0, 2, size).astype(bool)
    for rows in (values, values[::2], values[::-1]):
        nulls = mask[: len(rows)]
        for made, expected in (
            (arrow_array(rows), pa.array(rows)),
            (arrow_array(rows, mask=nulls), pa.array(rows, mask=nulls)),
            (arrow_array(rows, mask=np.zeros(len(rows), bool)), pa.array(rows)),
        ):
            made.validate(full=True)
            assert made.type == expected.type
            assert made.null_count == expected.null_count
            assert made.equals(expected)


def test_not_a_number_is_a_value_and_no_null() -> None:
    made = arrow_array(np.array([1.0, np.nan]))
    assert made.null_count == 0
    assert np.isnan(made[1].as_py())


def test_a_kind_casts_and_a_value_that_does_not_fit_raises() -> None:
    assert arrow_array(np.array([1, 2]), pa.int32()).equals(pa.array([1, 2], pa.int32()))
    masked = arrow_array(np.array([1 << 40, 2]), pa.int32(), mask=np.array([True, False]))
    assert masked.to_pylist() == [None, 2]
    with pytest.raises(pa.ArrowInvalid):
        arrow_array(np.array([1 << 40]), pa.int32())


@pytest.mark.parametrize("size", [1, 3])
def test_fields_of_packed_records_come_aligned(size: int) -> None:
    """Arrow's joins and groups warn of others on standard error."""
    records = np.zeros(size, np.dtype([("kind", "u1"), ("bytes", "i8")]))
    records["bytes"] = np.arange(size) + 7
    made = arrow_array(records["bytes"])
    assert made.to_pylist() == list(range(7, 7 + size))
    assert made.buffers()[1].address % 8 == 0


def test_the_memory_is_that_of_the_values() -> None:
    values = np.arange(4)
    assert arrow_array(values).buffers()[1].address == values.ctypes.data


@pytest.mark.parametrize("values", [np.array(["a"]), np.array([None]), np.zeros((2, 2)), np.array(["2020"], "M8[D]")])
def test_what_is_no_vector_of_numbers_or_flags_raises(values: np.ndarray) -> None:
    with pytest.raises(TypeError, match="no vector of numbers or flags"):
        arrow_array(values)


@pytest.mark.parametrize("values", [np.zeros(0, np.int64), np.array([3, 1, 3]), np.array([[2, 1], [1, 1], [2, 1]])])
def test_distinct_values_and_rows(values: np.ndarray) -> None:
    assert distinct(values).tolist() == np.unique(values, axis=0).tolist()
    assert distinct(values).dtype == values.dtype
