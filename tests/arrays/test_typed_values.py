"""Values as bytes that are read without running anything."""

from __future__ import annotations

import enum
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from kdissect.arrays.typed_values import UnreadableValue, dumped, loaded


class Colour(enum.IntEnum):
    RED = 1


class Place(NamedTuple):
    name: str
    at: int | None


@dataclass(slots=True)
class Known:
    places: dict[tuple[str, int], set[str]]
    _cache: int = 7


@dataclass(frozen=True)
class Whole:
    number: int
    share: float | None
    names: list[str]
    pair: tuple[int, bytes]
    many: tuple[int, ...]
    colour: Colour
    place: Place
    words: npt.NDArray[np.int64]
    any: npt.NDArray[Any]
    first: Known
    second: Known
    columns: Mapping[str, npt.NDArray[np.int64] | npt.NDArray[np.uint8]]
    rest: Sequence[frozenset[int]] = field(default_factory=list)


def made() -> Whole:
    known = Known({("a", 1): {"x", "\ud800 y"}, ("b", -(1 << 70)): set()}, _cache=9)
    words = np.arange(6, dtype=np.int64).reshape(3, 2)
    columns = {"one": words[:, 0], "two": np.zeros(0, np.uint8)}
    return Whole(
        int(np.int64(5)), 0.1 + 0.2, ["", "ä\0"], (1, b"\0\xff"), (1, 2), Colour.RED, Place("p", None), words,
        np.array([True, False]), known, known, columns, [frozenset({3}), frozenset()],
    )  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and (one == other).all())
    return bool(type(one) is type(other) and one == other)


def test_a_value_comes_back_as_it_was() -> None:
    value = made()
    found = loaded(dumped(value, Whole), Whole)
    for name in [one.name for one in fields(Whole) if one.name not in ("first", "second", "columns")]:
        assert same(getattr(found, name), getattr(value, name)), name
    assert found.first.places == value.first.places
    assert found.first is found.second  # one object stays one
    assert found.first._cache == 7
    assert all(same(found.columns[name], value.columns[name]) for name in ("one", "two"))
    found.words[0, 0] = 3  # an array is the reader's own


def test_other_types_are_not_taken() -> None:
    data = dumped([1, 2], list[int])
    assert loaded(data, list[int]) == [1, 2]
    for kind in (list[str], set[int], int, Whole):
        with pytest.raises(UnreadableValue, match="another version"):
            loaded(data, kind)
    with pytest.raises(TypeError, match="no bytes are declared"):
        dumped(object(), object)
    with pytest.raises(TypeError, match="arrays of object"):
        dumped(np.array([None]), npt.NDArray[Any])


def test_damage_is_one_exception() -> None:
    data = dumped(made(), Whole)
    assert len(data) > 500
    noise = np.random.default_rng(1)
    read = 0
    for cut in range(0, len(data) - 16, 13):
        with pytest.raises(UnreadableValue):
            loaded(data[:cut], Whole)
    for _ in range(300):
        changed = bytearray(data)
        changed[int(noise.integers(len(data)))] ^= 1 << int(noise.integers(8))
        try:
            read += isinstance(loaded(bytes(changed), Whole), Whole)
        except UnreadableValue:
            continue
    assert read < 300


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(trap),)

    with pytest.raises(UnreadableValue):
        loaded(pickle.dumps(Trap()), Whole)
    assert not trap.exists()
