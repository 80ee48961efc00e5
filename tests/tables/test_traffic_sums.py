"""Sums by who asked whom, topic and partition, against Python's own dictionaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdissect.arrays.rows import NULL
from kdissect.kernels.structs import offsets
from kdissect.tables import traffic_sums as ts
from kdissect.tables.fetch_kernels import PartitionColumns
from kdissect.tables.fetch_rows import (
    ASKED,
    FETCH_WIDTH,
    FORGOTTEN,
    GIVEN,
    PARTITION_WIDTH,
    fetches_of,
    partitions_of,
)


class _Adding:
    """Sums, and what kernels need beside them."""

    def __init__(self, most: int, seed: int = 5) -> None:
        self.sums = np.empty((most, ts.WIDTH), np.int64)
        self.table = np.full(2 << most.bit_length(), -1, np.int64)
        self.known = np.zeros(2, np.int64)
        self.seed = seed

    @property
    def memory(self) -> tuple[Any, ...]:
        return self.sums, self.table, self.known, self.seed

    def rows(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """(asker, topic, partition) -> bytes written and read, lag."""
        found = self.sums[: ts.known_at(self.known, 0).count, : offsets(ts.Sum).at].tolist()
        made = {tuple(row[:3]): tuple(row[3:]) for row in found}
        assert len(made) == len(found)
        return made


def _id(high: int, n: int) -> str:
    return f"{high & (2**64 - 1):016x}:{n}"


@pytest.mark.parametrize("size", [0, 1, 40, 3000])
def test_partitions_of_fetches(size: int) -> None:
    """Given or only asked for, failed or not; the lag of the last request, of one instant that of the last id."""
    chance = np.random.default_rng(size)
    askers = chance.integers(0, 4, 12)
    row = np.sort(chance.integers(0, len(askers), size)).astype(np.int64)
    high, n = chance.choice([3, -7, 2**40], 12), chance.choice([0, 9, 10, 100, 99], 12)
    time = chance.choice([NULL, 5, 6], 12)
    out = PartitionColumns(*np.full((len(PartitionColumns._fields), size), NULL, np.int64))
    out.topic[:], out.partition[:] = chance.integers(0, 3, size), chance.integers(0, 4, size)
    out.high[:], out.n[:], out.time[:] = high[row], n[row], time[row]
    out.given[:] = chance.integers(0, 2, size)
    out.records[:] = np.where(out.given[:] == 1, chance.integers(0, 100, size), NULL)
    out.error[:] = chance.choice([0, 0, 3, NULL], size)
    out.highest[:], out.offset[:] = (chance.choice([NULL, -1, 20, 50, 90], size) for _ in range(2))
    found = _Adding(size)
    ts.add_fetched(row, askers, out, *found.memory)
    expected: dict[tuple[int, ...], list[int]] = {}
    told: dict[tuple[int, ...], tuple[int, str]] = {}
    for q, at in enumerate(row.tolist()):
        key = int(askers[at]), int(out.topic[q]), int(out.partition[q])
        sums = expected.setdefault(key, [-1, -1, -1])
        if out.given[q]:
            sums[1] = max(sums[1], 0) + int(out.records[q])
        highest, offset = int(out.highest[q]), int(out.offset[q])
        if out.error[q] == 0 and highest >= 0 and offset >= 0:
            when = (2**63 if time[at] == NULL else int(time[at])), _id(int(high[at]), int(n[at]))
            if key not in told or when >= told[key]:
                told[key], sums[2] = when, max(0, highest - offset)
    assert found.rows() == {key: tuple(sums) for key, sums in expected.items()}


def test_fetches_that_were_read_aside() -> None:
    """Their topics have other codes; what no answer names counts as named; who asked is told by the exchange."""
    fetches, parts = np.zeros((2, FETCH_WIDTH), np.int64), np.zeros((5, PARTITION_WIDTH), np.int64)
    row, part = fetches_of(fetches), partitions_of(parts)
    row["exchange"], row["time"], row["partitions"] = [3, 1], [9, 8], [2, 3]
    part["topic"], part["partition"] = [1, 1, 1, 0, 0], [7, 9, 7, 2, 8]
    part["flags"] = [ASKED | GIVEN, ASKED, ASKED | GIVEN, GIVEN, FORGOTTEN]
    part["offset"], part["high"], part["records"] = [5, 5, 1, -1, -1], [9, -1, 9, 1, -1], [100, 0, 11, 5, 0]
    found = _Adding(8)
    ts.add_read(fetches, parts, np.array([0, 4, 0, 4]), np.array([6, 5, -1]), *found.memory)
    assert found.rows() == {
        (4, 5, 7): (-1, 111, 4), (4, 5, 9): (-1, -1, -1), (4, 6, 2): (-1, 5, -1), (4, 6, 8): (-1, -1, -1),
    }  # fmt: skip


def test_partitions_of_produces() -> None:
    """Sizes are those of requests; a size that was not read is none."""
    begins = np.array([0, 2, 3]), np.array([0, 1, 2, 4])
    given = np.array([0, 1]), np.array([6, 6]), *begins, np.array([0, 1, 1]), np.array([0, 0, 0, 5])
    found = _Adding(8)
    ts.add_produced(*given, np.array([10, 20, NULL, 3]), *found.memory)
    ts.add_produced(*given, np.zeros(0, np.int64), *found.memory)
    assert found.rows() == {(6, 0, 0): (10, -1, -1), (6, 1, 0): (20, -1, -1), (6, 1, 5): (3, -1, -1)}
