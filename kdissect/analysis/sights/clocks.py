"""How the clocks of two captures stand to each other, by the exchanges that both saw.

Let θ be what the second clock shows more than the first one. The second capture sees a message u later. The first one
sees a message of the other way d later. Then u = there + θ and d = back - θ. So u + d, free of clocks, is what both
ways took together. θ is a straight line. Its slope is that of the way whose least times, stretch by stretch, lie
nearest to a line (a way that changed is crooked). Its height is where both ways take the same in the exchanges whose
sums of both ways are smallest. A constant difference between the ways cannot be told from an offset: half the smallest
sum is the uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.mixing import mixed
from kdissect.kafka.completed import NULL_TIME
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.sights import OFFSETS, Flags, Ids, Int64s

LEAST = 8
"""Exchanges that must be shared, for clocks to be held against each other, and for connections that nothing else tells
to be one: fewer may be so by chance."""
STRETCHES = 24
"""Into which the time is cut for the least times of each way."""
LEAST_SPAN_S = 5.0
"""A drift is looked for in no less: 50 ppm are a quarter of a millisecond by then, about what packets jitter."""
SMALLEST = 0.05
"""Share of the exchanges, those with the smallest sums, by which the offset is found."""
SOONEST = 0.05
"""Share of the exchanges that may have taken less both ways than two interfaces at different places do."""
MOST_MEASURED = 1 << 16
"""Exchanges of two places that their clocks are held against each other by, at most: 3 MB."""
GATHERED = 1 << 20
"""Rows of parts that are put together at once: 50 MB."""
Reals = npt.NDArray[np.float64]


class Place(NamedTuple):
    """Where connections were captured: a capture, or one interface of it."""

    capture: str
    interface: str | None = None

    @property
    def name(self) -> str:
        """The place as people read it."""
        return self.capture if self.interface is None else f"{self.capture}, interface {self.interface}"


class Crossings(NamedTuple):
    """Exchanges that were measured between two sights, a row each; times in ns, each by its own capture's clock."""

    near: Int64s
    """Place of the sight that is nearer the client."""
    far: Int64s
    """Place of the other one."""
    id: Ids
    """Connection of the near sight."""
    near_asked: Int64s
    """The request's last byte at the near sight."""
    far_asked: Int64s
    back: Int64s
    """How much later the near sight saw the response."""

    @property
    def low_high(self) -> tuple[Int64s, Int64s]:
        """The two places, that with the smaller number first."""
        return np.minimum(self.near, self.far), np.maximum(self.near, self.far)

    @property
    def pair(self) -> Ids:
        """A hash of the two places."""
        return mixed(*self.low_high)

    @property
    def outward(self) -> Int64s:
        """How much later the far sight saw the request."""
        return self.far_asked - self.near_asked

    @property
    def both_ways(self) -> Int64s:
        """The time of both ways together, ns: how the clocks differ cancels out."""
        took: Int64s = np.clip(self.outward + self.back, 0, None)
        return took

    def select_rows(self, rows: Int64s) -> Crossings:
        """Some of the rows."""
        near, far, ids, *times = self
        return Crossings(near[rows], far[rows], ids[rows], *(column[rows] for column in times))


class Totals(NamedTuple):
    """All that was measured between two places, a row for each connection of the nearer one, or several."""

    low: Int64s
    """The place with the smaller number."""
    high: Int64s
    id: Ids
    exchanges: Int64s
    from_high: Int64s
    """How many of these `high` is nearer the client of."""
    since_low: Int64s
    """ns: the first request's last byte, by the clock of `low`."""
    since_high: Int64s
    least: Int64s
    """ns: the least that both ways took together."""

    @property
    def pair(self) -> Ids:
        """As of Crossings."""
        return mixed(self.low, self.high)


class Crossed(NamedTuple):
    """A sample of exchanges, and sums of all, that clocks are measured by."""

    sample: Crossings
    """MOST_MEASURED at most of each two places."""
    totals: Totals


class Clock(NamedTuple):
    """How the clocks of two places stand to each other."""

    first: int
    """The place that is nearer the client for most of their exchanges."""
    second: int
    since: int
    """ns: the first of the exchanges that were measured between them, by the first place's clock."""
    height: float
    """ns: what the second place's clock shows more than the first one's, by then."""
    slope: float
    """ns a second: how that changes."""
    connections: int
    exchanges: int
    least: float
    """ns: the least that both ways took together."""
    up: float
    """ns: median of the way to the second place."""
    down: float
    took: float
    """ns: what both ways took together for all but SOONEST of the exchanges, at least."""

    def upward(self, crossings: Crossings) -> Int64s:
        """ns: what each request of these two places took to the far sight, clocks aligned."""
        turned = crossings.near != self.first
        at = np.where(turned, crossings.far_asked, crossings.near_asked)
        theta = self.height + self.slope * ((at - self.since) / 1e9)
        up = crossings.outward + np.where(turned, theta, -theta).astype(np.int64)
        return np.clip(up, 0, crossings.both_ways)


def tell_crossings(crossings: Crossings) -> Crossed:
    """The sample and the sums of these exchanges; `Gathering` joins those of several parts."""
    low, high = crossings.low_high
    from_high = crossings.near != low
    _, first, code = np.unique(mixed(low, high, crossings.id.view(np.int64)), return_index=True, return_inverse=True)
    code = code.reshape(-1)

    def count(rows: Flags | slice) -> Int64s:
        return np.bincount(code[rows], minlength=len(first)).astype(np.int64)

    def find_least(values: Int64s) -> Int64s:
        found = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(found, code, values)
        return found

    totals = Totals(
        low[first], high[first], crossings.id[first], count(slice(None)), count(from_high),
        find_least(np.where(from_high, crossings.far_asked, crossings.near_asked)),
        find_least(np.where(from_high, crossings.near_asked, crossings.far_asked)),
        find_least(crossings.outward + crossings.back),
    )  # fmt: skip
    return Crossed(_fewer(crossings), totals)


class Gathering:
    """Joins samples and sums of parts of exchanges. It keeps MOST_MEASURED for each two places, and GATHERED more."""

    def __init__(self) -> None:
        self._parts: list[Crossed] = []
        self._rows, self._most = 0, GATHERED

    def add(self, crossed: Crossed) -> None:
        """Take those of a part."""
        self._parts.append(crossed)
        self._rows += len(crossed.sample.id) + len(crossed.totals.id)
        if self._rows > self._most:
            together = self.together()
            assert together is not None
            self._parts = [together]
            self._rows = len(together.sample.id) + len(together.totals.id)
            self._most = self._rows + GATHERED

    def together(self) -> Crossed | None:
        """The sample and the sums of all parts; None where nothing was measured."""
        if not self._parts:
            return None
        sample, totals = (
            [np.concatenate(columns) for columns in zip(*parts, strict=True)]
            for parts in zip(*self._parts, strict=True)
        )
        return Crossed(_fewer(Crossings(*sample)), Totals(*totals))


def _fewer(crossings: Crossings) -> Crossings:
    """MOST_MEASURED at most of each two places: always the same ones, those whose hashes are the least."""
    if len(crossings.id) <= MOST_MEASURED:
        return crossings
    keys = mixed(crossings.id.view(np.int64), crossings.near_asked, crossings.far_asked)
    _, pair, sizes = np.unique(crossings.pair, return_inverse=True, return_counts=True)
    order = np.lexsort((keys, pair.reshape(-1)))
    within = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return crossings.select_rows(order[within < MOST_MEASURED])


def measure_clocks(crossed: Crossed, places: Sequence[Place]) -> list[Clock]:
    """The clocks of each two places between which LEAST exchanges were measured."""
    crossings, totals = crossed
    rank, pair = ranks(places), crossings.low_high
    found = []
    for low, high in np.unique(np.stack([totals.low, totals.high]), axis=1).T.tolist():
        mine = (totals.low == low) & (totals.high == high)
        exchanges, from_high = int(totals.exchanges[mine].sum()), int(totals.from_high[mine].sum())
        if low == high or exchanges < LEAST:
            continue
        one, other = sorted((low, high), key=rank.__getitem__)
        turned = 2 * (from_high if one == low else exchanges - from_high) > exchanges
        first, second = (other, one) if turned else (one, other)
        since = int((totals.since_low if first == low else totals.since_high)[mine].min())
        connections, least = len(np.unique(totals.id[mine])), float(totals.least[mine].min())
        clock = Clock(first, second, since, 0, 0, connections, exchanges, least, 0, 0, 0)
        found.append(_clock(clock, crossings.select_rows(np.flatnonzero((pair[0] == low) & (pair[1] == high)))))
    return found


def ranks(places: Sequence[Place]) -> Int64s:
    """By place, where it stands among their names: the order in which captures were given changes no row."""
    names = [(place.capture, place.interface or "") for place in places]
    return np.argsort(np.array(sorted(range(len(names)), key=names.__getitem__), np.int64))


def _clock(clock: Clock, crossings: Crossings) -> Clock:
    """A clock with what a sample of its exchanges says."""
    turned = crossings.near != clock.first
    at = np.where(turned, crossings.far_asked, crossings.near_asked)
    outward, back = (np.where(turned, *pair) for pair in (
        (crossings.back, crossings.outward), (crossings.outward, crossings.back),
    ))  # fmt: skip
    height, slope = _line((at - clock.since) / 1e9, outward, back)
    clock = clock._replace(height=height, slope=slope)
    up, took = clock.upward(crossings), crossings.both_ways
    return clock._replace(
        up=float(np.median(up)), down=float(np.median(took - up)), took=float(np.quantile(took, SOONEST))
    )


def upward(crossings: Crossings, clocks: Sequence[Clock]) -> Int64s:
    """ns: what each request took to the far sight, clocks aligned; NULL_TIME where these are not known."""
    up = np.full(len(crossings.near), NULL_TIME, np.int64)
    low, high = crossings.low_high
    for one in clocks:
        rows = np.flatnonzero((low == min(one.first, one.second)) & (high == max(one.first, one.second)))
        up[rows] = one.upward(crossings.select_rows(rows))
    return up


def _line(seconds: Reals, outward: Int64s, back: Int64s) -> tuple[float, float]:
    """The second clock less the first one: at second 0, ns, and how that changes, ns a second. Messages from the first
    capture were seen `outward` later by the second, those the other way `back` later by the first."""
    slopes = [_slope(seconds, outward.astype(np.float64)), _slope(seconds, -back.astype(np.float64), least=False)]
    slope = min(slopes, key=lambda one: one[1])[0]
    sums = outward + back
    kept = sums <= np.quantile(sums, SMALLEST)
    return float(np.median((outward - back)[kept] / 2 - slope * seconds[kept])), slope


def _slope(at: Reals, values: Reals, least: bool = True) -> tuple[float, float]:
    """Slope (ns a second) of the line through the least values of each stretch of time, or the largest, and how far
    they lie from it (mean, ns)."""
    span = float(at.max())
    if span < LEAST_SPAN_S:
        return 0.0, 0.0
    stretch = np.minimum((at / span * STRETCHES).astype(np.int64), STRETCHES - 1)
    order = np.lexsort((at, values if least else -values, stretch))
    place = order[np.unique(stretch[order], return_index=True)[1]]
    x, y = at[place], values[place]
    i, j = np.triu_indices(len(x), 1)
    if not len(i):
        return 0.0, 0.0
    slope = float(np.median((y[j] - y[i]) / np.maximum(x[j] - x[i], 1e-9)))
    rest = y - slope * x
    return slope, float(np.mean(np.abs(rest - np.median(rest))))


def offsets_table(clocks: Sequence[Clock], places: Sequence[Place]) -> pa.Table:
    """The table `clock_offsets`."""
    made = [
        (
            *(places[place].name for place in (one.first, one.second)), one.connections, one.exchanges,
            0.0 - one.height / 1e6, 0.0 - one.slope / 1e3, max(one.least, 0.0) / 2e6, one.up / 1e6, one.down / 1e6,
            f"{places[one.first].capture}{SEPARATOR}",
        )
        for one in clocks
    ]  # fmt: skip
    return pa.Table.from_pylist([dict(zip(OFFSETS, row, strict=True)) for row in made], SCHEMAS["clock_offsets"])
