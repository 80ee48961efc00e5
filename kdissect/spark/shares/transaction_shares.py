"""`transactions`: everything about a producer's transactions comes to one task, whichever brokers it spoke with.

Requests name a transactional id, a producer id or both; one belongs to several of the other where a producer got new
ids. Ids that belong together are one share (`join_producers`), known by one text. Of exchanges a share has those of its
rows, and the latest ones of all: a transaction that nothing ended was open until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import cluster_codes
from kdissect.analysis.deliveries.transaction_rows import transactions
from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import Int64s, ints, times
from kdissect.arrays.dictionaries import join_tables
from kdissect.spark.cells.aligned_rows import ALIGNED
from kdissect.spark.cells.dealt_rows import Dealt, share_of_text
from kdissect.spark.cells.table_cells import Cell, by_table, cell, cells_of, read_cell, rows
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names
from kdissect.tables.builder import conform_to_schema
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import TRANSACTIONS
from kdissect.tables.order import order_parts

PAIRS = pa.schema([("producer", pa.int64()), ("id", pa.string())])
"""Producer ids and transactional ids that stand in one request."""


def pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Aligned rows, in order of (origin, lot), to one staged row with the distinct PAIRS in them."""
    found = [PAIRS.empty_table()]
    for lot in _lots(batches):
        found += [_distinct_pairs(table) for table in lot.values() if "producer_id" in table.column_names]
    yield rows([Cell("pairs", "", cell(_distinct(pa.concat_tables(found))))])


def join_producers(cells: Iterable[bytes]) -> dict[str, str]:
    """Producer ids, as texts, and transactional ids, behind an `=`, to the text of the share that they belong to.
    `cells`: what `pairs` gives."""
    roots: dict[str, str] = {}

    def root(text: str) -> str:
        while (above := roots.get(text, text)) != text:
            text = above
        return text

    for data in cells:
        for producer, named in zip(*(column.to_pylist() for column in read_cell(data).columns), strict=True):
            one, other = sorted((root(str(producer)), root(f"={named}")))
            roots.setdefault(one, one)
            roots[other] = one
    return {text: root(text) for text in roots}


def deal(
    batches: Iterable[pa.RecordBatch], plan: Plan, names: Names, roots: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Aligned rows, in order of (origin, lot), to staged rows dealt out by share. `roots`: see `join_producers`."""
    builder, dealt, count = names.builder(plan), Dealt(plan.labels), len(plan.labels)
    latest: list[pa.Table] = []
    for lot in _lots(batches):
        tables = {name: names.resolved(builder, name, table) for name, table in lot.items()}
        exchanges = tables.get("exchanges")
        if exchanges is None:
            continue
        latest = [_latest(pa.concat_tables([*latest, exchanges], promote_options="permissive"))]
        wanted = [np.zeros(0, np.int64)]
        for name in ("transaction_steps", "producer_ids", "record_batches"):
            if name not in tables:
                continue
            share = share_of_text(pa.table({"root": _roots(tables[name], roots)}), "root", count)
            yield from dealt.add_rows(name, tables[name], share)
            of = locate(keys_of(tables[name]), keys_of(exchanges))
            wanted.append((of * count + share)[of >= 0])
        of, share = np.divmod(np.unique(np.concatenate(wanted)), count)
        yield from dealt.add_rows("exchanges", exchanges.take(pa.array(of)), share)
        if "produces" in tables:
            at = locate(keys_of(exchanges.take(pa.array(of))), keys_of(tables["produces"]))
            yield from dealt.add_rows("produces", tables["produces"].take(pa.array(at[at >= 0])), share[at >= 0])
    for table in latest:
        for share_of_all in range(count):
            yield from dealt.add_rows("exchanges", table, np.full(table.num_rows, share_of_all))
    yield from dealt.drain()


def make(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """All that `deal` gives of some shares to rows of `transactions`."""
    parts = by_table(cells_of(batches))
    tables = order_parts(parts, TRANSACTIONS.tables)
    made = conform_to_schema(transactions(tables), SCHEMAS["transactions"].remove_metadata())
    yield from made.select(plan.tables["transactions"]).to_batches()


def _lots(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, pa.Table]]:
    """Rows of the tables that transactions are made of, lot by lot; batches are those within transactions."""
    for _, cells in groupby(cells_of(batches), lambda one: (one.origin, one.lot)):
        parts: dict[str, list[pa.Table]] = {}
        for one in cells:
            name = one.table.removeprefix(ALIGNED)
            if name in TRANSACTIONS.tables:
                parts.setdefault(name, []).append(read_cell(one.data))
        lot = {name: join_tables(pieces) for name, pieces in parts.items()}
        carried = lot.pop("record_batches", None)
        if carried is not None and "produces" in lot:  # those that readers were given tell nothing
            table = carried.filter(pa.array(ints(carried, "is_transactional", 0) == 1))
            sender = locate(keys_of(table), keys_of(lot["produces"]))
            named = lot["produces"]["transactional_id"].cast(pa.string()).take(pa.array(sender, mask=sender < 0))
            lot["record_batches"] = table.append_column("transactional_id", named).filter(pa.array(sender >= 0))
        yield lot


def _distinct_pairs(table: pa.Table) -> pa.Table:
    """PAIRS of rows with both ids."""
    made = [ints(table, "producer_id"), table["transactional_id"].cast(pa.string())]
    found = pa.table([pa.array(made[0]), made[1]], schema=PAIRS)
    return _distinct(found.filter(pc.and_(pc.greater_equal(found["producer"], 0), pc.is_valid(found["id"]))))


def _distinct(table: pa.Table) -> pa.Table:
    return table.group_by(PAIRS.names, use_threads=False).aggregate([]).select(PAIRS.names)


def _roots(table: pa.Table, roots: Mapping[str, str]) -> pa.Array:
    """The text of each row's share: that of its transactional id, else of its producer id."""
    named = pc.binary_join_element_wise("=", table["transactional_id"].cast(pa.string()), "")
    texts = pc.coalesce(named, pa.chunked_array([pa.array(ints(table, "producer_id")).cast(pa.string())]))
    codes = texts.combine_chunks().dictionary_encode()
    known = [roots.get(text, text) for text in codes.dictionary.to_pylist()]
    return pa.array(known, pa.string()).take(codes.indices)


def _latest(exchanges: pa.Table) -> pa.Table:
    """Of each cluster the exchange that began last, and the one that was answered last."""
    codes, _ = cluster_codes(exchanges)
    kept: list[Int64s] = []
    for name in ("request_first_at", "response_last_at"):
        ordered = np.lexsort((times(exchanges, name), codes))
        kept.append(ordered[np.append(codes[ordered][1:] != codes[ordered][:-1], True)])
    return exchanges.take(pa.array(np.unique(np.concatenate(kept))))
