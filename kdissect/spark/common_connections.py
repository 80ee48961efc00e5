"""What the captures of a job have in common, as `kdissect.engine.sights` finds it on one machine.

Two jobs, a task for a capture or for some small ones: packets' headers are looked at for flows that several captures
have; only where there are any, their exchanges are. A capture by itself takes one task, and only where it has several
interfaces. What is found comes to the driver, and from there to all tasks that decode: some 120 bytes an exchange that
several captures have. Captures that only Spark can read are left as they are.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from kdissect.analysis.both_ends import WAYS
from kdissect.engine.common import Common
from kdissect.engine.settings import Settings
from kdissect.engine.sights.interfaces import OneSight, Views, interfaces
from kdissect.engine.sights.one_file import sights_of_interfaces
from kdissect.engine.sights.shared_flows import Hashes, Look, in_common, looked_at
from kdissect.engine.sights.survey import clusters_of, nothing_seen, put_together, seen_in
from kdissect.problems import CaptureError
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages.plan import Plan, Source, together
from kdissect.spark.workers import settled
from kdissect.tables.sights import CONNECTION, GONE, Ids, Sights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOLD = pa.schema([("number", pa.int64()), ("data", pa.binary())])
NO_FLOWS: Hashes = np.zeros(0, np.uint64)
Each = Callable[[Sequence[int], Callable[[int], Any]], list[Any]]
"""Calls a function with each number, somewhere, and gives what it returned."""


class Joined(NamedTuple):
    """A plan with what its captures have in common."""

    plan: Plan
    told: list[str]
    """By capture, a hash of all that rows of it depend on in this respect; "" where it has nothing in common."""


def with_common(plan: Plan, each: Each) -> Joined:
    """The plan, with what its captures have in common."""
    near = [number for number, source in enumerate(plan.sources) if not source.remote]
    nothing = Joined(plan, [""] * len(plan.sources))
    settings = replace(plan.settings, common=Common(given=True))
    named = [plan.sources[number] for number in near]
    if len(plan.sources) == len(near) == 1 and len(interfaces(named[0].capture())) > 1:
        (one,) = each(range(1), partial(_seen_by_interfaces, named, settings))
        if one is None:
            return nothing
        common = Common(_lean(one[0]), given=True, one_sight=partial(OneSight, views=one[1]))
        return Joined(replace(plan, settings=replace(settings, common=common)), [_hash_sights(one[0], one[0].ids)])
    if len(near) < 2:
        return nothing
    tasks = together([sum(source.sizes) for source in named])
    shared = in_common(_one_by_one(each, tasks, partial(_looked_at, named, settings)))
    if not any(map(len, shared)):
        return nothing
    seen = _one_by_one(each, tasks, partial(_seen_in, named, shared, settings))
    found = put_together(seen, lambda: _one_by_one(each, tasks, partial(_clusters_of, named, settings)))
    if found is None:
        return nothing
    told = [""] * len(plan.sources)
    for number, (_, ends) in zip(near, seen, strict=True):
        told[number] = _hash_sights(found, ends.id)
    return Joined(replace(plan, settings=replace(settings, common=Common(_lean(found), given=True))), told)


def _hash_sights(sights: Sights, ids: Ids) -> str:
    """A hash of everything that `sights` says of these connections and their exchanges; "" where it says nothing."""
    mine = np.isin(sights.ids, ids)
    if not mine.any():
        return ""
    of = sights.keys >> CONNECTION
    rows = np.flatnonzero(mine[of])
    measure = sights.measure[rows]
    measured = measure[measure != GONE]
    parts = [sights.ids[mine], sights.gone[mine], sights.hidden[mine]]
    parts += [sights.ids[of[rows]], sights.keys[rows] & ((1 << CONNECTION) - 1), measure == GONE]
    parts += [column[measured] for column in (sights.network, sights.queued, sights.up, sights.down)]
    others = repr(sights.others.take(pa.array(np.flatnonzero(mine))).to_pylist()).encode()
    return blake2b(b"".join([*(part.tobytes() for part in parts), others]), digest_size=12).hexdigest()


def _one_by_one(each: Each, tasks: Sequence[Sequence[int]], work: Callable[[int], Any]) -> list[Any]:
    """What `work` returns for each number of the tasks, in order."""
    found = each(range(len(tasks)), partial(_all, tasks, work))
    return [one for some in found for one in some]


def _all(tasks: Sequence[Sequence[int]], work: Callable[[int], Any], task: int) -> list[Any]:
    return [work(number) for number in tasks[task]]


def _looked_at(sources: Sequence[Source], settings: Settings, number: int) -> Look:
    try:
        return looked_at(sources[number].capture(), settings)
    except CaptureError:  # told where rows are made of it
        return Look(NO_FLOWS, NO_FLOWS, NO_FLOWS)


def _seen_in(sources: Sequence[Source], shared: Sequence[Hashes], settings: Settings, number: int) -> Any:
    capture = sources[number].capture()
    try:
        return seen_in(capture, shared[number], settings)
    except CaptureError:
        return nothing_seen(capture)


def _seen_by_interfaces(sources: Sequence[Source], settings: Settings, number: int) -> tuple[Sights, Views] | None:
    try:
        return sights_of_interfaces(sources[number].capture(), settings)
    except CaptureError:
        return None


def _clusters_of(sources: Sequence[Source], settings: Settings, number: int) -> dict[int, int]:
    try:
        return clusters_of(sources[number].capture(), settings)
    except CaptureError:
        return {}


def _lean(sights: Sights) -> Sights:
    """Without the ids of both sights of each exchange, which tables do not have."""
    return sights._replace(ways=WAYS.empty_table())


def by_spark(spark: SparkSession) -> Each:
    """Calls in tasks of a job."""

    def each(numbers: Sequence[int], work: Callable[[int], Any]) -> list[Any]:
        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            def told() -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    for number in batch.column(0).to_pylist():
                        data = pickle.dumps(work(number))
                        yield pa.RecordBatch.from_pydict({"number": [number], "data": [data]}, TOLD)

            yield from settled("common", told())

        rows = spark.range(0, len(numbers), 1, len(numbers)).mapInArrow(run, spark_schema(TOLD)).collect()
        return [pickle.loads(bytes(row[1])) for row in sorted(rows, key=lambda row: int(row[0]))]

    return each
