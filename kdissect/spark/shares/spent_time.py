"""`time_budget` and `time_ledger`: time is divided broker by broker, and added up subject by subject.

How an exchange's time divides depends on other exchanges of its connection, and on whether its broker answered anybody.
So all rows of a broker come to one task, which divides their time into spans. Brokers and connections are done then.
Exchanges of client processes, groups and topics, which have several brokers, are dealt out with their spans once more,
by subject.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from kdissect.analysis.budget import SUBJECTS, sums
from kdissect.analysis.cluster_split import cluster_codes, split_by_cluster, with_cluster
from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.ledger.interval_sweep import Spans
from kdissect.analysis.ledger.subjects import Subjects
from kdissect.analysis.ledger.time_ledger import KINDS, Ledger
from kdissect.arrays.arrow import Int64s, ints, stretches
from kdissect.arrays.dictionaries import join_tables
from kdissect.spark.cells.dealt_rows import Dealt, share_of_text
from kdissect.spark.cells.table_cells import Cell, cell, cells_of, cut, read_cell, rows
from kdissect.spark.stages.analysing import SUMMED
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names
from kdissect.tables.builder import conform_to_schema
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import EXCHANGE_KEYS
from kdissect.tables.declaration.readers import BUDGET_TOPICS
from kdissect.tables.order import order_parts, sort_columns

BY = {"time_budget": SUBJECTS, "time_ledger": KINDS}
"""Tables about whose time was spent on what, and the kinds of their subjects."""
OF_ONE_BROKER = ("broker", "connection")
"""Kinds of subjects all of whose exchanges one broker has."""
CLUSTER_SEEN = "cluster seen"
"""Staged rows with a cluster, as `broker`, that some rows have: all tasks know of it."""
SPANS = "spans"
"""What spans of exchanges are called among the rows of a kind of subjects."""
NO_SPANS = pa.table({one: pa.array([], pa.int64()) for one in (*EXCHANGE_KEYS, *Spans._fields[1:])})
"""No spans of exchanges, in the columns that they have."""


def deal(batches: Iterable[pa.RecordBatch], name: str, plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows of the tables that `name` reads, dealt out by broker. Those without a broker are of that of their
    cell."""
    builder, dealt, count = names.builder(plan), Dealt(plan.labels), len(plan.labels)
    known, clusters = names.brokers.names(), set[str]()
    for one in cells_of(batches):
        table = names.resolved(builder, one.table, read_cell(one.data))
        codes, texts = cluster_codes(table)
        clusters.update(texts[code] for code in np.unique(codes[codes >= 0]))
        owned = table if "broker" in table.column_names else pa.table({"broker": [known.get(one.broker, one.broker)]})
        share = np.broadcast_to(share_of_text(owned, "broker", count), table.num_rows)
        read = {*SUMMED[name][one.table], *sort_columns(one.table), *EXCHANGE_KEYS}
        yield from dealt.add_rows(
            one.table, table.select([column for column in table.column_names if column in read]), share
        )
    yield from dealt.drain()
    for cluster in sorted(clusters):
        yield from dealt.to_all(CLUSTER_SEEN, cluster)


def divide(batches: Iterable[pa.RecordBatch], name: str, plan: Plan) -> Iterator[pa.RecordBatch]:
    """All that `deal` gives of some brokers to staged rows of `name`, and of exchanges and their spans dealt out by
    subject."""
    clusters, parts, label = set[str](), dict[str, list[pa.Table]](), 0
    for one in cells_of(batches):
        label = one.lot
        if one.table == CLUSTER_SEEN:
            clusters.add(one.broker)
        else:
            parts.setdefault(one.table, []).append(read_cell(one.data))
    tables = order_parts(parts, SUMMED[name])
    dealt = Dealt(plan.labels)
    # Rows without a cluster are of the only one that is known (`split_known_clusters`), which others' rows may tell.
    for cluster, part in split_by_cluster(tables) if len(clusters) > 1 else [(next(iter(clusters), None), tables)]:
        if not part["exchanges"].num_rows:
            continue
        part = {one: with_cluster(table.drop_columns(["cluster"]), cluster) for one, table in part.items()}
        ledger = Ledger(part)
        for kind in BY[name]:
            subjects = ledger.subjects(kind)
            if kind not in OF_ONE_BROKER:
                yield from _send(kind, ledger, subjects, dealt, len(plan.labels))
                continue
            made = with_cluster(_sum_or_ledger(name, kind, ledger, subjects), cluster)
            for begin, end in cut(made):
                yield rows([Cell(name, "", cell(made.slice(begin, end - begin)), lot=label)])
    yield from dealt.drain()


def gather(batches: Iterable[pa.RecordBatch], name: str, plan: Plan) -> Iterator[pa.RecordBatch]:
    """The rows that `divide` makes of some subjects, to rows of `name`."""
    schema, kinds = SCHEMAS[name].remove_metadata(), dict[str, dict[str, list[pa.Table]]]()

    def plain(table: pa.Table) -> Iterator[pa.RecordBatch]:
        return iter(conform_to_schema(table, schema).select(plan.tables[name]).to_batches())

    for one in cells_of(batches):
        if one.table == name:
            yield from plain(read_cell(one.data))
            continue
        kind, of = one.table.split()
        kinds.setdefault(kind, {}).setdefault(of, []).append(read_cell(one.data))
    for kind, parts in kinds.items():
        none = {one: SCHEMAS[one].empty_table() for one in SUMMED[name]} | {SPANS: NO_SPANS}
        for cluster, part in split_by_cluster(none | {one: join_tables(pieces) for one, pieces in parts.items()}):
            if not part["exchanges"].num_rows:
                continue
            spans = part[SPANS]
            row = locate(keys_of(spans), keys_of(part["exchanges"]))
            ledger = Ledger(part, Spans(row, *(ints(spans, column) for column in Spans._fields[1:])))
            yield from plain(with_cluster(_sum_or_ledger(name, kind, ledger, ledger.subjects(kind)), cluster))


def _sum_or_ledger(name: str, kind: str, ledger: Ledger, subjects: Subjects) -> pa.Table:
    return sums(kind, ledger, subjects) if name == "time_budget" else ledger.table(kind, subjects)


def _send(kind: str, ledger: Ledger, subjects: Subjects, dealt: Dealt, count: int) -> Iterator[pa.RecordBatch]:
    """The exchanges of these subjects with their spans and connections, and what tells topics, by subject."""
    called = [(address or "") + name for name, address in zip(subjects.names, subjects.addresses, strict=True)]
    share_of = share_of_text(pa.table({"subject": pa.array(called, pa.string())}), "subject", count)
    row, share = _pairs(subjects.row, share_of[subjects.subject], count)
    exchanges, connections = ledger.tables["exchanges"], ledger.tables["connections"]
    yield from dealt.add_rows(f"{kind} exchanges", exchanges.take(pa.array(row)), share)
    on, of = _pairs(ledger.rows.on[row], share, count)
    yield from dealt.add_rows(f"{kind} connections", connections.take(pa.array(on[on >= 0])), of[on >= 0])
    sorting = np.argsort(ledger.spans.row, kind="stable")
    spans = Spans(*(column[sorting] for column in ledger.spans))
    begin, end = (np.searchsorted(spans.row, row, side) for side in ("left", "right"))
    which, at = stretches(begin, end - begin)
    made = {one: pa.array(column[spans.row[at]]) for one, column in zip(EXCHANGE_KEYS, keys_of(exchanges), strict=True)}
    made |= {one: pa.array(getattr(spans, one)[at]) for one in Spans._fields[1:]}
    made["cluster"] = exchanges["cluster"].take(pa.array(spans.row[at]))
    yield from dealt.add_rows(f"{kind} {SPANS}", pa.table(made), share[which])
    for source in BUDGET_TOPICS.tables if kind == "topic" else ():
        table = ledger.tables[source]
        yield from dealt.add_rows(f"{kind} {source}", table, share_of_text(table, "topic", count))


def _pairs(values: Int64s, share: Int64s, count: int) -> Sequence[Int64s]:
    """The distinct pairs of two columns."""
    return np.divmod(np.unique(values * count + share), count)
