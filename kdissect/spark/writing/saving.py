"""`kdissect.spark.write`: the tables of a job to their folders."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kdissect.analysis.findings.phrases import many
from kdissect.capture.condition import CaptureProblem
from kdissect.output import naming_output
from kdissect.spark.dataset import Dataset
from kdissect.spark.file_system import HadoopFiles
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages.indexing import FILE, FileFacts
from kdissect.spark.whole_dataset import WholeDataset
from kdissect.spark.writing.destination import DATE_AND_CLUSTER, partitioned
from kdissect.spark.writing.hive_folders import (
    RESTORED,
    WRITTEN,
    Folder,
    WrittenFile,
    common_columns,
    folder_path,
    read_folder,
    restore_columns,
)
from kdissect.spark.writing.lake_tables import LAKES, LakeTables
from kdissect.spark.writing.lease import Lease, leased
from kdissect.spark.writing.placed_tables import PlacedTables
from kdissect.spark.writing.snapshots import Snapshots, snapshots
from kdissect.spark.writing.straight_files import StraightFiles, straight_tables
from kdissect.spark.writing.task_files import FILE_BYTES, TableFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("kdissect.spark")
SAID = 3
"""Problems of a file that its capture set's line names; the table `problems` has all."""
ASIDE = "_parts"
"""Where tasks write files, below a run's snapshot, until they are known to count."""
SUCCESS = "_SUCCESS"
"""An empty file in the folder of a table that is complete, as Spark's own writer leaves one."""


def write(
    dataset: Dataset,
    output: str | os.PathLike[str],
    *,
    form: str = "parquet",
    by: Mapping[str, Sequence[str]] | None = None,
    on_start: Callable[[str], None] = lambda name: None,
    lease: Lease | None = None,
) -> dict[str, int]:
    """Write every table of a job below `output`; rows of each.

    All of them are there together at the end (`snapshots`), in Delta or Iceberg table by table. Each has `capture`,
    `broker`, `at`, `date` and its ids as numbers; rows that were decoded to be read are decoded again for these. `by`:
    for each table the columns that folders are made by; None: DATE_AND_CLUSTER where tasks write Parquet themselves, on
    disks that they share, else none. `on_start` is called with the name of each step, such as a table's; Spark's UI
    shows the steps, too. `lease`: the caller's for `output`; without it the function takes one. Logs a line for each
    capture set (`kdissect.spark`, INFO). Raises OutputError where nothing can be written, UsageError for a job of which
    only some columns were asked for, for folders by a column that a table lacks, and while another run writes to
    `output`."""
    output = os.fspath(output)
    if by is not None:
        by = {name: partitioned([name], columns)[name] for name, columns in by.items()}
    dataset.place()
    files = HadoopFiles(dataset.spark)
    files.try_out(output)
    with leased(files, output) if lease is None else contextlib.nullcontext(lease) as held:
        try:
            return _write(dataset, output, form, by, on_start, files, held)
        finally:
            if isinstance(dataset, WholeDataset):
                dataset.end_straight()


def _write(
    dataset: Dataset, output: str, form: str, by: Mapping[str, Sequence[str]] | None, on_start: Callable[[str], None],
    files: HadoopFiles, lease: Lease,
) -> dict[str, int]:  # fmt: skip
    """`write`, while the lease is held."""
    session = dataset.spark
    placed = PlacedTables(dataset)
    names = list(placed) if form == "parquet" and files.local(output) else []
    cut = by
    if cut is None:
        cut = {name: [one for one in DATE_AND_CLUSTER if one in placed.schemas[name].names] for name in names}
    run = None if form in LAKES else snapshots(files, output)
    here = None if run is None or not names else TasksFiles(dataset, placed, names, run, cut)
    _describe(session, f"decoding {many(len(dataset.plan.sources), 'capture')} of {many(len(dataset.bytes), 'file')}")
    on_start("decoding")
    counted = _decode_and_log(dataset)
    most = max(1, -(-sum(dataset.bytes) // FILE_BYTES))
    rows: dict[str, int] = {}
    if run is None:
        lake = LakeTables(session, form, output)
        for name in placed:
            _describe(session, f"table {name} of {counted}")
            on_start(name)
            lease.check()
            rows[name] = lake.save(name, _spread(placed[name], cut.get(name, ()), most), cut.get(name, ()))
        _describe(session, None)
        return rows
    if here is not None:
        _describe(session, f"{many(len(names), 'table')} of {counted}")
        on_start(many(len(names), "table") if len(names) > 1 else names[0])
        rows |= here.save(most)
    for name in placed:
        if name in names:
            continue
        _describe(session, f"table {name} of {counted}")
        on_start(name)
        frame, columns = placed[name], [column for column in cut.get(name, ()) if placed.may_have(name, column)]
        _spread(frame, columns, most).write.format(form).partitionBy(*columns).save(run.place(name))
        rows[name] = _rows(session, form, frame, run.place(name))
        if columns and not rows[name]:  # a file with its columns, for whoever opens the folder
            frame.limit(0).write.format(form).mode("append").save(run.place(name))
    _describe(session, None)
    lease.check()
    run.commit(list(rows))
    return {name: rows[name] for name in placed}


class TasksFiles:
    """Tables as Parquet on disks that driver and tasks share: tasks write the files, all tables by one job. To be made
    before anything is read: where one task does all, it writes rows as it makes them."""

    def __init__(
        self, made: Dataset, placed: PlacedTables, names: Sequence[str], run: Snapshots, by: Mapping[str, Sequence[str]]
    ) -> None:
        """`by`: the columns that each table is cut by."""
        self._made, self._placed, self._names, self._by = made, placed, names, by
        self._places = {name: Path(run.place(name)) for name in names}
        self._aside = self._places[names[0]].parent / ASIDE
        with naming_output(self._aside):
            self._aside.mkdir(parents=True, exist_ok=True)
        if isinstance(made, WholeDataset):
            straight = {name: placed.schemas[name] for name in straight_tables(names)}
            sources = [one.name for one in made.plan.sources]
            made.straight = StraightFiles(str(self._aside), straight, by, sources)

    def save(self, most: int) -> dict[str, int]:
        """Write them, each by at most so many tasks at a time; rows of each."""
        placed, made = self._placed, self._made
        done = made.files if isinstance(made, WholeDataset) else None
        rest = self._names if done is None else [one for one in self._names if one not in straight_tables(self._names)]
        found = [WrittenFile(*one) for one in done or ()]
        frames = placed.written(rest, self._aside, most, self._by)
        if frames:
            every = reduce(lambda one, other: one.unionAll(other), frames).collect()
            found += [WrittenFile(*row) for row in every]
        with TableFiles(self._aside, placed.schemas, self._by) as files:
            for name in self._names:
                known = placed.driver_rows(name)
                if known is not None and known.num_rows:
                    files.add(name, known)
                elif all(name != one.table for one in found):
                    files.none(name)  # a file with its columns, for whoever opens the folder
        found += [WrittenFile(**row) for row in files.told().to_pylist()]
        rows = dict.fromkeys(self._names, 0)
        whole = self._in_common_folders(found)
        with naming_output(self._aside):
            for number, one in enumerate(whole):
                place = self._places[one.table] / folder_path(read_folder(one.folder))
                place.mkdir(parents=True, exist_ok=True)
                (self._aside / one.file).rename(place / f"part-{number:05}-{one.file}")
                rows[one.table] += one.rows
            for place in self._places.values():
                (place / SUCCESS).touch()
        shutil.rmtree(self._aside, ignore_errors=True)
        return rows

    def _in_common_folders(self, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        """These files, each table's in folders by the same columns."""
        folders: dict[str, list[Folder]] = {}
        for one in files:
            folders.setdefault(one.table, []).append(read_folder(one.folder))
        columns = {name: common_columns(some) for name, some in folders.items()}
        made: list[WrittenFile] = []
        others: list[dict[str, Any]] = []
        for one in files:
            if len(read_folder(one.folder)) == len(columns[one.table]):
                made.append(one)
            else:
                others.append({**one._asdict(), "columns": columns[one.table]})
        if others:
            restore = partial(restore_columns, folder=str(self._aside), schemas=self._placed.schemas)
            frame = self._made.spark.createDataFrame(pa.Table.from_pylist(others, RESTORED), spark_schema(RESTORED))
            tasks = frame.repartition(min(len(others), len(self._made.plan.labels)))
            made += [WrittenFile(*row) for row in tasks.mapInArrow(restore, spark_schema(WRITTEN)).collect()]
        return made


def _spread(frame: DataFrame, by: Sequence[str], most: int) -> DataFrame:
    """Rows in as many tasks as files are wanted; those of a folder together, in as many as its size asks for."""
    return frame.hint("rebalance", *by) if by else frame.coalesce(most)


def _rows(session: SparkSession, form: str, frame: DataFrame, place: str) -> int:
    read = session.read.format(form)
    return (read.schema(frame.schema) if form == "parquet" else read).load(place).count()


def _decode_and_log(dataset: Dataset) -> str:
    """Decode; log what was read of each capture set, and what was not and why; what was read in all."""
    facts: dict[int, list[FileFacts]] = {number: [] for number in range(len(dataset.plan.sources))}
    for name, one in dataset.notes:
        if name == FILE:
            facts[one.capture].append(one)
    for number, source in enumerate(dataset.plan.sources):
        told = [many(len(source.files), "file"), many(sum(one.report.packets for one in facts[number]), "packet")]
        told += [_said(one.report.name, wrong) for one in facts[number] for wrong in one.problems[:SAID]]
        log.info("%s: %s", source.name, ", ".join(told))
    packets = sum(one.report.packets for some in facts.values() for one in some)
    return f"{many(len(facts), 'capture')}, {many(packets, 'packet')}"


def _said(file: str, wrong: CaptureProblem) -> str:
    return f"{file if wrong.where == file else f'{file}, {wrong.where}'}: {wrong.detail}"


def _describe(session: SparkSession, text: str | None) -> None:
    """Set the text that Spark's UI shows for the jobs that follow."""
    context = getattr(session, "sparkContext", None)
    if context is not None:
        context.setJobDescription(None if text is None else f"kdissect: {text}")
