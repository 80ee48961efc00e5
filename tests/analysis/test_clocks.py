"""How clocks of captures stand, told by a sample of the exchanges that two of them saw."""

from __future__ import annotations

import numpy as np
import pytest

from kdissect.analysis.sights import clocks
from kdissect.analysis.sights.clocks import Clock, Crossings, Gathering, Place, measure_clocks, tell_crossings

OFFSET_NS, DRIFT_PPM = 37_000_000, 50.0
PLACES = [Place("b"), Place("a"), Place("c")]


def some_crossings(count: int) -> Crossings:
    """Between three places, two of them either way; each way takes 100 us and some more. Place n's clock shows n times
    so much more than that of place 0."""
    numbers = np.random.default_rng(count)
    near, far = np.array([(0, 1), (1, 0), (0, 1), (1, 2)])[numbers.integers(0, 4, count)].T
    began = 1_700_000_000 * 10**9 + np.sort(numbers.integers(0, 600 * 10**9, count))
    up, there, down = (100_000 + numbers.exponential(50_000, count).astype(np.int64) for _ in range(3))

    def shown(place: np.ndarray, at: np.ndarray) -> np.ndarray:
        return (at + place * (OFFSET_NS + (at - 1_700_000_000 * 10**9) * DRIFT_PPM / 1e6)).astype(np.int64)

    back = shown(near, began + up + there + down) - shown(far, began + up + there)
    ids = (numbers.integers(1, 40, count) * 3 + near).astype(np.uint64)
    return Crossings(near, far, ids, shown(near, began), shown(far, began + up), back)


def by_parts(crossings: Crossings, parts: int) -> list[Clock]:
    """The clocks as parts of the exchanges tell them, put together in any order."""
    of = np.random.default_rng(parts).integers(0, parts, len(crossings.id))
    gathering = Gathering()
    for part in range(parts - 1, -1, -1):
        gathering.add(tell_crossings(crossings.select_rows(np.flatnonzero(of == part))))
    crossed = gathering.together()
    assert crossed is not None
    return measure_clocks(crossed, PLACES)


@pytest.mark.parametrize("most", [200, 1 << 16])
@pytest.mark.parametrize("parts", [1, 2, 30])
def test_parts_tell_what_all_do_together(monkeypatch: pytest.MonkeyPatch, most: int, parts: int) -> None:
    monkeypatch.setattr(clocks, "MOST_MEASURED", most)
    monkeypatch.setattr(clocks, "GATHERED", 500)
    crossings = some_crossings(5000)
    expected = measure_clocks(tell_crossings(crossings), PLACES)
    assert [(clock.first, clock.second) for clock in expected] == [(0, 1), (1, 2)]
    assert sum(clock.exchanges for clock in expected) == 5000
    assert [clock.connections for clock in expected] == [78, 39]
    assert by_parts(crossings, parts) == expected


@pytest.mark.parametrize("most", [1 << 12, 1 << 16, 1 << 20])
def test_a_sample_tells_how_clocks_stand(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(clocks, "MOST_MEASURED", most)
    for clock in measure_clocks(tell_crossings(some_crossings(400_000)), PLACES):
        assert clock.height == pytest.approx(OFFSET_NS, abs=20_000 if most > 1 << 12 else 40_000)
        assert clock.slope == pytest.approx(DRIFT_PPM * 1000, abs=100)
        assert clock.least < 230_000
        assert clock.up == pytest.approx(100_000 + 50_000 * np.log(2), abs=20_000)


def test_what_is_kept_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "MOST_MEASURED", 100)
    monkeypatch.setattr(clocks, "GATHERED", 1000)
    gathering, crossings = Gathering(), some_crossings(20_000)
    for begin in range(0, 20_000, 500):
        gathering.add(tell_crossings(crossings.select_rows(np.arange(begin, begin + 500))))
        kept = gathering.together()
        assert kept is not None
        assert len(kept.sample.id) <= 2 * 100
    assert kept.totals.exchanges.sum() == 20_000


def test_fewer_exchanges_than_tell_anything() -> None:
    crossings = some_crossings(7)
    assert measure_clocks(tell_crossings(crossings), PLACES) == []
    assert measure_clocks(tell_crossings(crossings.select_rows(np.arange(0))), PLACES) == []
    assert Gathering().together() is None
