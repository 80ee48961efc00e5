"""A job's tables as they are written: with the columns of `kdissect.spark.placing` behind their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from kdissect.spark.dataset import Dataset
from kdissect.spark.placing import Places, has_times, names_exchanges, schema_of
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages.indexing import FILE, FileFacts
from kdissect.spark.stages.owners import OWNERS
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names, resolved_rows
from kdissect.spark.writing.hive_folders import SPARKS, WRITTEN
from kdissect.spark.writing.task_files import write_rows, write_staged
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import CLUSTER, By

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SESSIONS = "fetch_sessions"
"""What rows of `session_partitions` have their capture and time from."""


class PlacedTables(Mapping[str, "DataFrame"]):
    """The tables of a job whose plan is `placed`, each with the columns that written tables have behind their own."""

    def __init__(self, made: Dataset) -> None:
        self._made = made
        self._known: Places | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __getitem__(self, name: str) -> DataFrame:
        made, plan, places = self._made, self._made.plan, self._places
        columns = plan.tables[name]
        schema = spark_schema(schema_of(name, columns))
        plain = partial(_plain, name=name, columns=columns, places=places)
        if name not in self.staged:
            return made[name].mapInArrow(plain, schema)
        rows = partial(_staged, name=name, plan=plan, names=made.names, places=places)
        frame = made.staged(name).mapInArrow(rows, schema)
        if name == "problems":
            return frame.unionByName(made.small(name).mapInArrow(plain, schema))
        if self._joins(name):
            return self._of_sessions(frame)
        return frame

    @property
    def staged(self) -> list[str]:
        """The tables whose rows come piece by piece; the others are made of whole tables, or on the driver."""
        kinds = {name: TABLES[name].made for name in self}
        return [name for name, made in kinds.items() if not made.needs_everything and made not in (By.LEARNED, By.SENT)]

    def written(
        self, names: Sequence[str], folder: Path, most: int, by: Mapping[str, Sequence[str]]
    ) -> list[DataFrame]:
        """These tables as files in a folder that all tasks share, each table by at most so many tasks at a time. The
        files are written when the frames are read, whose rows name them (WRITTEN). Rows that the driver has are not
        among them (`driver_rows`).
        `by`: the columns that each table is cut by."""
        made, schemas = self._made, self.schemas
        straight = [name for name in names if name in self.staged and not self._joins(name)]
        cut = {name: [one for one in by.get(name, ()) if self.may_have(name, one)] for name in names}
        write = partial(
            write_staged, folder=str(folder), schemas=schemas, by=cut, plan=made.plan, names=made.names,
            places=self._places,
        )  # fmt: skip
        told = spark_schema(WRITTEN)
        frames = [rows.coalesce(most).mapInArrow(write, told) for rows in made.staged_together(straight)]
        for name in names:
            if name not in straight and TABLES[name].made is not By.LEARNED:
                write = partial(write_rows, folder=str(folder), schemas=schemas, by=cut, name=name)
                frames.append(self[name].coalesce(most).mapInArrow(write, told))
        return frames

    def driver_rows(self, name: str) -> pa.Table | None:
        """The rows of a table that the driver has, as they are written."""
        if TABLES[name].made in (By.LEARNED, By.NOTED):
            return self._places.placed(name, self._made.collect_small(name), self._made.plan.tables[name])
        return None

    def may_have(self, name: str, column: str) -> bool:
        """Whether a table may have values of one of its columns. A column of folders without any is void to Spark."""
        columns, places = self._made.plan.tables[name], self._places
        if column == CLUSTER.name:
            return bool(self._made.names.brokers.cluster_of())
        if column in columns or name == SESSIONS or self._joins(name):
            return True
        if column in ("at", "date"):
            return has_times(name)
        if names_exchanges(columns) or (column == "broker" and "session_key" in columns):
            return True
        return column == "capture" and bool(places.only or places.alone)

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The schemas of tables as they are written; Spark finds the comments of their columns in their files."""
        return {name: written_schema(name, columns) for name, columns in self._made.plan.tables.items()}

    def _joins(self, name: str) -> bool:
        """Whether rows get what they lack from those of another table."""
        return name == "session_partitions" and SESSIONS in self

    def _of_sessions(self, frame: DataFrame) -> DataFrame:
        added = ["capture", "at", "date"]
        sessions = self[SESSIONS].select("session_key", *added)
        return frame.drop(*added).join(sessions, "session_key", "left").select(*frame.columns)

    @property
    def _places(self) -> Places:
        if self._known is None:
            made = self._made
            owned = [one for name, one in made.notes if name == OWNERS]
            files: list[FileFacts] = [one for name, one in made.notes if name == FILE]
            sources = [source.name for source in made.plan.sources]
            begins = {
                (sources[one.capture], one.report.name): one.report.first // 1000 for one in files if one.report.timed
            }
            self._known = Places.of(owned, made.names.brokers, sources, begins)
        return self._known


def written_schema(name: str, columns: Sequence[str]) -> pa.Schema:
    """The schema of a table as it is written, where Spark finds the comments of columns, too."""
    return commented(schema_of(name, columns).with_metadata(SCHEMAS[name].metadata))


def commented(schema: pa.Schema) -> pa.Schema:
    """The schema with the comments of columns where Spark finds them."""
    return schema.with_metadata({**(schema.metadata or {}), SPARKS: spark_schema(schema).json().encode()})


def _plain(
    batches: Iterable[pa.RecordBatch], name: str, columns: list[str], places: Places
) -> Iterator[pa.RecordBatch]:
    """Plain rows of a table to those that are written."""
    for batch in batches:
        yield from places.placed(name, pa.Table.from_batches([batch]), columns).to_batches()


def _staged(
    batches: Iterable[pa.RecordBatch], name: str, plan: Plan, names: Names, places: Places
) -> Iterator[pa.RecordBatch]:
    """Staged rows of a table to those that are written."""
    for table in resolved_rows(batches, name, plan, names):
        yield from places.placed(name, table, plan.tables[name]).to_batches()
