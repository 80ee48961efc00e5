"""A job's tables as they are written: with `capture`, `broker`, `at` and `date`."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from kdissect.spark.dataset import Dataset
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages.indexing import FileFacts
from kdissect.spark.stages.owners import OWNERS
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names, resolved_rows
from kdissect.spark.writing.placing import Places, schema_of
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import By

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SESSIONS = "fetch_sessions"
"""What rows of `session_partitions` have their capture and time from."""


class PlacedTables(Mapping[str, "DataFrame"]):
    """The tables of a job whose plan is `placed`, each with what it lacks of the four columns, which stand last."""

    def __init__(self, made: Dataset) -> None:
        self._made = made
        self._known: Places | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, name: str) -> DataFrame:
        made, plan, places = self._made, self._made.plan, self._places
        columns = plan.tables[name]
        schema = spark_schema(schema_of(name, columns))
        plain = partial(_plain, name=name, columns=columns, places=places)
        if TABLES[name].made in (By.LEARNED, By.FINDINGS, By.SENT, By.BUDGET):
            return made[name].mapInArrow(plain, schema)
        rows = partial(_staged, name=name, plan=plan, names=made.names, places=places)
        frame = made.staged(name).mapInArrow(rows, schema)
        if name == "problems":
            return frame.unionByName(made.small(name).mapInArrow(plain, schema))
        if name == "session_partitions" and SESSIONS in self:
            return self._of_sessions(frame)
        return frame

    def _of_sessions(self, frame: DataFrame) -> DataFrame:
        added = ["capture", "at", "date"]
        sessions = self[SESSIONS].select("session_key", *added)
        return frame.drop(*added).join(sessions, "session_key", "left").select(*frame.columns)

    @property
    def _places(self) -> Places:
        if self._known is None:
            made = self._made
            owned = [pickle.loads(data) for name, data in made.notes if name == OWNERS]
            files: list[FileFacts] = [pickle.loads(data) for name, data in made.notes if name == "_file"]
            sources = [source.name for source in made.plan.sources]
            begins = {
                (sources[one.capture], one.report.name): one.report.first // 1000 for one in files if one.report.timed
            }
            self._known = Places.of(owned, made.names.brokers, sources, begins)
        return self._known


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
