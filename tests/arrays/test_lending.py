"""Memory that is lent comes back when the last array that lies in it goes, and is lent again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.arrays.lending import Lender


def test_memory_is_lent_again_only_once_nobody_holds_any_of_it() -> None:
    lender = Lender()
    longs, codes = lender.arrays([((2, 1000), np.int64), ((1000,), np.int32)])
    first = longs.ctypes.data
    codes[:] = 7
    column = pa.array(codes[10:20])  # without a copy
    del longs, codes
    (other,) = lender.arrays([((2, 1000), np.int64)])
    other[:] = 1
    assert other.ctypes.data != first
    assert column.to_pylist() == [7] * 10
    del column
    (again,) = lender.arrays([((2, 1000), np.int64)])
    assert again.ctypes.data == first


def test_arrays_lie_apart_and_are_as_large_as_asked_for() -> None:
    flags, longs, none = Lender().arrays([((3,), np.bool_), ((2, 5), np.int64), ((0,), np.int8)])
    flags[:] = True
    longs[:] = -1
    assert flags.tolist() == [True] * 3
    assert longs.shape == (2, 5)
    assert len(none) == 0
    assert longs.flags.c_contiguous
    assert longs.flags.aligned


def test_more_than_was_lent_before_is_lent() -> None:
    lender = Lender()
    lender.arrays([((10,), np.int64)])
    (large,) = lender.arrays([((100_000,), np.int64)])
    large[:] = 3
    assert int(large.sum()) == 300_000
