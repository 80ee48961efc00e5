"""Captures of a job matched in a shuffle: which connections several of them saw, and which of their exchanges stay.

The rules are those of one machine (`kdissect.analysis.sights.both_ends`), each step over the rows that it needs
together:

1. `share`: flows and marks of packets' headers, which come with the index, by their hashes: the flows of several
   captures.
2. `survey`: the index rows of a bucket, of these flows only: exchanges, undecoded, and what tells their requests.
3. `meet`: requests, by what tells them: which two connections share some, and how many.
4. `join_connections`: these pairs, in one task: which connections are the same one. Some bytes a connection.
5. `deal_exchanges`: exchanges of a bucket, each to the task that has all sights of it: by connection, and by
   correlation id where there are very many. Of these `add_answers` tells all parts which sight is nearer the client.
6. `match_exchanges`: these: which rows stay, what was measured, and by which two clocks.
7. `measure`: what was measured between two captures, by pair: how their clocks stand.

Matched rows go to the buckets of the connections, for the tasks that decode these. The driver learns how clocks stand,
some numbers for each two captures, and nothing of an exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kdissect.analysis.sights import both_ends, clocks
from kdissect.analysis.sights.both_ends import Answered, Ends, Held, Matched, Measured, Others, Removed, Seen
from kdissect.analysis.sights.clocks import Clock, Crossed, Crossings, Place
from kdissect.arrays.arrow import encoded
from kdissect.arrays.mixing import mixed
from kdissect.arrays.typed_values import dumped, loaded
from kdissect.engine.books import Books
from kdissect.engine.common import Common
from kdissect.engine.inputs import Packets, Segments
from kdissect.engine.passes.one_pass import Pass
from kdissect.engine.sights.interfaces import OneSight, Views
from kdissect.engine.sights.one_file import flow_hashes, name_of
from kdissect.engine.sights.survey import Onlooker, text_hashes, undecoded
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Harvest
from kdissect.spark.stages.matching.dealt_arrays import (
    deal_rows,
    index_row,
    join_rows,
    packed_of,
    split_rows,
    take_rows,
    targets_of,
    values_of,
)
from kdissect.spark.stages.partition_capture import IndexRow, Survey, readings, rows_of_index
from kdissect.spark.stages.plan import Plan, RowKind
from kdissect.tables.address_texts import Addresses
from kdissect.tables.brokers import Brokers
from kdissect.tables.sights import Flags, Ids, Int64s, Sights

PART_REQUESTS = 1 << 20
"""Requests that connections which are the same one share, from which on their exchanges are matched in parts."""
PART_BITS = 12
"""Of so many correlation ids that follow one another, all are in one part."""
MATCHED_ROWS = 1 << 18
"""Exchanges that are matched at a time, but for those of a connection that has more: some 100 MB."""

BROKER = [both_ends.ENDPOINTS.index(f"broker_{name}") for name in ("hi", "lo", "port")]
"""Columns of `Found.endpoints`."""


class Looked(NamedTuple):
    """Hashes of flows, and of marks of their segments, for other captures: a row for each that a file has."""

    mark: Ids
    flow: Ids
    """Hash of the flow."""
    connection: Ids
    """Hash of the capture and the flow: buckets go by it."""


class Viewed(NamedTuple):
    """Directions of flows that carry something, as interfaces of a capture have them."""

    view: Int64s
    way: Int64s
    interface: Int64s
    flow: Ids
    connection: Ids


class OwnFlows(NamedTuple):
    """The flows of connections."""

    id: Ids
    place: Int64s
    flow: Ids


class Met(NamedTuple):
    """Requests, as captures have them."""

    key: Ids
    endpoints: Ids
    place: Int64s
    id: Ids


class Pairs(NamedTuple):
    """Connections that share requests, and how many."""

    first: Ids
    second: Ids
    requests: Int64s


class Found(NamedTuple):
    """Connections, as captures have them."""

    id: Ids
    place: Int64s
    bucket: Int64s
    endpoints: Int64s
    isn: Int64s


class Joined(NamedTuple):
    """Connections that others are the same as."""

    id: Ids
    component: Ids
    parts: Int64s
    """In how many parts its exchanges are matched."""


class Exchanges(NamedTuple):
    """Exchanges, as captures have them."""

    id: Ids
    place: Int64s
    bucket: Int64s
    component: Ids
    part: Ids
    """Exchanges of one are matched together: a hash of the component and of which of its parts."""
    cut: Flags
    """Whether there are several parts."""
    seen: Seen


def share(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """LOOKS with some hashes to SHARED: by capture, the flows that another one may have too."""
    numbers, looks = [], []
    for number, _, packed, _ in rows_of_index(batches):
        looks.append(loaded(packed, Looked))
        numbers.append(np.full(len(looks[-1].mark), number, np.int64))
    if not looks:
        return
    capture, look = np.concatenate(numbers), join_rows(looks)
    order = np.lexsort((capture, look.mark))
    mark, at = look.mark[order], capture[order]
    begins = np.flatnonzero(np.append(True, mark[1:] != mark[:-1]))
    sizes = np.diff(np.append(begins, len(mark)))
    several = at[begins] != at[begins + sizes - 1]
    rows = order[np.repeat(several, sizes)]
    for number, mine in split_rows(rows, capture[rows]).items():
        flows, first = np.unique(look.flow[mine], return_index=True)
        yield from _shared(flows, look.connection[mine][first], plan, number)


def count_views(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """LOOKS of some flows to PAIRS for the driver: how many flows with both directions two viewpoints share, or one
    has."""
    looks = values_of(batches, RowKind.LOOKS, Viewed)
    if not looks:
        return
    look = join_rows(looks)
    interface = dict(zip(look.view.tolist(), look.interface.tolist(), strict=True))
    counts: dict[tuple[int, int], int] = {}
    views = _views_by_flow(look)
    for view, flows in views.items():
        for other in (one for one in views if one >= view):
            counts[view, other] = len(np.intersect1d(flows, views[other]))
    yield index_row(0, RowKind.PAIRS, dumped(ViewCounts(interface, counts), ViewCounts))


class ViewCounts(NamedTuple):
    """Viewpoints of a capture."""

    interface: dict[int, int]
    shared: dict[tuple[int, int], int]
    """Flows of one, where it stands twice, and of two."""


def _views_by_flow(look: Viewed) -> dict[int, Ids]:
    """By viewpoint, the flows with both directions."""
    found = {}
    for view in np.unique(look.view).tolist():
        ways = [look.flow[(look.view == view) & (look.way == way)] for way in range(2)]
        found[view] = np.intersect1d(*ways)
    return found


def share_views(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """LOOKS of some flows to SHARED: those that both of the plan's viewpoints have."""
    looks = values_of(batches, RowKind.LOOKS, Viewed)
    if not looks:
        return
    look, nothing = join_rows(looks), np.zeros(0, np.uint64)
    views = _views_by_flow(look)
    one, other = (views.get(view, nothing) for view, _ in plan.views)
    shared = np.intersect1d(one, other)
    flows, first = np.unique(look.flow, return_index=True)
    mine = np.isin(flows, shared)
    yield from _shared(flows[mine], look.connection[first[mine]], plan, 0)


def _shared(flows: Ids, connections: Ids, plan: Plan, capture: int) -> Iterator[pa.RecordBatch]:
    """SHARED of a capture's flows."""
    targets = targets_of(connections, plan.buckets_of(capture))
    for target in np.unique(targets).tolist():
        yield index_row(target, RowKind.SHARED, flows[targets == target].tobytes(), capture)


class _Surveyed:
    """The input of a survey; see `kdissect.engine.inputs.Inputs`."""

    def __init__(self, plan: Plan, index: Iterator[IndexRow], view: int | None) -> None:
        self._plan, self._index, self._view = plan, index, view
        self.onlooker = Onlooker()

    def readings(self) -> Iterator[tuple[int, Packets, Segments]]:
        """See Inputs."""
        yield from readings(self._plan.sources, self._index, Survey(self._view))

    @contextmanager
    def completing(self, harvest: Harvest, completion: Completion) -> Iterator[None]:
        """See Inputs."""
        self.onlooker.take_exchanges(harvest, completion)
        yield


def survey(batches: Iterable[pa.RecordBatch], plan: Plan, place: int | None = None) -> Iterator[pa.RecordBatch]:
    """Index rows of a bucket, behind its SHARED, to SEEN, for the task of this bucket, MET, by request, and ENDS.
    `place`: as one of the plan's viewpoints has them; then also FLOWS, for this bucket."""
    bucket, batches = _bucket(batches)
    books = Books([source.without_files() for source in plan.sources], {}, undecoded(plan.settings))
    inputs = _Surveyed(plan, rows_of_index(batches), None if place is None else plan.views[place][0])
    for _ in Pass(books, inputs).completed():
        pass
    seen, ends = inputs.onlooker.seen(books.ledger.connections)
    if not len(seen.conn):
        return
    if place is not None:
        ends = replace(ends, place=np.full(len(ends), place, np.int64))
        own = OwnFlows(ends.id, ends.place, flow_hashes(ends.endpoints))
        yield from deal_rows(RowKind.FLOWS, own, np.full(len(ends), bucket, np.int64))
    ids, places = ends.id[seen.conn], ends.place[seen.conn]
    here = np.full(len(ids), bucket, np.int64)
    yield from deal_rows(RowKind.SEEN, Exchanges(ids, places, here, ids, ids, np.zeros(len(ids), np.bool_), seen), here)
    keys, rows = both_ends.request_keys(seen)
    endpoints = mixed(*ends.endpoints.T)[seen.conn[rows]]
    yield from deal_rows(RowKind.MET, Met(keys, endpoints, places[rows], ids[rows]), targets_of(keys, plan.labels))
    buckets = np.full(len(ends), bucket, np.int64)
    found = Found(ends.id, ends.place, buckets, ends.endpoints, ends.isn)
    yield from deal_rows(RowKind.ENDS, found, np.full(len(ends), plan.labels[0], np.int64))


def meet(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """MET of some requests to PAIRS."""
    met = values_of(batches, RowKind.MET, Met)
    if met:
        key, endpoints, place, ids = join_rows(met)
        ranks = clocks.ranks(places_of(plan))
        first, second, count = both_ends.meetings(key, endpoints, ranks[place], ids, ids.view(np.int64))
        pairs = Pairs(first.view(np.uint64), second.view(np.uint64), count.astype(np.int64))
        yield from deal_rows(RowKind.PAIRS, pairs, np.full(len(count), plan.labels[0], np.int64))


def join_connections(
    batches: Iterable[pa.RecordBatch], plan: Plan, brokers: Brokers | None = None
) -> Iterator[pa.RecordBatch]:
    """All ENDS and PAIRS to JOINED, for the buckets of connections. Without `brokers`, who know ClusterIds, also
    DOUBTED: connections that ClusterIds have to decide about."""
    everything = list(batches)
    found, met = values_of(everything, RowKind.ENDS, Found), values_of(everything, RowKind.PAIRS, Pairs)
    if not met:
        return
    ends, pairs = join_rows(found), join_rows(met)
    ends = take_rows(ends, np.argsort(ends.id))
    keys = mixed(pairs.first.view(np.int64), pairs.second.view(np.int64))
    _, one, of = np.unique(keys, return_index=True, return_inverse=True)
    count = np.zeros(len(one), np.int64)
    np.add.at(count, of.reshape(-1), pairs.requests)
    doubted = []

    def cluster_of() -> Int64s:
        doubted.append(True)
        if brokers is None:
            return np.zeros(len(ends.id), np.int64)
        high, low, port = (ends.endpoints[:, place] for place in BROKER)
        names = [source.name for source in plan.sources]
        addresses = Addresses(high.view(np.uint64), low.view(np.uint64))
        column = addresses.unresolved_brokers(port.astype(np.uint16), ends.place.astype(np.int32), names)
        codes, clusters = encoded(brokers.resolve_clusters(column))
        return text_hashes(clusters)[codes]

    first, second = (np.searchsorted(ends.id, some[one]) for some in (pairs.first, pairs.second))
    connections = Ends([], ends.id, ends.place, ends.endpoints, ends.isn)
    component = both_ends.link(first, second, count, connections, cluster_of)
    if doubted and brokers is None:
        yield index_row(plan.labels[0], RowKind.DOUBTED, b"")
    rows = np.flatnonzero(component >= 0)
    shared = np.zeros(len(ends.id), np.int64)
    np.add.at(shared, component[first], np.where(component[first] >= 0, count, 0))
    parts = 1 + shared[component[rows]] // PART_REQUESTS
    yield from deal_rows(RowKind.JOINED, Joined(ends.id[rows], ends.id[component[rows]], parts), ends.bucket[rows])
    if (parts > 1).any():
        yield index_row(plan.labels[0], RowKind.CUT, b"")
    others = both_ends.find_others(connections, component)
    buckets = ends.bucket[np.searchsorted(ends.id, others.id)]
    for target, mine in split_rows(others, buckets).items():
        yield index_row(target, RowKind.SIGHTS, dumped(NOTHING._replace(others=mine), Matched))


def deal_exchanges(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """JOINED and SEEN of a bucket to SEEN for the tasks that match them."""
    joined: list[Joined] = []
    known: Joined | None = None
    for batch in batches:
        joined += values_of([batch], RowKind.JOINED, Joined)
        for exchanges in values_of([batch], RowKind.SEEN, Exchanges) if joined else ():
            if known is None:
                known = join_rows(joined)
                known = take_rows(known, np.argsort(known.id))
            at = np.minimum(np.searchsorted(known.id, exchanges.id), len(known.id) - 1)
            rows = np.flatnonzero(known.id[at] == exchanges.id)
            mine, component, parts = take_rows(exchanges, rows), known.component[at[rows]], known.parts[at[rows]]
            part = mixed(component.view(np.int64), (mine.seen.correlation >> PART_BITS) % parts)
            mine = mine._replace(component=component, part=part, cut=parts > 1)
            yield from deal_rows(RowKind.SEEN, mine, targets_of(part, plan.labels))


def add_answers(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """SEEN of components that are cut to ANSWERED, for every task: which sight is nearer the client all parts tell
    together."""
    for exchanges in _stretches(batches):
        if exchanges.cut.any():
            seen, ends, component, _ = _connections(take_rows(exchanges, exchanges.cut), plan)
            answered = both_ends.add_answers(seen, ends, component)
            yield from (index_row(label, RowKind.ANSWERED, dumped(answered, Answered)) for label in plan.labels)


def match_exchanges(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """SEEN of some connections, all sights of them, to SIGHTS, by the buckets of connections, and CROSSED, by pairs of
    captures. Behind ANSWERED of those that are cut."""
    everything = list(batches)
    answered = _join_answers(values_of(everything, RowKind.ANSWERED, Answered))
    gathering = clocks.Gathering()
    for exchanges in _stretches(everything):
        yield from _match(exchanges, plan, answered, gathering)
    crossed = gathering.together()
    if crossed is not None:
        samples = split_rows(crossed.sample, crossed.sample.pair.view(np.int64))
        for pair, totals in split_rows(crossed.totals, crossed.totals.pair.view(np.int64)).items():
            target = int(targets_of(totals.pair[:1], plan.labels)[0])
            yield index_row(target, RowKind.CROSSED, dumped(Crossed(samples[pair], totals), Crossed))


def _join_answers(by_part: Sequence[Answered]) -> Answered | None:
    """By connection, what all parts say."""
    if not by_part:
        return None
    answered = join_rows(by_part)
    ids, of = np.unique(answered.id, return_inverse=True)
    sums = np.zeros((len(ids), 2), np.int64)
    np.add.at(sums, of.reshape(-1), np.stack(answered[1:], axis=1))
    return Answered(ids, *sums.T)


def _connections(exchanges: Exchanges, plan: Plan) -> tuple[Seen, Ends, Int64s, Int64s]:
    """The exchanges with rows of their connections; these, their components, and their buckets."""
    ids, first, conn = np.unique(exchanges.id, return_index=True, return_inverse=True)
    nothing: Int64s = np.zeros((0, 0), np.int64)
    ends = Ends(places_of(plan), ids, exchanges.place[first], nothing, nothing)
    component = np.unique(exchanges.component[first], return_inverse=True)[1].reshape(-1).astype(np.int64)
    return replace(exchanges.seen, conn=conn.reshape(-1).astype(np.int64)), ends, component, exchanges.bucket[first]


def _match(
    exchanges: Exchanges, plan: Plan, answered: Answered | None, gathering: clocks.Gathering
) -> Iterator[pa.RecordBatch]:
    seen, ends, component, bucket = _connections(exchanges, plan)
    ids, found = ends.id, both_ends.match(seen, ends, component, answered)
    if found is None:
        return
    held, _, removed, measured = found[0]
    held_by = split_rows(held, bucket[np.searchsorted(ids, held.id)])
    removed_by = split_rows(removed, bucket[np.searchsorted(ids, removed.id)])
    measured_by = split_rows(measured, bucket[np.searchsorted(ids, measured.crossings.id)])
    for target in np.unique(bucket).tolist():
        part = Matched(
            held_by.get(target, NOTHING.held), NOTHING.others, removed_by.get(target, NOTHING.removed),
            measured_by.get(target, NOTHING.measured),
        )  # fmt: skip
        yield index_row(target, RowKind.SIGHTS, dumped(part, Matched))
    gathering.add(clocks.tell_crossings(measured.crossings))


def measure(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """CROSSED of some pairs of captures to CLOCKS."""
    gathering = clocks.Gathering()
    for packed in packed_of(batches, RowKind.CROSSED):
        gathering.add(loaded(packed, Crossed))
    crossed = gathering.together()
    if crossed is not None:
        measured = clocks.measure_clocks(crossed, places_of(plan))
        yield index_row(0, RowKind.CLOCKS, dumped(measured, list[Clock]))


def places_of(plan: Plan) -> list[Place]:
    """The places where connections were captured."""
    if plan.views:
        return [Place(plan.sources[0].name, name_of(plan.interfaces, interface)) for _, interface in plan.views]
    return [Place(source.name) for source in plan.sources]


def sights_of(packed: Sequence[bytes], plan: Plan) -> Sights | None:
    """The sights that SIGHTS rows hold, with the clocks of the plan; None where there is nothing."""
    if not packed and not plan.clocks:
        return None
    matched: Matched = join_rows([NOTHING, *(loaded(one, Matched) for one in packed)])
    return matched.sights(plan.clocks, places_of(plan))


def with_sights(batches: Iterable[pa.RecordBatch], plan: Plan) -> tuple[Plan, Iterator[pa.RecordBatch]]:
    """The plan of a task with what the SIGHTS among its index rows say, and the other rows."""
    ahead: list[pa.RecordBatch] = []
    rest = iter(batches)
    for batch in rest:
        count = int(np.count_nonzero(np.asarray(batch.column("capture")) < 0))  # they come first
        ahead.append(batch.slice(0, count))
        if count < batch.num_rows:
            rest = chain([batch.slice(count)], rest)
            break
    packed, flows = list(packed_of(ahead, RowKind.SIGHTS)), values_of(ahead, RowKind.FLOWS, OwnFlows)
    if not packed:
        return plan, rest
    sights = sights_of(packed, plan)
    common = Common(sights, given=True)
    if flows and sights is not None:
        own, copies = join_rows(flows), sights.copies
        hidden = np.isin(own.id, copies.ids[copies.hidden])
        left = {view: np.unique(own.flow[hidden & (own.place == at)]) for at, (view, _) in enumerate(plan.views)}
        common.one_sight = partial(OneSight, views=Views(left))
    return replace(plan, settings=replace(plan.settings, common=common)), rest


def _bucket(batches: Iterable[pa.RecordBatch]) -> tuple[int, Iterator[pa.RecordBatch]]:
    """The bucket that rows are of, 0 where there are none; and the rows."""
    rest = iter(batches)
    for batch in rest:
        if batch.num_rows:
            return batch.column("bucket")[0].as_py(), chain([batch], rest)
    return 0, rest


def _stretches(batches: Iterable[pa.RecordBatch]) -> Iterator[Exchanges]:
    """SEEN by parts, several small ones together."""
    given = values_of(batches, RowKind.SEEN, Exchanges)
    if not given:
        return
    everything = join_rows(given)
    given.clear()
    order = np.argsort(everything.part, kind="stable")
    part = everything.part[order]
    edges = np.append(np.flatnonzero(np.append(True, part[1:] != part[:-1])), len(order))
    first = 0
    while first < len(edges) - 1:
        last = max(first + 1, int(np.searchsorted(edges, edges[first] + MATCHED_ROWS, side="right")) - 1)
        yield take_rows(everything, order[edges[first] : edges[last]])
        first = last


def _empty(*kinds: type[np.generic]) -> list[np.ndarray]:
    return [np.zeros(0, kind) for kind in kinds]


_ID, _INT = np.uint64, np.int64
NOTHING = Matched(
    Held(*_empty(_ID, _INT, _INT, _INT)), Others(*_empty(_ID, _INT, _ID)), Removed(*_empty(_ID, _INT)),
    Measured(np.zeros(0, _INT), Crossings(*_empty(_INT, _INT, _ID, _INT, _INT, _INT)), *_empty(_INT, _INT)),
)  # fmt: skip
"""Of captures that have nothing in common."""
