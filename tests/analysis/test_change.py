"""What changed between two captures: against scipy-free arithmetic, and on recordings whose change is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import kdissect
from kdissect.analysis.change import rank_test
from tests.conftest import ROOT

CLASSIC, THROTTLED = (ROOT / "captures" / name for name in ("k4_java_classic.pcap", "k4_slow_and_throttled.pcap"))


def test_the_rank_test_is_near_the_exact_one() -> None:
    """Of every way to share out ten ranks the share that is as far from the middle."""
    x, y = np.array([1.0, 2.0, 3.0, 5.0, 6.0]), np.array([4.0, 7.0, 8.0, 9.0, 10.0])
    sums = [sum(chosen) for chosen in itertools.combinations(range(1, 11), 5)]
    seen = abs(1 + 2 + 3 + 5 + 6 - 27.5)
    exact = sum(abs(one - 27.5) >= seen for one in sums) / len(sums)
    assert rank_test(x, y) == pytest.approx(exact, abs=0.01)
    assert rank_test(y, x) == rank_test(x, y)


def test_ties_and_few_values() -> None:
    assert rank_test(np.ones(50), np.ones(50)) == 1.0
    assert math.isnan(rank_test(np.ones(4), np.ones(50)))
    assert rank_test(np.arange(200.0), np.arange(200.0) + 100) < 1e-6


def test_idle_long_polls_are_no_regression() -> None:
    """More polls that ran out, in a capture with other waits, move no row up and are counted apart."""
    rows = kdissect.open(CLASSIC).analysis.diff(kdissect.open(THROTTLED))["latency"].to_pylist()
    fetch = next(row for row in rows if row["api"] == "Fetch")
    assert fetch["waits_a"] > 0
    assert fetch["own_p50_ms_b"] < 100 < fetch["p50_ms_b"]
    for side, path in (("a", CLASSIC), ("b", THROTTLED)):
        fetches = kdissect.open(path).pandas("exchanges", ["hold", "latency_ms"], "api = 'Fetch'")
        assert fetch[f"counted_{side}"] + fetch[f"waits_{side}"] == len(fetches)
    same = kdissect.open(CLASSIC).analysis.diff(kdissect.open(CLASSIC))["latency"].to_pylist()
    assert all(row["change_own_ms"] in (0.0, None) for row in same)
    assert not [row for row in same if row["p_value"] is not None and row["p_value"] < 0.05]


def test_what_surely_got_slower_comes_first() -> None:
    story = kdissect.open(THROTTLED).analysis.diff(kdissect.open(CLASSIC))["latency"].to_pylist()
    sure = [row["p_value"] is not None and row["p_value"] < 0.01 and row["change_own_ms"] > 0 for row in story]
    assert sure == sorted(sure, reverse=True)
    assert story[0]["api"] == "Produce"
