"""What kernels declare: words, what fits them, and how values become words of 64 bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from kdissect.kernels.signature import Fields, described, fields, parse


class Pair(NamedTuple):
    left: Any
    right: Any


PAIR = fields(Pair, "i8[:] const u1[:]")


def address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


def test_arrays_become_where_they_lie_and_their_sizes() -> None:
    a, b = np.zeros((2, 3), np.int64), np.zeros(5, np.uint8)
    assert parse("i8[:,:] u1[:] i4", {}).pack((a, b, 7)) == [address(a), 2, 3, address(b), 5, 7]
    pair = Pair(np.zeros(4, np.int64), b)
    assert parse("PAIR", {"PAIR": PAIR}).pack((pair,)) == [address(pair.left), 4, address(b), 5]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("i8[:]", np.zeros(3, np.int32)), ("i8[:]", np.zeros((3, 1), np.int64)), ("i8[:]", np.zeros(6, np.int64)[::2]),
        ("i8[:]", np.zeros(17, np.uint8)[1:].view(np.int64)), ("i8[:]", [1, 2]), ("i8[:]", np.zeros(3, ">i8")),
        ("i8[:,:]", np.zeros((3, 4), np.int64).T), ("i8", 1.5), ("i8", None), ("b1", 1), ("i8", np.zeros(1, np.int64)),
        ("PAIR", (np.zeros(4, np.int64), np.zeros(5, np.uint8))),
    ],
)  # fmt: skip
def test_what_does_not_fit(text: str, value: Any) -> None:
    assert parse(text, {"PAIR": PAIR}).pack((value,)) is None
    assert parse(text, {"PAIR": PAIR}).pack((value, value)) is None


def test_only_const_takes_what_cannot_be_written_to() -> None:
    a = np.zeros(3, np.int64)
    a.flags.writeable = False
    assert parse("i8[:]", {}).pack((a,)) is None
    assert parse("const i8[:]", {}).pack((a,)) == [address(a), 3]
    assert described((a, np.zeros((6, 2), np.uint8)[::2], 5)) == "const i8[:] apart u1[:,:] int"


@pytest.mark.parametrize(
    ("code", "value"),
    [("i8", -(1 << 63)), ("i8", np.int16(-3)), ("u8", (1 << 64) - 1), ("b1", np.True_), ("b1", False), ("f8", -0.25)],
)
def test_numbers_there_and_back(code: str, value: Any) -> None:
    words = parse(code, {}).pack((value,))
    assert words is not None
    assert -(1 << 63) <= words[0] < 1 << 63
    found = parse(f"-> {code}", {}).unpack(words)
    assert found == value
    assert isinstance(found, bool | int | float)


@pytest.mark.parametrize(("code", "value"), [("i8", 1 << 63), ("u8", -1), ("u1", 256), ("i4", 1 << 31)])
def test_numbers_without_room(code: str, value: int) -> None:
    with pytest.raises(OverflowError, match=f"{value} is no {code}"):
        parse(code, {}).pack((value,))


def test_nothing_one_or_several_come_back() -> None:
    assert parse("i8", {}).unpack([]) is None
    assert parse("-> i8", {}).unpack([5]) == 5
    assert parse("-> i8 b1", {}).unpack([5, 1]) == (5, True)


@pytest.mark.parametrize("text", ["i3", "i8[", "const i8", "i8 ->", "-> i8[:]", "NONE", "PAIR[:]", "i8,i8", "i8[:]i8"])
def test_what_declares_nothing(text: str) -> None:
    with pytest.raises(TypeError):
        parse(text, {"PAIR": PAIR, "NONE": 3})


def test_a_signature_reads_as_it_was_written() -> None:
    text = "const u1[:] i8[:,:] PAIR b1 -> i8 f8"
    assert isinstance(PAIR, Fields)
    assert str(parse(text, {"PAIR": PAIR})) == text.replace("PAIR", "Pair")
