"""Where tables go: their directories, and the columns that folders are made by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from kdissect.engine.capture import MADE
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS, declared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATE = "date"
"""The day (UTC) of a row's first time, as a column to make folders by."""


KEPT = "_kdissect"
"""Where what was decoded stays, below the output; readers of Spark pass over names that begin like this."""


NOWHERE = "/no-such-place-for-kdissect"
"""Where a format is tried out: one that is known says that nothing is there."""


def target(output: str, name: str) -> str:
    """The directory of a table."""
    return f"{output.rstrip('/')}/{name}"


def partitioned(tables: Sequence[str] | None, by: Sequence[str]) -> dict[str, list[str]]:
    """For each table asked for (None: all) the columns of `by` that it has. Raises UsageError for a column that none
    has, and for unknown tables."""
    names = list(MADE if tables is None else tables)
    for name in names:
        declared(name)
    found = {name: [column for column in by if column in _columns(name)] for name in names}
    for column in by:
        if not any(column in columns for columns in found.values()):
            raise UsageError(f"none of these tables has a column {column!r}, so no folders can be made by it")
    return found


def _columns(name: str) -> list[str]:
    return [*SCHEMAS[name].names, *([DATE] if _time(name) else [])]


def _time(name: str) -> str | None:
    """The first time among a table's columns."""
    return next((field.name for field in SCHEMAS[name] if pa.types.is_timestamp(field.type)), None)


def dates(frame: DataFrame, name: str) -> DataFrame:
    """A table with the column `date`."""
    from pyspark.sql.functions import to_date

    time = _time(name)
    return frame if time is None else frame.withColumn(DATE, to_date(frame[time]))


def known(session: SparkSession, form: str) -> None:
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


def written(session: SparkSession, form: str, frame: DataFrame, place: str) -> int:
    """How many rows a table that was written has."""
    read = session.read.format(form)
    return (read.schema(frame.schema) if form == "parquet" else read).load(place).count()
