"""The tables of a job as Spark DataFrames, spread over all cores."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kdissect.arrays.typed_values import loaded
from kdissect.problems import CaptureUnreadable, UsageError
from kdissect.spark.cells.aligned_rows import ALIGNED, FROM_ALIGNED
from kdissect.spark.cells.table_cells import STAGED
from kdissect.spark.common_connections import Matching, with_looks
from kdissect.spark.partition_numbers import labels
from kdissect.spark.schemas import arrow_schema, spark_schema, with_single, without
from kdissect.spark.shares import spent_time, topic_shares, transaction_shares
from kdissect.spark.source.remote_captures import whole_files
from kdissect.spark.stages import analysing, committed_offsets, decoding
from kdissect.spark.stages.committed_offsets import COMMITS
from kdissect.spark.stages.found_holds import FOUND
from kdissect.spark.stages.giant_connections import UNIT
from kdissect.spark.stages.indexing import FILE, index
from kdissect.spark.stages.owners import OWNERS
from kdissect.spark.stages.plan import INDEX, Plan, together
from kdissect.spark.stages.resolving import Names, Outcome, put_together, read_notes, resolved_rows
from kdissect.spark.time_spans import in_spans, span_ends
from kdissect.spark.workers import origin, runs_on_this_machine, settled
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import By
from kdissect.tables.declaration.readers import DELIVERIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Notes = list[tuple[str, bytes]]
"""Staged rows for the driver: table, data."""
ROWS = 2048
"""Rows that the JVM is given at once: it goes through all columns row by row, and takes half as long again where these
do not fit into a core's cache."""


class Dataset(Mapping[str, "DataFrame"]):
    """Tables by name. The first one that is asked for reads and decodes the captures, once for all of them. Decoded
    rows stay on the executors' disks until `unpersist`, or until the session ends."""

    def __init__(self, spark: SparkSession, plan: Plan, strict: bool) -> None:
        self.spark = spark
        self.plan = plan
        self._strict = strict

    def __iter__(self) -> Iterator[str]:
        return iter(self.plan.tables)

    def __len__(self) -> int:
        return len(self.plan.tables)

    def __contains__(self, name: object) -> bool:
        return name in self.plan.tables

    def __repr__(self) -> str:
        return f"<Dataset {', '.join(source.name for source in self.plan.sources)}: {', '.join(self)}>"

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self.plan.tables:
            raise KeyError(name)
        if TABLES[name].made is By.LEARNED:
            return self.small(name)
        if name == "findings":
            return self._findings()
        if name in analysing.SUMMED:
            return self._summed(name)
        if name == "producers":
            return self._producers()
        full, single = self._full(name), self._single(name)
        schema = spark_schema(self._schema(name), full)
        plain = partial(_plain, name=name, plan=self.plan, names=self.names, full=full, single=single)
        made = self.staged(name).mapInArrow(plain, without(schema, single))
        if single:
            made = made.select(*with_single(schema, single))
        if full:  # what is given says nothing of that, for other captures may have nulls; Spark plans the union away
            made = made.unionAll(self.spark.createDataFrame([], spark_schema(self._schema(name))).limit(0))
        return made.unionByName(self.small(name)) if name == "problems" else made

    def staged(self, name: str) -> DataFrame:
        """Staged rows of a table that comes out of decoding or the analysis."""
        if name == "exchanges":
            return self._exchanges
        analysed = not self._idle and name in analysing.MADE
        if name == COMMITS:
            return self._committed
        if not analysed and not self._has(name):
            return self.spark.createDataFrame([], spark_schema(STAGED))
        return (self._analysed if analysed else self._decoded).where(f"table = '{name}'")

    def staged_together(self, names: Collection[str]) -> list[DataFrame]:
        """Staged rows of all these tables, as `staged` gives them, each table's in one of the frames."""
        analysed = set() if self._idle else {name for name in names if name in analysing.MADE} - {"exchanges"}
        decoded = {name for name in names if self._has(name)} - analysed - {"exchanges", COMMITS}
        found = [self.staged(name) for name in ("exchanges", COMMITS) if name in names]
        if analysed:
            found.append(self._analysed.where(self._analysed["table"].isin(sorted(analysed))))
        if decoded:
            found.append(self._decoded.where(self._decoded["table"].isin(sorted(decoded))))
        return found

    @property
    def bytes(self) -> list[int]:
        """Bytes of each capture file."""
        return [size for source in self.plan.sources for size in source.stored]

    def place(self) -> None:
        """Make the tables as they are written: with their capture, broker and time. Rows that were decoded before are
        decoded again. Raises UsageError where only some columns of a table were asked for."""
        if self.plan.placed:
            return
        if any(columns != SCHEMAS[name].names for name, columns in self.plan.tables.items()):
            raise UsageError("only whole tables are written: ask for them without columns, or write them by Spark")
        self.unpersist()
        self.plan = replace(self.plan, settings=replace(self.plan.settings, dated=True))

    def unpersist(self) -> None:
        """Give back the disk that decoded rows take."""
        for made in ("_followed", "_units", "_analysed", "_committed", "_evidence"):
            frame = self.__dict__.pop(made, None)
            if frame is not None:
                frame.unpersist()
        for frame in self.__dict__.pop("_spans", ()):
            frame.unpersist()
        matching = self.__dict__.pop("_matching", None)
        if matching is not None:
            matching.unpersist()
        for made in ("_told", "notes", "_outcome", "staged_tables", "searched"):
            self.__dict__.pop(made, None)
        folder = self.__dict__.pop("_folder", None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _full(self, name: str) -> frozenset[str]:
        """The columns of a table that are known to have no nulls: Spark looks at each value of the others twice."""
        return frozenset()

    def _single(self, name: str) -> Mapping[str, Any]:
        """The columns of a table that are known to have one value in all rows: Spark is given it once. One column at
        least is not among them."""
        return {}

    @cached_property
    def _idle(self) -> bool:
        return decoding.stage_by_broker(self.plan.tables).idle

    def _schema(self, name: str) -> pa.Schema:
        return arrow_schema(name, self.plan.tables[name])

    def _index(self, plan: Plan) -> DataFrame:
        """Index rows of all files."""
        files = [(number, file) for number, source in enumerate(plan.sources) for file in range(len(source.files))]
        tasks = _tasks(plan, [(n, file) for n, file in files if not plan.sources[n].spark_only])

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for task in batch.column(0).to_pylist():
                    yield from settled("index", index(tasks[task], plan))

        here = self.spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, spark_schema(INDEX))
        whole = [(n, file) for n, file in files if plan.sources[n].spark_only]
        return here if not whole else here.unionAll(whole_files(self.spark, plan, whole))

    @cached_property
    def _matching(self) -> Matching:
        """Matches the connections that several captures saw."""
        plan = with_looks(self.plan)
        return Matching(plan, self._index(plan))

    @cached_property
    def _followed(self) -> DataFrame:
        """Staged rows of the tasks that follow connections, units of giant ones among them."""
        from pyspark import StorageLevel

        decode = partial(_decode, plan=self._leaving_files(self._matching.plan))
        decoded = self._matching.bucketed.mapInArrow(decode, spark_schema(STAGED))
        return decoded.persist(StorageLevel.DISK_ONLY)

    def _leaving_files(self, plan: Plan) -> Plan:
        """The plan of tasks that leave rows in files, where all tasks run on this machine."""
        return replace(plan, pieces=self._folder) if runs_on_this_machine(self.spark) else plan

    @cached_property
    def _folder(self) -> str:
        """Where staged rows are, among what the session removes at its end."""
        from pyspark import SparkFiles

        return tempfile.mkdtemp(prefix="kdissect-", dir=SparkFiles.getRootDirectory())

    @cached_property
    def _units(self) -> DataFrame | None:
        """Staged rows of units, None where there are none."""
        from pyspark import StorageLevel

        count = sum(loaded(data, int) for name, data in self._told if name == decoding.UNITS)
        if not count:
            return None
        sent = self._followed.where(f"table = '{UNIT}'").repartition(min(count, len(self.plan.labels)), "broker")
        plan = self._leaving_files(self._matching.plan)
        decoded = sent.mapInArrow(partial(_decode_units, plan=plan), spark_schema(STAGED))
        return decoded.persist(StorageLevel.DISK_ONLY)

    @cached_property
    def _told(self) -> Notes:
        return notes_of(self._followed)

    @property
    def _decoded(self) -> DataFrame:
        """All staged rows."""
        return self._followed if self._units is None else self._followed.unionByName(self._units)

    @cached_property
    def _outcome(self) -> Outcome:
        notes = self._told + ([] if self._units is None else notes_of(self._units))
        outcome = put_together(self._matching.plan, read_notes(notes))
        if self._strict and outcome.errors:
            raise CaptureUnreadable(outcome.errors[0])
        return outcome

    @property
    def names(self) -> Names:
        """The names that rows are resolved with."""
        return self._outcome.names

    @cached_property
    def notes(self) -> list[tuple[str, Any]]:
        """The notes of partitions about files and about the owners of connections (`read_notes`)."""
        return read_notes(note for note in self._told if note[0] in (FILE, OWNERS))

    @cached_property
    def _analysed(self) -> DataFrame:
        """Staged rows of the analysis."""
        made, *others = self._spans
        for more in others:
            made = made.unionByName(more)
        return made

    @cached_property
    def _spans(self) -> list[DataFrame]:
        """Staged rows of the analysis, a frame for each span of time."""
        from pyspark import StorageLevel
        from pyspark.sql.functions import broadcast

        names, plan = self.names, self.plan
        brokers = names.analysed_brokers()
        places = analysing.dealt(brokers, self._outcome.weights, len(plan.labels))
        count = 1 + max((place for _, _, place in places), default=0)
        tables = sorted(decoding.split_tables(decoding.stage_by_broker(plan.tables)))
        rows = self._decoded.where(self._decoded["table"].isin(tables)).withColumnRenamed("broker", "address")
        numbers = labels(count)
        numbered = [(address, broker, numbers[place]) for address, broker, place in places]
        known = self.spark.createDataFrame(numbered, "address string, broker string, place int")
        rows = rows.join(broadcast(known), "address").select(*STAGED.names, "place")

        def analysed(mine: DataFrame, ends: analysing.Ends | None) -> DataFrame:
            ordered = mine.repartition(count, "place").drop("place").sortWithinPartitions("broker", "at", "lot")
            made = ordered.mapInArrow(partial(_analyse, plan=plan, names=names, ends=ends), spark_schema(STAGED))
            return made.repartition(len(plan.labels)).persist(StorageLevel.DISK_ONLY)

        weights = analysing.resolved_weights(brokers, self._outcome.weights)
        placed = {broker: place for _, broker, place in numbered}
        return in_spans(rows, placed, span_ends(rows, weights), analysed)

    @property
    def _exchanges(self) -> DataFrame:
        """Staged rows of `exchanges`, behind what was found out about those of the same task."""
        rows = self._decoded.where("table = 'exchanges'")
        if not analysing.holds_exchanges(self.plan):
            return rows
        rows = rows.unionByName(self._analysed.where(f"table = '{FOUND}'"))
        return rows.repartition(len(self.plan.labels), "origin").sortWithinPartitions("table")

    def _filled(self, columns: Sequence[str]) -> DataFrame:
        """Staged rows of `exchanges` with these columns; the analysis fills in some of them."""
        fill = partial(analysing.filled, columns=list(columns), plan=self.plan, names=self.names)
        return self._exchanges.mapInArrow(fill, spark_schema(STAGED))

    def _findings(self) -> DataFrame:
        clusters = self.searched
        spans = sum(2 + len(cuts) if cuts else 1 for cuts in clusters.values())
        deal = partial(analysing.deal_evidence, clusters=clusters)
        rows = self._evidence.mapInArrow(deal, spark_schema(STAGED))
        quality = self._outcome.tables.get("capture_quality")
        find = partial(analysing.find_findings, plan=self.plan, names=self.names, quality=quality, clusters=clusters)
        rows = rows.repartition(spans, "broker", "lot")
        found = rows.sortWithinPartitions("broker", "lot").mapInArrow(find, spark_schema(STAGED)).repartition(1)
        conclude = partial(analysing.conclude, plan=self.plan, clusters=clusters)
        return found.mapInArrow(conclude, spark_schema(self._schema("findings")))

    @cached_property
    def searched(self) -> analysing.Searched:
        """By cluster, the instants (µs) at which it is cut into spans, in which findings are looked for."""
        known = "table = '" + analysing.COUNTED + "'"
        counted = self._evidence.selectExpr("broker", "at", f"if({known}, lot, 0) as exchanges")
        cells = counted.groupBy("broker", "at").agg({"exchanges": "sum"}).collect()
        return analysing.searched((tuple(row) for row in cells), self.names)

    @cached_property
    def _evidence(self) -> DataFrame:
        """Staged rows that findings are looked for in."""
        from pyspark import StorageLevel

        analysed, decoded = self._analysed, self._decoded
        rows = analysed.where(analysed["table"].startswith(analysing.EVIDENCE))
        told = partial(analysing.evidence, name="exchanges", plan=self.plan, names=self.names)
        rows = rows.unionByName(self._exchanges.mapInArrow(told, spark_schema(STAGED)))
        sift = partial(analysing.sift, plan=self.plan, names=self.names)
        others = decoded.where(decoded["table"].isin([name for name in analysing.DECODED if self._has(name)]))
        others = others.unionByName(self._committed).mapInArrow(sift, spark_schema(STAGED))
        if self._has(decoding.SENT):
            sift_sent = partial(analysing.sift_sent, plan=self.plan, names=self.names)
            others = others.unionByName(self._sent().mapInArrow(sift_sent, spark_schema(STAGED)))
        return rows.unionByName(others).unionByName(self._delivered).persist(StorageLevel.DISK_ONLY)

    @property
    def _delivered(self) -> DataFrame:
        """Staged rows of the deliveries that findings look at."""
        decoded = self._decoded
        rows = decoded.where(decoded["table"].isin([name for name in DELIVERIES.tables if self._has(name)]))
        counted = rows.where("table = 'record_batches'").mapInArrow(analysing.count_batches, spark_schema(STAGED))
        until = analysing.end_of_first((at, size) for at, size in counted.select("at", "lot").collect())
        first = rows.mapInArrow(partial(analysing.keep_until, until=until), spark_schema(STAGED)).repartition(1)
        deliver = partial(analysing.deliver, plan=self.plan, names=self.names)
        return first.mapInArrow(deliver, spark_schema(STAGED))

    def _summed(self, name: str) -> DataFrame:
        if name in FROM_ALIGNED:
            return self._from_aligned(name)
        analysed, decoded, count = self._analysed, self._decoded, len(self.plan.labels)
        made = analysing.summed_in(name)
        rows = analysed.where(analysed["table"].isin([one for one in made if one != "exchanges"]))
        rows = rows.unionByName(self._filled(analysing.SUMMED[name]["exchanges"]))
        rows = rows.unionByName(decoded.where(decoded["table"].isin(list(analysing.summed_decoded(name)))))
        deal = partial(spent_time.deal, name=name, plan=self.plan, names=self.names)
        divide, gather = (partial(one, name=name, plan=self.plan) for one in (spent_time.divide, spent_time.gather))
        divided = rows.mapInArrow(deal, spark_schema(STAGED)).repartition(count, "lot")
        gathered = divided.mapInArrow(divide, spark_schema(STAGED)).repartition(count, "lot")
        return gathered.mapInArrow(gather, spark_schema(self._schema(name)))

    def _from_aligned(self, name: str) -> DataFrame:
        count, decoded = len(self.plan.labels), self._decoded
        read = ["connections", *(ALIGNED + one for one in FROM_ALIGNED[name])]
        rows = decoded.where(decoded["table"].isin(read)).repartition(count, "origin", "lot")
        rows = rows.sortWithinPartitions("origin", "lot")
        if name == "transactions":
            told = rows.mapInArrow(transaction_shares.pairs, spark_schema(STAGED)).select("data").collect()
            roots = transaction_shares.join_producers(bytes(row[0]) for row in told)
            deal = partial(transaction_shares.deal, plan=self.plan, names=self.names, roots=roots)
            make = partial(transaction_shares.make, plan=self.plan)
        else:
            deal = partial(topic_shares.deal, name=name, plan=self.plan, names=self.names)
            make = partial(topic_shares.make, name=name, plan=self.plan)
        dealt = rows.mapInArrow(deal, spark_schema(STAGED))
        ordered = dealt.repartition(count, "lot").sortWithinPartitions("broker")
        return ordered.mapInArrow(make, spark_schema(self._schema(name)))

    def _producers(self) -> DataFrame:
        follow = partial(analysing.follow, plan=self.plan, names=self.names)
        return self._sent().mapInArrow(follow, spark_schema(self._schema("producers")))

    def _sent(self) -> DataFrame:
        """Staged rows of what producers sent, all of a partition in one task."""
        deal = partial(topic_shares.deal_sent, plan=self.plan, names=self.names)
        sent = self._decoded.where(f"table = '{decoding.SENT}'").mapInArrow(deal, spark_schema(STAGED))
        return sent.repartition(len(self.plan.labels), "lot")

    @cached_property
    def _committed(self) -> DataFrame:
        """Staged rows of `offset_commits`."""
        from pyspark import StorageLevel

        if not self._has(COMMITS):
            return self.spark.createDataFrame([], spark_schema(STAGED))
        count, lot = len(self.plan.labels), ("origin", "broker", "lot")
        rows = self._decoded.where(self._decoded["table"].isin(list(committed_offsets.READ)))
        rows = rows.repartition(count, *lot).sortWithinPartitions(*lot)
        deal = partial(committed_offsets.deal, plan=self.plan, names=self.names)
        dealt = rows.mapInArrow(deal, spark_schema(STAGED)).repartition(count, "lot")
        return dealt.mapInArrow(committed_offsets.fill, spark_schema(STAGED)).persist(StorageLevel.DISK_ONLY)

    def _has(self, name: str) -> bool:
        """Whether there may be rows of a table that comes out of decoding."""
        return name in self.staged_tables

    @cached_property
    def staged_tables(self) -> frozenset[str]:
        """The staged tables that were decoded."""
        notes = self._told + ([] if self._units is None else notes_of(self._units))
        return frozenset().union(*(loaded(data, frozenset[str]) for name, data in notes if name == decoding.THERE))

    def small(self, name: str) -> DataFrame:
        """Rows that the driver has made: all of a small table, of `problems` those about captures themselves."""
        schema, table = self._schema(name), self.collect_small(name)
        if not table.num_rows:
            return self.spark.createDataFrame([], spark_schema(schema))
        return self.spark.createDataFrame(table, spark_schema(schema))

    def collect_small(self, name: str) -> pa.Table:
        """The table that `small` has as a frame, on the driver."""
        table = self._outcome.tables[name]
        return table.select(self.plan.tables[name])


def _decode(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    return settled("decode", decoding.decode(batches, plan, origin(plan)))


def _decode_units(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    return settled("decode", decoding.decode_units(batches, plan, origin(plan)))


def notes_of(staged: DataFrame) -> Notes:
    """The staged rows for the driver."""
    return [(row[0], bytes(row[1])) for row in staged.where("table like '\\\\_%'").select("table", "data").collect()]


def _analyse(
    batches: Iterable[pa.RecordBatch], plan: Plan, names: Names, ends: analysing.Ends | None
) -> Iterator[pa.RecordBatch]:
    return settled("analyse", analysing.analyse(batches, plan, names, ends))


def _plain(
    batches: Iterable[pa.RecordBatch],
    name: str,
    plan: Plan,
    names: Names,
    full: frozenset[str],
    single: Mapping[str, Any],
) -> Iterator[pa.RecordBatch]:
    """Staged rows of one table to its rows. Spark counts on columns to have no nulls (`full`), and to have one value
    (`single`), which are left out."""
    kept = [column for column in plan.tables[name] if column not in single]
    schema = pa.schema([SCHEMAS[name].field(column).remove_metadata() for column in kept])
    for table in resolved_rows(batches, name, plan, names, single):
        if not single.keys().isdisjoint(table.column_names) or any(
            table[column].null_count for column in full if column in kept
        ):
            raise CaptureUnreadable("captures have changed since they were read first")
        columns = [_written_out(table[field.name], field.type) for field in schema]
        for begin in range(0, table.num_rows, ROWS):
            count = min(ROWS, table.num_rows - begin)
            parts = [column.slice(0 if len(column) <= ROWS else begin, count) for column in columns]
            yield pa.RecordBatch.from_arrays(parts, schema=schema)


def _written_out(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """A column of this type. If one value of a dictionary is all that it has, as many rows of it as go out at once:
    they stay in a core's cache, and every lot has the same."""
    if pa.types.is_dictionary(column.type) and column.num_chunks == 1 and not column.null_count:
        known = column.chunk(0).dictionary
        if len(known) == 1:
            return pa.repeat(known[0], min(ROWS, len(column))).cast(kind)
    return column.cast(kind).combine_chunks()


def _tasks(plan: Plan, files: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Files by task: small ones together."""
    tasks = together([plan.sources[number].sizes[file] for number, file in files])
    return [[files[one] for one in task] for task in tasks]
