"""Structs of words: the same in kernels and in Python, and checked against the array that they lie in."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest

from kdissect.kernels.kernel import kernel
from kdissect.kernels.structs import Half, offsets, record, rows_of, struct, structs, view, width, words


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


@struct
class Halves:
    low: Half
    high: Half
    odd: Half
    whole: int


@struct
class Odd:
    only: Half


outer_at, halves_at = view(Outer), view(Halves)
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
@pytest.mark.parametrize("columns", [WIDTH - 1, WIDTH + 1])
def test_rows_of_another_struct_are_refused(run: Any, columns: int) -> None:
    """A row that ends sooner would be read on behind its end."""
    rows = np.zeros((3, columns), np.int64)
    with pytest.raises(IndexError):
        run(rows, 2, 0)
    assert not rows.any()


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


@kernel("i8[:,:] i8")
def put_halves(M, row):  # type: ignore[no-untyped-def]
    """Write the fields of a struct with halves by one another."""
    halves = halves_at(M, row)
    halves.low, halves.high = halves.high, halves.low
    halves.odd = -5


def put_halves_plainly(M: Any, row: int) -> None:
    """The same, as Python."""
    halves = halves_at(M, row)
    halves.low, halves.high = int(halves.high), int(halves.low)
    halves.odd = -5


@pytest.mark.parametrize("run", [pytest.param(put_halves, marks=pytest.mark.jit), put_halves_plainly])
def test_two_halves_share_a_word(run: Any) -> None:
    assert (width(Halves), width(Odd)) == (3, 1)
    matrix = np.zeros((2, 3), np.int64)
    rows = rows_of(Halves, matrix)
    rows["low"], rows["high"], rows["odd"], rows["whole"] = -1, 2**31 - 1, 7, 2**40
    run(matrix, 1)
    assert rows[0].tolist() == (-1, 2**31 - 1, 7, 2**40)
    assert rows[1].tolist()[:3] == (2**31 - 1, -1, -5)
    assert rows["whole"].tolist() == [2**40, 2**40]
    assert vars(offsets(Halves)) == {"whole": 2}
