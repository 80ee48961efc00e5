"""Puts together on the driver what every partition has learned, and resolves names in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kdissect.arrays.typed_values import loaded
from kdissect.engine.analysed_run import analysed
from kdissect.engine.passes.measures import measures
from kdissect.kafka.completed import Quality
from kdissect.kafka.streams.ledger import Ledger
from kdissect.net.scanner import Scanner
from kdissect.problems import CaptureNotFound, Kind
from kdissect.spark.cells.table_cells import cells_of, join_cells
from kdissect.spark.stages.decoding import LEARNED, Learned, with_groups, with_problems
from kdissect.spark.stages.found_holds import FOUND, Found
from kdissect.spark.stages.indexing import FILE, FileFacts
from kdissect.spark.stages.matching.matching_steps import sights_of
from kdissect.spark.stages.owners import OWNERS, Owned
from kdissect.spark.stages.plan import Plan
from kdissect.tables.brokers import Brokers
from kdissect.tables.builder import TableBuilder
from kdissect.tables.host_names import HostNames
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.leaders import Leaders
from kdissect.tables.topics import Topics
from kdissect.tables.versions import Offered


@dataclass(frozen=True, slots=True)
class Names:
    """The names and facts that resolve the rows of any partition: small, and sent to every task."""

    columns: Mapping[str, list[str]]
    brokers: Brokers
    topics: Topics
    groups: dict[tuple[str, str, str], set[str]]
    offered: Offered
    leaders: Leaders
    problems: dict[str, int]

    def builder(self, plan: Plan) -> TableBuilder:
        """A builder that knows these names."""
        nobody = Ledger([source.name for source in plan.sources], [[] for _ in plan.sources]).connections
        made = TableBuilder(nobody, self.columns)
        made.brokers, made.topics = self.brokers, self.topics
        made.hosts = HostNames(plan.settings.hosts)
        made.offered, made.leaders = self.offered, self.leaders
        return made

    def analysed_brokers(self) -> dict[str, str]:
        """Unresolved broker -> its name behind its cluster, which `split_broker` takes apart: analysed alone."""
        clusters = self.brokers.cluster_of()
        return {
            address: f"{clusters.get(address, '')}{SEPARATOR}{name}" for address, name in self.brokers.names().items()
        }

    def resolved(self, builder: TableBuilder, name: str, table: pa.Table) -> pa.Table:
        """Rows of a table with everything that only the whole job knows."""
        table = builder.resolve(name, table)
        if name != "connections":
            return table
        return with_problems(with_groups(table, self.groups), self.problems)


def split_broker(analysed_broker: str) -> tuple[str | None, str]:
    """Cluster and name of a broker, as `Names.analysed_brokers` puts them together."""
    cluster, _, name = analysed_broker.partition(SEPARATOR)
    return cluster or None, name


@dataclass(frozen=True, slots=True)
class Outcome:
    """The driver's knowledge after decoding."""

    names: Names
    tables: Mapping[str, pa.Table]
    """The small tables, whole; of `problems`, the rows about captures themselves."""
    errors: list[str]
    """Files that could not be read, or not to their end, a line each."""
    weights: Mapping[str, int]
    """Unresolved broker -> rows that the analysis has of it."""


READ: Mapping[str, Any] = {FILE: FileFacts, OWNERS: Owned, LEARNED: Learned}
"""Staged rows for the driver that many parts of it read, and of which type each is."""


def read_notes(notes: Iterable[tuple[str, bytes]]) -> list[tuple[str, Any]]:
    """The values in staged rows for the driver, as (table, value), of those in READ."""
    return [(name, loaded(data, READ[name])) for name, data in notes if name in READ]


def put_together(plan: Plan, notes: Iterable[tuple[str, Any]]) -> Outcome:
    """`notes`: as `read_notes` gives them; what was learned is put together in the first value that tells it. Raises
    CaptureNotFound where executors had no file."""
    learned: Learned | None = None
    facts: list[FileFacts] = []
    for name, more in notes:
        if name == FILE:
            facts.append(more)
        elif name != LEARNED:
            continue
        elif learned is None:
            learned = more
        else:
            learned.merge(more)
    if facts and all(one.absent for one in facts):
        raise CaptureNotFound(f"Spark's executors have none of the captures. {facts[0].error}")
    captures = [source.without_files() for source in plan.sources]
    _, books = analysed(captures, plan.tables, plan.settings)
    builder = books.builder
    builder.sights = sights_of([], plan) or builder.sights
    if learned is not None:
        builder.brokers, builder.topics = learned.brokers, learned.topics
        builder.offered, builder.leaders = learned.offered, learned.leaders
    counted: dict[tuple[str, str], float] = {}
    for row in () if learned is None else learned.quality:
        key = (row.capture, row.measure)
        counted[key] = counted.get(key, 0.0) + (row.value or 0.0)
    facts.sort(key=lambda one: (one.capture, one.file))
    errors = []
    by_capture: dict[int, list[FileFacts]] = {}
    for one in facts:
        by_capture.setdefault(one.capture, []).append(one)
    for number, capture in enumerate(captures):
        scanner = Scanner(capture)
        for place, why in plan.sources[number].left_out:
            errors.append(why)
            capture.add_problem(0, 0, 0, place, why)
        for one in by_capture.get(number, ()):
            capture.reports[one.file] = one.report
            scanner.add(one.tally, one.file)
            if one.error is not None:
                errors.append(one.error)
                capture.add_problem(one.file, 0, 0, one.report.name, one.error)
            elif one.report.cut:
                errors.append(f"{one.report.name}: the file ends inside a packet.")
            for problem in one.problems:
                capture.add_problem(
                    one.file, problem.packet, problem.at, problem.where, problem.detail, problem.bytes, problem.kind
                )
            capture.lose_problems(one.lost_problems)
        scanner.finish()
        books.capture_problems(number, capture)
        books.quality += _added(measures(number, capture, scanner, books.ledger), counted)
    for name, why in plan.refused:
        errors.append(why)
        books.ledger.note(Kind.CAPTURE, name, why)
    names = Names(
        builder.columns,
        builder.brokers,
        builder.topics,
        {} if learned is None else learned.groups,
        builder.offered,
        builder.leaders,
        {} if learned is None else learned.problems,
    )
    return Outcome(names, books.finish(), errors, {} if learned is None else learned.weights)


def resolved_rows(
    batches: Iterable[pa.RecordBatch], name: str, plan: Plan, names: Names, constants: Mapping[str, Any] | None = None
) -> Iterator[pa.Table]:
    """Staged rows of one table with everything that only the whole job knows; helper columns stand among theirs. Of
    `exchanges` what was found out about them comes first (FOUND). `constants`: see `read_cell`."""
    builder, found = names.builder(plan), Found()
    for kind, table in join_cells(cells_of(batches), constants, first=(FOUND,)):
        if plan.whole:
            yield table
        elif kind == FOUND:
            found.add_rows(table)
        else:
            table = names.resolved(builder, name, table)
            yield found.filled(table) if name == "exchanges" else table


def _added(rows: Iterable[Quality], counted: Mapping[tuple[str, str], float]) -> Iterable[Quality]:
    """Measures of a capture, those about its connections as the partitions counted them."""
    for row in rows:
        value = counted.get((row.capture, row.measure)) if row.file is None else None
        yield row if value is None else Quality(row.capture, row.file, row.measure, value, row.text)
