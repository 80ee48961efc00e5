"""Captures that saw the same connections: which of their rows stay, what each way took, and how the clocks stand.

A request is the same where its sequence number, correlation id, API and size are; two connections are where they share
such requests and have the same 4-tuple, the same initial sequence numbers (RFC 9293, section 3.4.1: 64 bits that
nothing repeats), or, for what was met in its middle behind NAT, at least LEAST such requests. Of the sights of an
exchange the one nearest the client is kept, for there it lasts longest, unless only another has all of it.

With θ for what one clock shows more than the other, a message seen u later by the second, and one the other way d later
by the first: u = there + θ, d = back - θ. So u + d, free of clocks, is what both ways took together. θ is a straight
line. Its slope is that of the way whose least times, stretch by stretch, lie nearest to one (a way that changed is
crooked); its height is where the exchanges with the smallest sums of both ways have them take the same. A constant
difference between the ways cannot be told from an offset: half the smallest sum is the uncertainty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.mixing import mixed
from kdissect.kafka.completed import NULL_TIME
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import MS, PLACES, TEXT
from kdissect.tables.identity import SEPARATOR, connection_ids, exchange_ids
from kdissect.tables.sights import GONE, OFFSETS, Flags, Ids, Int64s, Sights, keys_of

WAYS = pa.schema([("first", TEXT), ("second", TEXT), ("first_exchange_id", TEXT), ("second_exchange_id", TEXT),
                  ("network_up_ms", MS), ("network_down_ms", MS)])  # fmt: skip
"""What a row of `ways` is: an exchange as both captures have it, and what each way took between the two; `first` is
nearer the client."""
LEAST = 8
"""Exchanges that must be shared, for clocks to be held against each other, and for connections that nothing else tells
to be one: fewer may be so by chance."""
STRETCHES = 24
"""Into which the time is cut for the least times of each way."""
LEAST_SPAN_S = 5.0
"""A drift is looked for in no less: 50 ppm are a quarter of a millisecond by then, about what packets jitter."""
SMALLEST = 0.05
"""Share of the exchanges, those with the smallest sums, by which the offset is found."""
SEGMENT = 1 << 20
"""Bytes of a stream that stand in one segment, at most, offloads included, and more."""
ENDPOINTS = ("client_hi", "client_lo", "broker_hi", "broker_lo", "client_port", "broker_port")
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Seen:
    """Exchanges of connections that several captures may have, a row each: int64, times in ns, NULL_TIME unknown."""

    conn: Int64s
    """Row of the connection."""
    n: Int64s
    orphan: Flags
    api: Int64s
    correlation: Int64s
    end: Int64s
    """Sequence number behind the segment that ended the request, -1 without one."""
    size: Int64s
    """Bytes of the request."""
    asked: Int64s
    """The request's last byte."""
    answered: Int64s
    """The response's first byte."""
    network: Int64s
    """What the network took between this sight and the broker, -1 unknown."""
    queued_from: Int64s
    client: Int64s
    """A hash of the request's client id, 0 for none."""


class Place(NamedTuple):
    """Where connections were captured: a capture, or one interface of it."""

    capture: str
    interface: str | None = None

    @property
    def name(self) -> str:
        """The place as people read it."""
        return self.capture if self.interface is None else f"{self.capture}, interface {self.interface}"


@dataclass(frozen=True, slots=True)
class Ends:
    """Connections that rows of `Seen` are of."""

    places: list[Place]
    id: Ids
    place: Int64s
    """Which of `places`."""
    endpoints: Int64s
    """[n, 6]: ENDPOINTS."""
    isn: Int64s
    """[n, 2]: initial sequence numbers of the client and the broker, -1 unknown."""

    def __len__(self) -> int:
        return len(self.id)


class _Clocks(NamedTuple):
    """How the clocks of two captures stand to each other."""

    first: int
    """The capture that is nearer the client for most of their exchanges."""
    second: int
    rows: Int64s
    """Which of the exchanges that were measured are theirs."""
    begun: float
    """ns: what the second shows more than the first, when the first of them began."""
    drift: float
    """ppm: how that changes."""
    least: float
    """ns: the least that both ways took together."""


def sights(seen: Seen, connections: Ends, cluster_of: Callable[[], Int64s]) -> Sights | None:
    """What rows of several captures have in common; None where that is nothing. `cluster_of`: gives a hash of each
    connection's ClusterId, 0 where it is not known; called where that matters."""
    component = _components(seen, connections, cluster_of)
    rows = np.flatnonzero(component[seen.conn] >= 0)
    group = _groups(seen, rows, component)
    rows, group = rows[group >= 0], group[group >= 0]
    if not len(rows):
        return None
    between = np.where(
        (seen.asked[rows] != NULL_TIME) & (seen.answered[rows] != NULL_TIME), seen.answered[rows] - seen.asked[rows], -1
    )
    rank = _nearness(seen.conn[rows], group, between, connections)[seen.conn[rows]]
    kept = _first_of(group, (rank, between < 0))
    far = _first_of(group, (-rank, between < 0))
    both = (between[kept] >= 0) & (between[far] >= 0) & (seen.conn[rows[kept]] != seen.conn[rows[far]])
    gone = np.ones(len(rows), np.bool_)
    gone[kept] = False
    others = _other_places(connections, component, np.unique(seen.conn[rows]))
    return _put_together(seen, connections, rows, gone, kept[both], far[both], between, others)


def _put_together(
    seen: Seen,
    connections: Ends,
    rows: Int64s,
    removed: Flags,
    near_places: Int64s,
    far: Int64s,
    between: Int64s,
    other_places: pa.ListArray,
) -> Sights:
    """`near_places` and `far`: places in `rows` of the two sights of the exchanges that are measured."""
    near, other = rows[near_places], rows[far]
    behind = np.minimum(np.maximum(seen.network[other], 0), between[far])
    crossed = np.clip(between[near_places] - between[far], 0, None)
    queued = np.where(
        seen.queued_from[other] != NULL_TIME,
        np.clip(seen.queued_from[other] - seen.asked[other] - behind, 0, between[far] - behind), 0,
    )  # fmt: skip
    up, clocks = _ways(seen, connections, near, other)
    known = up != NULL_TIME
    up = np.where(known, np.clip(up, 0, crossed), NULL_TIME)
    down = np.where(known, crossed - up, NULL_TIME)

    ids = np.unique(connections.id[np.unique(seen.conn[rows])])
    place = np.searchsorted(ids, connections.id[seen.conn])
    place = np.minimum(place, len(ids) - 1)
    mine = ids[place] == connections.id[seen.conn]
    told = np.bincount(place[rows[removed]], minlength=len(ids))
    in_all = np.bincount(place[mine], minlength=len(ids))
    measure = np.full(len(rows), len(rows), np.int64)
    measure[near_places] = np.arange(len(near_places))
    measure[removed] = GONE
    of_use = measure < len(rows)
    keys = keys_of(place[rows], seen.n[rows], seen.orphan[rows])[of_use]
    order = np.argsort(keys)
    names = _names(connections)[connections.place]
    ways = pa.Table.from_arrays(
        [
            *(pa.array(names[seen.conn[one]], TEXT) for one in (near, other)),
            *(exchange_ids(connections.id[seen.conn[one]], seen.n[one], seen.orphan[one]) for one in (near, other)),
            *(pa.array(one / 1e6, MS, mask=~known) for one in (up, down)),
        ],
        schema=WAYS,
    )
    return Sights(
        ids, told, told == in_all, keys[order], measure[of_use][order], crossed + behind, queued, up, down,
        _offsets_table(clocks, connections, seen.conn[near], up, down), ways, other_places,
    )  # fmt: skip


def _names(connections: Ends) -> npt.NDArray[np.object_]:
    """Names of the places."""
    return np.array([place.name for place in connections.places], object)


def _other_places(connections: Ends, component: Int64s, members: Int64s) -> pa.ListArray:
    """For each of these connections, by their ids, the other places that hold it; behind them an empty list.
    `component`: by connection, the same number where they are the same one."""
    members = members[np.argsort(component[members], kind="stable")]
    _, group, sizes = np.unique(component[members], return_inverse=True, return_counts=True)
    begin, size = (np.cumsum(sizes) - sizes)[group], sizes[group]
    at = np.arange(len(members))
    owner: list[Int64s] = [at[:0]]
    other: list[Int64s] = [at[:0]]
    for step in range(1, int(sizes.max(initial=0))):
        more = at[size > step]
        owner.append(more)
        other.append((begin[more] + (more - begin[more] + step) % size[more]).astype(np.int64))
    of, held = (members[np.concatenate(parts)] for parts in (owner, other))
    apart = connections.place[of] != connections.place[held]
    of, held = of[apart], held[apart]
    # By names: in which order captures were given is nothing to whoever compares rows.
    names = [(place.capture, place.interface or "") for place in connections.places]
    rank = np.argsort(np.array(sorted(range(len(names)), key=names.__getitem__), np.int64))
    order = np.lexsort((connections.id[held], rank[connections.place[held]], connections.id[of]))
    ids, of, held = np.unique(connections.id[members]), connections.id[of][order], held[order]
    captures, interfaces = (
        pa.array([getattr(place, name) for place in connections.places], TEXT).take(pa.array(connections.place[held]))
        for name in Place._fields
    )
    offsets = np.append(np.searchsorted(of, ids), [len(of), len(of)]).astype(np.int32)
    ids_there = connection_ids(connections.id[held])
    places = pa.StructArray.from_arrays([captures, interfaces, ids_there], fields=list(PLACES.value_type))
    return pa.ListArray.from_arrays(offsets, places, type=PLACES)


def _components(seen: Seen, connections: Ends, cluster_of: Callable[[], Int64s]) -> Int64s:
    """By connection, the smallest row of those that are the same connection; -1 for those that are by themselves."""
    named = np.flatnonzero((seen.end >= 0) & ~seen.orphan)
    key = mixed(seen.end & 0xFFFFFFFF, seen.correlation, seen.api, seen.size, seen.client)[named]
    place = mixed(*connections.endpoints.T)[seen.conn[named]]
    met = []
    for one in (key, mixed(key.view(np.int64), place.view(np.int64))):  # behind NAT addresses differ
        order = np.lexsort((connections.place[seen.conn[named]], one))
        conn, code = seen.conn[named][order], one[order]
        same = (code[1:] == code[:-1]) & (connections.place[conn[1:]] != connections.place[conn[:-1]])
        met.append(np.unique(np.stack([conn[:-1][same], conn[1:][same]]), axis=1, return_counts=True))
    first, second = np.concatenate([pairs for pairs, _ in met], axis=1)
    counts = np.concatenate([count for _, count in met])
    alike = (connections.endpoints[first] == connections.endpoints[second]).all(axis=1)
    isn = connections.isn
    began = (isn[first] >= 0).all(axis=1) & (isn[first] == isn[second]).all(axis=1)
    with_twin = np.zeros(len(connections), np.bool_)
    with_twin[first[alike]] = with_twin[second[alike]] = True
    alone = ~with_twin[first] & ~with_twin[second]
    taken = alike | began | (alone & (counts >= LEAST))
    if (taken & ~alike).any():  # two ClusterIds are two connections
        clusters = cluster_of()
        own, other = clusters[first], clusters[second]
        taken &= alike | (own == other) | (own == 0) | (other == 0)
    first, second = first[taken], second[taken]
    found = np.arange(len(connections), dtype=np.int64)
    while (found[first] != found[second]).any():
        least = np.minimum(found[first], found[second])
        np.minimum.at(found, first, least)
        np.minimum.at(found, second, least)
    linked = np.zeros(len(connections), np.bool_)
    linked[first] = linked[second] = True
    found[~linked] = -1
    return found


def _groups(seen: Seen, rows: Int64s, component: Int64s) -> Int64s:
    """A number for each exchange that several of these rows tell of, by row; -1 for rows by themselves. Where a capture
    has only the response, its correlation id must tell."""
    of = component[seen.conn[rows]]
    named = (seen.end[rows] >= 0) & ~seen.orphan[rows]
    group = np.full(len(rows), -1, np.int64)
    group[named] = _codes(_requests(seen, rows[named], of[named]))
    single = (group < 0) | (np.bincount(group[group >= 0], minlength=len(rows) + 1)[group] < 2)
    left = np.flatnonzero(single)
    by_id = _codes(mixed(of[left], seen.correlation[rows[left]]))
    count = np.bincount(by_id)
    orphans = np.bincount(by_id, seen.orphan[rows[left]])
    first, last = _extremes(by_id, seen.conn[rows[left]])
    pair = (count == 2) & (orphans >= 1) & (first != last)
    group[left] = np.where(pair[by_id], len(rows) + by_id, -1)
    return group


def _requests(seen: Seen, rows: Int64s, of: Int64s) -> Ids:
    """A number for each request, the same in every capture that has it; `of`: what their connections are.

    Ids mostly tell: where a connection has one twice (some clients always send 0), or where it stands elsewhere in the
    stream, the sequence number does, and the order. It is that behind the segment which ended the request, and segments
    are cut differently at different places.
    """
    end = seen.end[rows] & 0xFFFFFFFF
    alike = _codes(mixed(of, seen.correlation[rows], seen.api[rows], seen.size[rows]))
    mine = _codes(mixed(alike, seen.conn[rows]))
    often = np.zeros(int(alike.max(initial=-1)) + 1, np.int64)
    np.maximum.at(often, alike, np.bincount(mine)[mine])
    first, last = _extremes(alike, end)
    clear = (often == 1) & (last - first <= SEGMENT)
    place = _codes(mixed(mine, end))
    order = np.lexsort((seen.n[rows], place))
    begins = np.flatnonzero(np.diff(place[order], prepend=-1))
    turn = np.zeros(len(rows), np.int64)
    turn[order] = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    exact = ~clear[alike]
    return mixed(alike, np.where(exact, end, -1), np.where(exact, turn, -1))


def _extremes(code: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """By code, the least and the largest value."""
    size = int(code.max(initial=-1)) + 1
    least, most = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(least, code, values)
    np.maximum.at(most, code, values)
    return least, most


def _nearness(conn: Int64s, group: Int64s, between: Int64s, connections: Ends) -> Int64s:
    """A rank of connections, by row of them: of sights of one, the nearest the client, where answers take longest, is
    the least."""
    code = _codes(group.astype(np.uint64))
    whole = np.bincount(code, between < 0) == 0
    counted = whole[code]
    size = len(connections)
    total = np.bincount(conn[counted], between[counted], minlength=size)
    count = np.bincount(conn[counted], minlength=size)
    lasted = np.where(count > 0, total / np.maximum(count, 1), -1)
    used = np.unique(conn)
    names = np.unique(_names(connections)[connections.place[used]], return_inverse=True)[1]
    order = np.lexsort((connections.id[used], names, -lasted[used]))
    rank = np.zeros(size, np.int64)
    rank[used[order]] = np.arange(len(used))
    return rank


def _first_of(group: Int64s, keys: tuple[Int64s | Flags, ...]) -> Int64s:
    """Of each group the place of its first row by these keys, the last of which counts most; groups in order."""
    order = np.lexsort((*keys, group))
    first: Int64s = order[np.unique(group[order], return_index=True)[1]]
    return first


def _ways(seen: Seen, connections: Ends, near: Int64s, far: Int64s) -> tuple[Int64s, list[_Clocks]]:
    """What each request took from the near sight to the far one, ns, and the clocks of each two captures."""
    of, to = (connections.place[seen.conn[one]].astype(np.int64) for one in (near, far))
    low, high = np.minimum(of, to), np.maximum(of, to)
    up = np.full(len(near), NULL_TIME, np.int64)
    found = []
    for one, other in np.unique(np.stack([low, high]), axis=1).T.tolist():
        rows = np.flatnonzero((low == one) & (high == other))
        if one == other or len(rows) < LEAST:
            continue
        asked = seen.asked[far[rows]] - seen.asked[near[rows]]
        answered = seen.answered[near[rows]] - seen.answered[far[rows]]
        turned = of[rows] != one
        at = np.where(turned, seen.asked[far[rows]], seen.asked[near[rows]])
        theta, drift = _theta(at, np.where(turned, answered, asked), np.where(turned, asked, answered))
        up[rows] = asked + np.where(turned, theta, -theta).astype(np.int64)
        nearer = (other, one) if 2 * int(turned.sum()) > len(rows) else (one, other)
        sign = 1 if nearer[0] == one else -1
        begun = sign * float(theta[np.argmin(at)])
        found.append(_Clocks(*nearer, rows, begun, sign * drift, float((asked + answered).min())))
    return up, found


def _theta(at: Int64s, outward: Int64s, back: Int64s) -> tuple[Reals, float]:
    """What the second clock shows more than the first at each exchange, ns, and how that changes, ppm: messages from
    the first capture were seen `outward` later by the second, those the other way `back` later by the first."""
    seconds = (at - at.min()) / 1e9
    slopes = [_slope(seconds, outward.astype(np.float64)), _slope(seconds, -back.astype(np.float64), least=False)]
    slope = min(slopes, key=lambda one: one[1])[0]
    sums = outward + back
    kept = sums <= np.quantile(sums, SMALLEST)
    height = float(np.median((outward - back)[kept] / 2 - slope * seconds[kept]))
    return height + slope * seconds, slope / 1e3


def _slope(at: Reals, values: Reals, least: bool = True) -> tuple[float, float]:
    """Slope (ns a second) of the line through the least values of each stretch of time, or the largest, and how far
    they lie from it (mean, ns)."""
    span = float(at.max())
    if span < LEAST_SPAN_S:
        return 0.0, 0.0
    stretch = np.minimum((at / span * STRETCHES).astype(np.int64), STRETCHES - 1)
    order = np.lexsort((values if least else -values, stretch))
    place = order[np.unique(stretch[order], return_index=True)[1]]
    x, y = at[place], values[place]
    i, j = np.triu_indices(len(x), 1)
    if not len(i):
        return 0.0, 0.0
    slope = float(np.median((y[j] - y[i]) / np.maximum(x[j] - x[i], 1e-9)))
    rest = y - slope * x
    return slope, float(np.mean(np.abs(rest - np.median(rest))))


def _offsets_table(measured: list[_Clocks], connections: Ends, conn: Int64s, up: Int64s, down: Int64s) -> pa.Table:
    """The table `clock_offsets`; `conn`, `up` and `down` of all exchanges that were measured."""
    made = [
        (
            *(connections.places[place].name for place in (one.first, one.second)), len(np.unique(conn[one.rows])),
            len(one.rows), -one.begun / 1e6, -one.drift, max(one.least, 0.0) / 2e6,
            float(np.median(up[one.rows])) / 1e6, float(np.median(down[one.rows])) / 1e6,
            f"{connections.places[one.first].capture}{SEPARATOR}",
        )
        for one in measured
    ]  # fmt: skip
    return pa.Table.from_pylist([dict(zip(OFFSETS, row, strict=True)) for row in made], SCHEMAS["clock_offsets"])


def _codes(values: Ids) -> Int64s:
    """Distinct values as numbers from 0 on."""
    found: Int64s = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return found
