"""The order of rows of exchanges, against ids as text."""

from __future__ import annotations

import numpy as np
import pytest

from kdissect.tables.identity import exchange_ids
from kdissect.tables.order import LONG, ascending, by_request


def rows(seed: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(times, connections, ordinals) of which many are equal; ordinals below 0 are orphans'."""
    chance = np.random.default_rng(seed)
    ordinals = np.array([0, 1, 2, 9, 10, 11, 19, 100, 101, 10**6, LONG - 1, LONG, 5 * LONG])
    n = ordinals[chance.integers(0, len(ordinals), size)]
    high = chance.choice(np.array([1, 2, -1, -(2**63), 2**63 - 1]), size)
    return chance.integers(0, 1 + size // 3, size), high, np.where(chance.random(size) < 0.3, -1 - n, n)


def texts(high: np.ndarray, n: np.ndarray) -> list[str]:
    orphan = n < 0
    return exchange_ids(high.view(np.uint64), np.where(orphan, -1 - n, n), orphan).to_pylist()


@pytest.mark.parametrize("seed", range(40))
def test_rows_stand_by_time_and_by_id_as_text(seed: int) -> None:
    times, high, n = rows(seed, 30)
    wanted = sorted(range(30), key=lambda i: (times[i], texts(high, n)[i]))
    found = by_request(times, high, n)
    assert found is not None
    assert found.tolist() == wanted
    ordered = times[found], high[found], n[found]
    again = by_request(*ordered)
    assert again is None or again.tolist() == list(range(30))
    if (np.where(n < 0, -1 - n, n) < LONG).all():
        assert ascending(*ordered) == 1
        assert again is None


@pytest.mark.parametrize("seed", range(200))
def test_rows_are_in_order_for_sure_only_where_they_are(seed: int) -> None:
    times, high, n = rows(seed, 3)
    said = list(zip(times.tolist(), texts(high, n), strict=True))
    in_order = said == sorted(said)
    short = bool((np.where(n < 0, -1 - n, n) < LONG).all())
    assert in_order or not ascending(times, high, n)
    assert bool(ascending(times, high, n)) == in_order or not short
    assert (by_request(times, high, n) is None) <= in_order
