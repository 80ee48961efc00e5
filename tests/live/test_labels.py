"""Figures by name in bounded memory: nothing is lost when names come and go."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.live.labels import CELLS, OTHER, UNKNOWN, Dimension, quantile

SECOND = 1_000_000


def count(dimension: Dimension, names: list[str | None], at: int) -> None:
    place = dimension.places(pa.array(names))
    when = np.full(len(names), at)
    dimension.add(place, when, np.zeros(len(names), np.bool_), np.ones(len(names), np.int64))
    dimension.time(0, place, when, np.full(len(names), 5.0))


def test_sums_hold_whoever_comes_and_goes() -> None:
    dimension = Dimension("client", 5, SECOND)
    given = 0
    for n in range(2000):
        dimension.advance((n + 1) * SECOND)
        names = [f"c{n % 17}", f"c{n % 17}", f"gone{n}", None]
        count(dimension, names, (n + 1) * SECOND)
        given += len(names)
    assert dimension.exchanges.sum() == dimension.histogram.sum() == given
    assert sum(text is not None for text in dimension.texts) <= 6
    assert len(dimension._others) <= 4 * 5, "names without a place are forgotten"


def test_who_is_busy_gets_a_place() -> None:
    dimension = Dimension("client", 2, SECOND)
    dimension.advance(SECOND)
    count(dimension, ["early", "quiet", None], SECOND)
    for _ in range(10):
        count(dimension, ["busy"] * 3, SECOND)
    assert "busy" in dimension.texts
    assert dimension.exchanges.sum() == 33
    lines = {line["name"]: line for line in dimension.lines()}
    assert lines["busy"]["exchanges"] >= 24
    assert OTHER in lines


def test_a_null_name_and_one_called_other() -> None:
    dimension = Dimension("client", 3, SECOND)
    count(dimension, [None, "other", "a"], 0)
    assert {line["name"] for line in dimension.lines()} == {UNKNOWN, OTHER, "a"}


def test_the_window_moves() -> None:
    dimension = Dimension("api", 3, SECOND)
    dimension.advance(100 * SECOND)
    count(dimension, ["Fetch"] * 20, 100 * SECOND)
    (line,) = dimension.lines()
    assert line["rate"] == 2.0
    assert 4.7 < line["latency_p50_ms"] < 5.3
    dimension.advance((100 + CELLS - 1) * SECOND)
    assert dimension.lines()[0]["rate"] == 2.0
    dimension.advance((100 + CELLS) * SECOND)
    (line,) = dimension.lines()
    assert (line["rate"], line["latency_p50_ms"], line["exchanges"]) == (0.0, None, 20)
    count(dimension, ["Fetch"], 50 * SECOND)
    assert dimension.lines()[0]["rate"] == 0.0, "what came late counts, but not as now"


def test_quantiles() -> None:
    counts = np.zeros(10, np.int64)
    assert quantile(counts, 0.5) is None
    counts[3] = 1
    assert quantile(counts, 0.99) == quantile(counts, 0.01)
