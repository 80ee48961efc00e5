"""Tables of a job that one task does (`kdissect.spark.stages.whole_run`): less work, where there are few cores."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kdissect.problems import CaptureUnreadable
from kdissect.spark.cells.table_cells import STAGED
from kdissect.spark.dataset import Dataset, Notes, notes_of
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages import analysing
from kdissect.spark.stages.committed_offsets import COMMITS
from kdissect.spark.stages.decoding import SENT
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Outcome
from kdissect.spark.stages.whole_run import ELSEWHERE, FILES, FULL, OUTCOME, SINGLE, Straight, read_whole
from kdissect.spark.workers import settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONE_IN = 3
"""Columns of one value are left to Spark's plan where they are one in so many at least: it makes each row a second time
then, and breaks even with 12 of 46."""


class WholeDataset(Dataset):
    """A job by one task; spread over all, as any other, where a capture cannot be read to its end like this."""

    def __init__(self, spark: SparkSession, plan: Plan, strict: bool, cores: int) -> None:
        """`cores`: of this machine, which no other work wants while the task runs, and which all have rows to work on;
        0: not known, or too few rows."""
        super().__init__(spark, replace(plan, whole=True), strict)
        self._cores = cores
        self.straight: Straight | None = None
        """What writes tables as they are made; to be set before anything is read. They are not to be asked for until
        `end_straight`."""

    def end_straight(self) -> None:
        """Tables went into files as they were made, if any did: they are made again where they are asked for."""
        if self.straight is not None:
            self.straight = None
            self.unpersist()

    @cached_property
    def _followed(self) -> DataFrame:
        """Staged rows, all of them complete."""
        from pyspark import StorageLevel

        plan = self.plan
        if self._cores:
            plan = replace(plan, cores=self._cores, pieces="" if self.straight is not None else self._folder)
        read = partial(_read, plan=plan, straight=self.straight)
        one = self.spark.range(0, 1, 1, 1).mapInArrow(read, spark_schema(STAGED))
        if plan.pieces:  # all cores make rows of what one has read
            one = one.repartition(len(plan.labels))
        made = one.persist(StorageLevel.DISK_ONLY)
        self._notes = notes_of(made)
        if all(name != ELSEWHERE for name, _ in self._notes):
            return made
        made.unpersist()
        self.plan = replace(self.plan, whole=False)
        return super()._followed

    @cached_property
    def _told(self) -> Notes:
        followed = self._followed
        return self._notes if self.plan.whole else notes_of(followed)

    def __getitem__(self, name: str) -> DataFrame:
        self._told  # noqa: B018
        return super().__getitem__(name)

    def _noted(self, kind: str, default: Any) -> Any:
        """The value of this kind that the task has noted; the default where it noted none, or where tasks for each file
        did the work."""
        return next((pickle.loads(data) for name, data in self._told if name == kind), default)

    def _full(self, name: str) -> frozenset[str]:
        """See Dataset."""
        full: dict[str, set[str]] = self._noted(FULL, {})
        return frozenset(full.get(name, ()))

    def _single(self, name: str) -> Mapping[str, Any]:
        """See Dataset."""
        single: dict[str, dict[str, Any]] = self._noted(SINGLE, {})
        asked = self.plan.tables[name]
        found = {column: value for column, value in single.get(name, {}).items() if column in asked}
        if len(found) * ONE_IN < len(asked):
            return {}
        if len(found) == len(asked):
            del found[asked[0]]
        return found

    @cached_property
    def _found(self) -> tuple[Outcome, int]:
        """The outcome that the task has noted, and which reading counts."""
        found: tuple[Outcome, int] = self._noted(OUTCOME, None)
        return found

    @property
    def files(self) -> list[tuple[str, str, int, str]] | None:
        """The files that were written straight (`Straight.list_files`); None where nothing was."""
        found: list[tuple[str, str, int, str]] | None = self._noted(FILES, None)
        return found

    @cached_property
    def _outcome(self) -> Outcome:
        told = self._told
        if not self.plan.whole or not told:
            return super()._outcome
        outcome, _ = self._found
        if self._strict and outcome.errors:
            raise CaptureUnreadable(outcome.errors[0])
        return outcome

    @property
    def _decoded(self) -> DataFrame:
        """All staged rows that count."""
        followed = self._followed
        return followed.where(f"origin = {self._found[1]}") if self.plan.whole else super()._decoded

    @cached_property
    def _analysed(self) -> DataFrame:
        decoded = self._decoded
        return decoded if self.plan.whole else super()._analysed

    @property
    def _exchanges(self) -> DataFrame:
        decoded = self._decoded
        return decoded.where("table = 'exchanges'") if self.plan.whole else super()._exchanges

    @cached_property
    def _committed(self) -> DataFrame:
        decoded = self._decoded
        return decoded.where(f"table = '{COMMITS}'") if self.plan.whole else super()._committed

    @cached_property
    def _evidence(self) -> DataFrame:
        decoded = self._decoded
        if not self.plan.whole:
            return super()._evidence
        rows = decoded.where(decoded["table"].startswith(analysing.EVIDENCE))
        for name, sift in ((COMMITS, analysing.sift), (SENT, analysing.sift_sent)):
            made = partial(sift, plan=self.plan, names=self.names)
            rows = rows.unionByName(decoded.where(f"table = '{name}'").mapInArrow(made, spark_schema(STAGED)))
        return rows

    def _summed(self, name: str) -> DataFrame:
        decoded = self._decoded
        if not self.plan.whole:
            return super()._summed(name)
        make = partial(analysing.sum_up, name=name, plan=self.plan, names=self.names)
        rows = decoded.where(decoded["table"].isin(list(analysing.SUMMED[name]))).repartition(1)
        return rows.mapInArrow(make, spark_schema(self._schema(name)))

    def staged_together(self, names: Collection[str]) -> list[DataFrame]:
        """See Dataset."""
        decoded = self._decoded
        if not self.plan.whole:
            return super().staged_together(names)
        there = sorted(name for name in names if self._has(name))
        return [decoded.where(decoded["table"].isin(there))] if there else []

    def unpersist(self) -> None:
        """See Dataset."""
        super().unpersist()
        self.__dict__.pop("_found", None)


def _read(batches: Iterable[pa.RecordBatch], plan: Plan, straight: Straight | None) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield from settled("whole", read_whole(plan, straight))
