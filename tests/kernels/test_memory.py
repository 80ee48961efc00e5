"""Bytes within kernels: numbers as the network writes them, and short texts, checked against the array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdissect.kernels.kernel import kernel
from kdissect.kernels.memory import be16, be32, copy_text

pytestmark = pytest.mark.jit


@kernel("const u1[:] i8 -> i8 i8")
def numbers(source: Any, o: Any) -> Any:
    """Two bytes and four from a place on."""
    return be16(source, o), be32(source, o)


@kernel("const u1[:] i8 -> i8")
def number(source: Any, o: Any) -> Any:
    """Two bytes from a place on."""
    return be16(source, o)


@kernel("const u1[:] i8 u1[:] i8 i8 -> b1")
def copied(source: Any, o: Any, to: Any, w: Any, n: Any) -> Any:
    """A text copied, and whether it is more than ASCII."""
    return copy_text(source, o, to, w, n)


def test_numbers_are_big_endian_and_not_negative() -> None:
    source = np.array([0, 0xFF, 0xFE, 0x80, 1], np.uint8)
    assert numbers(source, 1) == (0xFFFE, 0xFFFE8001)
    assert numbers(source, 0) == (0x00FF, 0x00FFFE80)
    assert number(source, 3) == 0x8001


@pytest.mark.parametrize("o", [-1, -(2**63), 4, 2**63 - 1])
def test_numbers_outside_of_the_array_are_refused(o: int) -> None:
    with pytest.raises(IndexError):
        number(np.zeros(5, np.uint8), o)
    with pytest.raises(IndexError):
        numbers(np.zeros(5, np.uint8), 2 if o == 4 else o)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 23])
def test_a_text_is_copied_whole_and_nothing_else(size: int) -> None:
    source, to = np.arange(40, dtype=np.uint8), np.full(40, 99, np.uint8)
    assert not copied(source, 3, to, 5, size)
    assert to.tolist() == [99] * 5 + list(range(3, 3 + size)) + [99] * (35 - size)
    for at in range(size):
        other = source.copy()
        other[3 + at] = 128
        assert copied(other, 3, to, 5, size)


@pytest.mark.parametrize(("o", "w", "n"), [(-1, 0, 1), (0, -1, 1), (0, 0, -1), (5, 0, 6), (0, 5, 6), (0, 0, 2**63 - 1)])
def test_a_text_outside_of_the_arrays_is_refused(o: int, w: int, n: int) -> None:
    with pytest.raises(IndexError):
        copied(np.zeros(10, np.uint8), o, np.zeros(10, np.uint8), w, n)
