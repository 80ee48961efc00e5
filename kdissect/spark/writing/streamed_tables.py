"""`kdissect.spark.follow`: several tables out of a directory that captures are rotated into, by one query.

Each file is read once for all tables that are made of it. A batch of the query is written table by table, each by a
commit of its own that carries the query's id and the batch's number. If Spark runs a batch again, after a failure or a
kill, it finds the tables that it has written before and leaves them alone. So every row comes exactly once.

    Delta      a transaction of the application `kdissect/ID/TABLE` with the batch's number as its version
    Iceberg    a snapshot whose summary has `kdissect-batch` = ID/NUMBER
    Parquet    a folder TABLE/batch=ID-NUMBER, renamed to that name when its files are complete
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kdissect.analysis.sights.correlation_ranges import RANGES
from kdissect.engine.resumption import STREAMED, columns
from kdissect.output import naming_output
from kdissect.problems import UsageError
from kdissect.spark.cells.table_cells import cell, read_cell
from kdissect.spark.file_system import HadoopFiles
from kdissect.spark.schemas import spark_schema
from kdissect.spark.source.late_names import LATE_NAMES, NAMES
from kdissect.spark.source.placed_rows import (
    NOTES,
    NOTES_CELL,
    OPEN,
    OPEN_CELL,
    RANGES_CELL,
    SESSIONS,
    SESSIONS_CELL,
)
from kdissect.spark.source.remote_captures import find_storage
from kdissect.spark.source.streaming import CELLS, FORGET, MOST, cells_of, followed_folder, rows_of
from kdissect.spark.writing.destination import target
from kdissect.spark.writing.kept_looks import KeptLooks
from kdissect.spark.writing.lake_tables import CATALOG, iceberg_catalog
from kdissect.spark.writing.placed_tables import commented, written_schema
from kdissect.spark.writing.stream_copies import FOUND, KnownCopies, RowsOnce, learn_ranges, prune_known
from kdissect.spark.writing.task_files import FILE_BYTES, TableFiles
from kdissect.tables.formats import ParquetFile
from kdissect.tables.projection import list_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMS = ("parquet", "delta", "iceberg")
CHECKPOINT, ASIDE = "_checkpoint", "_batches"
"""Below the output: where the query stands, and folders of Parquet that are being written."""
QUERY = "sql.streaming.queryId"
"""Spark's name for the id of the query that a batch belongs to; it stays through restarts."""
BATCH = "kdissect-batch"
TOLD = {RANGES_CELL: RANGES, SESSIONS_CELL: SESSIONS, OPEN_CELL: OPEN, NOTES_CELL: NOTES, "findings": FOUND}
"""What the driver reads of a batch: names of cells, and columns."""
MADE = pa.schema([("capture", pa.string()), ("table", pa.string()), ("rows", pa.int64()), ("file", pa.string())])
"""What tasks tell of a batch: how many rows of a table a capture set has, and the files that they wrote."""
log = logging.getLogger("kdissect.spark")
Rows = Mapping[str, Mapping[str, int]]
"""Capture set -> table -> number of rows."""


def follow(
    spark: SparkSession,
    directory: str | Path,
    output: str | os.PathLike[str],
    tables: Sequence[str] = ("exchanges", "problems"),
    *,
    form: str = "parquet",
    quiet: float | None = None,
    most: int = MOST,
    forget: float | None = FORGET,
    on_batch: Callable[[Rows], None] | None = None,
) -> DataStreamWriter:
    """A query that writes several tables below `output`, ready to be started; it needs no option of yours:

        follow(spark, "/captures", "/lake", ["exchanges", "fetches", "problems"]).start()

    `tables`, `quiet`, `most` and `forget` as for `stream`; `form` is parquet, delta or iceberg. Each table has
    `capture`, `broker`, `at`, `date` and its ids as numbers. An exchange that several capture sets have is written
    once. Where the query stands is in `output`/_checkpoint. Each batch logs a line for each capture set
    (`kdissect.spark`, INFO), and gives its numbers of rows by capture set and table to `on_batch`. Raises UsageError.
    """
    if form not in FORMS:
        raise UsageError(f"a stream is written as {', '.join(FORMS)}, not {form!r}")
    if not tables:
        raise UsageError(f"no table named; a stream makes: {', '.join(STREAMED)}")
    output = os.fspath(output)
    wanted = {name: columns(name) for name in list_names(tables)}
    files = HadoopFiles(spark)
    files.try_out(output)
    looks = KeptLooks(files, output)
    cells = cells_of(spark, directory, wanted, quiet=quiet, most=most, forget=forget, placed=True, looks=looks.path)

    def write(frame: DataFrame, number: int) -> None:
        rows = write_batch(frame, number, wanted, output, form)
        looks.keep()
        if on_batch is not None:
            on_batch(rows)

    return cells.writeStream.option("checkpointLocation", target(output, CHECKPOINT)).foreachBatch(write)


def write_batch(cells: DataFrame, number: int, tables: Mapping[str, Sequence[str]], output: str, form: str) -> Rows:
    """Write one batch of cells, unless it was written before. How many rows it has."""
    from pyspark import StorageLevel

    session = cells.sparkSession
    schemas = {name: written_schema(name, columns) for name, columns in tables.items()} | {LATE_NAMES: commented(NAMES)}
    query, files = str(session.sparkContext.getLocalProperty(QUERY)), HadoopFiles(session)
    folder = files.local(output) if form == "parquet" else None
    store = KnownCopies(files, output, query)
    kept = cells.persist(StorageLevel.DISK_ONLY)
    try:
        ranges, sessions, still_open, notes, findings = _collect(kept, TOLD)
        known = learn_ranges(store.before(number), ranges)
        store.keep(number, prune_known(known, still_open))
        counted = _without_copies(kept.where(kept["table"].isin(list(schemas))), RowsOnce(known, sessions, findings))
        if folder is None:
            told = _write_frames(counted, number, schemas, output, form, query)
        else:
            told = _write_files(counted, f"{query}-{number:09}", schemas, folder)
        store.forget(number)
    finally:
        kept.unpersist()
    for one in notes.to_pylist():
        log.warning("%s: %s %s", one["capture"], one["file"], one["why"])
    for capture, counts in sorted(told.items()):
        rows = ", ".join(f"{counts[name]} {name}" for name in tables if counts.get(name))
        log.info("%s: batch %d: %s", capture, number, rows)
    return told


def _collect(cells: DataFrame, schemas: Mapping[str, pa.Schema]) -> list[pa.Table]:
    """By the names of cells, these columns of the rows that they have."""
    found: dict[str, list[pa.Table]] = {name: [schema.empty_table()] for name, schema in schemas.items()}
    for row in cells.where(cells["table"].isin(list(schemas))).select("table", "data").collect():
        schema = schemas[row["table"]]
        found[row["table"]].append(read_cell(bytes(row["data"])).select(schema.names).cast(schema))
    return [pa.concat_tables(tables) for tables in found.values()]


def _without_copies(cells: DataFrame, once: RowsOnce) -> DataFrame:
    """The cells without rows that another set's rows stand for."""
    return cells.mapInArrow(partial(_drop_copies, once=once), CELLS) if once.leaves_out else cells


def _drop_copies(batches: Iterable[pa.RecordBatch], once: RowsOnce) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made = []
        for row in batch.to_pylist():
            rows = read_cell(row["data"])
            counted = once.of(row["table"], row["capture"], rows)
            if counted is not rows:
                row |= {"rows": counted.num_rows, "data": cell(counted)}
            made.append(row)
        yield pa.RecordBatch.from_pylist(made, batch.schema)


def _write_files(cells: DataFrame, batch: str, schemas: Mapping[str, pa.Schema], folder: Path) -> Rows:
    """Parquet below a folder that tasks and the driver share: each task writes the rows that it has. So one job makes
    all tables, and no row goes through the JVM."""
    aside = folder / ASIDE / batch
    with naming_output(folder):
        if aside.exists():
            shutil.rmtree(aside)
        aside.mkdir(parents=True)
    write = partial(_write_cells, folder=str(aside), schemas=schemas)
    made = cells.select("capture", "table", "data").mapInArrow(write, spark_schema(MADE)).collect()
    told: dict[str, dict[str, int]] = {}
    files: dict[str, list[str]] = {name: [] for name in schemas}
    for row in made:
        if row["file"] is not None:
            files[row["table"]].append(row["file"])
        else:
            of_set = told.setdefault(row["capture"], {})
            of_set[row["table"]] = of_set.get(row["table"], 0) + row["rows"]
    with naming_output(folder):
        for name, names in files.items():
            _put_in_place(folder / name / f"batch={batch}", aside, names, schemas[name])
        shutil.rmtree(folder / ASIDE)
    return told


def _write_cells(
    batches: Iterable[pa.RecordBatch], folder: str, schemas: Mapping[str, pa.Schema]
) -> Iterator[pa.RecordBatch]:
    """Cells to files of their tables; rows of MADE."""
    counts: Counter[tuple[str, str]] = Counter()
    with TableFiles(Path(folder), schemas, {}) as files:
        for batch in batches:
            for capture, name, data in zip(
                *(batch.column(column) for column in ("capture", "table", "data")), strict=True
            ):
                table = read_cell(data.as_py())
                counts[capture.as_py(), name.as_py()] += table.num_rows
                files.add(name.as_py(), table)
    rows = [{"capture": capture, "table": name, "rows": count} for (capture, name), count in counts.items()]
    rows += [{"table": one["table"], "file": one["file"]} for one in files.told().to_pylist()]
    yield pa.RecordBatch.from_pylist(rows, MADE)


def _put_in_place(place: Path, batch: Path, names: Sequence[str], schema: pa.Schema) -> None:
    """A batch's files of a table, one at least, appear together, unless they are there."""
    if place.exists():
        return
    whole = batch / place.parent.name
    whole.mkdir()
    for name in names:
        (batch / name).rename(whole / name)
    if not names:
        with ParquetFile(whole / "none.parquet", schema):
            pass
    place.parent.mkdir(exist_ok=True)
    whole.rename(place)


def _write_frames(
    cells: DataFrame, number: int, schemas: Mapping[str, pa.Schema], output: str, form: str, query: str
) -> Rows:
    """Each table as Spark writes its format."""
    session = cells.sparkSession
    sized = cells.selectExpr("capture", "table", "rows", "length(data) as bytes")
    found = sized.groupBy("capture", "table").sum("rows", "bytes").collect()
    for name, schema in schemas.items():
        size = sum(int(row["sum(bytes)"]) for row in found if row["table"] == name)
        made = cells.where(cells["table"] == name).coalesce(max(1, -(-size // FILE_BYTES)))
        _SAVED[form](session, rows_of(made, schema), output, name, query, number)
    told: dict[str, dict[str, int]] = {}
    for row in found:
        told.setdefault(row["capture"], {})[row["table"]] = int(row["sum(rows)"])
    return told


def _parquet(session: SparkSession, frame: DataFrame, output: str, name: str, query: str, number: int) -> None:
    files = HadoopFiles(session)
    batch = f"{query}-{number:09}"
    place, aside = f"{target(output, name)}/batch={batch}", f"{target(output, ASIDE)}/{batch}/{name}"
    if not files.exists(place):
        frame.write.mode("overwrite").parquet(aside)
        files.rename(aside, place)
    files.delete(f"{target(output, ASIDE)}/{batch}")


def _delta(session: SparkSession, frame: DataFrame, output: str, name: str, query: str, number: int) -> None:
    told = frame.write.format("delta").mode("append").option("mergeSchema", "true")
    told = told.option("txnAppId", f"kdissect/{query}/{name}").option("txnVersion", number)
    told.save(target(output, name))


def _iceberg(session: SparkSession, frame: DataFrame, output: str, name: str, query: str, number: int) -> None:
    iceberg_catalog(session, output)
    place, batch = f"{CATALOG}.`{name}`", f"{query}/{number}"
    if not session.catalog.tableExists(f"{CATALOG}.{name}"):
        frame.limit(0).writeTo(place).using("iceberg").create()
    known = session.table(place).columns
    for field in frame.schema:
        if field.name not in known:  # of a version that wrote fewer
            session.sql(f"alter table {place} add column `{field.name}` {field.dataType.simpleString()}")
    snapshots = session.table(f"{CATALOG}.`{name}`.snapshots")
    if snapshots.where(snapshots["summary"][BATCH] == batch).isEmpty():
        frame.writeTo(place).option(f"snapshot-property.{BATCH}", batch).append()


_SAVED = {"parquet": _parquet, "delta": _delta, "iceberg": _iceberg}


def lag(query: StreamingQuery, directory: str | Path) -> list[dict[str, Any]]:
    """How far a query of `stream` or `follow` is behind its directory now, for each capture set. `capture` is the set,
    `files` and `bytes` are what the query's last batch has not read. `seconds` is how much later the first packet of
    the newest file is than that of the last file read (None before the first). The file that is being written counts,
    so a query that keeps up is one file behind.
    """
    from pyspark.sql import SparkSession

    from kdissect.spark.source.file_stream import Watched, after

    progress = query.lastProgress
    read: dict[str, Any] = {}
    if progress is not None:
        told = progress["sources"][0]["endOffset"]
        read = json.loads(told) if isinstance(told, str) else told or {}
    place = followed_folder(directory)
    watched = Watched(place, storage=find_storage(SparkSession.active(), place))
    sets: dict[str, list[Any]] = {}
    for row in watched.present():
        sets.setdefault(row[0], []).append(row)
    found = []
    for capture, rows in sorted(sets.items()):
        left = [row for row in rows if after(row, read)]
        newest, known = rows[-1][3], read.get(capture)
        seconds = None if known is None else max(0, newest - known["first"]) / 1e9
        size = sum(watched.sizes[row[2]] for row in left)
        found.append({"capture": capture, "files": len(left), "bytes": size, "seconds": seconds})
    return found
