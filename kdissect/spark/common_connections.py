"""Finds connections that several captures of a job saw, as `kdissect.engine.sights` does on one machine.

Captures are matched in the steps of `kdissect.spark.stages.matching.matching_steps`, out of the index rows that
decoding needs, too. So a file is read by the task that indexes it, wherever it is, and no task has all files of a set.
Where captures share no flow, only what tells flows is shuffled. A capture by itself takes one task, and only where it
has several interfaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from kdissect.analysis.sights.clocks import Clock
from kdissect.arrays.typed_values import loaded
from kdissect.engine import common as engine_common
from kdissect.engine.sights.one_file import APART_NS, MOST
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages import decoding
from kdissect.spark.stages.decoding import LEARNED, Learned
from kdissect.spark.stages.matching import matching_steps as matching
from kdissect.spark.stages.matching.dealt_arrays import index_row
from kdissect.spark.stages.matching.matching_steps import ViewCounts
from kdissect.spark.stages.plan import INDEX, Plan, RowKind
from kdissect.spark.workers import settled
from kdissect.tables.brokers import Brokers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
SURVEYED = (RowKind.PACKETS, RowKind.KEYS, RowKind.SHARED)
"""Kinds of rows that a survey takes."""
DECODED = (RowKind.PACKETS, RowKind.FACTS, RowKind.KEYS, RowKind.SIGHTS, RowKind.FLOWS)
"""Kinds of rows that decoding takes."""
Row = tuple[int, bytes]
"""Of a row for the driver: capture, what is packed."""


class Shuffle(Protocol):
    """Rows of INDEX on their way between tasks."""

    def through(self, work: Work, frames: Sequence[Any], kinds: Sequence[int]) -> Any:
        """The rows that `work` makes of rows of these kinds, in order, those of a bucket in one task."""

    def rows(self, frame: Any, kind: int) -> list[Row]:
        """The rows of a kind, for the driver."""

    def captures(self, frame: Any) -> set[int]:
        """The captures that rows are of."""


class Common(NamedTuple):
    """Connections and exchanges that several captures saw, and how their clocks stand."""

    frames: Sequence[Any]
    """Frames with SIGHTS, and FLOWS, among their rows, for the buckets of connections."""
    plan: Plan
    """The plan with how clocks stand, and with the interfaces that are matched."""


def match_captures(plan: Plan, index: Any, index_of: Callable[[set[int]], Any], shuffle: Shuffle) -> Common | None:
    """Match the captures of a job; None where no two saw the same. `index`: index rows of all files; `index_of`: of
    some captures."""
    if plan.interfaces:
        plan = replace(plan, views=_views(index, shuffle))
        if not plan.views:
            return None
    share = matching.share_views if plan.views else matching.share
    shared = shuffle.through(partial(share, plan=plan), [index], [RowKind.LOOKS])
    captures = shuffle.captures(shared)
    if not captures:
        return None
    index = index_of(captures)  # of those that may have something in common
    seen = [
        shuffle.through(partial(matching.survey, plan=plan, place=place), [index, shared], SURVEYED)
        for place in (range(len(plan.views)) if plan.views else [None])
    ]
    met = shuffle.through(partial(matching.meet, plan=plan), seen, [RowKind.MET])
    joined = shuffle.through(partial(matching.join_connections, plan=plan), [*seen, met], [RowKind.ENDS, RowKind.PAIRS])
    if shuffle.rows(joined, RowKind.DOUBTED):
        brokers = Brokers() if plan.views else _learn_brokers(plan, index, shuffle)
        join = partial(matching.join_connections, plan=plan, brokers=brokers)
        joined = shuffle.through(join, [*seen, met], [RowKind.ENDS, RowKind.PAIRS])
    dealt = shuffle.through(
        partial(matching.deal_exchanges, plan=plan), [*seen, joined], [RowKind.JOINED, RowKind.SEEN]
    )
    parts = [dealt]
    if shuffle.rows(joined, RowKind.CUT):
        parts.append(shuffle.through(partial(matching.add_answers, plan=plan), [dealt], [RowKind.SEEN]))
    matched = shuffle.through(partial(matching.match_exchanges, plan=plan), parts, [RowKind.ANSWERED, RowKind.SEEN])
    measured = shuffle.through(partial(matching.measure, plan=plan), [matched], [RowKind.CROSSED])
    clocks = [clock for _, packed in shuffle.rows(measured, RowKind.CLOCKS) for clock in loaded(packed, list[Clock])]
    if not shuffle.captures(matched) or (plan.views and not (clocks and clocks[0].took >= APART_NS)):
        return None
    clocks.sort(key=lambda one: sorted((one.first, one.second)))
    return Common([joined, matched, *(seen if plan.views else [])], replace(plan, clocks=clocks, looks=False))


def _views(index: Any, shuffle: Shuffle) -> list[tuple[int, int]]:
    """Viewpoint and interface of the two that share most flows; none where no two share one."""
    interface: dict[int, int] = {}
    shared: Counter[tuple[int, int]] = Counter()
    for _, packed in shuffle.rows(shuffle.through(matching.count_views, [index], [RowKind.LOOKS]), RowKind.PAIRS):
        counts = loaded(packed, ViewCounts)
        interface |= counts.interface
        shared.update(counts.shared)
    views = sorted((view for view in interface if shared[view, view]), key=lambda view: (-shared[view, view], view))
    pairs = list(combinations(views[:MOST], 2))
    both = max(pairs, key=lambda pair: shared[min(pair), max(pair)], default=(0, 0))
    return [(view, interface[view]) for view in both] if shared[min(both), max(both)] else []


def _learn_brokers(plan: Plan, index: Any, shuffle: Shuffle) -> Brokers:
    """Brokers and their ClusterIds, as messages name them."""
    told = replace(plan, tables={"exchanges": ["cluster"]}, giant=1 << 62, settings=replace(plan.settings, dated=False))
    found = Brokers()
    learned = shuffle.through(partial(_learn, plan=told), [index], [RowKind.PACKETS, RowKind.KEYS])
    for _, packed in shuffle.rows(learned, RowKind.LOOKS):
        found.merge(loaded(packed, Learned).brokers)
    return found


def _learn(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Index rows of a bucket to what their messages tell."""
    for batch in decoding.decode(batches, plan):
        for name, data in zip(batch.column("table").to_pylist(), batch.column("data"), strict=True):
            if name == LEARNED:
                yield index_row(0, RowKind.LOOKS, data.as_py())


def with_looks(plan: Plan) -> Plan:
    """The plan by which files are indexed."""
    several = plan.sources[0].interfaces if len(plan.sources) == 1 else ()
    interfaces = several if len(several) > 1 else ()
    return replace(plan, looks=len(plan.sources) > 1 or bool(interfaces), interfaces=interfaces)


def decoding_plan(plan: Plan, common: Common | None) -> Plan:
    """The plan by which index rows are decoded, out of that by which files were indexed."""
    plan = replace(plan, interfaces=()) if common is None else common.plan
    settings = replace(plan.settings, common=engine_common.Common(given=True))
    return replace(plan, settings=settings, looks=False)


class BySpark:
    """The shuffle of a session: what tasks make stays on the executors' disks until `unpersist`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._frames: list[DataFrame] = []

    def through(self, work: Work, frames: Sequence[DataFrame], kinds: Sequence[int]) -> DataFrame:
        """See Shuffle."""

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from settled("common", work(batches))

        return self.keep(bucketed(self._plan, frames, kinds).mapInArrow(run, spark_schema(INDEX)))

    def rows(self, frame: DataFrame, kind: int) -> list[Row]:
        """See Shuffle."""
        found = frame.where(frame["kind"] == kind).select("capture", "packed").collect()
        return [(int(capture), bytes(packed)) for capture, packed in found]

    def captures(self, frame: DataFrame) -> set[int]:
        """See Shuffle."""
        return {int(row[0]) for row in frame.select("capture").distinct().collect()}

    def keep(self, frame: DataFrame) -> DataFrame:
        """The frame, whose rows stay once they were made."""
        from pyspark import StorageLevel

        self._frames.append(frame.persist(StorageLevel.DISK_ONLY))
        return frame

    def unpersist(self, *kept: DataFrame) -> None:
        """Give back the disk that rows take, but for those of these frames."""
        for frame in self._frames:
            if all(frame is not one for one in kept):
                frame.unpersist()
        self._frames = list(kept)


class Matching:
    """Matches the captures of a job, by Spark. `plan`: `with_looks`; `index`: index rows of all files."""

    def __init__(self, plan: Plan, index: DataFrame) -> None:
        self._plan, self._shuffle = plan, BySpark(plan)
        self._index = self._shuffle.keep(index) if plan.looks else index

    @cached_property
    def _common(self) -> Common | None:
        if not self._plan.looks:
            return None
        common = match_captures(self._plan, self._index, self._index_of, self._shuffle)
        self._shuffle.unpersist(self._index, *([] if common is None else common.frames))
        return common

    def _index_of(self, captures: Collection[int]) -> DataFrame:
        if len(captures) == len(self._plan.sources):
            return self._index
        return self._index.where(self._index["capture"].isin(sorted(captures)))

    @cached_property
    def plan(self) -> Plan:
        """The plan of tasks that decode."""
        return decoding_plan(self._plan, self._common)

    @property
    def bucketed(self) -> DataFrame:
        """Index rows, in order, those of a bucket in one partition, with what their captures have in common."""
        frames = [] if self._common is None else self._common.frames
        return bucketed(self.plan, [self._index, *frames], DECODED)

    def unpersist(self) -> None:
        """Give back the disk that rows take."""
        self._shuffle.unpersist()


def bucketed(plan: Plan, frames: Sequence[DataFrame], kinds: Sequence[int]) -> DataFrame:
    """The rows of these kinds, in order, those of a bucket in one partition."""
    rows = reduce(lambda one, other: one.unionAll(other), frames)
    rows = rows.where(rows["kind"].isin(list(kinds))).repartition(len(plan.labels), "bucket")
    return rows.sortWithinPartitions("capture", "file", "chunk")
