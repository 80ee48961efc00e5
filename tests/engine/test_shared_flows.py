"""Flows that several captures have, among any number of captures."""

from __future__ import annotations

from functools import reduce
from itertools import combinations

import numpy as np
import pytest

from kdissect.engine.sights.shared_flows import Look, in_common

SEEDS = range(40)


def looks_of(seed: int) -> list[Look]:
    """Some captures' looks, with few different hashes."""
    random = np.random.default_rng(seed)
    most = int(random.integers(1, 60))
    made = []
    for _ in range(int(random.integers(2, 8))):
        flows, marks = random.integers(0, 20), random.integers(0, 30)
        made.append(Look(*(random.integers(0, most, size).astype(np.uint64) for size in (flows, marks, marks))))
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_each_two_captures_are_held_against_each_other(seed: int) -> None:
    looks = looks_of(seed)
    wanted: list[set[int]] = [set() for _ in looks]
    for one, other in combinations(range(len(looks)), 2):
        marks = set(looks[one].marks) & set(looks[other].marks)
        for place in (one, other):
            wanted[place] |= set(looks[one].flows) & set(looks[other].flows)
            wanted[place] |= {
                flow for mark, flow in zip(looks[place].marks, looks[place].marked, strict=True) if mark in marks
            }
    assert [set(found) for found in in_common(looks)] == wanted


def test_some_cases_share_flows() -> None:
    shared = [set(map(int, found)) for seed in SEEDS for found in in_common(looks_of(seed))]
    assert reduce(set.union, shared)
    assert not all(shared)
