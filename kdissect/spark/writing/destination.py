"""Where tables go: their directories, the columns that folders are made by, and the formats they are written in."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from kdissect.engine.capture_tables import MADE
from kdissect.output import OutputError
from kdissect.problems import UsageError
from kdissect.spark.file_system import HadoopFiles
from kdissect.spark.placing import schema_of
from kdissect.spark.workers import runs_on_this_machine
from kdissect.tables.declaration import SCHEMAS, declared
from kdissect.tables.projection import list_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATE_AND_CLUSTER = ("date", "cluster")
"""The columns that tables are cut by unless something else is asked for."""
NOWHERE = "/no-such-place-for-kdissect"
"""Where a format is tried out: one that is known says that nothing is there."""


def target(output: str, name: str) -> str:
    """The directory of a table."""
    return f"{output.rstrip('/')}/{name}"


def partitioned(tables: Sequence[str] | None, by: Sequence[str]) -> dict[str, list[str]]:
    """For each table asked for (None: all) the columns of `by` that it has, none of them lists. Raises UsageError for a
    column that none has, and for unknown tables."""
    names = list(MADE if tables is None else tables)
    by = list_names(by)
    found: dict[str, list[str]] = {}
    for name in names:
        declared(name)
        there = {field.name for field in schema_of(name, SCHEMAS[name].names) if not pa.types.is_nested(field.type)}
        found[name] = [column for column in by if column in there]
    for column in by:
        if not any(column in columns for columns in found.values()):
            raise UsageError(f"none of these tables has a column {column!r}, so no folders can be made by it")
    return found


def check_format(session: SparkSession, form: str) -> None:
    """Raise UsageError where the session cannot write this format."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if form == "parquet":
        return
    try:
        session.read.format(form).load(NOWHERE)
    except (PySparkException, Py4JError) as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise UsageError(
                f"this session of Spark has no format {form!r}; parquet is always there, others come with packages "
                "(--conf spark.jars.packages=...)"
            ) from None


def shared(session: SparkSession, output: str) -> None:
    """Raise OutputError where the output is on this machine's disks and an executor does not have it: what it writes
    would be nowhere."""
    if runs_on_this_machine(session):
        return
    local = HadoopFiles(session).local(output)
    if local is None:
        return
    probe = local / ".kdissect-shared"
    probe.touch()
    try:
        tasks = int(session.sparkContext.defaultParallelism)
        asked = session.range(0, tasks, 1, tasks).mapInArrow(partial(_without, path=str(probe)), "node string")
        lacking = [str(row[0]) for row in asked.distinct().collect()]
    finally:
        probe.unlink(missing_ok=True)
    if lacking:
        told = f"{lacking[0]}, where Spark's executors write, does not have it: name a disk that all share, hdfs:, s3a:"
        raise OutputError(output, OSError(told))


def _without(batches: Iterable[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    """The name of this machine where it has no such file."""
    for _ in batches:
        if not Path(path).exists():
            yield pa.RecordBatch.from_pydict({"node": [platform.node()]})
