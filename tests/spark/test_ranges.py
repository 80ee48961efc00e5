from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kdissect.spark.stages.ranges import NEAR, TOGETHER, read_ranges


def read(path: Path, offset: list[int], length: list[int]) -> list[bytes]:
    sizes = np.array(length, np.int64)
    place = np.cumsum(sizes) - sizes
    out = np.full(int(sizes.sum()), 0xEE, np.uint8)
    read_ranges(path, np.array(offset, np.int64), sizes, out, place)
    return [out[p : p + n].tobytes() for p, n in zip(place.tolist(), length, strict=True)]


def test_any_ranges_come_as_they_stand_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    rng = np.random.default_rng(3)
    data = rng.bytes(3 * TOGETHER)
    path.write_bytes(data)
    for reach in (10, NEAR, TOGETHER, 2 * TOGETHER):
        offset = rng.integers(0, len(data), 300)
        offset[:200].sort()
        length = np.minimum(rng.integers(0, reach, 300), len(data) - offset)
        for begin, n, got in zip(
            offset.tolist(), length.tolist(), read(path, offset.tolist(), length.tolist()), strict=True
        ):
            assert got == data[begin : begin + n]


def test_zeros_behind_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    assert read(path, [0, 4, 9], [2, 4, 3]) == [b"ab", b"ef\0\0", b"\0\0\0"]
    assert read(path, [100], [3]) == [b"\0\0\0"]


def test_ranges_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    for length, place in ((8, 3), (-1, 0), (4, -1)):
        with pytest.raises(IndexError):
            read_ranges(path, np.array([0]), np.array([length]), np.zeros(10, np.uint8), np.array([place]))
    with pytest.raises(OSError):
        read_ranges(tmp_path / "gone", np.array([0]), np.array([1]), np.zeros(10, np.uint8), np.array([0]))
