"""Tables that are made by topic and partition (`BY_TOPIC`), whichever brokers and connections their rows come from.

First every lot's rows are dealt out by the partition that they are about, with the exchanges that they belong to.
Members of groups, and clients that a quota muted, concern all partitions: their rows go to all tasks. Then each task
has everything about its partitions, and makes their rows as on one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby

import numpy as np
import pyarrow as pa

from kdissect.analysis.cluster_split import cluster_codes
from kdissect.analysis.deliveries.delivery_rows import DeliveryMaker
from kdissect.analysis.deliveries.traced_rows import traced
from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.topic_traffic import topic_traffic
from kdissect.arrays.arrow import Int64s, reals
from kdissect.arrays.dictionaries import join_tables
from kdissect.engine.extracts.delivery_shares import Shares
from kdissect.spark.cells import dealt_rows
from kdissect.spark.cells.aligned_rows import ALIGNED, BY_TOPIC
from kdissect.spark.cells.dealt_rows import share_of_partition, split_by_share
from kdissect.spark.cells.table_cells import Cell, cell, cells_of, read_cell, rows
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names
from kdissect.tables.builder import conform_to_schema
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import CLUSTER
from kdissect.tables.order import order_parts
from kdissect.tables.recording import resolve_sent

BY_PARTITION = ("record_batches", "fetch_partitions", "produce_partitions", "records")
"""Tables whose rows are about a partition each."""
BY_EXCHANGE = ("exchanges", "fetches", "produces")
"""Tables with a row for each exchange at most."""
MEMBER = (CLUSTER.name, "group_id", "client_id", "member_id")
"""What a row of `groups` tells, besides when."""
Lot = Mapping[str, pa.Table]
"""All rows of some exchanges, and what concerns all partitions."""


def deal(batches: Iterable[pa.RecordBatch], name: str, plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Aligned rows, and those of `connections`, in order of (origin, lot) to staged rows for a table in BY_TOPIC: `lot`
    is the label of the task that has their partitions, and rows of one exchange have the same text as `broker`."""
    builder, dealt = names.builder(plan), _Dealt(plan.labels)
    for key, cells in groupby(cells_of(batches), lambda one: (one.origin, one.lot)):
        parts: dict[str, list[pa.Table]] = {}
        for one in cells:
            of, table = one.table.removeprefix(ALIGNED), read_cell(one.data)
            if of in BY_TOPIC[name]:
                parts.setdefault(of, []).append(table)
        if dealt.size >= dealt_rows.KEPT_ROWS:
            yield from dealt.drain()
        tables = {of: names.resolved(builder, of, join_tables(pieces)) for of, pieces in parts.items()}
        dealt.add_rows(tables, "{}:{}".format(*key))
    yield from dealt.drain()


def deal_sent(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows of SENT to such rows, dealt out as those of `deal`."""
    dealt = dealt_rows.Dealt(plan.labels)
    for one in cells_of(batches):
        table = resolve_sent(read_cell(one.data), names.topics)
        yield from dealt.add_rows(one.table, table, share_of_partition(table, len(plan.labels)))
    yield from dealt.drain()


def make(batches: Iterable[pa.RecordBatch], name: str, plan: Plan) -> Iterator[pa.RecordBatch]:
    """All rows that `deal` made about some partitions, in order of `broker`, to rows of the table."""
    lots = _lots(batches, name)
    for table in _deliveries(lots) if name == "deliveries" else _make_at_once(lots, name):
        yield from conform_to_schema(table, SCHEMAS[name].remove_metadata()).select(plan.tables[name]).to_batches()


class _Dealt:
    """Rows by the task that gets them. `labels`: see `Plan.labels`."""

    def __init__(self, labels: Sequence[int]) -> None:
        self._labels = labels
        self._kept: dict[tuple[int, str], list[pa.Table]] = {}
        self._groups: list[pa.Table] = []
        self._connections: list[pa.Table] = []
        self._called = ""
        self.size = 0
        """Rows that wait."""

    def add_rows(self, tables: Mapping[str, pa.Table], called: str) -> None:
        """Add all rows of some exchanges. `called`: a text that no other lot has."""
        self._called = self._called or called
        if "groups" in tables:
            self._groups.append(tables["groups"])
        if "connections" in tables:
            self._connections.append(_select_named(tables["connections"]))
        if "exchanges" not in tables:
            return
        count, exchanges = len(self._labels), tables["exchanges"]
        keys = keys_of(exchanges)
        everywhere = np.zeros(0, np.int64)
        if "throttle_ms" in exchanges.column_names:  # the client is muted, whatever it asks about
            everywhere = np.flatnonzero(np.nan_to_num(reals(exchanges, "throttle_ms")) > 0)
        wanted = [np.repeat(everywhere, count) * count + np.tile(np.arange(count), len(everywhere))]
        for name in BY_PARTITION:
            if name in tables:
                share, of = share_of_partition(tables[name], count), locate(keys_of(tables[name]), keys)
                wanted.append((of * count + share)[of >= 0])
                self._keep_rows(name, tables[name], np.arange(len(share)), share)
        of, share = np.divmod(np.unique(np.concatenate(wanted)), count)
        for name in BY_EXCHANGE:
            if name in tables:
                at = of if name == "exchanges" else locate((keys[0][of], keys[1][of]), keys_of(tables[name]))
                self._keep_rows(name, tables[name], at[at >= 0], share[at >= 0])

    def _keep_rows(self, name: str, table: pa.Table, row: Int64s, share: Int64s) -> None:
        """Keep rows of a table, each for the task in `share`."""
        for one, piece in split_by_share(table, row, share):
            self._kept.setdefault((one, name), []).append(piece)
        self.size += len(row)

    def drain(self) -> Iterator[pa.RecordBatch]:
        """The staged rows that still wait."""
        kept, self._kept, self.size = self._kept, {}, 0
        called, self._called = self._called, ""
        for (share, name), tables in kept.items():
            yield rows([Cell(name, called, cell(join_tables(tables)), lot=self._labels[share])])
        for name, told in (("groups", self._groups), ("connections", self._connections)):
            if told:
                table = join_tables(told)
                data = cell(_stays(table) if name == "groups" else table)
                yield rows([Cell(name, called, data, lot=label) for label in self._labels])
        self._groups, self._connections = [], []


def _select_named(connections: pa.Table) -> pa.Table:
    """The connections with a known group, and one of each cluster: some clusters are named by connections alone."""
    kept = np.asarray(connections["group_id"].is_valid())
    if CLUSTER.name in connections.column_names:
        kept = kept.copy()
        kept[np.unique(cluster_codes(connections)[0], return_index=True)[1]] = True
    read = [one for one in ("connection_id", "group_id", CLUSTER.name) if one in connections.column_names]
    return connections.select(read).filter(pa.array(kept))


def _stays(events: pa.Table) -> pa.Table:
    """The first and the last row about each member of a group: `at`, MEMBER."""
    plain = pa.table({name: events[name].cast(pa.string()) for name in MEMBER} | {"at": events["at"]})
    found = plain.group_by(list(MEMBER), use_threads=False).aggregate([("at", "min"), ("at", "max")])
    ends = [found.select([*MEMBER, end]).rename_columns([*MEMBER, "at"]) for end in ("at_min", "at_max")]
    return pa.concat_tables(ends)


def _lots(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[Lot]:
    """The rows that were dealt out, lot by lot."""
    none = {one: SCHEMAS[one].empty_table() for one in BY_TOPIC[name]}
    for _, cells in groupby(cells_of(batches), lambda one: one.broker):
        yield none | {one.table: read_cell(one.data) for one in cells}


def _deliveries(lots: Iterable[Lot]) -> Iterator[pa.Table]:
    """`deliveries` of some partitions, in memory that does not grow with them."""
    maker = DeliveryMaker()
    with ExitStack() as open_files:
        shares = Shares(maker.reader.names, open_files, None)
        for lot in lots:
            shares.add(maker.read_tables(lot))
            maker.groups.take_connections(lot["connections"])
        for share in shares.join_shares():
            yield maker.deliveries(share)


def _make_at_once(lots: Iterable[Lot], name: str) -> Iterator[pa.Table]:
    """Another table, of all rows about some partitions together."""
    parts: dict[str, list[pa.Table]] = {}
    for lot in lots:
        for one, table in lot.items():
            if table.num_rows:
                parts.setdefault(one, []).append(table)
    tables = order_parts(parts, BY_TOPIC[name])
    yield topic_traffic(tables) if name == "topic_traffic" else traced(tables)
