"""Second stage: the rows of a partition's connections, in capture order, become unresolved rows of tables.

It is the engine's own run, over what came to the partition instead of files. Names for the whole job (of brokers,
topics, groups of clients) are collected from this partition's messages and sent to the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import keys_of
from kdissect.analysis.stage import HIDDEN, Stage
from kdissect.engine import pipeline
from kdissect.engine.analysed_run import analysed
from kdissect.engine.books import Books
from kdissect.engine.inputs import Packets, Segments
from kdissect.engine.run import Run
from kdissect.kafka.completed import Quality
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Harvest
from kdissect.spark.cells.aligned_rows import FROM_ALIGNED, AlignedRows
from kdissect.spark.cells.table_cells import Cell, Pieces, Stash, cell, kept_note, rows
from kdissect.spark.stages.giant_connections import UNIT, Departures, rows_of_units
from kdissect.spark.stages.indexing import FILE
from kdissect.spark.stages.lots import FEW, Lots
from kdissect.spark.stages.matching.matching_steps import with_sights
from kdissect.spark.stages.owners import OWNERS, Owned, owned
from kdissect.spark.stages.partition_capture import Gathered, IndexRow, readings, rows_of_index
from kdissect.spark.stages.plan import Plan
from kdissect.tables.brokers import Brokers
from kdissect.tables.coded_rows import PRODUCE_COLUMNS
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import ACKS_KEY, EXCHANGE_KEYS, By
from kdissect.tables.identity import connection_ids, dictionary
from kdissect.tables.leaders import Leaders
from kdissect.tables.table_block import READ_ASIDE
from kdissect.tables.topics import Topics
from kdissect.tables.versions import Offered

Words = npt.NDArray[np.int64]

OWN_GROUP = "_own_group"
"""Helper column of `connections`: whether the connection's own requests named groups."""
CONNECTION_ROWS = 1 << 16
NOTHING = rows([])
READ_LATER = ("exchanges", "findings", "offset_commits", "time_budget", "time_ledger")
"""Tables that are made out of whole rows of `exchanges`."""
LEARNED = "_learned"
"""Staged rows with a `Learned`, for the driver."""
UNITS = "_units"
"""Staged rows with the number of units that a task sent."""
THERE = "_there"
"""Staged rows with the names of tables that a task has staged rows of."""
SENT = "sent"
"""Staged rows of what producers with an id sent: a producer's connections may be in several partitions."""


@dataclass(slots=True)
class Learned:
    """Facts about the whole job from one partition's messages."""

    brokers: Brokers
    topics: Topics
    offered: Offered
    leaders: Leaders
    groups: dict[tuple[str, str, str], set[str]]
    """(capture, client address, client id) -> groups named from there."""
    quality: list[Quality]
    """Measures of connections, by capture: to be added up."""
    problems: dict[str, int]
    """Connection id -> problems found in its units, which its row does not count yet."""
    weights: dict[str, int]
    """Unresolved broker -> rows that the analysis has of it."""

    def merge(self, other: Learned) -> None:
        """Add what another partition has learned."""
        self.brokers.merge(other.brokers)
        self.topics.merge(other.topics)
        self.offered.merge(other.offered)
        self.leaders.merge(other.leaders)
        for key, groups in other.groups.items():
            self.groups.setdefault(key, set()).update(groups)
        self.quality += other.quality
        for connection, count in other.problems.items():
            self.problems[connection] = self.problems.get(connection, 0) + count
        for broker, count in other.weights.items():
            self.weights[broker] = self.weights.get(broker, 0) + count


class PartitionInputs:
    """The captures that index rows in order of (capture, file, chunk) belong to: what a run reads."""

    def __init__(self, plan: Plan, books: Books) -> None:
        self.plan = plan
        self.departures = Departures(plan, books.ledger, books.builder.sights)
        self.index: Iterator[IndexRow] = iter(())
        self._books = books

    def readings(self) -> Iterator[tuple[int, Packets, Segments]]:
        """The captures that have rows here, one after the other."""
        yield from readings(self.plan.sources, self.index)

    @contextmanager
    def completing(self, harvest: Harvest, completion: Completion) -> Iterator[None]:
        """Take out the exchanges that leave as units; the names of their clients stay here."""
        assert isinstance(completion.reader, Gathered)
        connection, n, client = self.departures.take_giants(harvest, completion, completion.reader)
        yield
        builder = self._books.builder
        if "connections" in builder.columns and len(n):
            named = client >= 0
            ids = dictionary(client[named], completion.dissector.client_ids)
            size = len(self._books.ledger.connections)
            builder.clients.client_id.note(connection[named], n[named], ids, size)


def decode(batches: Iterable[pa.RecordBatch], plan: Plan, origin: int = 0) -> Iterator[pa.RecordBatch]:
    """Index rows of one partition, in order, to staged rows, units of giant connections among them."""
    plan, batches = with_sights(batches, plan)
    yield from _note_tables(Following(plan, origin).follow(batches))


def decode_units(batches: Iterable[pa.RecordBatch], plan: Plan, origin: int = 0) -> Iterator[pa.RecordBatch]:
    """Units to staged rows."""
    made = Decoding(plan, whole=False, origin=origin)
    units = (data for batch in batches for data in batch.column("data").to_pylist())
    yield from _note_tables(chain(made.staged(rows_of_units(made.books, plan, units)), made.end()))


def _note_tables(staged: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Staged rows, and at the end the names of the tables that had some."""
    found: set[str] = set()
    for batch in staged:
        found.update(batch.column("table").to_pylist())
        yield batch
    yield rows([kept_note(THERE, found, frozenset[str])])


class Decoding:
    """Decodes one partition to staged rows. `whole`: whether connections are whole here."""

    def __init__(self, plan: Plan, whole: bool, origin: int = 0) -> None:
        self.plan = plan
        self.whole = whole
        self._origin = origin
        _, self.books = analysed([source.without_files() for source in plan.sources], plan.decoded, plan.settings)
        by_broker = stage_by_broker(plan.decoded)
        self._coded = coded_tables(plan.tables)
        if self._coded:
            self.books.builder.coded = HIDDEN
            self.books.wishes.aside = True
        self.by_broker = split_tables(by_broker)
        read = frozenset(by_broker.tables.get("exchanges", ())) | frozenset(EXCHANGE_KEYS)
        self._read_of_exchanges = read | {ACKS_KEY} | (frozenset(PRODUCE_COLUMNS) if self._coded else frozenset())
        self._rows_of_exchanges = not plan.tables.keys().isdisjoint(READ_LATER)
        self._rows_by_table = not plan.tables.keys() <= FROM_ALIGNED.keys()
        self._lots = Lots(self._brokers, len(plan.labels), origin)

    def staged(self, parts: Iterable[pipeline.RunPart]) -> Iterator[pa.RecordBatch]:
        """Rows of the tables that come part by part; empty batches where parts are empty."""
        pieces = Pieces(self.plan.pieces) if self.plan.pieces else None
        with nullcontext() if pieces is None else pieces:
            yield from self._staged(parts, Stash(self._origin, pieces))
            if pieces is not None:
                pieces.wait()

    def _staged(self, parts: Iterable[pipeline.RunPart], stash: Stash) -> Iterator[pa.RecordBatch]:
        lots, aligned = self._lots, AlignedRows(self.plan.tables, self._origin)
        for part in parts:
            yield from aligned.take(part.tables)
            mine = {message_name(*kind): batch for kind, batch in part.beside.items()}
            coded: dict[str, Any] = {}
            aside: Any = None
            for name, batch in part.tables.items():
                if name == READ_ASIDE:
                    aside = batch
                elif name in self._coded:
                    coded[name] = batch
                elif name == "exchanges" and FEW in self.by_broker:
                    mine[name] = batch.select([one for one in batch.schema.names if one in self._read_of_exchanges])
                    if self._rows_of_exchanges:
                        yield from stash.put(name, batch.select(_without_acks(batch)))
                elif name in self.by_broker:
                    mine[name] = batch
                elif self._rows_by_table:
                    yield from stash.put(name, batch)
            yield from lots.take(mine, coded, aside)
            if not part.tables:
                yield NOTHING
        yield from stash.rest()
        yield from lots.rest()
        yield from aligned.rest()

    def _brokers(self, table: pa.Table) -> tuple[Words, list[str]]:
        connections = self.books.ledger.connections
        ids = connections.id.astype(np.int64)
        order = np.argsort(ids)
        owner = order[np.searchsorted(ids, keys_of(table)[0], sorter=order)]
        directory = self.books.builder.directory
        return directory.broker_codes(owner).astype(np.int64), directory.brokers.texts

    def end(self) -> Iterator[pa.RecordBatch]:
        """The tables that are made at the end, and what was learned."""
        books, builder = self.books, self.books.builder
        for name, table in builder.at_the_end(books.ledger.problems(), books.quality).items():
            if TABLES[name].made in (By.LEARNED, By.SENT) or (name == "connections" and not self.whole):
                continue
            if name == "connections" and "group_id" in table.column_names:
                table = self._with_own_groups(table)
            for begin in range(0, table.num_rows, CONNECTION_ROWS):
                yield rows([Cell(name, "", cell(table.slice(begin, CONNECTION_ROWS)))])
        sent = builder.sent()
        if sent is not None:
            for begin in range(0, sent.num_rows, CONNECTION_ROWS):
                yield rows([Cell(SENT, "", cell(sent.slice(begin, CONNECTION_ROWS)))])
        yield rows([kept_note(LEARNED, self.learned(books.quality), Learned)])
        if self.plan.placed and self.whole:
            yield rows([kept_note(OWNERS, owned(builder.directory), Owned)])

    def learned(self, quality: list[Quality]) -> Learned:
        """The facts from the messages so far."""
        builder, connections = self.books.builder, self.books.ledger.connections
        directory = builder.directory
        groups = {
            (connections.captures[capture], directory.ips.texts[address], client): found
            for (capture, address, client), found in builder.clients.shared.items()
        }
        counted: dict[str, int] = {}
        if not self.whole:
            with_problems = np.flatnonzero(connections.problems)
            ids = connection_ids(connections.id[with_problems]).to_pylist()
            for name, count in zip(ids, connections.problems[with_problems].tolist(), strict=True):
                counted[name] = counted.get(name, 0) + count
        return Learned(
            builder.brokers,
            builder.topics,
            builder.offered,
            builder.leaders,
            groups,
            quality,
            counted,
            dict(self._lots.weights),
        )

    def _with_own_groups(self, table: pa.Table) -> pa.Table:
        own = self.books.builder.clients.connections_with_groups()
        ids = connection_ids(self.books.ledger.connections.id[own])
        return table.append_column(OWN_GROUP, pc.is_in(table["connection_id"], ids))


class Following(Decoding):
    """Decodes one partition and follows its connections."""

    def __init__(self, plan: Plan, origin: int = 0) -> None:
        super().__init__(plan, whole=True, origin=origin)
        self.inputs = PartitionInputs(plan, self.books)

    def follow(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Index rows, in order, to staged rows, units among them."""
        facts: list[bytes] = []
        self.inputs.index = rows_of_index(batches, facts)
        departures = self.inputs.departures
        sent = 0
        for batch in self.staged(self._parts()):
            yield batch
            for packed in departures.ready():
                yield rows([Cell(UNIT, str(sent), packed)])
                sent += 1
        for packed in departures.ready(last=True):
            yield rows([Cell(UNIT, str(sent), packed)])
            sent += 1
        yield from self.end()
        yield rows([*(Cell(FILE, "", found) for found in facts), *([kept_note(UNITS, sent, int)] if sent else [])])

    def _parts(self) -> Iterator[pipeline.RunPart]:
        """Rows part by part, with empty ones in between: exchanges may have left."""
        for done in Run(self.books, self.inputs).completed():
            yield from self.books.rows_of(done)
            yield pipeline.RunPart({})


def _without_acks(batch: pa.RecordBatch) -> list[str]:
    """The columns of rows of exchanges but for what only rows of `produces` are made of."""
    return [name for name in batch.schema.names if name != ACKS_KEY]


def message_name(key: int, side: int) -> str:
    """How staged rows name the messages of an API's side."""
    return f"message {key} {side}"


def message_kind(name: str) -> tuple[int, int]:
    """API key and side of staged messages."""
    key, side = name.split()[1:]
    return int(key), int(side)


def stage_by_broker(tables: Mapping[str, Sequence[str]]) -> Stage:
    """The analysis that rows are cut for, broker by broker: what is made by topic does not come out of it."""
    return Stage({name: columns for name, columns in tables.items() if name not in FROM_ALIGNED})


def coded_tables(tables: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """The staged tables whose rows are `coded_cells.pack_rows`, for the analysis alone reads them: all that may be, or
    none."""
    return HIDDEN | {READ_ASIDE} if Stage(tables).only_holds else frozenset()


def split_tables(stage: Stage) -> frozenset[str]:
    """The staged tables that the analysis is fed with, broker by broker."""
    if stage.idle:
        return frozenset()
    tables = {FEW if name == "exchanges" else name for name in stage.fed if TABLES[name].made is By.BLOCK}
    return frozenset(tables | {READ_ASIDE} | {message_name(*kind) for kind in stage.messages})


def with_problems(table: pa.Table, problems: dict[str, int]) -> pa.Table:
    """`connections` with the problems that were found in their units."""
    if not problems or "problems" not in table.column_names:
        return table
    more = pa.array([problems.get(name, 0) for name in table["connection_id"].to_pylist()], pa.int64())
    at = table.schema.get_field_index("problems")
    field = table.schema.field(at)
    return table.set_column(at, field, pc.add(table["problems"].cast(pa.int64()), more).cast(field.type))


GROUPED = ("group_id", "capture", "client_ip", "client_id")
"""The columns of `connections` that `with_groups` reads."""


def with_groups(table: pa.Table, groups: dict[tuple[str, str, str], set[str]]) -> pa.Table:
    """`connections` with the groups that other connections of the same client named, where its own named none."""
    if OWN_GROUP not in table.column_names:
        return table
    own = table[OWN_GROUP].to_pylist()
    found: list[str | None] = []
    for mine, group, *client in zip(own, *(table[name].to_pylist() for name in GROUPED), strict=True):
        others: Sequence[str] = () if mine or not client[2] else tuple(groups.get(tuple(client), ()))
        found.append(group if mine else others[0] if len(others) == 1 else None)
    at = table.schema.get_field_index("group_id")
    return table.set_column(at, "group_id", pa.array(found, SCHEMAS["connections"].field("group_id").type))
