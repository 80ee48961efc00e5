"""Structs of words: the same in kernels and in Python, and checked against the array that they lie in."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest

from kdissect.kernels.kernel import kernel
from kdissect.kernels.structs import offsets, record, struct, structs, view, width, words


@struct
class Inner:
    size: int
    flags: int


@struct
class Outer:
    next: int
    inner: Inner
    pair: Annotated[list[Inner], 2]
    ring: Annotated[list[int], 3]


outer_at = view(Outer)
WIDTH = width(Outer)


@kernel("i8[:] i8 i8 -> i8", "i8[:,:] i8 i8 -> i8")
def change(M, place, which):  # type: ignore[no-untyped-def]
    """Write some fields of the struct at `place`; the size of one of its pair."""
    outer = outer_at(M, place)
    outer.next = 7
    outer.inner = outer.pair[1]
    outer.ring[which] = outer.pair[which].size
    return outer.pair[which].size


def changed(M: Any, place: int, which: int) -> int:
    """The same, as Python."""
    outer = outer_at(M, place)
    outer.next = 7
    outer.inner = outer.pair[1]
    outer.ring[which] = outer.pair[which].size
    return outer.pair[which].size


RUNS = [pytest.param(change, marks=pytest.mark.jit), changed]


@pytest.mark.parametrize("run", RUNS)
def test_fields_are_words_of_the_heap(run: Any) -> None:
    heap = np.arange(5 + WIDTH)
    assert run(heap, 5, 0) == 8
    expected = np.arange(5 + WIDTH)
    expected[5:13] = [7, 10, 11, 8, 9, 10, 11, 8]
    np.testing.assert_array_equal(heap, expected)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("place", [-1, -WIDTH, 6, 2**62])
def test_a_struct_outside_of_the_heap_is_refused(run: Any, place: int) -> None:
    heap = np.arange(5 + WIDTH)
    with pytest.raises(IndexError):
        run(heap, place, 0)
    np.testing.assert_array_equal(heap, np.arange(5 + WIDTH))


@pytest.mark.jit
def test_a_heap_smaller_than_a_struct_holds_none() -> None:
    with pytest.raises(IndexError):
        change(np.zeros(WIDTH - 1, np.int64), 0, 0)


@pytest.mark.jit
@pytest.mark.parametrize("which", [2, -1])
def test_kernels_do_not_count_from_the_end(which: int) -> None:
    with pytest.raises(IndexError):
        change(np.zeros(WIDTH, np.int64), 0, which)


@pytest.mark.parametrize("run", RUNS)
def test_rows_of_a_matrix(run: Any) -> None:
    rows = np.arange(2 * WIDTH).reshape(2, WIDTH)
    assert run(rows, 1, 1) == WIDTH + 5
    assert rows[0].tolist() == list(range(WIDTH))
    for row in (2, -1):
        with pytest.raises(IndexError):
            run(rows, row, 0)


def test_by_offset_and_by_name() -> None:
    heap = np.arange(3 + 2 * WIDTH)
    at = offsets(Outer)
    assert (at.next, at.inner.flags, at.pair[1].size, at.ring) == (0, 2, 5, 7)
    rows = structs(Outer, heap, 3, 2)
    np.testing.assert_array_equal(rows["inner"]["flags"], heap[[3 + at.inner.flags, 3 + WIDTH + at.inner.flags]])
    np.testing.assert_array_equal(words(rows).ravel(), heap[3:])
    rows["next"] = -1
    assert heap[3] == heap[3 + WIDTH] == -1
    assert record(Outer).itemsize == 8 * WIDTH
