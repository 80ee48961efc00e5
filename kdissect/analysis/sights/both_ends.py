"""Captures that saw the same connections: which of their rows stay, what each way took, and how the clocks stand.

A request is the same where its sequence number, correlation id, API and size are. Two connections are the same where
they share such requests and have the same 4-tuple or the same initial sequence numbers (RFC 9293, section 3.4.1: 64
bits that nothing repeats). Connections that were met in their middle behind NAT have to share at least LEAST such
requests. Of the sights of an exchange the one nearest the client is kept, for there it lasts longest, unless only
another has all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.sights.clocks import (
    LEAST,
    Clock,
    Crossings,
    Place,
    measure_clocks,
    offsets_table,
    ranks,
    tell_crossings,
    upward,
)
from kdissect.arrays.mixing import mixed
from kdissect.kafka.completed import NULL_TIME
from kdissect.tables.declaration.model import MS, PLACES, TEXT
from kdissect.tables.identity import connection_ids, exchange_ids
from kdissect.tables.sights import CONNECTION, GONE, Copies, Flags, Ids, Int64s, Sights, keys_of

WAYS = pa.schema([("first", TEXT), ("second", TEXT), ("first_exchange_id", TEXT), ("second_exchange_id", TEXT),
                  ("network_up_ms", MS), ("network_down_ms", MS)])  # fmt: skip
"""What a row of `ways` is: an exchange as both captures have it, and what each way took between the two; `first` is
nearer the client."""
SEGMENT = 1 << 20
"""Bytes of a stream that stand in one segment, at most, offloads included, and more."""
ENDPOINTS = ("client_hi", "client_lo", "broker_hi", "broker_lo", "client_port", "broker_port")


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


class Held(NamedTuple):
    """Connections that several captures have, a row each; or several, where their exchanges were matched in parts."""

    id: Ids
    place: Int64s
    exchanges: Int64s
    """How many it has."""
    gone: Int64s
    """How many of these are not kept."""

    def by_id(self) -> Held:
        """A row for each connection, in order of their ids."""
        ids, first, of = np.unique(self.id, return_index=True, return_inverse=True)
        sums = [np.zeros(len(ids), np.int64) for _ in range(2)]
        for total, column in zip(sums, (self.exchanges, self.gone), strict=True):
            np.add.at(total, of.reshape(-1), column)
        return Held(ids, self.place[first], *sums)


class Answered(NamedTuple):
    """How long answers took to exchanges that all sights of them have whole, by connection."""

    id: Ids
    took: Int64s
    """ns, in all."""
    exchanges: Int64s


class Others(NamedTuple):
    """Connections that are the same one, a row for each two that are of two places."""

    id: Ids
    place: Int64s
    """Of the other one."""
    other: Ids


class Removed(NamedTuple):
    """Exchanges that are not kept."""

    id: Ids
    key: Int64s
    """As `keys_of`, without the connection's place."""


class Measured(NamedTuple):
    """Exchanges that are kept and were measured."""

    key: Int64s
    """As of `Removed`; their connections are those of `crossings`."""
    crossings: Crossings
    network: Int64s
    queued: Int64s


class Matched(NamedTuple):
    """Exchanges and connections that several captures saw, and times that need no clocks."""

    held: Held
    others: Others
    removed: Removed
    measured: Measured

    def sights(self, clocks: Sequence[Clock], places: Sequence[Place], ways: pa.Table | None = None) -> Sights:
        """With what the clocks say."""
        crossings, measured = self.measured.crossings, self.measured
        ids, _, exchanges, gone = self.held.by_id()
        hidden = gone == exchanges
        place = np.searchsorted(ids, np.concatenate([self.removed.id, crossings.id]))
        keys = place << CONNECTION | np.concatenate([self.removed.key, measured.key])
        measure = np.append(np.full(len(self.removed.id), GONE), np.arange(len(measured.key)))
        order = np.argsort(keys)
        up = upward(crossings, clocks)
        down = np.where(up == NULL_TIME, NULL_TIME, crossings.both_ways - up)
        copies = Copies(ids, gone, hidden, keys[order], measure[order], measured.network, measured.queued, up, down)
        others = _other_places(ids, self.others, places)
        return Sights(copies, offsets_table(clocks, places), WAYS.empty_table() if ways is None else ways, others)


def sights(seen: Seen, connections: Ends, cluster_of: Callable[[], Int64s]) -> Sights | None:
    """The exchanges and connections that several captures saw; None where there are none. `cluster_of`: gives a hash of
    each connection's ClusterId, 0 where it is not known; called where that matters."""
    keys, rows = request_keys(seen)
    conn = seen.conn[rows]
    places = mixed(*connections.endpoints.T)[conn]
    place = ranks(connections.places)[connections.place[conn]]
    first, second, counts = meetings(keys, places, place, connections.id[conn], conn)
    component = link(first, second, counts, connections, cluster_of)
    found = match(seen, connections, component)
    if found is None:
        return None
    matched, near, far = found
    matched = matched._replace(others=find_others(connections, component))
    clocks = measure_clocks(tell_crossings(matched.measured.crossings), connections.places)
    return matched.sights(clocks, connections.places, _ways(seen, connections, near, far, clocks))


def request_keys(seen: Seen) -> tuple[Ids, Int64s]:
    """A hash of each request that was captured, the same in every capture; and the rows of these requests."""
    named = np.flatnonzero((seen.end >= 0) & ~seen.orphan)
    return mixed(seen.end & 0xFFFFFFFF, seen.correlation, seen.api, seen.size, seen.client)[named], named


def meetings(
    keys: Ids, endpoints: Ids, place: Int64s, ids: Ids, conn: Int64s
) -> tuple[Int64s, Int64s, npt.NDArray[np.intp]]:
    """Two connections of different places that share requests, and how many, a row for each two.

    By request: its key, a hash of its connection's 4-tuple, the rank of its place, the connection's id, and the number
    that the result knows it by.
    """
    met = []
    for one in (keys, mixed(keys.view(np.int64), endpoints.view(np.int64))):  # behind NAT addresses differ
        order = np.lexsort((ids, place, one))
        mine, code, at = conn[order], one[order], place[order]
        same = (code[1:] == code[:-1]) & (at[1:] != at[:-1])
        met.append(np.unique(np.stack([mine[:-1][same], mine[1:][same]]), axis=1, return_counts=True))
    first, second = np.concatenate([pairs for pairs, _ in met], axis=1)
    return first, second, np.concatenate([count for _, count in met])


def _find_groups(seen: Seen, component: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Exchanges that have several sights: their rows, a number for each exchange, and how long its answer took there,
    -1 unknown."""
    rows = np.flatnonzero(component[seen.conn] >= 0)
    group = _groups(seen, rows, component)
    rows, group = rows[group >= 0], group[group >= 0]
    known = (seen.asked[rows] != NULL_TIME) & (seen.answered[rows] != NULL_TIME)
    return rows, group, np.where(known, seen.answered[rows] - seen.asked[rows], -1)


def add_answers(seen: Seen, connections: Ends, component: Int64s) -> Answered:
    """How long answers took, of all connections."""
    return _add_answers(seen, connections, *_find_groups(seen, component))


def _add_answers(seen: Seen, connections: Ends, rows: Int64s, group: Int64s, between: Int64s) -> Answered:
    code = _codes(group.astype(np.uint64))
    counted = (np.bincount(code, between < 0) == 0)[code]
    conn = seen.conn[rows[counted]]
    took = np.zeros(len(connections), np.int64)
    np.add.at(took, conn, between[counted])
    return Answered(connections.id, took, np.bincount(conn, minlength=len(connections)))


def match(
    seen: Seen, connections: Ends, component: Int64s, answered: Answered | None = None
) -> tuple[Matched, Int64s, Int64s] | None:
    """The exchanges of connections that are the same one, without `Matched.others`; then the rows of the near and of
    the far sight of each measured exchange. None where no connection is the same. `component`: as `link` gives it.
    `answered`: of connections that have further rows elsewhere. `endpoints` and `isn` of connections are not read."""
    members = np.unique(seen.conn[component[seen.conn] >= 0])
    if not len(members):
        return None
    rows, group, between = _find_groups(seen, component)
    took = _add_answers(seen, connections, rows, group, between)
    if answered is not None:
        at = np.minimum(np.searchsorted(answered.id, took.id), max(len(answered.id) - 1, 0))
        given = answered.id[at] == took.id
        took.took[given], took.exchanges[given] = answered.took[at[given]], answered.exchanges[at[given]]
    rank = _nearness(seen.conn[rows], took, connections)[seen.conn[rows]]
    kept = _first_of(group, (rank, between < 0))
    last = _first_of(group, (-rank, between < 0))
    both = (between[kept] >= 0) & (between[last] >= 0) & (seen.conn[rows[kept]] != seen.conn[rows[last]])
    removed = np.delete(rows, kept)
    near, far, there = rows[kept[both]], rows[last[both]], between[last[both]]

    behind = np.minimum(np.maximum(seen.network[far], 0), there)
    queued = np.where(
        seen.queued_from[far] != NULL_TIME,
        np.clip(seen.queued_from[far] - seen.asked[far] - behind, 0, there - behind), 0,
    )  # fmt: skip
    crossings = _crossings(seen, connections, near, far)
    keys = keys_of(np.zeros(len(seen.n), np.int64), seen.n, seen.orphan)
    in_all, gone = (
        np.bincount(seen.conn[some], minlength=len(connections))[members] for some in (slice(None), removed)
    )
    nothing = connections.id[:0]
    matched = Matched(
        Held(connections.id[members], connections.place[members], in_all, gone),
        Others(nothing, connections.place[:0], nothing),
        Removed(connections.id[seen.conn[removed]], keys[removed]),
        Measured(keys[near], crossings, crossings.both_ways + behind, queued),
    )
    return matched, near, far


def _crossings(seen: Seen, connections: Ends, near: Int64s, far: Int64s) -> Crossings:
    """The crossings between these rows of `seen`."""
    of, to = seen.conn[near], seen.conn[far]
    back = seen.answered[near] - seen.answered[far]
    return Crossings(
        connections.place[of], connections.place[to], connections.id[of], seen.asked[near], seen.asked[far], back
    )


def _ways(seen: Seen, connections: Ends, near: Int64s, far: Int64s, clocks: Sequence[Clock]) -> pa.Table:
    """Rows of WAYS for these rows."""
    names = _names(connections)[connections.place]
    crossings = _crossings(seen, connections, near, far)
    up = upward(crossings, clocks)
    return pa.Table.from_arrays(
        [
            *(pa.array(names[seen.conn[one]], TEXT) for one in (near, far)),
            *(exchange_ids(connections.id[seen.conn[one]], seen.n[one], seen.orphan[one]) for one in (near, far)),
            *(pa.array(one / 1e6, MS, mask=up == NULL_TIME) for one in (up, crossings.both_ways - up)),
        ],
        schema=WAYS,
    )


def _names(connections: Ends) -> npt.NDArray[np.object_]:
    """Names of the places."""
    return np.array([place.name for place in connections.places], object)


def find_others(connections: Ends, component: Int64s) -> Others:
    """Pairs of connections that are the same one, at two places. `component`: as `link` gives it."""
    members = np.flatnonzero(component >= 0)
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
    return Others(connections.id[of], connections.place[held], connections.id[held])


def _other_places(ids: Ids, pairs: Others, places: Sequence[Place]) -> pa.ListArray:
    """For each of these connections, by their ids, the other places that hold it; behind them an empty list."""
    order = np.lexsort((pairs.other, ranks(places)[pairs.place], pairs.id))
    captures, interfaces = (
        pa.array([getattr(place, name) for place in places], TEXT).take(pa.array(pairs.place[order]))
        for name in Place._fields
    )
    of = pairs.id[order]
    offsets = np.append(np.searchsorted(of, ids), [len(of), len(of)]).astype(np.int32)
    ids_there = connection_ids(pairs.other[order])
    structs = pa.StructArray.from_arrays([captures, interfaces, ids_there], fields=list(PLACES.value_type))
    return pa.ListArray.from_arrays(offsets, structs, type=PLACES)


def link(
    first: Int64s, second: Int64s, counts: npt.NDArray[np.intp], connections: Ends, cluster_of: Callable[[], Int64s]
) -> Int64s:
    """By connection, the smallest row of those that are the same connection; -1 for those that are by themselves.
    `first`, `second`, `counts`: two rows of connections that share so many requests (`meetings`)."""
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
    found = join_pairs(first, second, len(connections))
    linked = np.zeros(len(connections), np.bool_)
    linked[first] = linked[second] = True
    found[~linked] = -1
    return found


def join_pairs(first: Int64s, second: Int64s, size: int) -> Int64s:
    """By number below `size`, the smallest one that pairs of numbers join it with."""
    found = np.arange(size, dtype=np.int64)
    while (found[first] != found[second]).any():
        least = np.minimum(found[first], found[second])
        np.minimum.at(found, first, least)
        np.minimum.at(found, second, least)
        found = found[found]  # chains become half as long, each time
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
    sight = np.unique(np.stack([by_id, seen.conn[rows[left]]]), axis=1)[0]
    once = np.bincount(sight, minlength=len(count)) == count
    several = (count >= 2) & (orphans >= 1) & once
    group[left] = np.where(several[by_id], len(rows) + by_id, -1)
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


def _nearness(conn: Int64s, answered: Answered, connections: Ends) -> Int64s:
    """A rank of connections, by row of them: of sights of one, the nearest the client, where answers take longest, is
    the least."""
    lasted = np.where(answered.exchanges > 0, answered.took / np.maximum(answered.exchanges, 1), -1)
    used = np.unique(conn)
    names = np.unique(_names(connections)[connections.place[used]], return_inverse=True)[1]
    order = np.lexsort((connections.id[used], names, -lasted[used]))
    rank = np.zeros(len(connections), np.int64)
    rank[used[order]] = np.arange(len(used))
    return rank


def _first_of(group: Int64s, keys: tuple[Int64s | Flags, ...]) -> Int64s:
    """Of each group the place of its first row by these keys; groups in order. The last key counts most."""
    order = np.lexsort((*keys, group))
    first: Int64s = order[np.unique(group[order], return_index=True)[1]]
    return first


def _codes(values: Ids) -> Int64s:
    """Distinct values as numbers from 0 on."""
    found: Int64s = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return found
