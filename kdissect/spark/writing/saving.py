"""`kdissect.spark.write`: the tables of a job to where they are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kdissect.problems import UsageError
from kdissect.spark.dataset import Dataset
from kdissect.spark.writing.file_system import HadoopFiles
from kdissect.spark.writing.lake_tables import LAKES, LakeTables
from kdissect.spark.writing.placed_tables import PlacedTables
from kdissect.spark.writing.snapshots import snapshots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_BYTES = 128 << 20
"""What a file of a table may have at most, by the capture bytes behind it: no table takes more room than they do."""


def write(
    made: Dataset,
    output: str,
    *,
    form: str = "parquet",
    by: Mapping[str, Sequence[str]] | None = None,
    begun: Callable[[str], None] = lambda name: None,
) -> dict[str, int]:
    """Write every table of a job (`Job.on(..., placed=True)`, or one that is kept) below `output`; rows of each.

    All of them are there together at the end (`snapshots`), in Delta or Iceberg table by table, where rows of
    exchanges are merged by their id. Each has `capture`, `broker`, `at` and `date`. `by`: for each table the columns
    that folders are made by. `begun` is told each table's name. Raises OutputError where nothing can be written,
    UsageError for a job that was not made to be written.
    """
    if not made.plan.placed:
        raise UsageError("these tables were not made to be written: ask for them with keep=, or write them by Spark")
    session = made.spark
    cut = by or {}
    files = HadoopFiles(session)
    placed = PlacedTables(made)
    most = max(1, -(-sum(made.bytes) // FILE_BYTES))
    rows: dict[str, int] = {}
    if form in LAKES:
        files.try_out(output)
        lake = LakeTables(session, form, output)
        for name in placed:
            begun(name)
            _describe(session, name)
            rows[name] = lake.save(name, _spread(placed[name], cut.get(name, ()), most), cut.get(name, ()))
        _describe(session, None)
        return rows
    run = snapshots(files, output)
    for name, frame in placed.items():
        begun(name)
        _describe(session, name)
        columns = cut.get(name, ())
        _spread(frame, columns, most).write.format(form).partitionBy(*columns).save(run.place(name))
        rows[name] = _rows(session, form, frame, run.place(name))
    _describe(session, None)
    run.commit(list(rows))
    return rows


def _spread(frame: DataFrame, by: Sequence[str], most: int) -> DataFrame:
    """Rows in as many tasks as files are wanted; those of a folder together, in as many as its size asks for."""
    return frame.hint("rebalance", *by) if by else frame.coalesce(most)


def _rows(session: SparkSession, form: str, frame: DataFrame, place: str) -> int:
    read = session.read.format(form)
    return (read.schema(frame.schema) if form == "parquet" else read).load(place).count()


def _describe(session: SparkSession, name: str | None) -> None:
    """What Spark's UI says of the jobs that follow."""
    context = getattr(session, "sparkContext", None)
    if context is not None:
        context.setJobDescription(None if name is None else f"kdissect: table {name}")
