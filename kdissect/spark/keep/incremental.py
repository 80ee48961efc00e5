"""`kdissect.spark.dissect` with `keep`: what was decoded stays in a directory, and the next job decodes what is new.

A job compares the captures with the newest manifest, decodes what it must into staged rows of its own, and then names
in a new manifest all that there is. Every table is made of staged rows only, its own and those of earlier jobs, so it
makes no difference when they were made. Until the new manifest is in place the old one holds, with all that it names.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.problems import CaptureUnreadable
from kdissect.spark.dataset import Dataset, Notes
from kdissect.spark.keep import handover
from kdissect.spark.keep.handover import FILE, KEPT, LEARNED, OF_UNITS, OPEN, PACKED, SETTLED, WHOLE
from kdissect.spark.keep.inventory import Kept, Manifest, Part, Work, told
from kdissect.spark.keep.store import Store
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages.decoding import Learned
from kdissect.spark.stages.giant_connections import UNIT
from kdissect.spark.stages.indexing import FileFacts
from kdissect.spark.stages.owners import OWNERS
from kdissect.spark.stages.plan import INDEX, STAGED, Plan
from kdissect.spark.stages.resolving import Outcome, put_together
from kdissect.spark.workers import origin, settled
from kdissect.tables.identity import connection_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
"""So many files a task may have open at once, one for each table: rows need not be sorted by table first."""
OPTIONS = {
    "compression": "uncompressed",  # the cells are
    "parquet.enable.dictionary": "false",
    "parquet.block.size": str(8 << 20),
    "parquet.page.size.row.check.min": "1",  # cells of megabytes: 100 unlooked at would be too many
    "parquet.block.size.row.check.min": "1",
}


class KeptDataset(Dataset):
    """Tables of captures some of which an earlier job has decoded."""

    def __init__(
        self, spark: SparkSession, plan: Plan, strict: bool, store: Store, known: Manifest, options: str,
        works: Sequence[Work],
    ) -> None:  # fmt: skip
        skips = {(n, work.first): work.skip for n, work in enumerate(works) if work.skip}
        super().__init__(spark, replace(plan, skips=skips), strict)
        self._store, self._known, self._options, self._works = store, known, options, works

    @property
    def reused(self) -> str:
        """One line: which captures are taken from earlier jobs, and which are read."""
        return told(self._works)

    @cached_property
    def _manifest(self) -> Manifest:
        """Everything decoded and in place."""
        generation = self._store.generation(self._known.number + 1)
        parts = [list(work.parts) for work in self._works]
        busy = [number for number, work in enumerate(self._works) if not work.idle]
        if busy:
            self._write(generation)
            for number in busy:
                parts[number].append(Part(generation, number))
        self._parts = parts
        outcome = self._put_together()
        if self._strict and outcome.errors:
            raise CaptureUnreadable(outcome.errors[0])
        self._found = outcome
        sets = {}
        for number, source in enumerate(self.plan.sources):
            last = [facts.last for facts in self._facts[number]]
            damaged = any(facts.error is not None or facts.report.damaged_places for facts in self._facts[number])
            whole = number in self._cannot_go_on or damaged
            sets[source.name] = Kept(self._works[number].files, last, parts[number], whole)
        made = Manifest(self._known.number + 1, self._options, sets)
        self._store.put(made)
        return made

    def _write(self, generation: str) -> None:
        decoded = self._packets().repartition(len(self.plan.labels), "bucket")
        ordered = decoded.sortWithinPartitions("capture", "file", "chunk")
        rows = ordered.mapInArrow(partial(_decode, plan=self.plan), spark_schema(KEPT))
        before = self.spark.conf.get(WRITERS, None)
        self.spark.conf.set(WRITERS, "64")
        try:
            self._save(rows, generation, "overwrite")
            kept = self._rows(generation, range(len(self._works)))
            count = sum(pickle.loads(data) for (data,) in kept.where("table = '_units'").select("data").collect())
            if count:
                units = kept.where(f"table = '{UNIT}'").repartition(min(count, len(self.plan.labels)), "broker")
                decoded = units.sortWithinPartitions("source").mapInArrow(
                    partial(_decode_units, plan=self.plan), spark_schema(KEPT)
                )
                self._save(decoded, generation, "append")
        finally:
            if before is None:
                self.spark.conf.unset(WRITERS)
            else:
                self.spark.conf.set(WRITERS, before)

    def _save(self, rows: DataFrame, generation: str, mode: str) -> None:
        made = rows.write.mode(mode).partitionBy("table").options(**OPTIONS)
        made.parquet(self._store.rows(generation))

    def _packets(self) -> DataFrame:
        """Index rows of the files to read, and of the connections that were open before them."""
        index = self._index()
        left: dict[str, dict[int, int]] = {}
        for number, work in enumerate(self._works):
            if not work.idle and work.parts:
                left.setdefault(work.parts[-1].generation, {})[work.parts[-1].number] = number
        for generation, numbers in left.items():
            rows = self._rows(generation, list(numbers)).where(f"table = '{PACKED}'")
            carried = partial(handover.indexed, plan=self.plan, numbers=numbers)
            index = index.unionAll(rows.mapInArrow(carried, spark_schema(INDEX)))
        return index

    def _files(self) -> list[tuple[int, int]]:
        """(number of the capture, number of the file) of what is read."""
        return [(n, file) for n, work in enumerate(self._works) for file in range(work.first, len(work.files))]

    def _rows(self, generation: str, numbers: Sequence[int]) -> DataFrame:
        """Rows of some captures in an earlier job's output."""
        read = self.spark.read.schema(spark_schema(KEPT)).parquet(self._store.rows(generation))
        return read.where(read["source"].isin([int(n) for n in numbers])).select(*KEPT.names)

    def _by_generation(self, latest: bool) -> Iterator[tuple[str, dict[int, int]]]:
        """The outputs that rows are taken from: (name, a capture's number there -> its number here). `latest`: all of
        the rows there count; else those of settled connections."""
        found: dict[str, dict[int, int]] = {}
        for number, parts in enumerate(self._parts):
            for part in parts[-1:] if latest else parts[:-1]:
                found.setdefault(part.generation, {})[part.number] = number
        yield from sorted(found.items())

    def _put_together(self) -> Outcome:
        notes: list[tuple[str, bytes]] = []
        learned: list[tuple[str, int, bool, Learned]] = []
        facts: list[dict[int, FileFacts]] = [{} for _ in self.plan.sources]
        self._open: dict[str, dict[int, list[bytes]]] = {}
        self._cannot_go_on: set[int] = set()
        self._owners: list[tuple[str, bytes]] = []
        for latest in (False, True):
            for generation, numbers in self._by_generation(latest):
                wanted = (FILE, OWNERS, LEARNED, OF_UNITS, WHOLE) if latest else (FILE, OWNERS, SETTLED, OF_UNITS, OPEN)
                rows = self._rows(generation, list(numbers))
                wanted_rows = rows.where(rows["table"].isin(list(wanted))).select("table", "data", "source")
                for name, data, number in wanted_rows.collect():
                    here = numbers[number]
                    if name == FILE:
                        found: FileFacts = replace(pickle.loads(data), capture=here)
                        facts[here][found.file] = found  # the latest job that read a file knows best
                    elif name == OPEN:
                        self._open.setdefault(generation, {}).setdefault(number, []).append(bytes(data))
                    elif name == OWNERS:
                        self._owners.append((name, bytes(data)))
                    elif name == WHOLE:
                        self._cannot_go_on.add(here)
                    else:
                        learned.append((generation, number, latest, pickle.loads(data)))
        for generation, number, latest, one in learned:
            if one.problems and not latest:
                still = set(connection_ids(self._ids(generation, number)).to_pylist())
                one.problems = {name: count for name, count in one.problems.items() if name not in still}
            notes.append((LEARNED, pickle.dumps(one)))
        self._facts = [[some[file] for file in sorted(some)] for some in facts]
        notes += [(FILE, pickle.dumps(one)) for some in self._facts for one in some]
        return put_together(self.plan, notes)

    def _ids(self, generation: str, number: int) -> npt.NDArray[np.uint64]:
        """Connections of a capture that were open when an earlier job ended."""
        return np.frombuffer(b"".join(self._open.get(generation, {}).get(number, [])), np.uint64)

    @cached_property
    def _staged(self) -> DataFrame:
        self._manifest  # noqa: B018
        frames = []
        for latest in (False, True):
            for generation, numbers in self._by_generation(latest):
                rows = self._rows(generation, list(numbers))
                if latest:
                    frames.append(rows.select(*STAGED.names))
                    continue
                ids = {number: self._ids(generation, number) for number in numbers}
                rows = rows.where(f"table not like '\\\\_%' and table <> '{UNIT}'")
                frames.append(rows.mapInArrow(partial(handover.settled_rows, ids=ids), spark_schema(STAGED)))
        return reduce(lambda one, other: one.unionAll(other), frames)

    @property
    def _decoded(self) -> DataFrame:
        return self._staged

    @property
    def there(self) -> None:
        """Unknown: rows are of several jobs."""

    @property
    def notes(self) -> Notes:
        """See Dataset."""
        self._manifest  # noqa: B018
        return self._owners + [(FILE, pickle.dumps(one)) for some in self._facts for one in some]

    @cached_property
    def _outcome(self) -> Outcome:
        self._manifest  # noqa: B018
        return self._found


def _decode_units(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    return settled("decode", handover.decode_units(batches, plan, origin(plan)))


def _decode(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    return settled("decode", handover.decode(batches, plan, origin(plan)))
