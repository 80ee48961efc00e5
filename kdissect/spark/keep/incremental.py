"""`kdissect.spark.dissect` with `keep`: what was decoded stays in a directory, and the next job decodes what is new.

A job compares the captures with the newest manifest, decodes what it must into staged rows of its own, and then names
in a new manifest all that there is. Every table is made of staged rows only, its own and those of earlier jobs, so it
makes no difference when they were made. Until the new manifest is in place the old one holds, with all that it names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.typed_values import UnreadableValue, loaded
from kdissect.problems import CaptureUnreadable
from kdissect.spark.cells.table_cells import STAGED
from kdissect.spark.common_connections import Matching, with_looks
from kdissect.spark.dataset import Dataset
from kdissect.spark.keep import handover
from kdissect.spark.keep.handover import FLOW_LOOKS, KEPT, OF_UNITS, OPEN, PACKED, SETTLED, WHOLE
from kdissect.spark.keep.inventory import Kept, Manifest, Part, Work, describe_works
from kdissect.spark.keep.store import UNREADABLE, Store
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages.decoding import LEARNED, UNITS, Learned, coded_tables
from kdissect.spark.stages.giant_connections import UNIT
from kdissect.spark.stages.indexing import FILE, FileFacts
from kdissect.spark.stages.owners import OWNERS, Owned
from kdissect.spark.stages.plan import INDEX, Plan, RowKind, Source
from kdissect.spark.stages.resolving import Outcome, put_together
from kdissect.spark.workers import origin, settled
from kdissect.tables.identity import connection_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("kdissect.spark")
WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
"""So many files a task may have open at once, one for each table: rows need not be sorted by table first."""
OPTIONS = {
    "compression": "uncompressed",  # the cells are
    "parquet.enable.dictionary": "false",
    "parquet.block.size": str(8 << 20),
    "parquet.page.size.row.check.min": "1",  # cells of megabytes: 100 unlooked at would be too many
    "parquet.block.size.row.check.min": "1",
}


NOTES: Mapping[str, Any] = {
    FILE: FileFacts, OWNERS: Owned, LEARNED: Learned, SETTLED: Learned, OF_UNITS: Learned, OPEN: bytes, WHOLE: bytes,
}  # fmt: skip
"""What is kept besides rows of tables, and of which type it is."""


class KeptDataset(Dataset):
    """Tables of captures some of which an earlier job has decoded."""

    def __init__(
        self, spark: SparkSession, plan_of: Callable[[Sequence[Source]], Plan], strict: bool, store: Store, options: str
    ) -> None:
        """`plan_of`: the plan of a job that reads these captures of its own. `options`: `inventory.fingerprint`."""
        super().__init__(spark, plan_of([]), strict)
        self._plan_of, self._store, self._options = plan_of, store, options
        self._notes: dict[str, list[tuple[str, Any, int]]] = {}
        """Notes of each job's output that is used, as `_notes_in` reads them."""

    def __getitem__(self, name: str) -> DataFrame:
        self._manifest  # noqa: B018
        return super().__getitem__(name)

    @cached_property
    def _read_manifest(self) -> Manifest:
        """The manifest of the last job; an empty one, with a line in the log, if what it names cannot be read."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        known = self._store.newest()
        try:
            for generation in sorted(known.generations()):
                self._notes[generation] = self._notes_in(generation)
        except (UnreadableValue, PySparkException, Py4JError):
            log.warning(UNREADABLE, self._store.folder)
            return Manifest(number=known.number)
        return known

    def _notes_in(self, generation: str) -> list[tuple[str, Any, int]]:
        """Notes in a job's output: kind, value, number of the capture there. Raises UnreadableValue."""
        rows = self._rows(generation)
        rows = rows.where(rows["table"].isin(list(NOTES))).select("table", "data", "source")
        return [
            (name, bytes(data) if NOTES[name] is bytes else loaded(bytes(data), NOTES[name]), number)
            for name, data, number in rows.collect()
        ]

    @cached_property
    def _works(self) -> list[Work]:
        """The work for each capture."""
        manifest, sources = self._read_manifest, self.plan.sources
        before = [manifest.sets[source.name].common if source.name in manifest.sets else "" for source in sources]
        works = manifest.work(self._options, sources, before)
        if manifest.same(works, sources):
            self._common = before
            self.plan = replace(self.plan, clocks=manifest.clocks, views=manifest.views)
            self.plan = replace(self.plan, interfaces=sources[0].interfaces if manifest.views else ())
            return works
        self._matching = self._match(works)
        self._common = self._matching.fingerprints
        works = manifest.work(self._options, sources, self._common)
        self.plan = self._matching.plan
        return works

    def _match(self, works: Sequence[Work]) -> Matching:
        """What the captures have in common. `works`: what is to be done where that is what it was."""
        sources = self.plan.sources
        plan = with_looks(replace(self.plan, labels=self._plan_of(sources).labels), lasting=True)
        known: dict[int, tuple[int, int]] = {}
        left: dict[str, dict[int, int]] = {}
        for number, work in enumerate(works):
            if work.parts and self._read_manifest.sets[sources[number].name].looks and not plan.interfaces:
                known[number] = (work.first, work.skip)
                for part in work.parts:
                    left.setdefault(part.generation, {})[part.number] = number
        looks = []
        for generation, numbers in left.items():
            rows = self._rows(generation, numbers).where(f"table = '{FLOW_LOOKS}'")
            again = partial(handover.looks_again, plan=plan, numbers=numbers)
            looks.append(rows.mapInArrow(again, spark_schema(INDEX)))
        return Matching(plan, self._index, known, looks)

    @property
    def reused(self) -> str:
        """One line: which captures are taken from earlier jobs, and which are read."""
        return describe_works(self._works)

    @cached_property
    def _manifest(self) -> Manifest:
        """Everything decoded and in place."""
        works = self._works
        generation = self._store.generation(self._read_manifest.number + 1)
        parts = [list(work.parts) for work in works]
        busy = [number for number, work in enumerate(works) if not work.idle]
        if busy:
            self._write(generation)
            self._notes[generation] = self._notes_in(generation)
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
            common = self._common[number]
            whole = number in self._cannot_go_on or damaged or bool(common)
            looks = not self.plan.interfaces if number in busy else self._read_manifest.sets[source.name].looks
            sets[source.name] = Kept(works[number].files, last, parts[number], whole, common, looks)
        used = {part.generation for some in parts for part in some}
        sizes = {name: self._store.size(name) for name in used}
        plan, order = self.plan, [source.name for source in self.plan.sources]
        made = Manifest(self._read_manifest.number + 1, self._options, sets, sizes, plan.clocks, plan.views, order)
        self._store.put(made)
        return made

    def _write(self, generation: str) -> None:
        index = self._packets()
        packets = self._matching.bucketed(self.plan, index)
        rows = packets.mapInArrow(partial(_decode, plan=self.plan), spark_schema(KEPT))
        before = self.spark.conf.get(WRITERS, None)
        self.spark.conf.set(WRITERS, "64")
        try:
            self._save(rows, generation, "overwrite")
            if not self.plan.interfaces:
                looks = index.where(index["kind"] == RowKind.LOOKS).mapInArrow(handover.kept_looks, spark_schema(KEPT))
                self._save(looks, generation, "append")
            kept = self._rows(generation)
            count = sum(
                loaded(bytes(data), int) for (data,) in kept.where(f"table = '{UNITS}'").select("data").collect()
            )
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
        busy = {number: (work.first, work.skip) for number, work in enumerate(self._works) if not work.idle}
        index = self._matching.index(busy)
        left: dict[str, dict[int, int]] = {}
        for number, work in enumerate(self._works):
            if not work.idle and work.parts:
                left.setdefault(work.parts[-1].generation, {})[work.parts[-1].number] = number
        for generation, numbers in left.items():
            rows = self._rows(generation, numbers).where(f"table = '{PACKED}'")
            carried = partial(handover.indexed, plan=self.plan, numbers=numbers)
            index = index.unionAll(rows.mapInArrow(carried, spark_schema(INDEX)))
        return index

    def _rows(self, generation: str, numbers: Iterable[int] | None = None) -> DataFrame:
        """Rows of some captures in an earlier job's output; None: of all."""
        read = self.spark.read.schema(spark_schema(KEPT)).parquet(self._store.rows(generation)).select(*KEPT.names)
        return read if numbers is None else read.where(read["source"].isin([int(n) for n in numbers]))

    def _by_generation(self, latest: bool) -> Iterator[tuple[str, dict[int, int]]]:
        """The outputs that rows are taken from: (name, a capture's number there -> its number here). `latest`: all of
        the rows there count; else those of settled connections."""
        found: dict[str, dict[int, int]] = {}
        for number, parts in enumerate(self._parts):
            for part in parts[-1:] if latest else parts[:-1]:
                found.setdefault(part.generation, {})[part.number] = number
        yield from sorted(found.items())

    def _put_together(self) -> Outcome:
        notes: list[tuple[str, Any]] = []
        learned: list[tuple[str, int, bool, Learned]] = []
        facts: list[dict[int, FileFacts]] = [{} for _ in self.plan.sources]
        self._open: dict[str, dict[int, list[bytes]]] = {}
        self._cannot_go_on: set[int] = set()
        self._owners: list[tuple[str, Any]] = []
        for latest in (False, True):
            for generation, numbers in self._by_generation(latest):
                wanted = (FILE, OWNERS, LEARNED, OF_UNITS, WHOLE) if latest else (FILE, OWNERS, SETTLED, OF_UNITS, OPEN)
                for name, value, number in self._notes[generation]:
                    if name not in wanted or number not in numbers:
                        continue
                    here = numbers[number]
                    if name == FILE:
                        found: FileFacts = replace(value, capture=here)
                        facts[here][found.file] = found  # the latest job that read a file knows best
                    elif name == OPEN:
                        self._open.setdefault(generation, {}).setdefault(number, []).append(value)
                    elif name == OWNERS:
                        self._owners.append((name, value))
                    elif name == WHOLE:
                        self._cannot_go_on.add(here)
                    else:
                        learned.append((generation, number, latest, value))
        for generation, number, latest, one in learned:
            if one.problems and not latest:
                still = set(connection_ids(self._ids(generation, number)).to_pylist())
                one.problems = {name: count for name, count in one.problems.items() if name not in still}
            notes.append((LEARNED, one))
        self._facts = [[some[file] for file in sorted(some)] for some in facts]
        notes += [(FILE, one) for some in self._facts for one in some]
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
                rows = self._rows(generation, numbers)
                if latest:
                    frames.append(rows.select(*STAGED.names))
                    continue
                ids = {number: self._ids(generation, number) for number in numbers}
                rows = rows.where(f"table not like '\\\\_%' and table <> '{UNIT}'")
                settled = partial(handover.settled_rows, ids=ids, coded=coded_tables(self.plan.tables))
                frames.append(rows.mapInArrow(settled, spark_schema(STAGED)))
        return reduce(lambda one, other: one.unionAll(other), frames)

    @property
    def _decoded(self) -> DataFrame:
        return self._staged

    @property
    def there(self) -> None:
        """Unknown: rows are of several jobs."""

    @cached_property
    def notes(self) -> list[tuple[str, Any]]:
        """See Dataset."""
        self._manifest  # noqa: B018
        return self._owners + [(FILE, one) for some in self._facts for one in some]

    @cached_property
    def _outcome(self) -> Outcome:
        self._manifest  # noqa: B018
        return self._found


def _decode_units(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    return settled("decode", handover.decode_units(batches, plan, origin(plan)))


def _decode(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    return settled("decode", handover.decode(batches, plan, origin(plan)))
